"""Pairs of real SGLang on a CUDA that computes nothing: all rows that attention would read are right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import make_model
import pytest
from faults import dropped_payload
from gpu_check.sglang_checks import FIRST_PASS
from gpu_check.sglang_on_torch.plan import SglangPlan
from gpu_check.sglang_on_torch.servers import SglangPair, started
from gpu_check.vllm_checks import AT_ONCE, ONE_BY_ONE, PAGES, PROMPTS, SHARED, options
from prompts import cache_home

from uncomputed.pair import has_rdma_devices, stand_ins
from uncomputed.rows import TOKEN
from uncomputed.sglang_sides import LAUNCHER, LIMIT_SECONDS, UncomputedSglang

ANSWER_TOKENS = 6
PARTS = 2
"""SGLang keeps K and V apart."""


@dataclass(frozen=True)
class Case:
    """A pair. `ranks` are the tensor-parallel ones of each side; other settings are those of SglangPlan."""

    transport: str = "cuda"
    settings: dict[str, Any] = field(default_factory=dict)
    model: make_model.Shape = field(default_factory=lambda: make_model.TinyModel(seed=20))
    ranks: tuple[int, int] = (1, 1)
    options: dict[str, Any] = field(default_factory=dict)

    def plan(self, name: str) -> SglangPlan:
        given = options(self.transport, last_token_check="off")  # what it compares is not computed
        settings: dict[str, Any] = {"chunk_tokens": 512} | self.settings
        return SglangPlan(
            name, str(make_model.cached_model(cache_home(), self.model)), options=given | self.options, **settings
        )


RDMA_DEVICES = ["uncomputed_0", "uncomputed_1"]
BY_GPU = json.dumps(dict(enumerate(RDMA_DEVICES)))
"""As SGLang's --disaggregation-ib-device has it for each GPU."""
NO_GRAPHS = {"decode_graphs": "disabled"}
PAIRS = {"graphs-cuda": Case()}
MORE_PAIRS = {
    "no-graphs-cuda": Case(settings=NO_GRAPHS),
    "no-overlap-tcp": Case("tcp", NO_GRAPHS | {"overlap": False}),
    "graphs-tcp": Case("tcp"),
    "shared-beginnings-cuda": Case(settings={"radix": True}),
    "latent-kv-cuda": Case(settings={"overrides": {"moe_layer_freq": 1}}, model=make_model.TinyLatentModel()),
    "ranks-2-2-cuda": Case(ranks=(2, 2)),
    "ranks-1-2-tcp": Case("tcp", ranks=(1, 2)),
    "ranks-2-2-verbs": Case("verbs", ranks=(2, 2), options={"verbs_devices": RDMA_DEVICES}),
    "ib-device-names": Case("verbs", settings={"rdma_devices": ",".join(RDMA_DEVICES)}),
    "ib-device-by-gpu": Case("verbs", ranks=(2, 2), settings={"rdma_devices": BY_GPU}),
}


@pytest.fixture(scope="module", autouse=True)
def uncomputed_launcher() -> Iterator[None]:
    yield
    LAUNCHER.stop()


def brought(
    case: Case, name: str, logs: Path, prefiller_options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """All prompts through the pair, and what both sides have at rest."""
    plan = case.plan(name)
    prefiller, decoder = (replace(plan, ranks=ranks) for ranks in case.ranks)
    prefiller = replace(prefiller, options={**plan.options, **prefiller_options})
    with started(decoder, logs, UncomputedSglang, prefiller) as pair:
        asked(pair)
        sent, received = pair.prefiller.rest(), pair.decoder.rest()
        sent["counted"] = FIRST_PASS in pair.prefiller.server.log()
        for side in (pair.prefiller, pair.decoder):
            named_by_sglang(case, side.plan.ranks, side.server.log())
    print(f"{name}: {sent}, {received}")
    return sent, received


def asked(pair: SglangPair) -> None:
    given = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
    for group in ([prompt] for prompt in ONE_BY_ONE), [AT_ONCE], ([prompt] for prompt in SHARED):
        for prompts in group:
            for legs in [pair.ask({"input_ids": prompt, "sampling_params": given}) for prompt in prompts]:
                prefill, decode = (leg.result(LIMIT_SECONDS) for leg in legs)
                assert prefill["how"] == "length"
                assert decode["tokens"] == [TOKEN] * ANSWER_TOKENS


def judged(case: Case, sent: dict[str, Any], received: dict[str, Any]) -> None:
    assert sent["held"] | received["held"] == {}
    assert sent["counted"], "the first forward pass was not counted correctly"
    left, arrived = sent["figures"], received["figures"]
    for figures, ranks in zip((left, arrived), case.ranks, strict=True):
        assert figures["rows_wrong"] == 0, figures["first_wrong"]
        assert figures["contexts"] == [[rank] for rank in range(ranks)]
        judged_directly(case, figures["rdma"])
    cached = sum(map(len, SHARED)) if case.settings.get("radix") else 0
    tokens, layers = sum(map(len, PROMPTS)), case.model.layer_count
    assert left["rows_written"] >= case.ranks[0] * layers * (tokens - cached)
    assert arrived["rows_read"] > case.ranks[1] * layers * (ANSWER_TOKENS - 1) * tokens
    assert arrived["fetches_failed"] == 0
    assert arrived["pages_received"] > 0
    if case.ranks == (1, 1) and type(case.model) is make_model.TinyModel and not cached:
        assert arrived["pages_received"] == PARTS * PAGES
    assert left["replays"] == 0, "the prefiller's passes are in no graph"
    assert bool(arrived["replays"]) == (case.settings.get("decode_graphs") != "disabled")
    assert left["layers_sent_early"], f"none of {left['layers_sent']:.0f} layers left before its pass ended"


def judged_directly(case: Case, ranks: list[list[int]]) -> None:
    """Over verbs each rank's device is read or written by the RDMA devices themselves, over others by none of them."""
    for dma_bufs, read, written in ranks:
        assert bool(dma_bufs) == (case.transport == "verbs")
        assert bool(read) + bool(written) == bool(dma_bufs)


def named_by_sglang(case: Case, ranks: int, log: str) -> None:
    """Each rank's messenger has the devices of SGLang's argument, and each rank those of its own GPU."""
    given = case.settings.get("rdma_devices")
    if given is None:
        return
    of_ranks = [RDMA_DEVICES[rank] for rank in range(ranks)] if given == BY_GPU else [", ".join(RDMA_DEVICES)] * ranks
    used = re.findall(r"RDMA devices (.*) are used, which --disaggregation-ib-device names", log)
    assert sorted(used) == sorted(of_ranks)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.at_length] * (name in MORE_PAIRS))
        for name, case in (PAIRS | MORE_PAIRS).items()
    ],
)
def test_rows_that_a_decoder_reads_are_those_of_its_prompts(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if case.transport == "verbs" and not has_rdma_devices(stand_ins()):
        pytest.skip("no stand-in for RDMA devices: examples/setup/find-libfabric has no headers of libibverbs")
    judged(case, *brought(case, request.node.callspec.id, tmp_path, {}))


@pytest.mark.at_length
def test_rows_that_did_not_come_are_found(tmp_path: Path) -> None:
    """All but the payload crosses, and it is over TCP that the fault drops it."""
    sent, received = brought(Case("tcp", NO_GRAPHS), "dropped", tmp_path, {"jvm_options": dropped_payload()})
    assert sent["figures"]["rows_wrong"] == 0
    assert received["figures"]["rows_wrong"] > 0
