"""Engines whose HTTP servers want an API key: each question to them can carry it, and nothing shows it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keyed_engine import Engine

from kv_connector import OptionError, parse_options
from kv_connector.cli import compare, weights
from kv_connector.cli.engine_http import ask_json, ask_text
from kv_connector.configuration.engine_keys import EngineKeys, bearer, keys_in
from kv_connector.exceptions import WeightsError
from kv_connector.weights import servers
from kv_connector.weights.sender_options import keys_of, sender_options
from kv_connector.weights.servers import Server
from kv_connector.weights.trl import READY_LIMIT_SECONDS, KvMessengerWeightTransfer

API, ADMIN, WRONG = "api-0f3c9a", "admin-77d1e2", "wrong-1b5e88"
VARIABLE, ADMIN_VARIABLE = "KV_MESSENGER_ENGINE_API_KEY", "KV_MESSENGER_ENGINE_ADMIN_API_KEY"
WANTED = {"no key": ("", ""), "api key": (API, ""), "both keys": (API, ADMIN), "admin key alone": ("", ADMIN)}


@pytest.fixture(params=[(kind, name) for kind in ("sglang", "vllm") for name in WANTED], ids="-".join)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    kind, name = request.param
    made = Engine(kind, *WANTED[name])
    yield made
    made.close()


def asks_of(kind: str) -> dict[str, Callable[[str, EngineKeys], object]]:
    """Each of our questions to an engine, with what it is to be asked with."""
    asks: dict[str, Callable[[str, EngineKeys], object]] = {
        "models": lambda url, keys: ask_json(url, "/v1/models", None, 5, keys),
        "completion": lambda url, keys: ask_json(url, "/v1/completions", {}, 5, keys),
        "metrics": lambda url, keys: ask_text(url, "/metrics", 5, keys),
    }
    if kind == "vllm":
        return asks
    return asks | {
        "ready": lambda url, keys: Server(url, 5, keys).await_ready(0),
        "announce": lambda url, keys: Server(url, 5, keys).announce({}),
        "load": lambda url, keys: Server(url, 5, keys).load(1, 1, ""),
        "version": lambda url, keys: Server(url, 5, keys).version(),
        "status": lambda url, keys: Server(url, 5, keys).status(),
    }


def given_to(engine: Engine) -> EngineKeys:
    return EngineKeys(engine.api_key, engine.admin_key)


def test_should_be_answered_with_the_servers_keys(engine: Engine) -> None:
    for name, ask in asks_of(engine.kind).items():
        engine.taken.clear()
        ask(engine.url, given_to(engine))
        assert engine.taken, name


@pytest.mark.parametrize(
    "keys", [EngineKeys(), EngineKeys(WRONG), EngineKeys(WRONG, WRONG)], ids=["none", "one", "two"]
)
def test_should_say_which_option_is_missing_and_show_no_key(
    engine: Engine, keys: EngineKeys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name, ask in asks_of(engine.kind).items():
        engine.seen.clear()
        text = refusal(lambda ask=ask: ask(engine.url, keys))  # type: ignore[misc]
        assert bool(text) == any(engine.wanted(path) for path, _ in engine.seen), name
        assert not text or "401, expected 200" in text, name
        assert not text or f"{VARIABLE}_FILE" in text, name
        assert not [key for key in (API, ADMIN, WRONG) if key in f"{text}{keys!r}{caplog.text}"]


@pytest.mark.parametrize("keys", [EngineKeys(), EngineKeys(WRONG), EngineKeys(WRONG, WRONG)], ids=["none", "1", "2"])
@pytest.mark.parametrize("wanted", [each for each in WANTED if each != "no key"])
def test_should_not_wait_for_a_server_that_refuses_the_key(
    wanted: str, keys: EngineKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("sglang", *WANTED[wanted])
    monkeypatch.setattr(servers.time, "sleep", lambda _: pytest.fail("waited for a server that is up"))
    try:
        text = refusal(lambda: Server(engine.url, 5, keys).await_ready(READY_LIMIT_SECONDS))
    finally:
        engine.close()
    assert f"{VARIABLE}_FILE" in text
    assert "waited" not in text


def refusal(ask: Callable[[], object]) -> str:
    try:
        ask()
    except (OSError, WeightsError) as refused:
        return f"{refused}"
    return ""


@pytest.mark.parametrize("kind", ["sglang"])
@pytest.mark.parametrize("by", ["file", "variable", "option"])
def test_should_take_keys_of_senders_from_options_and_the_environment(
    kind: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, key in (("engine_api_key", API), ("engine_admin_api_key", ADMIN)):
        (tmp_path / name).write_text(key + "\n")
        if by == "file":
            monkeypatch.setenv(f"KV_MESSENGER_{name.upper()}_FILE", str(tmp_path / name))
        elif by == "variable":
            monkeypatch.setenv(f"KV_MESSENGER_{name.upper()}", key)
    given = {"engine_api_key": API, "engine_admin_api_key": ADMIN} if by == "option" else {}
    assert keys_of(sender_options("", given, "listen")) == EngineKeys(API, ADMIN)
    engine = Engine(kind, API, ADMIN)
    try:
        transfer = KvMessengerWeightTransfer([engine.url], options=given, ready_limit_seconds=0)
        transfer.init_weight_transfer()
        assert engine.taken
    finally:
        engine.close()
    if by != "option":
        assert keys_in() == EngineKeys(API, ADMIN)


UNFIT: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "an empty line": b"\n",
    "two lines": b"two\nlines\n",
    "spaces around": b" key ",
    "a byte order mark": "\ufeffkey".encode(),
    "no text": b"\xff\xfe",
    "too long": b"k" * 4097,
}


@pytest.mark.parametrize("name", ["engine_api_key_file", "engine_admin_api_key_file"])
@pytest.mark.parametrize("content", UNFIT)
def test_should_name_the_file_that_holds_no_key(name: str, content: str, tmp_path: Path) -> None:
    file, held = tmp_path / "key", UNFIT[content]
    if held is not None:
        file.write_bytes(held)
    variable = f"KV_MESSENGER_{name.upper()}"
    with pytest.raises(OptionError) as refused:
        keys_in({variable: str(file)})
    text = str(refused.value)
    assert f"option '{name}' is '{file}', which " in text
    assert text.endswith(f" ({variable} of the environment sets it)")
    assert "secret" not in text


def test_should_show_the_status_of_servers_with_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("sglang", API, ADMIN)
    shown: list[str] = []
    try:
        assert weights.status([engine.url], shown.append, shown.append) == 1
        assert f"{VARIABLE}_FILE" in shown[-1]
        monkeypatch.setenv(VARIABLE, API)
        monkeypatch.setenv(ADMIN_VARIABLE, ADMIN)
        assert weights.status([engine.url], shown.append, shown.append) == 0
        assert f"{engine.url}: version 7\n" in shown
        monkeypatch.setenv(VARIABLE, "two\nlines")
        assert weights.status([engine.url], shown.append, shown.append) == 2
        assert VARIABLE in shown[-1]
    finally:
        engine.close()
    assert not [line for line in shown if API in line or ADMIN in line or "two" in line]


def test_should_compare_a_pair_whose_servers_have_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("vllm", API, "")
    shown: list[str] = []
    asked = compare.Comparison(engine.url, engine.url, lengths=(2,))
    try:
        assert compare.run(asked, shown.append) == 2
        assert f"{VARIABLE}_FILE" in shown[-1]
        monkeypatch.setenv(VARIABLE, API)
        assert compare.run(asked, shown.append) == 0
    finally:
        engine.close()


@pytest.mark.parametrize("name", ["engine_api_key", "engine_admin_api_key"])
@pytest.mark.parametrize("key", ["two\nlines", "a\r\nHost: b", "schlüssel-9", "\x00", " key-9", "x" * 5000])
def test_should_refuse_a_key_that_no_header_carries_without_showing_it(name: str, key: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}' (has|is not shown)") as refused:
        parse_options({name: key}, role="prefiller", engine_id="e", environment={})
    assert key not in str(refused.value)
    assert bearer("") == {}


WRONG_FILES = {
    "empty": b"",
    "a line end": b"\r\n",
    "a space": b" \n",
    "two lines": b"one\ntwo\n",
    "another alphabet": "schlüssel-9\n".encode(),
    "no text": b"\xff\xfe\x00",
    "a mark of its order": b"\xef\xbb\xbfkey-9\n",
    "too long": b"x" * 5000,
    "missing": None,
}


@pytest.mark.parametrize("name", ["engine_api_key", "engine_admin_api_key"])
@pytest.mark.parametrize("place", ["option", "variable", "command"])
@pytest.mark.parametrize("content", WRONG_FILES.values(), ids=WRONG_FILES)
def test_should_name_the_file_of_a_key_that_cannot_be_used(
    name: str, place: str, content: bytes | None, tmp_path: Path
) -> None:
    """A user has set the option of the file, and has not made the key."""
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    variable = {f"KV_MESSENGER_{name}_FILE".upper(): str(file)}
    given, environment = ({f"{name}_file": str(file)}, {}) if place == "option" else ({}, variable)

    def read() -> object:
        if place == "command":
            return keys_in(variable)
        return parse_options(given, role="prefiller", engine_id="e", environment=environment)

    with pytest.raises(OptionError) as refused:
        read()
    sentence = str(refused.value)
    assert f"option '{name}_file' is '{file}'" in sentence
    assert ", expected " in sentence
    assert (f"{name}_file".upper() in sentence) == (place != "option"), sentence
    assert not [word for word in ("secret", "openssl", "schlüssel", "key-9", "two\n") if word in sentence], sentence


@pytest.mark.parametrize("name", ["engine_api_key", "engine_admin_api_key"])
def test_should_have_no_key_made_where_one_is_no_text(name: str) -> None:
    with pytest.raises(OptionError, match="take the engine's own --api-key") as refused:
        keys_in({f"KV_MESSENGER_{name}".upper(): "key-\udcff"})
    assert "openssl" not in str(refused.value)


def test_should_pass_java_the_key_of_the_engines_own_server(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(API)
    options = parse_options(
        {"engine_api_key_file": str(tmp_path / "key")}, role="prefiller", engine_id="e", environment={}
    )
    assert options.for_java()["engineApiKey"] == API
    assert API not in repr(options)
