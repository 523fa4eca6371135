"""What users say in KV_MESSENGER_OPTIONS; no SGLang."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from kv_connector import OptionError
from kv_connector.sglang import own_host
from kv_connector.sglang.engine_facts import OPTIONS_VARIABLE, check_of, modes, read_options

RANK = SimpleNamespace(system_dp_rank=None, pp_rank=0, engine_rank=1)


def test_should_know_what_an_engine_may_become() -> None:
    assert modes("decode", SimpleNamespace(enable_pd_role_switch=False)) == ("decode",)
    assert modes("decode", SimpleNamespace(enable_pd_role_switch=True)) == ("prefill", "decode")


def test_should_read_the_options_of_a_rank() -> None:
    environment = {OPTIONS_VARIABLE: json.dumps({"metrics_port": 9000, "messenger_per": "rank"})}
    options = read_options("prefill", RANK, environment)
    assert options.role == "prefiller"
    assert options.engine_id.endswith("-dp0-pp0")
    other = read_options("prefill", SimpleNamespace(**{**vars(RANK), "engine_rank": 0}), environment)
    assert other.engine_id == options.engine_id, "a source serves the engine that asked, each of its ranks a part"
    assert options.of_rank(1).metrics_port == 9001


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("{", "is not JSON", id="not JSON"),
        pytest.param("[1]", r"is \[1\], expected a JSON object", id="no object"),
        pytest.param('{"metrics": 1}', OPTIONS_VARIABLE, id="no option of this name"),
        pytest.param(
            '{"messenger_per": "node"}', "messenger_per 'node', expected 'rank'", id="a messenger for the node"
        ),
        pytest.param(
            '{"fetch_limit_seconds": 20}',
            "has fetch_limit_seconds 20, .*: set SGLANG_DISAGGREGATION_WAITING_TIMEOUT instead",
            id="a limit that is SGLang's",
        ),
    ],
)
def test_should_refuse_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        read_options("decode", RANK, {OPTIONS_VARIABLE: text})


@pytest.mark.parametrize("variable", ["KV_MESSENGER_MESSENGER_PER", "KV_MESSENGER_FETCH_LIMIT_SECONDS"])
def test_should_refuse_in_their_variables_what_it_refuses_elsewhere(variable: str) -> None:
    assert read_options("decode", RANK, {variable: ""}).role == "decoder"
    with pytest.raises(OptionError, match=f"^{variable} is '9', expected .*, because "):
        read_options("decode", RANK, {variable: "9"})


def test_should_read_the_other_variables() -> None:
    assert read_options("prefill", RANK, {"KV_MESSENGER_METRICS_PORT": "9000"}).metrics_port == 9000


@pytest.mark.parametrize(
    ("mode", "variable"),
    [("prefill", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"), ("decode", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT")],
)
def test_should_wait_for_the_other_leg_as_long_as_sglang_is_configured_to(mode: str, variable: str) -> None:
    assert read_options(mode, RANK, {}).unheard_limit_seconds == 0
    assert read_options(mode, RANK, {variable: "600"}).for_java()["unheardAskedMillis"] == 600_000
    assert read_options(mode, RANK, {variable: "600"}).for_java()["unheardLimitMillis"] == 600_000
    assert read_options(mode, RANK, {variable: "soon"}).for_java()["unheardAskedMillis"] == 0
    environment = {variable: "600", OPTIONS_VARIABLE: '{"unheard_limit_seconds": 20}'}
    assert read_options(mode, RANK, environment).unheard_limit_seconds == 20


@pytest.mark.parametrize(
    ("mode", "other"),
    [("decode", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"), ("prefill", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT")],
)
def test_should_leave_the_limit_of_the_other_role_alone(mode: str, other: str) -> None:
    assert read_options(mode, RANK, {other: "600"}).unheard_limit_seconds == 0


@pytest.mark.parametrize(
    ("asked", "latent", "on_cpu", "expected"),
    [
        ("", False, True, "fail"),
        ("", True, False, "fail"),
        ("", True, True, "warn"),
        ("fail", True, True, "fail"),
        ("warn", False, False, "warn"),
        ("off", False, True, "off"),
    ],
)
def test_should_compare_received_kv_unless_set_otherwise(asked: str, latent: bool, on_cpu: bool, expected: str) -> None:
    assert check_of(asked, latent=latent, on_cpu=on_cpu) == expected


SECRET = {"KV_MESSENGER_SECRET": "a secret of sixteen bytes"}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What is logged of the address, anew: in a process it is logged once."""
    own_host._log.cache_clear()
    caplog.set_level("INFO")
    monkeypatch.setattr(own_host, "outward_address", lambda: "10.0.0.7")
    return caplog


@pytest.mark.parametrize(
    ("environment", "host", "sentence"),
    [
        ({"SGLANG_HOST_IP": "10.0.0.5", "HOST_IP": "10.0.0.6"}, "10.0.0.5", "10.0.0.5, which SGLANG_HOST_IP names"),
        ({"HOST_IP": "10.0.0.6"}, "10.0.0.6", "10.0.0.6, which HOST_IP names"),
        ({"SGLANG_LOCAL_IP_NIC": "eth1"}, "127.0.0.1", "loopback, because SGLANG_LOCAL_IP_NIC names eth1"),
        ({}, "10.0.0.7", "10.0.0.7, by which the default route leaves"),
    ],
)
def test_should_listen_with_a_secret_where_sglang_finds_this_host(
    environment: dict[str, str], host: str, sentence: str, log: pytest.LogCaptureFixture
) -> None:
    assert read_options("decode", RANK, environment | SECRET).listen_host == host
    assert f"option listen_host is not set: the messenger listens on {sentence}" in log.text
    assert read_options("prefill", RANK, environment | SECRET).listen_host == host
    assert len(log.records) == 1


def test_should_stay_on_loopback_without_a_secret_or_a_route(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_options("decode", RANK, {"SGLANG_HOST_IP": "10.0.0.5"}).listen_host == "127.0.0.1"
    assert not log.records

    def no_route() -> str:
        raise OptionError("no default route")

    monkeypatch.setattr(own_host, "outward_address", no_route)
    assert read_options("decode", RANK, SECRET).listen_host == "127.0.0.1"
    assert "no default route leads out: the messenger listens on loopback" in log.text


@pytest.mark.parametrize(
    "named", [{"listen_host": "127.0.0.1"}, {"advertise_host": "127.0.0.1"}, {"data_hosts": ["127.0.0.1"]}]
)
def test_should_leave_addresses_to_the_user_who_names_one(
    named: dict[str, object], log: pytest.LogCaptureFixture
) -> None:
    environment = SECRET | {"SGLANG_HOST_IP": "10.0.0.5"}
    assert read_options("decode", RANK, environment | {OPTIONS_VARIABLE: json.dumps(named)}).listen_host == "127.0.0.1"
    environment |= {"KV_MESSENGER_LISTEN_HOST": "127.0.0.1"}
    assert read_options("decode", RANK, environment).listen_host == "127.0.0.1"
    assert not log.records
