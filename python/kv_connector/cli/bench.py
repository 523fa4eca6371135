"""The benchmark of the transfer engine, kvperf, out of the wheel's jar: two processes of one host, or of two."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from kv_connector import _preflight
from kv_connector._java_variables import environment_of_java
from kv_connector.exceptions import PreflightError

MAIN = "io.kvmessenger.benchmarks.KvPerf"


def run(arguments: Sequence[str], complain: Callable[[str], object]) -> int:
    """Becomes kvperf with its own arguments; returns only where that cannot be started, 1."""
    try:
        jar = _preflight.check_jar()
        java = _preflight.find_java("")
    except PreflightError as missing:
        complain(f"{missing}\n")
    else:
        become([str(java.launcher), "--enable-native-access=ALL-UNNAMED", "-cp", str(jar.path), MAIN, *arguments])
    return 1


def become(command: Sequence[str]) -> NoReturn:
    """Replaces this process: a port on which a child listened would outlive a parent that is killed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), environment_of_java())
