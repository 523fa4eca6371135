"""A prefiller is asked for a recompute with its API key, and no other host gets that."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from keyed_engine import Engine

from kv_connector.sglang.recompute_calls import RecomputeCalls

API, WRONG = "api-0f3c9a", "wrong-1b5e88"
CASES = {
    # secret, hosts with sessions, host of the URL, whether the key goes
    "a session with that address": (True, ["127.0.0.1"], "127.0.0.1", True),
    "a session with that name": (True, ["localhost"], "127.0.0.1", True),
    "another one": (True, ["127.0.0.9"], "127.0.0.1", False),
    "none": (True, [], "127.0.0.1", False),
    "none, without a secret within this host": (False, [], "127.0.0.1", True),
    "by name, without a secret within this host": (False, [], "localhost", True),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", [API, WRONG, ""])
@pytest.mark.parametrize("wanted", [API, ""])
def test_should_ask_for_a_recompute_with_the_key_where_there_has_been_a_session(
    case: str, key: str, wanted: str
) -> None:
    has_secret, hosts, host, goes = CASES[case]
    engine = Engine("sglang", wanted, "")
    url = engine.url.replace("127.0.0.1", host)
    try:
        fault = RecomputeCalls(key, lambda: hosts, has_secret=has_secret).ask(url, {"rid": "r"}, 5)
    finally:
        engine.close()
    shown = f"Bearer {key}" if key and goes else ""
    assert engine.seen == [("/generate", shown)]
    taken = not wanted or shown == f"Bearer {wanted}"
    assert (not fault) == taken
    assert not fault or f"at {url} answers 401, expected 200: " in fault
    assert not fault or ("engine_api_key_file" in fault) == (goes or not key)
    assert API not in fault
    assert WRONG not in fault


PREFILLER, GONE = "prefiller.test", "gone.test"
ELSEWHERE, HERE = "127.0.0.2", "127.0.0.1"
"""Of the prefiller's name; its server listens at the second only."""


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A name service, with the addresses of each name that it knows."""
    known: dict[str, list[str]] = {}
    found = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **more: Any) -> list[Any]:
        if not host.endswith(".test"):
            return found(host, port, **more)
        if more.get("flags") == socket.AI_NUMERICHOST or host not in known:
            raise socket.gaierror(f"{host} is not known")
        return [each for address in known[host] for each in found(address, port, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


@pytest.mark.parametrize("order", [(ELSEWHERE, HERE), (HERE, ELSEWHERE)], ids="-".join)
@pytest.mark.parametrize(
    ("has_secret", "hosts"),
    [
        (False, []),
        *((True, hosts) for known in (PREFILLER, HERE) for hosts in ([GONE, known], [known, GONE])),
    ],
)
def test_should_show_the_key_at_each_address_that_may_have_it_whatever_became_of_other_prefillers(
    names: dict[str, list[str]], order: tuple[str, ...], has_secret: bool, hosts: list[str]
) -> None:
    engine = Engine("sglang", API, "")
    names[PREFILLER] = list(order)
    try:
        url = engine.url.replace(HERE, PREFILLER)
        assert RecomputeCalls(API, lambda: hosts, has_secret=has_secret).ask(url, {"rid": "r"}, 5) == ""
    finally:
        engine.close()
    assert engine.seen == [("/generate", f"Bearer {API}")]


def test_should_dial_no_address_that_the_name_has_only_later(names: dict[str, list[str]]) -> None:
    engine = Engine("sglang", API, "")
    names[PREFILLER] = [ELSEWHERE]

    def hosts() -> list[str]:
        names[PREFILLER] = [HERE]
        return [ELSEWHERE]

    try:
        url = engine.url.replace(HERE, PREFILLER)
        assert "does not answer" in RecomputeCalls(API, hosts, has_secret=True).ask(url, {"rid": "r"}, 5)
    finally:
        engine.close()
    assert engine.seen == []


def test_should_say_why_a_server_does_not_compute_again() -> None:
    engine = Engine("sglang", "", "")
    engine.answer = lambda *_: (503, {"error": "busy"})  # type: ignore[method-assign]
    calls = RecomputeCalls(API, list, has_secret=True)
    assert "answers 503: " in calls.ask(engine.url, {}, 5)
    engine.close()
    assert "does not answer" in calls.ask(engine.url, {}, 5)
    assert "does not answer" in calls.ask("http://no.such.host.invalid:9", {}, 5)
