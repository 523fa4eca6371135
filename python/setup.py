"""Refuses to build a wheel without the jar; everything else is in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

JAR = Path(__file__).parent / "kv_connector" / "_jar" / "kv-messenger.jar"


class BuildWithJar(build_py):
    """The usual build, with the jar as a condition; an editable install may do without until it boots."""

    def run(self) -> None:
        """Builds, or says what is missing."""
        if not self.editable_mode and not JAR.is_file():
            raise SetupError(
                "kv_connector/_jar/kv-messenger.jar is missing, and a wheel without it cannot work:"
                " build it first with make wheel, or with mvn -DskipTests package in the folder above"
            )
        super().run()


setup(cmdclass={"build_py": BuildWithJar})
