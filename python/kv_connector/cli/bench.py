"""Runs kvperf, the benchmark of the transfer engine, from the wheel's jar: two processes on one host or on two."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from kv_connector.exceptions import PreflightError
from kv_connector.runtime import preflight
from kv_connector.runtime.java_variables import environment_of_java

MAIN = "io.kvmessenger.benchmarks.KvPerf"


def run(arguments: Sequence[str], complain: Callable[[str], object]) -> int:
    """Replaces this process by kvperf with its own arguments; returns 1 if it cannot be started."""
    try:
        jar = preflight.check_jar()
        java = preflight.find_java("")
    except PreflightError as missing:
        complain(f"{missing}\n")
    else:
        become([str(java.launcher), "--enable-native-access=ALL-UNNAMED", "-cp", str(jar.path), MAIN, *arguments])
    return 1


def become(command: Sequence[str]) -> NoReturn:
    """Replaces this process: a child would go on listening on its port if its parent were killed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), environment_of_java())
