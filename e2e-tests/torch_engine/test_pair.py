"""A prefiller and a decoder in plain torch, by vLLM's connector: tokens are those of a model without pages."""

from __future__ import annotations

import functools
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_engine.everyday import everyday, run
from torch_engine.model import Model, plain_answer
from torch_engine.pair import ANSWER_LIMIT_SECONDS, EngineProcess, Pair, started
from torch_engine.plan import EnginePlan, ModelShape

SHAPE = ModelShape()
REQUESTS = 28
COUNTED_REQUESTS = 14
LONG_PROMPT_TOKENS = 300
"""Of seven passes: whatever the grant is late by, layers of the last ones are still to come."""
FIND_STAND_IN = Path(__file__).resolve().parents[2] / "examples" / "setup" / "find-cuda-stand-in"
Right = Callable[[Sequence[int], int], list[int]]


@pytest.fixture(scope="module")
def right() -> Right:
    torch.set_num_threads(1)
    model = Model(SHAPE, "cpu")

    @functools.cache
    def answer(prompt: tuple[int, ...], count: int) -> list[int]:
        with torch.inference_mode():
            return plain_answer(model, list(prompt), count)

    return lambda prompt, count: answer(tuple(prompt), count)


def plan(layout: Any, transport: str, **more: Any) -> EnginePlan:
    options = {"transports": [transport], "timelines": "off"}
    return EnginePlan(f"torch-{layout}-{transport}".lower(), "none", layout=layout, options=options, **more)


def left_nothing(pair: Pair) -> None:
    for side in (pair.prefiller, pair.decoder):
        assert side.rest()["held"] == {}, side.log


@pytest.mark.parametrize(("layout", "transport", "seed"), [("HND", "shm", 1), ("NHD", "tcp", 2)])
def test_pair_answers_as_the_model_does(layout: str, transport: str, seed: int, right: Right, tmp_path: Path) -> None:
    with started(plan(layout, transport), tmp_path) as pair:
        seen = run(pair, everyday(seed, REQUESTS, SHAPE.vocabulary), right)
        assert seen.wrong == []
        assert seen.right + seen.left == REQUESTS
        assert seen.right >= REQUESTS - 5
        assert seen.cached["prefiller"] > 0
        assert seen.cached["decoder"] > 0
        received = pair.decoder.rest()["figures"]["pages_received"]
        assert received > 0
        left_nothing(pair)


@pytest.mark.parametrize("graphs", [False, True])
def test_pair_answers_so_when_a_device_counts(
    graphs: bool, right: Right, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter is the stand-in's, tens of milliseconds behind each pass; the messengers are real ones."""
    monkeypatch.setenv("STAND_IN_OP_DELAY_NS", "5000000")
    counted = plan("HND", "tcp", graphs=graphs, stand_in=stand_in())
    counted.options["gpu"] = "unproven"
    with started(counted, tmp_path) as pair:
        seen = run(pair, everyday(4, COUNTED_REQUESTS, SHAPE.vocabulary), right)
        assert seen.wrong == []
        assert seen.right + seen.left == COUNTED_REQUESTS
        ask_until_layers_leave_early(pair, right)
        assert pair.decoder.rest()["figures"]["pages_received"] > 0
        left_nothing(pair)
    assert "gpu is 'unproven'" in pair.prefiller.log.read_text(encoding="utf-8")


def test_pair_answers_so_when_a_device_counts_too_often(
    right: Right, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no layer leaves before its pass has ended, and a line of the log says why."""
    monkeypatch.setenv("STAND_IN_OP_DELAY_NS", "5000000")
    counted = plan("HND", "tcp", graphs=True, counts_twice=True, stand_in=stand_in())
    counted.options["gpu"] = "unproven"
    prompts = [list(range(start, start + LONG_PROMPT_TOKENS)) for start in (1, 101, 201)]
    with started(counted, tmp_path) as pair:
        for prompt in prompts:
            assert pair.ask(prompt, 4).decode.result(ANSWER_LIMIT_SECONDS)["tokens"] == right(prompt, 4)
        figures = pair.prefiller.rest()["figures"]
        assert (figures["layers_sent"] > 0, figures["layers_sent_early"]) == (True, 0)
        left_nothing(pair)
    sentence = f"the first pass on this GPU counted {2 * SHAPE.layers} layers, expected {SHAPE.layers}"
    assert sentence in pair.prefiller.log.read_text(encoding="utf-8")


def ask_until_layers_leave_early(pair: Pair, right: Right) -> None:
    """Asks prompts of many passes until a layer has left before its pass ended.

    No single prompt must show it: the grant may come after the last pass, and the messenger's thread may get no core
    between two layers, for as long as the machine is busy elsewhere.
    """
    drawn = random.Random(5)
    limit = time.monotonic() + ANSWER_LIMIT_SECONDS
    while not pair.prefiller.rest()["figures"]["layers_sent_early"]:
        assert time.monotonic() < limit, "no layer has left before its pass ended"
        prompt = [drawn.randrange(SHAPE.vocabulary) for _ in range(LONG_PROMPT_TOKENS)]
        assert pair.ask(prompt, 1).decode.result(ANSWER_LIMIT_SECONDS)["tokens"] == right(prompt, 1)


def stand_in() -> str:
    found = subprocess.run([FIND_STAND_IN], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return f"{found.stdout.strip()}/libcuda.so.1"


def test_one_engine_answers_as_the_model_does(right: Right, tmp_path: Path) -> None:
    """With so few blocks that requests are preempted for each other."""
    with EngineProcess(EnginePlan("torch-alone", "none", blocks=32), tmp_path / "alone.log") as alone:
        asked = [each for burst in everyday(3, REQUESTS, SHAPE.vocabulary) for each in burst]
        ended = [alone.add(f"r{index}", each.prompt, each.answer) for index, each in enumerate(asked)]
        for each, future in zip(asked, ended, strict=True):
            assert future.result(ANSWER_LIMIT_SECONDS)["tokens"] == right(each.prompt, each.answer)
        assert alone.rest()["held"] == {}


def test_layers_leave_before_their_pass_has_ended(right: Right, tmp_path: Path) -> None:
    """Each pass stands after a layer until that has left; a pass of its own is what one chunk of the prompt takes."""
    prompt = list(range(1, 121))
    held = plan("HND", "tcp", held=True)
    with started(held, tmp_path) as pair:
        legs = pair.ask(prompt, 4)
        assert legs.decode.result(ANSWER_LIMIT_SECONDS)["tokens"] == right(prompt, 4)
        figures = pair.prefiller.rest()["figures"]
        passes = -(-len(prompt) // held.chunk_tokens)
        assert figures["layers_sent"] == passes * SHAPE.layers
        assert figures["layers_sent_early"] >= passes * (SHAPE.layers - 1)
        left_nothing(pair)
