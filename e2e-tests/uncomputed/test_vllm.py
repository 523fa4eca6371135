"""Pairs of real vLLM on a CUDA that computes nothing: every row that attention would read is the one it has to be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import make_model
import pytest
from gpu_check.vllm_checks import AT_ONCE, ONE_BY_ONE, PAGES, PROMPTS, SHARED, options
from gpu_check.vllm_on_torch.plan import EAGER, VllmPlan
from kv_connector.configuration.options import TRANSPORTS_ON_A_GPU
from torch_engine.pair import Legs, Pair

from uncomputed.cuda_platform import CAPABILITY
from uncomputed.in_time import judged_in_time
from uncomputed.pair import LIMIT_SECONDS, Engines, has_rdma_devices, started
from uncomputed.rows import TOKEN

LONG = 96
STAGED = ("tcp", "libfabric")
"""Each layer is copied to the host and sent from there: on a busy machine the pass may have ended by then."""
BREAKABLE = "FULL_AND_PIECEWISE"
PIECEWISE = "PIECEWISE"
CACHE = Path(os.environ.get("KV_MESSENGER_CACHE") or Path.home() / ".cache" / "kv-messenger")
RDMA_DEVICES = ["uncomputed_0", "uncomputed_1"]
FEW_BLOCKS_BYTES = 200 * 4 * 2 * 4 * 64 * 16 * 2
"""200 blocks: room for all of AT_ONCE when they begin, and not when their answers of LONG tokens end."""


@dataclass(frozen=True)
class Case:
    """A pair. `ranks`: the tensor-parallel ones of each side, `stages`: of pipelines; other settings: VllmPlan's."""

    transport: str = "cuda"
    settings: dict[str, Any] = field(default_factory=dict)
    model: make_model.Shape = field(default_factory=lambda: make_model.TinyModel(seed=20))
    ranks: tuple[int, int] = (1, 1)
    stages: tuple[int, int] = (1, 1)
    answer: int = 6
    answer_at_once: int = 6
    """Of the prompts that are asked together, which preempt each other where their answers are long."""
    options: dict[str, Any] = field(default_factory=dict)
    reads_all: bool = True
    """Whether all layers read all rows."""
    layers_with_rows: int = 0
    """Those with attention; 0: all."""
    states: int = 0
    """How many each request has, of all layers that keep some."""
    left_out_tokens: int = 0
    """Of each prompt at the prefiller: the last one, whose state the decoder computes."""
    prefills_in_graphs: bool = True
    """Where there are graphs."""
    driver: dict[str, str] = field(default_factory=dict)
    """Variables of the stand-in for the driver."""

    def plan(self, name: str) -> VllmPlan:
        given = options(self.transport, last_token_check="off")  # what it compares is not computed
        settings: dict[str, Any] = {"kv_bytes": 96 << 20, "graphs": "FULL"} | self.settings
        return VllmPlan(name, str(make_model.cached_model(CACHE, self.model)), options=given | self.options, **settings)


def triton(**settings: Any) -> dict[str, Any]:
    return {"attention": "TRITON_ATTN", **settings}


def flash(**settings: Any) -> dict[str, Any]:
    return {"attention": "FLASH_ATTN", **settings}


def flash_infer(**settings: Any) -> dict[str, Any]:
    return {"attention": "FLASHINFER", **settings}


PAIRS = {
    "full-graphs-cuda-preempted": Case(
        settings=triton(prefix_caching=True, kv_bytes=FEW_BLOCKS_BYTES), answer_at_once=LONG
    ),
    "breakable-graphs-tcp": Case("tcp", flash(graphs=BREAKABLE)),
    "ranks-2-2-verbs": Case(
        "verbs",
        flash(),
        ranks=(2, 2),
        options={"verbs_devices": RDMA_DEVICES},
        driver={"STAND_IN_APART": "1"},
    ),
}
"""What no other suite has: graphs that count, preemption, staging, and ranks on devices of their own."""
BY_KERNEL = Case(
    "tcp", triton(layout="NHD", graphs=EAGER), ranks=(1, 2), options={"gpu_copy_kernel": True}, prefills_in_graphs=False
)
"""Each token of each rank's heads is a run of its own, in both directions."""
MORE_PAIRS = {
    "runner-1-cuda": Case(settings=flash(runner=1, prefix_caching=True)),
    "windows-cuda": Case(settings=triton(), model=make_model.TinyGemma(), reads_all=False),
    "ranks-2-2-cuda": Case(settings=flash(), ranks=(2, 2)),
    "full-graphs-verbs": Case("verbs", triton(prefix_caching=True)),
    "without-shareable-memory": Case(
        "", triton(), options={"transports": TRANSPORTS_ON_A_GPU}, driver={"STAND_IN_LACKS": "102,103"}
    ),
    "flash-infer-cuda": Case(settings=flash_infer(prefix_caching=True), prefills_in_graphs=False),
    "flash-infer-breakable-graphs-tcp": Case("tcp", flash_infer(layout="NHD", graphs=BREAKABLE)),
    "flash-infer-of-b200-cuda": Case(settings=flash_infer(), prefills_in_graphs=False, driver={CAPABILITY: "10.0"}),
    "convolution-states-cuda": Case(
        settings=flash(),
        model=make_model.TinyLfm2(),
        layers_with_rows=1,
        states=3,
        left_out_tokens=1,
        prefills_in_graphs=False,
    ),
    "states-cuda": Case(
        settings=flash(), model=make_model.TinyFalconH1(), states=6, left_out_tokens=1, prefills_in_graphs=False
    ),
    "states-tcp": Case("tcp", triton(graphs=EAGER), model=make_model.TinyFalconH1(), states=6, left_out_tokens=1),
    "piecewise-graphs-cuda": Case(settings=triton(graphs=PIECEWISE, compile="eager")),
    "piecewise-graphs-tcp": Case("tcp", flash(graphs=PIECEWISE, compile="eager")),
    "no-graphs-cuda": Case(settings=triton(graphs=EAGER)),
    "breakable-graphs-cuda": Case(settings=flash(graphs=BREAKABLE)),
    "runner-1-breakable-graphs-tcp": Case("tcp", triton(runner=1, graphs=BREAKABLE)),
    "heads-inside-cuda": Case(settings=flash(layout="NHD")),
    "latent-kv-cuda": Case(
        settings={"attention": "TRITON_MLA"}, model=make_model.TinyWideLatentModel(), prefills_in_graphs=False
    ),
    "windows-tcp": Case("tcp", flash(graphs=EAGER), model=make_model.TinyMistral(), reads_all=False),
    "ranks-2-2-tcp": Case("tcp", triton(), ranks=(2, 2)),
    "ranks-2-2-tcp-one-messenger": Case("tcp", triton(), ranks=(2, 2), options={"messenger_per": "node"}),
    "ranks-2-2-tcp-one-messenger-apart": Case(
        "tcp", flash(), ranks=(2, 2), options={"messenger_per": "node"}, driver={"STAND_IN_APART": "1"}
    ),
    "ranks-1-2-cuda": Case(settings=triton(), ranks=(1, 2)),
    "heads-inside-ranks-1-2-tcp-by-kernel": BY_KERNEL,
    "calls-that-wait-tcp": Case("tcp", flash(), driver={"STAND_IN_WAITING_CALLS": "1"}),
    "stages-2-2-cuda": Case(settings=triton(), stages=(2, 2)),
    "ranks-2-1-tcp": Case(
        "tcp", triton(prefix_caching=True, layout="NHD"), ranks=(2, 1), options={"messenger_per": "node"}
    ),
}


def brought(case: Case, name: str, engines: Engines, logs: Path) -> None:
    """All prompts through the pair, and what both sides have at rest."""
    if case.transport == "verbs" and not has_rdma_devices(engines.stand_ins):
        pytest.skip("no stand-in for RDMA devices: examples/setup/find-libfabric has no headers of libibverbs")
    plan = case.plan(name)
    prefiller, decoder = (
        replace(plan, ranks=ranks, stages=stages) for ranks, stages in zip(case.ranks, case.stages, strict=True)
    )
    if plan.kv_bytes == FEW_BLOCKS_BYTES:
        prefiller = replace(prefiller, kv_bytes=96 << 20)
    with started(decoder, logs, engines, prefiller, case.driver) as pair:
        for legs, answer in asked(pair, case.answer, case.answer_at_once):
            ended(legs, answer)
        sides = pair.prefiller.rest(), pair.decoder.rest()
    judged(case, plan, *sides)
    judged_in_time((logs / "prefiller.log").read_text("utf-8"))


def asked(pair: Pair, answer: int, answer_at_once: int) -> Iterator[tuple[Legs, int]]:
    """With the number of tokens that each has to answer."""
    for prompt in ONE_BY_ONE:
        yield pair.ask(prompt, answer), answer
    yield from [(pair.ask(prompt, answer_at_once), answer_at_once) for prompt in AT_ONCE]
    for prompt in SHARED:
        yield pair.ask(prompt, answer), answer


def ended(legs: Legs, answer: int) -> None:
    assert legs.prefill is not None
    legs.prefill.result(LIMIT_SECONDS)
    assert legs.decode.result(LIMIT_SECONDS)["tokens"] == [TOKEN] * answer


def judged(case: Case, plan: VllmPlan, prefiller: dict[str, Any], decoder: dict[str, Any]) -> None:
    assert {**prefiller["held"], **decoder["held"]} == {}
    sent, received = prefiller["figures"], decoder["figures"]
    print(f"{plan.name}: {sent}, {received}")
    for figures, ranks, stages in zip((sent, received), case.ranks, case.stages, strict=True):
        assert figures["rows_wrong"] == 0, figures["first_wrong"]
        assert figures["contexts"] == [[rank] for rank in range(ranks * stages)]
        judged_directly(case, figures["rdma"])
    token_by_token = plan.layout == "NHD" and case.ranks[0] != case.ranks[1]
    assert bool(sent["strided_pieces_sent"]) == token_by_token
    assert token_by_token or 0 < sent["transport_writes_sent"] <= sent["pages_sent"]
    tokens = sum(len(prompt) - case.left_out_tokens for prompt in PROMPTS)
    cached = sum(map(len, SHARED)) if plan.prefix_caching else 0
    layers = case.layers_with_rows or case.model.layer_count
    assert sent["rows_written"] >= case.ranks[0] * layers * (tokens - cached)
    assert not case.reads_all or received["rows_read"] > case.ranks[1] * layers * tokens_read(case)
    assert sent["states_written"] >= case.states * len(PROMPTS)
    assert bool(received["states_read"]) == bool(case.states)
    assert received["states_read"] >= case.states * len(PROMPTS) * case.answer
    assert received["fetches_failed"] == 0
    assert received["pages_received"] > 0
    pages_known = case.ranks == (1, 1) and type(case.model) is make_model.TinyModel and not plan.prefix_caching
    assert not pages_known or received["pages_received"] == PAGES
    for figures in (sent, received):
        assert bool(figures["transport_runs_by_kernel"]) == ("gpu_copy_kernel" in case.options)
    assert bool(sent["replays"]) == (plan.graphs != EAGER and case.prefills_in_graphs)
    parts = case.model.layer_count + 1 if plan.graphs in (BREAKABLE, PIECEWISE) else 1
    assert sent["replays"] % parts == 0, f"{sent['replays']} replays: passes are not in parts about {parts - 1} layers"
    assert bool(received["replays"]) == (plan.graphs != EAGER)
    assert bool(received["preemptions"]) == (plan.kv_bytes == FEW_BLOCKS_BYTES)
    left = f"none of {sent['layers_sent']:.0f} layers left before its pass ended"
    assert case.transport in STAGED or sent["layers_sent_early"], left


def tokens_read(case: Case) -> int:
    """At least, by each layer with rows, for all answers."""
    left_out = case.left_out_tokens
    one_by_one = sum(len(prompt) - left_out for prompt in (*ONE_BY_ONE, *SHARED))
    return case.answer * one_by_one + case.answer_at_once * sum(len(prompt) - left_out for prompt in AT_ONCE)


def judged_directly(case: Case, ranks: list[list[int]]) -> None:
    """Over verbs each rank's device is read or written by the RDMA devices themselves, over others by none of them."""
    for dma_bufs, read, written in ranks:
        devices = len(case.options.get("verbs_devices", ["any"])) if case.transport == "verbs" else 0
        assert dma_bufs == devices
        assert bool(read) + bool(written) == bool(devices)


def of_all(cases: dict[str, Case], marks: Sequence[Any] = ()) -> list[Any]:
    return [pytest.param(case, id=name, marks=marks) for name, case in cases.items()]


@pytest.mark.parametrize("case", [*of_all(PAIRS), *of_all(MORE_PAIRS, [pytest.mark.at_length])])
def test_rows_that_a_decoder_reads_are_those_of_its_prompts(
    case: Case, engines: Engines, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    brought(case, request.node.callspec.id, engines, tmp_path)


@pytest.mark.at_length
def test_a_byte_that_the_kernel_leaves_out_is_found(engines: Engines, tmp_path: Path) -> None:
    longer_than_at_the_start = {"STAND_IN_DROP_TAILS": "97"}
    with pytest.raises(AssertionError, match=r"layer 0 at \w+, token"):
        brought(replace(BY_KERNEL, driver=longer_than_at_the_start), "tails-dropped", engines, tmp_path)


@pytest.mark.at_length
def test_layers_that_all_leave_behind_their_pass_are_found(engines: Engines, tmp_path: Path) -> None:
    """As on a device that takes no kernels that count: each row is right, and the pair takes longer than it need."""
    uncounted = Case(settings=flash(), driver={"STAND_IN_FAIL": "cuModuleLoadData:1:801"})
    with pytest.raises(AssertionError, match=r"none of \d+ layers left before its pass ended"):
        brought(uncounted, "uncounted", engines, tmp_path)
    log = (tmp_path / "prefiller.log").read_text("utf-8")
    with pytest.raises(AssertionError, match="was handed over before"):
        judged_in_time(log)
    assert "this GPU cannot count: cuModuleLoadData failed" in log


OF_OTHER_RELEASE = {
    "full-graphs-cuda": Case(settings=flash(prefix_caching=True)),
    "flash-infer-cuda": Case(settings=flash_infer(), prefills_in_graphs=False),
    "ranks-2-2-cuda": Case(settings=triton(), ranks=(2, 2)),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.at_length] * (name != "full-graphs-cuda"))
        for name, case in OF_OTHER_RELEASE.items()
    ],
)
def test_rows_with_another_release(
    case: Case, other_engines: Engines, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    brought(case, f"other-release-{request.node.callspec.id}", other_engines, tmp_path)
