"""Hosts that deny or lack things: the doctor says so in a sentence, and what is optional ends no start."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROCESS_LIMIT_SECONDS

from kv_connector.cli import machine
from kv_connector.cli.host_pages import HostPages
from kv_connector.configuration.options import check_options
from kv_connector.exceptions import PreflightError
from kv_connector.memory.memfd import map_memfd
from kv_connector.runtime import affinity, aot_cache, jar_locale, jvm, preflight, system_calls

DENIED_CALLS = Path(__file__).parent / "denied_calls.py"
NEEDED = ("statx", "eventfd2", "sched_getaffinity", "prlimit64")
DISPENSABLE = ("memfd_create",)


def python(environment: dict[str, str], *arguments: str, denied: str = "") -> subprocess.CompletedProcess[str]:
    before = [sys.executable, str(DENIED_CALLS), denied] if denied else []
    return subprocess.run(
        [*before, sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROCESS_LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("call", [*NEEDED, *DISPENSABLE, ",".join([*NEEDED, *DISPENSABLE])])
def test_doctor_names_the_call_that_is_denied(
    call: str, environment: dict[str, str], jar: preflight.Jar, java: preflight.JavaRuntime
) -> None:
    assert jar.path.exists()
    assert java.launcher.exists()
    ran = python(environment, "-m", "kv_connector", "doctor", denied=call)
    assert "Traceback" not in ran.stdout + ran.stderr
    *lines, last = ran.stdout.splitlines()
    for name in call.split(","):
        (line,) = [line for line in lines if f"{name} is denied (Operation not permitted): " in line]
        assert line.split()[0] == ("fail" if name in NEEDED else "warn")
    assert f" of {len(lines)} failed" in last
    if set(call.split(",")) & set(NEEDED):
        assert ran.returncode == 1
    else:
        assert any(line.startswith("ok    messenger") for line in lines), ran.stdout


@pytest.mark.parametrize("limit", [16, 24, 32, 48])
def test_doctor_says_that_too_few_files_may_be_open(
    limit: int, environment: dict[str, str], jar: preflight.Jar, java: preflight.JavaRuntime
) -> None:
    assert jar.path.exists()
    assert java.launcher.exists()
    command = f"ulimit -n {limit}; exec {sys.executable} -m kv_connector doctor"
    ran = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROCESS_LIMIT_SECONDS,
        check=False,
    )
    failed = [line for line in ran.stdout.splitlines() if line.startswith("fail")]
    assert "Traceback" not in ran.stdout + ran.stderr
    assert all("ulimit -n" in line or "Too many open files" in line for line in failed), ran.stdout
    assert ran.returncode == bool(failed)


def test_doctor_says_that_no_transport_can_be_opened(
    environment: dict[str, str], jar: preflight.Jar, java: preflight.JavaRuntime
) -> None:
    assert jar.path.exists()
    assert java.launcher.exists()
    only = {"KV_MESSENGER_TRANSPORTS": "libfabric", "KV_MESSENGER_LIBFABRIC_LIBRARY": "/no/such.so"}
    ran = python(environment | only, "-m", "kv_connector", "doctor")
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("fail")]
    assert "no transport can be opened: libfabric cannot be loaded" in line
    assert "bug" not in line
    assert ran.returncode == 1


@pytest.mark.parametrize("call", NEEDED)
def test_start_is_refused_where_the_java_runtime_would_end_the_process(call: str, environment: dict[str, str]) -> None:
    code = "from kv_connector.runtime import system_calls; system_calls.require()"
    ran = python(environment, "-c", code, denied=call)
    assert f"system call {call} is denied here (Operation not permitted), and the Java runtime ends" in ran.stderr


def test_start_is_refused_in_a_folder_that_is_gone(tmp_path: Path, environment: dict[str, str]) -> None:
    code = "import os; os.rmdir(os.getcwd()); from kv_connector.runtime import system_calls; system_calls.require()"
    gone = tmp_path / "gone"
    gone.mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=gone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROCESS_LIMIT_SECONDS,
        check=False,
    )
    assert "the working folder of this process cannot be found (No such file or directory)" in ran.stderr


def test_nothing_is_denied_here() -> None:
    assert list(system_calls.denied()) == []
    system_calls.require()


def denied(*_: object) -> set[int]:
    raise PermissionError(1, "Operation not permitted")


def test_pages_without_memfd_are_memory_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", denied)
    pages = HostPages("test", 4096, 2)
    pages.view[:] = b"x" * 8192
    (memory,) = pages.geometry(16)["ranks"][0]["memories"]
    assert memory["memfd"] == -1


def test_memory_is_refused_and_no_start_ended_where_python_knows_no_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="knows no memfd_create"):
        map_memfd(4096)
    (memory,) = HostPages("test", 4096, 2).geometry(16)["ranks"][0]["memories"]
    assert memory["memfd"] == -1
    assert [one.name for one in system_calls.denied()] == ["memfd_create"]


def test_cores_that_cannot_be_asked_for_end_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", denied)
    assert affinity.allowed_cores()
    with affinity.parents_cores():
        pass
    assert machine.cores().level == "warn"


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "KV_MESSENGER_CACHE", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_has_no_class_cache() -> None:
    assert aot_cache.cache_folder() is None
    assert jvm._cache_place(check_options({})) == (None, aot_cache.NO_HOME)
    setup = jvm.JvmSetup(preflight.find_java(""), (), (), (), "none", None, why_no_cache=aot_cache.NO_HOME)
    assert setup.aot_cache is None
    jvm.prepare_setup(setup)


@pytest.mark.parametrize("fault", [RuntimeError("no home"), PermissionError(13, "denied"), ValueError("odd")])
def test_a_class_cache_that_cannot_be_made_ends_no_start(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> bool:
        raise fault

    monkeypatch.setattr(aot_cache.AotCache, "train", fails)
    caplog.set_level(logging.INFO, "kv_connector")
    jvm.prepare_setup(jvm.JvmSetup(preflight.find_java(""), (), (), (), "none", tmp_path))
    assert "no class cache is made" in caplog.text


@pytest.mark.parametrize("encoding", ["ANSI_X3.4-1968", "ISO-8859-1"])
def test_a_path_beyond_ascii_is_refused_with_the_locale(encoding: str) -> None:
    sentence = rf"'/opt/größe/x\.jar' has characters beyond ASCII.*{encoding}.*LC_ALL=C\.UTF-8"
    with pytest.raises(PreflightError, match=sentence):
        jar_locale.require(Path("/opt/größe/x.jar"), encoding=encoding)
    jar_locale.require(Path("/opt/with space/x.jar"), encoding=encoding)
    jar_locale.require(Path("/opt/größe/x.jar"), encoding="UTF-8")


@pytest.mark.parametrize(("variable", "readable"), [("C", False), ("C.UTF-8", True)])
def test_locale_is_that_of_the_process_and_not_pythons(
    variable: str, readable: bool, environment: dict[str, str]
) -> None:
    code = (
        "from kv_connector.runtime import jar_locale; from pathlib import Path;"
        " print(jar_locale.why_unreadable(Path('\\xf6')))"
    )
    ran = python({**environment, "LC_ALL": variable, "PYTHONIOENCODING": "utf-8"}, "-c", code)
    assert ran.returncode == 0, ran.stderr
    assert (ran.stdout.strip() == "") is readable, ran.stdout
