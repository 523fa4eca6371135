"""Every option with every odd value, from a configuration and from a variable: a value, or one short sentence."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kv_connector import OptionError
from kv_connector.cli import given_options
from kv_connector.configuration import option_warnings, small_files
from kv_connector.configuration.option_variables import variable_of
from kv_connector.configuration.options import OPTION_SPECS, Options, parse_options
from kv_connector.sglang import engine_facts as sglang_facts

SECRET = "a secret of enough bytes"
SENTENCE_LENGTH_MAX = 1200
ODD = (
    *(None, True, False, 0, -1, 1, 65_535, 65_536, 10**400, -(10**400), 0.5, 1e308, float("nan"), float("inf")),
    *("", " ", "a\0b", "\ud800", "a\nb", "x" * 100_000, "[::1", "]", "a..b", "x" * 300 + ".com", "-1", "auto", "ö"),
    *([], [""], ["a"], ["a", "a"], ["a\0"], [None], [[]], {}, {"a": 1}, ["\ud800"], [10**400], [-1], [1.5]),
    *(["shm", "shm"], ["x" * 100_000], ["a"] * 100_000, "::1%lo", "0.0.0.0", "256.256.256.256", "http://x", "/", "~"),
    *("/dev/null", "/dev/zero", "/tmp", "/proc/self/mem"),
)
ODD_TEXTS = (
    *("x", "-1", "nan", "inf", "1e400", "9" * 5000, "[", "[" * 100_000, '["a"', "[1]", "{}", "null", "true", "TRUE"),
    *('"a"', "a,,b", ",", "\udcff", "a\x01b", "tcp://1.2.3.4:5", "0x10", "1_0", "٣", " 5 ", "x" * 100_000),
)


@contextlib.contextmanager
def one_sentence(*names: str) -> Iterator[None]:
    """Nothing is wrong, or one sentence says what, and names one of these."""
    try:
        yield
    except OptionError as wrong:
        sentence = str(wrong)
        assert any(name in sentence for name in names), sentence
        assert len(sentence) <= SENTENCE_LENGTH_MAX
        assert sentence.isprintable(), sentence
        assert SECRET not in sentence


@pytest.mark.parametrize("role", ["prefiller", "decoder", "both"])
@pytest.mark.parametrize("name", OPTION_SPECS)
def test_should_take_any_value_of_an_option_or_say_what_is_wrong(name: str, role: Any) -> None:
    for value in ODD:
        with one_sentence(name):
            parse_options({name: value}, role=role, engine_id="e", environment={})
        if name not in ("shared_secret", "shared_secret_file"):
            with one_sentence(name):
                parse_options({"shared_secret": SECRET, name: value}, role=role, engine_id="e", environment={})


@pytest.mark.parametrize("name", [name for name in OPTION_SPECS if variable_of(name)])
def test_should_name_the_variable_that_sets_an_option(name: str) -> None:
    """Also where the sentence is about two options: "fix it in the configuration" would be the wrong place."""
    for text in ODD_TEXTS:
        with one_sentence(variable_of(name)):
            parse_options({}, role="both", engine_id="e", environment={variable_of(name): text})


@pytest.mark.parametrize("variable", ["KV_MESSENGER_SECRET", "KV_MESSENGER_SECRET_FILE"])
def test_should_name_the_variable_of_the_secret(variable: str) -> None:
    for text in ODD_TEXTS:
        with one_sentence(variable):
            parse_options({}, role="both", engine_id="e", environment={variable: text})


@pytest.mark.parametrize("name", ["kv_connector", "kv_role", "kv_port", "engine_id", "kv_connector_extra_config"])
def test_should_say_what_is_wrong_in_a_transfer_configuration(name: str) -> None:
    right = {"kv_connector": "KvMessengerConnector", "kv_role": "kv_producer", "kv_connector_extra_config": {}}
    for value in ODD:
        text = json.dumps({**right, name: value})
        with one_sentence(name, "--kv-transfer-config", "listen_port"):
            given_options.of_vllm(text)


@pytest.mark.parametrize("value", ODD_TEXTS)
def test_should_say_what_is_wrong_in_sglangs_options(value: str) -> None:
    for mode in ("prefill", "decode"):
        with one_sentence("KV_MESSENGER_OPTIONS"):
            sglang_facts.read_options(mode, _first_rank(), {"KV_MESSENGER_OPTIONS": value})


def _first_rank() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(system_dp_rank=0, pp_rank=0, engine_rank=0)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_should_take_one_secret_from_a_file_and_from_a_variable_that_was_made_of_it(end: str, tmp_path: Path) -> None:
    """Kubernetes hands a secret on as it is, with the line end that the file had from which it was made."""
    file = tmp_path / "secret"
    file.write_text(SECRET + end)
    given: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"shared_secret_file": str(file)}, {}),
        ({}, {"KV_MESSENGER_SECRET_FILE": str(file)}),
        ({}, {"KV_MESSENGER_SECRET": SECRET + end}),
    ]
    for options, environment in given:
        found = parse_options(options, role="both", engine_id="e", environment=environment)
        assert found.shared_secret == SECRET


OPTIONS_OF_FILES = ("shared_secret_file", "tls_certificate")


@pytest.mark.parametrize("name", OPTIONS_OF_FILES)
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "socket"])
def test_should_not_wait_for_a_file_that_is_none(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "WAIT_SECONDS", 0.05)
    path = tmp_path / "odd"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = Path("/dev/zero" if kind == "device" else "/proc/self/fd/0")
    others = {"tls_key": "/dev/null", "tls_ca": "/dev/null"} if name == "tls_certificate" else {}
    with pytest.raises(OptionError, match=f"option '{name}' is .*, expected a "):
        parse_options({name: str(path), **others}, role="both", engine_id="e", environment={})


def test_should_read_a_pipe_as_a_shell_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(SECRET,))
    writer.start()
    assert small_files.read(str(path), 100).decode() == SECRET
    writer.join()


PORTS = ("listen_port", "data_port", "metrics_port")


@pytest.mark.parametrize(("one", "other"), [(PORTS[0], PORTS[1]), (PORTS[1], PORTS[2]), (PORTS[0], PORTS[2])])
def test_should_refuse_one_port_for_two_listeners(one: str, other: str) -> None:
    def parse(role: Any, **given: object) -> Options:
        return parse_options({one: 7000, other: 7000, **given}, role=role, engine_id="e", environment={})

    with pytest.raises(OptionError, match=f"options '{one}' and '{other}' are both 7000, expected a port for each"):
        parse("prefiller")
    if one == "listen_port":
        assert parse("decoder").data_port in (0, 7000), "a decoder listens for data only"
    if "data_port" in (one, other):
        assert parse("prefiller", transports=["shm"]).data_port == 7000, "nothing listens there"
    if other == "metrics_port":
        assert parse("both", metrics_host="127.0.0.2").metrics_port == 7000


def test_should_refuse_a_port_that_no_rank_can_have() -> None:
    options = parse_options({"listen_port": 65_533}, role="prefiller", engine_id="e", environment={})
    assert options.of_rank(2).listen_port == 65_535
    with pytest.raises(OptionError, match=r"number 3 would have 65536, expected at most 65535: choose a port of 65532"):
        options.of_rank(3)


@pytest.mark.parametrize(("given", "text", "warns"), [(7000, "7001", True), (7000, "7000", False)])
def test_should_say_that_the_configuration_overrules_a_variable(
    given: int, text: str, warns: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(option_warnings, "_warned", set())
    with caplog.at_level(logging.WARNING, "kv_connector"):
        for _ in range(2):
            options = parse_options(
                {"data_port": given}, role="both", engine_id="e", environment={"KV_MESSENGER_DATA_PORT": text}
            )
    assert options.data_port == given
    assert caplog.messages == warns * [
        "environment variable KV_MESSENGER_DATA_PORT changes nothing: option 'data_port' is set in the configuration"
    ]
