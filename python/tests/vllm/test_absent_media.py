"""Requests that name an image and bring no content of it: vLLM's worker ends where one is to be computed.

Generated: where the image lies, what is asked of the connector, what becomes of the KV, and what the engine does with
the request. An engine never computes a part of such an image, and every request ends.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import random
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, Final

import pytest
import vllm_sources
from conftest import EngineMaker
from simulated_engine import BLOCK_TOKENS, SimulatedEngine, remote_prefill
from simulated_requests import SimulatedRequest
from test_shadows_in_steps import Judge

from kv_connector.vllm.absent_media import SIZES, end_of_absent

SIZE: Final = {"image_grid_thw": (1, 4, 6)}
PLACES: Final = ((0, 200, 0), (0, 200, 1), (10, 200, 0), (10, 200, 300), (300, 100, 1), (0, 1, 200), (127, 129, 3))
"""Tokens before the image, of it, and behind it."""
ASKS: Final = ("nothing", "arrives", "fails", "beginning of words", "beginning with the image", "decoder first")
LATER: Final = ("lives on", "is preempted", "is preempted, and is in the cache")
CACHED: Final = (0, BLOCK_TOKENS, 2 * BLOCK_TOKENS)
STEPS: Final = 30


def image(before: int, tokens: int, content: dict[str, object] | None = None) -> Any:
    position = SimpleNamespace(offset=before, length=tokens)
    return SimpleNamespace(
        modality="image", identifier="seen", mm_hash="seen", mm_position=position, data={**SIZE, **(content or {})}
    )


class Prover(Judge):
    """Finds the two sides equal."""

    def judge(self) -> list[Any]:
        kept, self.kept = self.kept, []
        return [self.proved(proof.request, True, 0.1, "") for proof in kept]


class World:
    """An engine whose passes are watched."""

    def __init__(self, engine: EngineMaker, kv_role: str = "kv_consumer", *, proves: bool = False, **more: Any) -> None:
        self.engine: SimulatedEngine = engine(kv_role, **more)
        self.engine.own_worker._worker._empty_steps.wait = lambda *_: None
        if proves:
            self.engine.compare_last_tokens(Prover())
            self.engine.own_scheduler._half._proofs._can_stop = False

    def add(self, place: tuple[int, int, int], params: Any, *, cached: int = 0, shows_prompt: bool = False) -> None:
        before, tokens, _ = place
        request = SimulatedRequest("r", sum(place), params, 4, min(cached, sum(place) - 1))
        request.mm_features = [image(before, tokens)]
        request.sampling_params = SimpleNamespace(prompt_logprobs=1 if shows_prompt else None)
        request.skip_reading_prefix_cache = shows_prompt
        self.engine.requests["r"] = request
        self.engine.waiting.append(request)
        self.engine.scheduler.on_new_request(request)

    def step(self) -> None:
        schedule = self.engine._schedule

        def watched() -> Any:
            output = schedule()
            for name, count in output.num_scheduled_tokens.items():
                request = self.engine.requests[name]
                first = request.num_computed_tokens
                for each in request.mm_features:
                    begin, end = each.mm_position.offset, each.mm_position.offset + each.mm_position.length
                    assert end <= first or first + count <= begin, "vLLM's worker ends"
            return output

        self.engine._schedule = watched  # type: ignore[method-assign]
        try:
            self.engine.step()
        finally:
            self.engine._schedule = schedule  # type: ignore[method-assign]

    def run(self, kv: str, later: str) -> None:
        """Until the request has ended, or for as long as it may take."""
        for _ in range(STEPS):
            if "r" in self.engine.ended:
                break
            for number, owed in list(self.engine.messenger.owes().items()):
                if owed == "fetch":
                    (self.engine.messenger.fail if kv == "fails" else self.engine.messenger.arrive)(number)
            self.step()
            request = self.engine.requests.get("r")
            if later != "lives on" and request in self.engine.running:
                self.engine.preempt("r", 0 if later == "is preempted" else request.num_prompt_tokens - 1)
                later = "lives on"
        if self.engine.recompute and "r" not in self.engine.ended:
            self.engine.abort("r")
        for _ in range(4):
            self.step()
        assert "r" in self.engine.ended


def params_of(ask: str, place: tuple[int, int, int]) -> Any:
    before, tokens, _ = place
    if ask == "nothing":
        return None
    if ask == "decoder first":
        return {"do_remote_prefill": True, "prefiller": "127.0.0.1:14579"}
    beginnings = {"beginning of words": before, "beginning with the image": before + tokens}
    return remote_prefill(**({"remote_prompt_tokens": beginnings[ask]} if beginnings.get(ask) else {}))


CASES: Final = tuple(itertools.product(LATER, CACHED, (False, True), (False, True), (False, True)))
DRAWN: Final = 8
"""Of the cases, for each place and ask."""


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_should_never_compute_what_has_no_content(engine: EngineMaker, place: tuple[int, int, int], ask: str) -> None:
    for later, cached, proves, shows, recompute in random.Random(f"{place} {ask}").sample(CASES, DRAWN):
        world = World(engine, proves=proves, recompute=recompute)
        world.add(place, params_of(ask, place), cached=cached, shows_prompt=shows)
        world.run("fails" if ask == "fails" else "arrives", later)
        assert len(world.engine.free_blocks) == world.engine.block_count
        assert world.engine.own_scheduler._half.is_idle()


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_should_serve_what_comes_from_a_prefiller(engine: EngineMaker, place: tuple[int, int, int]) -> None:
    """With text behind the images, in a pair that is proven and in one that is not."""
    for proves in (False, True):
        world = World(engine, proves=proves)
        world.add(place, remote_prefill())
        world.run("arrives", "lives on")
        assert (world.engine.ended["r"].name == "FINISHED_LENGTH_CAPPED") == (place[2] > 0)
        assert len(world.engine.messenger.of_kind("decline")) == (place[2] == 0)


def test_should_compute_what_another_engine_encodes(engine: EngineMaker) -> None:
    world = World(engine)
    half = world.engine.own_scheduler._half
    half._absent._side = dataclasses.replace(half._side, gets_encoded_media=True)
    world.add((10, 200, 300), None)
    with pytest.raises(AssertionError, match="vLLM's worker ends"):  # it would not: it has the encoded image
        world.run("arrives", "lives on")


def test_should_know_content(engine: EngineMaker) -> None:  # noqa: ARG001
    request: Any = SimpleNamespace(mm_features=[image(4, 10, {"pixel_values": 1}), image(20, 5)])
    assert end_of_absent(request) == 25
    request.mm_features.pop()
    assert end_of_absent(request) == 0
    request.mm_features[0].data = None
    assert end_of_absent(request) == 0, "vLLM's worker has it"


@pytest.mark.parametrize("name", list(vllm_sources.RELEASES))
def test_should_know_all_sizes_of_vllms_models(name: str) -> None:
    """A client may leave out what a model's ``embedding_fields`` calls values."""
    try:
        package = vllm_sources.sources(name) / "vllm"
    except vllm_sources.SourcesUnavailableError as missing:
        pytest.skip(str(missing))
    sizes, values = set(), set()
    for file in (*package.glob("model_executor/models/*.py"), *package.glob("models/**/*.py")):
        for place in re.findall(r'"(\w+)": "(metadata|values)"', file.read_text(encoding="utf-8")):
            (sizes if place[1] == "metadata" else values).add(place[0])
    assert values, "vLLM names its fields otherwise"
    assert sizes <= SIZES
    assert not values & SIZES


OF_VLLM: Final = """
import torch
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
from vllm.v1.worker.utils import sanity_check_mm_encoder_outputs

model = object.__new__(Qwen3VLForConditionalGeneration)
sanity_check_mm_encoder_outputs(model.embed_multimodal(image_grid_thw=torch.tensor([[1, 4, 6]])), 1)
"""
START_LIMIT_SECONDS: Final = 600.0


def test_should_know_that_vllm_ends_without_content() -> None:
    """The reason for all of the above. In its own process, since parts of vLLM are simulated in this one."""
    if not any(found.name in vllm_sources.RELEASES.values() for found in importlib.metadata.distributions()):
        pytest.skip("vLLM's own models come with the engine")
    command = [sys.executable, "-c", OF_VLLM]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_SECONDS, check=False)
    assert "AssertionError: Expected multimodal embeddings to be a list" in ended.stderr, ended.stderr
