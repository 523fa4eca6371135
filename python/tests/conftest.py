from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kv_connector import PreflightError
from kv_connector.runtime import preflight

PYTHON_ROOT = Path(__file__).parent.parent
REPOSITORY = PYTHON_ROOT.parent
JAVA_TEST_CLASSES = REPOSITORY / "connector-java" / "connector" / "target" / "test-classes"
PROCESS_LIMIT_SECONDS = 900
"""So long that a machine with much other work to do does not reach it."""

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def java() -> preflight.JavaRuntime:
    try:
        return preflight.find_java("")
    except PreflightError as missing:
        pytest.skip(f"no JVM to boot: {missing}")


@pytest.fixture(scope="session")
def jar() -> preflight.Jar:
    try:
        return preflight.check_jar()
    except PreflightError as missing:
        pytest.skip(f"no jar to boot: {missing}")


@pytest.fixture(scope="session")
def simulated_jar(jar: preflight.Jar, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The messengers that Java's own tests simulate, packed; they need the rest of ``jar``."""
    assert jar.path.exists()
    classes = JAVA_TEST_CLASSES / "io" / "kvmessenger" / "connector" / "boot"
    if not classes.is_dir():
        pytest.skip("no simulated messengers: run mvn test-compile -pl connector-java/connector -am first")
    packed = tmp_path_factory.mktemp("simulated") / "simulated.jar"
    with zipfile.ZipFile(packed, "w") as archive:
        for file in sorted(classes.glob("*.class")):
            archive.write(file, file.relative_to(JAVA_TEST_CLASSES))
    return packed


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """For a process that sees this source tree, and none of the user's caches."""
    return os.environ | {
        "PYTHONPATH": f"{PYTHON_ROOT}{os.pathsep}{PYTHON_ROOT / 'tests'}",
        "KV_MESSENGER_CACHE": str(tmp_path / "cache"),
    }


@pytest.fixture
def run_python(tmp_path: Path, environment: dict[str, str]) -> RunPython:
    """Runs a script in a fresh process: a JVM can be started once in each, and never be stopped."""

    def run(script: str, *, succeeds: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=environment | more,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PROCESS_LIMIT_SECONDS,
            check=False,
        )
        if succeeds:
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def run_with_jvm(run_python: RunPython, simulated_jar: Path, java: preflight.JavaRuntime) -> RunPython:
    """The same, for scripts that import ``simulated_jvm``."""
    assert java.launcher.exists()

    def run(script: str, **more: object) -> subprocess.CompletedProcess[str]:
        return run_python(script, KV_TEST_SIMULATED_JAR=str(simulated_jar), **more)

    return run
