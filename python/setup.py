"""Refuses to build a wheel without the jar, and says for which machines it is; all else is in pyproject.toml."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

JAR = Path(__file__).parent / "kv_connector" / "_jar" / "kv-messenger.jar"
C_LIBRARY = "manylinux_2_28"
"""The first of these platforms whose C library has memfd_create."""


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


class WheelForThisMachine(bdist_wheel):
    """Nothing in it was compiled; but it runs on Linux only, and is tested on the kind of machine it is built on."""

    def get_tag(self) -> tuple[str, str, str]:
        """For every Python 3, and for this machine."""
        if sys.platform != "linux":
            raise SetupError(f"this is {sys.platform}, expected linux: KV Messenger runs there only, build it there")
        return "py3", "none", f"{C_LIBRARY}_{platform.machine()}"


setup(cmdclass={"build_py": BuildWithJar, "bdist_wheel": WheelForThisMachine})
