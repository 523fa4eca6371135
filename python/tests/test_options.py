from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from options_for_java import FILE, options_for_java
from options_page import options_page

from kv_connector import OptionError, parse_options
from kv_connector.configuration import own_address
from kv_connector.configuration.java_values import boundary_name
from kv_connector.configuration.options import OPTION_SPECS

SECRET = "a secret of enough bytes"
OPTIONS_PAGE = Path(__file__).parents[2] / "docs" / "options.md"
OPTIONS_FOR_JAVA = Path(__file__).parents[2] / FILE
BOUNDARY_PAGE = Path(__file__).parents[2] / "docs" / "boundary.md"


def parse(role: Any = "decoder", **given: Any) -> Any:
    return parse_options(given, role=role, engine_id="e")


def test_should_pass_java_each_option_that_its_test_knows() -> None:
    declared = options_for_java()
    assert OPTIONS_FOR_JAVA.read_text(encoding="utf-8") == declared, f"stale: run tests/options_for_java.py, for {FILE}"


def test_should_name_on_the_page_of_the_boundary_what_is_passed_beside_the_options() -> None:
    section = BOUNDARY_PAGE.read_text(encoding="utf-8").split("## Options")[1].split("\n## ")[0]
    options = {boundary_name(name) for name, spec in OPTION_SPECS.items() if spec.java}
    beside = parse().for_java().keys() - options
    assert beside == {"role", "engineId", "unheardAskedMillis"}
    assert all(f"`{name}`" in section for name in beside)
    table = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert set(table) - options == beside | {"pageKey"}, "else Java reads what no user can set"


def test_should_give_java_times_in_milliseconds() -> None:
    fields = parse(fetch_limit_seconds=2, heartbeat_seconds=0.25).for_java()
    assert fields["fetchLimitMillis"] == 2000
    assert fields["heartbeatMillis"] == 250


@pytest.mark.parametrize(("role", "port"), [("prefiller", 14579), ("both", 14579), ("decoder", 0)])
def test_should_listen_where_the_role_expects_it(role: str, port: int) -> None:
    assert parse(role=role).listen_port == port


def test_should_take_the_engines_own_port_for_a_prefiller() -> None:
    assert parse_options({}, role="prefiller", engine_id="e", kv_port=14600).listen_port == 14600
    assert parse_options({"listen_port": 7}, role="prefiller", engine_id="e", kv_port=14600).listen_port == 7


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"listen_prt": 1}, "unknown option 'listen_prt' in kv_connector_extra_config: did you mean 'listen_port'?"),
        ({"zzz": 1}, "unknown option 'zzz' in kv_connector_extra_config: known options are listen_host,"),
        ({"listen_port": "80"}, "option 'listen_port' is '80', expected an integer: fix it in"),
        ({"listen_port": True}, "option 'listen_port' is True, expected an integer"),
        ({"listen_port": 70_000}, "option 'listen_port' is 70000, expected a value from 0 to 65535"),
        ({"streams_per_peer": 17}, "option 'streams_per_peer' is 17, expected a value from 1 to 16"),
        ({"transfer_workers": 17}, "option 'transfer_workers' is 17, expected a value from 0 to 16"),
        ({"data_port": 65_536}, "option 'data_port' is 65536, expected a value from 0 to 65535"),
        ({"metrics_port": -2}, "option 'metrics_port' is -2, expected a value from -1 to 65535"),
        ({"fetch_limit_seconds": "5"}, "option 'fetch_limit_seconds' is '5', expected a number of seconds"),
        ({"fetch_limit_seconds": 0}, "option 'fetch_limit_seconds' is 0, expected a value from 0.001 to 86400 s"),
        ({"fetch_limit_seconds": float("nan")}, "option 'fetch_limit_seconds' is nan, expected a number of seconds"),
        ({"transports": "tcp"}, "option 'transports' is 'tcp', expected a list of strings"),
        (
            {"transports": []},
            "option 'transports' is [], expected a list with one or more of cuda, libfabric, shm, tcp, verbs",
        ),
        ({"transports": ["tcp", "rdma"]}, "option 'transports' is ['tcp', 'rdma'], expected a list with one or more"),
        ({"transports": ["tcp", "tcp"]}, "each once"),
        ({"aot_cache": 1}, "option 'aot_cache' is 1, expected true or false"),
        ({"listen_host": "0.0.0.0"}, "no shared secret is set: set the same shared_secret_file on all engines"),
        ({"listen_host": "10.0.0.1"}, "option 'listen_host' is '10.0.0.1', which is reachable from other machines"),
        ({"listen_host": "db7"}, "option 'listen_host' is 'db7', which is reachable from other machines"),
        ({"listen_host": "10.0.0.1", "shared_secret": "s" * 15}, "has 15 bytes, expected 16 or more"),
        (
            {"listen_host": "0.0.0.0", "shared_secret": SECRET},
            "which peers cannot dial, and 'advertise_host' is not set",
        ),
        (
            {"listen_host": "0.0.0.0", "shared_secret": SECRET, "advertise_host": "localhost"},
            "option 'advertise_host' is 'localhost', which on another machine is that machine itself",
        ),
        ({"verbs_devices": [f"mlx5_{i}" for i in range(9)]}, "expected at most 8 names, each once"),
        ({"verbs_devices": ["mlx5_0", "mlx5_0"]}, "expected at most 8 names, each once"),
        (
            {"verbs_device": "mlx5_0", "verbs_devices": ["mlx5_1"]},
            "option 'verbs_device' is 'mlx5_0', and 'verbs_devices' is ['mlx5_1']: name all devices in verbs_devices",
        ),
        ({"data_hosts": "127.0.0.2"}, "option 'data_hosts' is '127.0.0.2', expected a list of strings"),
        ({"data_hosts": ["127.0.0.1", "127.0.0.1"]}, "expected at most 8 addresses, each once"),
        ({"data_hosts": [f"127.0.0.{i}" for i in range(1, 10)]}, "expected at most 8 addresses, each once"),
        ({"data_hosts": ["0.0.0.0"]}, "option 'data_hosts' names '0.0.0.0', which peers cannot dial"),
        ({"data_hosts": ["10.0.0.1"]}, "option 'data_hosts' names '10.0.0.1', and 'listen_host' is '127.0.0.1'"),
        (
            {"listen_host": "10.0.0.1", "shared_secret": SECRET, "data_hosts": ["10.1.0.1", "localhost"]},
            "option 'data_hosts' names 'localhost', and 'listen_host' is '10.0.0.1'",
        ),
        ({"advertise_port": "30000"}, "option 'advertise_port' is '30000', expected an integer"),
        (
            {"advertise_data_ports": [30_001]},
            "option 'advertise_data_ports' is [30001], and 'data_port' is 0, any free port: set data_port",
        ),
        (
            {"advertise_data_ports": [1, 2, 3], "data_port": 7, "data_hosts": ["127.0.0.1", "127.0.0.2"]},
            "option 'advertise_data_ports' is [1, 2, 3], and 'data_hosts' names 2 addresses, expected one port, or one",
        ),
        ({"advertise_data_ports": [0]}, "option 'advertise_data_ports' is 0, expected a value from 1 to 65535"),
        ({"advertise_data_ports": ["1"]}, "option 'advertise_data_ports' is ['1'], expected a list of integers"),
        ({"advertise_data_ports": [True]}, "expected a list of integers"),
        ({"shared_secret": SECRET, "shared_secret_file": "x"}, "are both set, expected one of them"),
        ({"shared_secret_file": "/no/such"}, "'/no/such', which cannot be read (No such file or directory)"),
        ({"engine_api_url": "host:80"}, "option 'engine_api_url' is 'host:80', expected a URL like"),
        ({"silence_limit_seconds": 1.5}, "option 'silence_limit_seconds' is 1.5, expected at least twice"),
    ],
)
def test_should_refuse_with_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(**given)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_should_not_repeat_a_secret_in_a_sentence() -> None:
    with pytest.raises(OptionError) as refused:
        parse(shared_secret=918273)
    assert "918273" not in str(refused.value)


def test_should_print_no_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    for options in (parse(shared_secret=SECRET), parse(shared_secret_file=str(tmp_path / "secret"))):
        assert options.shared_secret == SECRET
        assert SECRET not in repr(options)
        assert SECRET not in str(dataclasses.replace(options, listen_port=1))


def test_should_take_the_secret_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")

    def found(given: dict[str, object], **environment: str) -> str:
        return parse_options(given, role="decoder", engine_id="e", environment=environment).shared_secret

    assert found({}) == ""
    assert found({"shared_secret_file": str(file)}) == SECRET
    assert found({}, KV_MESSENGER_SECRET=SECRET) == SECRET
    assert found({}, KV_MESSENGER_SECRET_FILE=str(file)) == SECRET
    assert found({}, KV_MESSENGER_SHARED_SECRET=SECRET) == SECRET
    assert found({}, KV_MESSENGER_SHARED_SECRET_FILE=str(file)) == SECRET
    assert found({}, KV_MESSENGER_SHARED_SECRET=SECRET, KV_MESSENGER_SECRET=SECRET) == SECRET
    assert found({"shared_secret": "option"}, KV_MESSENGER_SECRET=SECRET) == "option"
    assert found({"shared_secret_file": str(file)}, KV_MESSENGER_SECRET="other") == SECRET


@pytest.mark.parametrize("end", ["", "_FILE"])
def test_should_refuse_two_secrets_of_the_environment(end: str) -> None:
    names = (f"KV_MESSENGER_SECRET{end}", f"KV_MESSENGER_SHARED_SECRET{end}")
    with pytest.raises(OptionError, match=f"{' and '.join(names)} are both set and differ"):
        parse_options({}, role="both", engine_id="", environment=dict(zip(names, ("one", "another"), strict=True)))


@pytest.mark.parametrize(("content", "reason"), [(b"\n", "which is empty"), (b"\xff\xfe", "not UTF-8 text")])
def test_should_refuse_a_file_without_a_secret(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(OptionError, match=reason):
        parse(shared_secret_file=str(tmp_path / "secret"))


def test_should_listen_beyond_loopback_with_a_secret() -> None:
    assert parse(listen_host="10.0.0.1", shared_secret=SECRET).listen_host == "10.0.0.1"
    assert parse(listen_host="::1").listen_host == "::1"


def test_should_listen_where_the_default_route_leaves_when_asked_for_auto() -> None:
    given = {"listen_host": "auto", "shared_secret": SECRET}
    made = parse_options(given, role="prefiller", engine_id="p", environment={}, outward=lambda: "10.0.0.7")
    assert made.listen_host == "10.0.0.7"
    with pytest.raises(
        OptionError, match=r"option 'listen_host' is '10.0.0.7', which is reachable .* no shared secret"
    ):
        parse_options(
            {"listen_host": "auto"}, role="prefiller", engine_id="p", environment={}, outward=lambda: "10.0.0.7"
        )


def test_should_say_that_there_is_no_default_route(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreachable:
        def __init__(self, *_: object) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(own_address.socket, "socket", Unreachable)
    with pytest.raises(OptionError, match=r"'auto', and no default route leads out .* name the address"):
        own_address.outward_address()


@pytest.mark.parametrize(
    ("given", "transports"),
    [
        ({}, ("shm", "tcp")),
        ({"gpu": "off"}, ("shm", "tcp")),
        ({"gpu": "unproven"}, ("cuda", "shm", "tcp")),
        ({"gpu": "unproven", "transports": ["tcp"]}, ("tcp",)),
    ],
)
def test_should_offer_cuda_by_default_where_an_engine_may_compute_on_a_gpu(
    given: dict[str, object], transports: tuple[str, ...]
) -> None:
    assert parse_options(given, role="decoder", engine_id="d", environment={}).transports == transports
    if "transports" not in given:
        chosen = {"KV_MESSENGER_TRANSPORTS": "tcp"}
        assert parse_options(given, role="decoder", engine_id="d", environment=chosen).transports == ("tcp",)


def test_should_keep_the_options_page_like_the_table() -> None:
    assert OPTIONS_PAGE.read_text(encoding="utf-8") == options_page(), (
        "docs/options.md is stale: run python tests/options_page.py > ../docs/options.md in python/"
    )


def test_should_reach_a_gpu_by_dma_buf_unless_it_is_switched_off() -> None:
    assert parse().for_java()["dmaBuf"] is True
    assert parse(dma_buf=False).for_java()["dmaBuf"] is False


def test_should_take_all_of_tls_or_none(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\n")
    text = tmp_path / "text"
    text.write_text("no such thing")
    right = {"tls_certificate": str(pem), "tls_key": str(pem), "tls_ca": str(pem)}
    assert parse(**right).for_java()["tlsCa"] == str(pem)
    assert parse(**right).for_java()["tcpInClear"] is False
    assert parse(**right | {"tcp_in_clear": True}).for_java()["tcpInClear"] is True
    for change, sentence in (
        ({"tls_key": ""}, "option 'tls_key' is not set, and another of tls_certificate, tls_key, tls_ca is"),
        ({"tls_ca": "/no/such"}, "option 'tls_ca' is '/no/such', which cannot be read (No such file or directory)"),
        ({"tls_key": str(text)}, f"option 'tls_key' is {str(text)!r}, which holds no '-----BEGIN'"),
    ):
        with pytest.raises(OptionError) as refused:
            parse(**right | change)
        assert sentence in str(refused.value)


def test_should_not_advertise_a_port_for_one_that_any_start_chooses() -> None:
    given = {"advertise_port": 30_000, "listen_port": 0}
    with pytest.raises(OptionError, match="'advertise_port' is 30000, and 'listen_port' is 0, any free port: set"):
        parse_options(given, role="prefiller", engine_id="e", environment={})
    assert parse_options(given, role="decoder", engine_id="e", environment={}).advertise_port == 30_000


def test_should_announce_the_ports_of_a_relay_to_peers() -> None:
    options = parse(listen_port=7, advertise_port=30_000, data_port=8, advertise_data_ports=[30_001])
    assert (options.for_java()["advertisePort"], options.for_java()["advertiseDataPorts"]) == (30_000, [30_001])
    third = options.of_rank(2)
    assert (third.advertise_port, third.advertise_data_ports, third.data_port) == (30_002, (30_003,), 10)
    assert options_of_ranks_without_relay() == (0, ())


def options_of_ranks_without_relay() -> tuple[int, tuple[int, ...]]:
    options = parse(data_port=8).of_rank(1)
    return options.advertise_port, options.advertise_data_ports


def parse_in(environment: dict[str, str], **given: Any) -> Any:
    return parse_options(given, role="decoder", engine_id="e", environment=environment)


def test_should_read_what_is_not_set_from_the_environment() -> None:
    options = parse_in(
        {
            "KV_MESSENGER_LISTEN_PORT": "7100",
            "KV_MESSENGER_DATA_PORT": "7200",
            "KV_MESSENGER_HEARTBEAT_SECONDS": "0.5",
            "KV_MESSENGER_TRANSPORTS": "tcp, shm",
            "KV_MESSENGER_JVM_OPTIONS": '["-Xlog:gc,safepoint"]',
            "KV_MESSENGER_AOT_CACHE": "false",
            "KV_MESSENGER_ADVERTISE_DATA_PORTS": "30001",
            "KV_MESSENGER_TIMELINES": "full",
            "KV_MESSENGER_MODEL_ID": "",
            "KV_MESSENGER_NOTHING": "of ours",
        },
        data_port=7300,
    )
    assert (options.listen_port, options.heartbeat_seconds, options.timelines) == (7100, 0.5, "full")
    assert options.data_port == 7300, "what is said goes first"
    assert options.transports == ("tcp", "shm")
    assert options.jvm_options == ("-Xlog:gc,safepoint",)
    assert options.aot_cache is False
    assert options.advertise_data_ports == (30_001,)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("LISTEN_PORT", "70000", "is 70000, expected a value from 0 to 65535: fix it, or unset it"),
        ("LISTEN_PORT", "a port", "is 'a port', expected an integer: fix it, or unset it"),
        ("HEARTBEAT_SECONDS", "soon", "is 'soon', expected a number of seconds: fix it"),
        ("HEARTBEAT_SECONDS", "nan", "is nan, expected a number of seconds: fix it"),
        ("AOT_CACHE", "yes", "is 'yes', expected one of true, 1, false, 0: fix it"),
        (
            "TRANSPORTS",
            "tcp,rdma",
            r"expected a list with one or more of cuda, libfabric, shm, tcp, verbs, each once: fix it",
        ),
        ("JVM_OPTIONS", "[-Xmx1g]", "expected strings with commas between them, or a JSON list of strings: fix it"),
        ("JVM_OPTIONS", "[1]", r"is \[1\], expected a list of strings: fix it"),
        ("ADVERTISE_DATA_PORTS", "1,a", "is 'a', expected an integer: fix it"),
        ("PAGE_CHECKSUM", "on", "is 'on', expected one of off, sampled, full: fix it"),
        ("DATA_PORT", "tcp://10.0.0.7:80", "which Kubernetes sets for a service of that name .* enableServiceLinks"),
    ],
)
def test_should_name_the_variable_whose_value_is_wrong(variable: str, text: str, expected: str) -> None:
    with pytest.raises(OptionError, match=f"^environment variable KV_MESSENGER_{variable} .*{expected}"):
        parse_in({f"KV_MESSENGER_{variable}": text})


def test_should_leave_alone_what_has_variables_of_its_own() -> None:
    assert parse_in({"KV_MESSENGER_JAVA_HOME": "/there"}).java_home == ""


def test_should_take_the_older_spelling_of_one_verbs_device() -> None:
    several = {"KV_MESSENGER_VERBS_DEVICES": "mlx5_0, mlx5_1"}

    def in_environment(environment: dict[str, str]) -> tuple[str, ...]:
        return parse_options({}, role="decoder", engine_id="e", environment=environment).verbs_devices

    assert parse(verbs_device="mlx5_3").verbs_devices == ("mlx5_3",)
    assert in_environment({"KV_MESSENGER_VERBS_DEVICE": "mlx5_3"}) == ("mlx5_3",)
    assert in_environment(several) == ("mlx5_0", "mlx5_1")
    assert parse(verbs_devices=["mlx5_0"]).for_java()["verbsDevices"] == ["mlx5_0"]
    assert "verbsDevice" not in parse().for_java()


def test_should_wait_for_a_prompt_that_is_unheard_of_for_some_seconds_unless_set_otherwise() -> None:
    assert _unheard(parse()) == (8_000, 0)
    assert _unheard(parse(grant_wait_seconds=3)) == (3_000, 0)
    assert _unheard(parse(unheard_limit_seconds=20, grant_wait_seconds=3)) == (20_000, 20_000)
    with pytest.raises(OptionError, match="'unheard_limit_seconds' is 0, expected a value"):
        parse(unheard_limit_seconds=0)


def _unheard(options: Any) -> tuple[object, object]:
    fields = options.for_java()
    return fields["unheardLimitMillis"], fields["unheardAskedMillis"]
