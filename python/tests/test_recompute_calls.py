"""A prefiller is asked for a recompute with its API key, and no other host gets that."""

from __future__ import annotations

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


def test_should_say_why_a_server_does_not_compute_again() -> None:
    engine = Engine("sglang", "", "")
    engine.answer = lambda *_: (503, {"error": "busy"})  # type: ignore[method-assign]
    calls = RecomputeCalls(API, list, has_secret=True)
    assert "answers 503: " in calls.ask(engine.url, {}, 5)
    engine.close()
    assert "does not answer" in calls.ask(engine.url, {}, 5)
    assert "does not answer" in calls.ask("http://no.such.host.invalid:9", {}, 5)
