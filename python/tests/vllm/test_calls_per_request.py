"""What a request costs vLLM's engine core and workers in calls, by its length and by how many others wait beside it.

Counted in calls, which are the same on every machine: no request is computed while the connector is at work.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from conftest import EngineMaker
from counted_calls import counted_calls
from simulated_engine import BLOCK_TOKENS, SimulatedEngine, remote_decode, remote_prefill

LONG_BLOCKS = 320
BESIDE = 50
CALLS_MAX = 500
CALLS_PER_BLOCK_MAX = 2
CALLS_PER_REQUEST_MAX = 150
"""Of the step in which the workers hear of them, the stand-in of the messenger included."""


class CountedConnector:
    """Either half of a connector, of which each call is counted by its name; the most of one call."""

    def __init__(self, connector: Any, most: Counter[str]) -> None:
        self._connector = connector
        self._most = most

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connector, name)
        if not callable(found):
            return found

        def counted(*args: Any, **named: Any) -> Any:
            with counted_calls() as calls:
                result = found(*args, **named)
            self._most[name] = max(self._most[name], calls.count)
            return result

        return counted


def most_calls(engine: SimulatedEngine) -> Counter[str]:
    most: Counter[str] = Counter()
    engine.scheduler = CountedConnector(engine.scheduler, most)
    engine.worker = CountedConnector(engine.worker, most)
    return most


def served(make: EngineMaker, role: str, blocks: int, beside: int = 0) -> Counter[str]:
    """Of 12 steps, in each of which a part of a long prompt fits, or one of many short ones."""
    chunk_tokens = (64 if blocks == LONG_BLOCKS else 3) * BLOCK_TOKENS
    engine = make(role, block_count=2 * LONG_BLOCKS, chunk_tokens=chunk_tokens, model_tokens_max=1 << 16)
    params = remote_decode() if role == "kv_producer" else remote_prefill()
    for number in range(beside):
        engine.add(f"cmpl-b{number}-0-11111111", 2 * BLOCK_TOKENS + 1, params)
    most = most_calls(engine)
    engine.add("cmpl-a-0-11111111", blocks * BLOCK_TOKENS + 1, params)
    engine.steps(12)
    return most


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_should_cost_an_engine_few_calls(engine: EngineMaker, role: str) -> None:
    served(engine, role, 2)  # what is looked up once
    short, long = served(engine, role, 2), served(engine, role, LONG_BLOCKS)
    crowd = served(engine, role, 2, beside=BESIDE)
    assert short.keys() >= {"on_new_request", "get_num_new_matched_tokens", "build_connector_meta"}
    for name, calls in short.items():
        assert calls <= CALLS_MAX, name
        assert long[name] - calls <= CALLS_PER_BLOCK_MAX * LONG_BLOCKS, f"{name} of a long prompt"
        assert crowd[name] - calls <= CALLS_PER_REQUEST_MAX * BESIDE, f"{name} beside others"


@pytest.mark.parametrize("way", ["both at once", "with the prefiller's answer", "decoder first"])
def test_should_take_the_digest_of_a_prompt_once_for_its_fetch(engine: EngineMaker, way: str) -> None:
    """It takes milliseconds of a long prompt."""
    source, target = engine("kv_producer"), engine("kv_consumer")
    source.add("cmpl-a-0-11111111", 3 * BLOCK_TOKENS, remote_decode())
    source.steps(2)
    names, digested = target.own_scheduler._half._names, Counter[int]()
    taken = names._digest_of

    def counted(request: Any) -> str:
        digested[len(request.prompt_token_ids)] += 1
        return str(taken(request))

    names._digest_of = counted
    params = {
        "both at once": remote_prefill(),
        "with the prefiller's answer": remote_prefill(source.answers["cmpl-a-0-11111111"]),
        "decoder first": {"do_remote_prefill": True, "prefiller": "127.0.0.1:14579"},
    }
    target.add("cmpl-a-0-22222222", 3 * BLOCK_TOKENS, params[way])
    target.steps(2)
    assert len(target.messenger.of_kind("fetch")) == 1
    assert digested[3 * BLOCK_TOKENS] == 1
