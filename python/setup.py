"""Refuses to build a wheel without the jar, and says what is in it and for which machines; all else: pyproject.toml."""

from __future__ import annotations

import os
import platform
import sys
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

DOOR = Path(__file__).parent / "kv-connector.pth"
"""Beside the package: what Python runs when it starts, see kv_connector_door.py."""
JAR = Path(__file__).parent / "kv_connector" / "_jar" / "kv-messenger.jar"
BILL_OF_MATERIALS = "META-INF/sbom/kv-messenger.cdx.json"
"""In the jar, by whose build it was made: of all that the wheel has inside and that is not its own."""
MACHINES = ("x86_64", "aarch64")
"""On which the wheel has been seen to work: docs/compatibility.md says how on which."""
MACHINE_VARIABLE = "KV_MESSENGER_WHEEL_MACHINE"
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
        if not self.editable_mode:
            self.copy_file(str(DOOR), str(Path(self.build_lib) / DOOR.name))


class WheelForOneMachine(bdist_wheel):
    """Nothing in it was compiled, so it can be built on any Linux; its name says where it has been tried."""

    def write_wheelfile(self, wheelfile_base: str, *arguments: str, **named: str) -> None:
        """Before the files are recorded: the bill of materials goes where scanners of wheels look (PEP 770)."""
        super().write_wheelfile(wheelfile_base, *arguments, **named)
        place = Path(wheelfile_base) / "sboms"
        place.mkdir(exist_ok=True)
        with zipfile.ZipFile(JAR) as jar:
            (place / Path(BILL_OF_MATERIALS).name).write_bytes(jar.read(BILL_OF_MATERIALS))

    def get_tag(self) -> tuple[str, str, str]:
        """For every Python 3, and for this machine or the one that the environment names."""
        if sys.platform != "linux":
            raise SetupError(f"this is {sys.platform}, expected linux: KV Messenger runs there only, build it there")
        machine = os.environ.get(MACHINE_VARIABLE) or platform.machine()
        if machine not in MACHINES:
            raise SetupError(
                f"the wheel is for {machine}, expected one of {', '.join(MACHINES)}: it was tried on no other;"
                f" {MACHINE_VARIABLE} names another one"
            )
        return "py3", "none", f"{C_LIBRARY}_{machine}"


setup(cmdclass={"build_py": BuildWithJar, "bdist_wheel": WheelForOneMachine})
