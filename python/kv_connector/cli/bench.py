"""The benchmark of the transfer engine, kvperf, out of the wheel's jar: two processes of one host, or of two."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

from kv_connector import _preflight
from kv_connector._java_variables import environment_of_java
from kv_connector.exceptions import PreflightError

MAIN = "io.kvmessenger.benchmarks.KvPerf"
INTERRUPTED = 130


def run(arguments: Sequence[str], complain: Callable[[str], object]) -> int:
    """Kvperf with its own arguments; returns its exit code, 1 where it cannot be started."""
    try:
        jar = _preflight.check_jar()
        java = _preflight.find_java("")
    except PreflightError as missing:
        complain(f"{missing}\n")
        return 1
    command = [str(java.launcher), "--enable-native-access=ALL-UNNAMED", "-cp", str(jar.path), MAIN, *arguments]
    try:
        return subprocess.run(command, env=environment_of_java(), check=False).returncode
    except KeyboardInterrupt:
        return INTERRUPTED
