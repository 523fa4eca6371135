"""The set-up takes a JDK and a Python that fit, and passes over those that do not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / "examples" / "setup"


def fake(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def find(finder: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SETUP / finder)], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_jdk_named_by_java_home_is_taken_when_it_fits(tmp_path: Path) -> None:
    fake(tmp_path / "bin" / "javac", "echo javac 26.0.1")
    assert find("find-jdk", JAVA_HOME=str(tmp_path)).stdout.strip() == str(tmp_path)


def test_old_jdk_is_passed_over(tmp_path: Path) -> None:
    fake(tmp_path / "bin" / "javac", "echo javac 21.0.2")
    found = find("find-jdk", JAVA_HOME=str(tmp_path))
    assert found.stdout.strip() != str(tmp_path)
    assert found.returncode == 0 or str(tmp_path) in found.stderr


def test_old_python_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "python"
    fake(old, "exit 1")
    found = find("find-python", PYTHON=str(old))
    assert found.returncode == 0
    assert found.stdout.strip() != str(old)


def test_missing_python_is_reported_in_a_sentence(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "bash").symlink_to("/bin/bash")
    found = subprocess.run(
        ["/bin/bash", str(SETUP / "find-python")], env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "Python 3.11 or newer" in found.stderr
