"""Weights that vLLM's own routes change while a prompt waits on both sides: its answer is of one version, or none.

The comparison of last tokens is off: it would end some of the wrong answers.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from bed import (
    Messenger,
    decode_leg,
    decoder,
    messenger,
    prefiller,
    send_decode,
    send_prefill,
    serial,
    start_messengers,
)
from conftest import asked
from make_model import TinyModel, cached_model
from prompts import cache_home, random_prompt
from server_process import wait_until, words_of
from workload import ANSWER_TOKENS

OLD, NEW = TinyModel(), TinyModel(seed=21)
PROMPT: Final = random_prompt(130, 4500)
LIMIT_SECONDS: Final = 600


class Pair:
    """A prefiller and its decoder, whose weights are changed by ``reload_weights``."""

    def __init__(self, source: Messenger, target: Messenger) -> None:
        self.source, self.target = source, target
        self.sides = {"source": source, "target": target}

    def pause(self) -> None:
        for side in self.sides.values():
            side.server.post("/pause?mode=keep", {})

    def resume(self) -> None:
        for side in reversed(self.sides.values()):
            side.server.post("/resume", {})

    def reload(self, side: str, model: Path) -> None:
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(model)}}
        self.sides[side].server.post("/collective_rpc", call)

    def empty(self, side: str) -> None:
        """Nothing may wait: vLLM refuses while a prompt has blocks, as one has whose KV is being fetched."""
        server = self.sides[side].server
        wait_until(lambda: bool(server.post("/reset_prefix_cache", {}).get("success")), LIMIT_SECONDS, "no cache")

    @contextlib.contextmanager
    def asking(self) -> Iterator[Future[dict[str, Any]]]:
        """Both legs wait: the prefiller does not compute before ``resume``."""
        request = f"queued-{uuid.uuid4()}"
        with ThreadPoolExecutor(2) as legs:
            prefill = legs.submit(send_prefill, self.source, PROMPT, request)
            answer = legs.submit(
                send_decode, self.target, PROMPT, ANSWER_TOKENS, decode_leg(self.source, request), request
            )
            yield answer
            prefill.result(LIMIT_SECONDS)


@pytest.fixture(scope="module")
def models() -> dict[str, Path]:
    return {name: cached_model(cache_home(), shape) for name, shape in (("old", OLD), ("new", NEW))}


@pytest.fixture(scope="module")
def answers(models: dict[str, Path]) -> dict[str, list[str]]:
    made = {name: asked(model, [PROMPT]).to(PROMPT) for name, model in models.items()}
    assert made["old"] != made["new"]
    return made


@pytest.fixture(scope="module")
def pair(models: dict[str, Path], run_folder: Path) -> Iterator[Pair]:
    options: dict[str, Any] = {"environment": {"VLLM_SERVER_DEV_MODE": "1"}}
    source = messenger(prefiller("source-queued", options=options), models["old"], run_folder)
    target = messenger(
        decoder("target-queued", options=options, extra={"last_token_check": "off"}), models["old"], run_folder
    )
    with ExitStack() as stack:
        start_messengers(stack, [source, target])
        yield Pair(source, target)


def both_wait(pair: Pair, grants_before: float) -> None:
    wait_until(
        lambda: pair.source.metric("kv_messenger_grants_waiting") > grants_before,
        LIMIT_SECONDS,
        "the prefiller has the decoder's grant",
    )


@pytest.mark.parametrize("order", [*itertools.permutations(("source", "target")), ("source",), ("target",)], ids=str)
def test_a_prompt_that_waits_is_of_the_weights_of_both_sides_or_fails(
    pair: Pair, models: dict[str, Path], answers: dict[str, list[str]], order: tuple[str, ...]
) -> None:
    for side in pair.sides:
        pair.reload(side, models["old"])
        pair.empty(side)
    assert words_of(serial(pair.source, pair.target, PROMPT, ANSWER_TOKENS)) == answers["old"]
    for side in pair.sides:
        pair.empty(side)
    before = pair.source.metric("kv_messenger_grants_waiting")
    pair.source.server.post("/pause?mode=keep", {})
    with pair.asking() as answer:
        both_wait(pair, before)
        pair.pause()
        for side in order:
            pair.reload(side, models["new"])
        pair.resume()
        if len(order) == 2:
            assert words_of(answer.result(LIMIT_SECONDS)) == answers["new"]
        else:
            with pytest.raises(AssertionError, match=r"the request failed: .*'status': 500"):
                pytest.fail(f"answered: {words_of(answer.result(LIMIT_SECONDS))}, expected none; {answers}")
    for side in pair.sides:
        pair.reload(side, models["new"])
        pair.empty(side)
    assert words_of(serial(pair.source, pair.target, PROMPT, ANSWER_TOKENS)) == answers["new"]
    pair.source.wait_at_rest()
    pair.target.wait_at_rest()
