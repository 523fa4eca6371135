"""Pairs whose sides have GPUs and attention backends of their own: pages fit by what is in them, not by a name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import make_model
import pytest
from gpu_check.vllm_checks import AT_ONCE

from uncomputed.cuda_platform import CAPABILITY
from uncomputed.flash_infer import VALUES_FIRST
from uncomputed.in_time import judged_in_time
from uncomputed.pair import LIMIT_SECONDS, Engines, started
from uncomputed.test_vllm import Case, asked, ended, flash, flash_infer, judged, triton

pytestmark = pytest.mark.at_length

ANSWER = 6
H100, B200 = {CAPABILITY: "9.0"}, {CAPABILITY: "10.0"}


@dataclass(frozen=True)
class Sides:
    """A prefiller on its GPU and a decoder on another."""

    prefiller: dict[str, Any]
    decoder: dict[str, Any]
    gpus: tuple[dict[str, str], dict[str, str]] = (H100, B200)
    transport: str = "cuda"
    case: Case = field(default_factory=Case)

    def plans(self, name: str) -> tuple[Any, Any]:
        prefiller, decoder = (
            replace(self.case, transport=self.transport, settings=settings).plan(name)
            for settings in (self.prefiller, self.decoder)
        )
        return prefiller, decoder


LATENT = Case(model=make_model.TinyWideLatentModel(), prefills_in_graphs=False)
ALIKE = {
    "flash-to-flash-infer": Sides(flash(), flash_infer()),
    "flash-infer-to-flash": Sides(flash_infer(), flash(), (B200, H100), "tcp", Case("tcp", prefills_in_graphs=False)),
    "fp8-flash-to-flash-infer": Sides(flash(kv_dtype="fp8"), flash_infer(kv_dtype="fp8")),
    "fp8-flash-infer-to-flash-infer": Sides(
        flash_infer(kv_dtype="fp8"), flash_infer(kv_dtype="fp8"), case=Case(prefills_in_graphs=False)
    ),
    "triton-to-flash": Sides(triton(), flash(), (H100, H100)),
    "latent-triton-to-flash": Sides(
        {"attention": "TRITON_MLA"}, {"attention": "FLASH_ATTN_MLA"}, (H100, H100), case=LATENT
    ),
}
BY_ANOTHER_WRITER = Sides(flash(), flash_infer(), (H100, B200 | {VALUES_FIRST: "1"}))
UNLIKE = {
    "values-before-keys": (
        BY_ANOTHER_WRITER,
        "the prefiller's page format is FLASH_ATTN/pages1, the decoder's is FLASHINFER/pages1",
    ),
    "tokens-before-heads": (
        Sides(flash(layout="NHD"), flash_infer()),
        "the prefiller's layout is NHD, the decoder's is HND",
    ),
}


def brought(sides: Sides, name: str, engines: Engines, logs: Path) -> None:
    prefiller, decoder = sides.plans(name)
    with started(decoder, logs, engines, prefiller, sides.gpus) as pair:
        for legs, answer in asked(pair, ANSWER, ANSWER):
            ended(legs, answer)
        rests = pair.prefiller.rest(), pair.decoder.rest()
    judged(sides.case, decoder, *rests)
    judged_in_time((logs / "prefiller.log").read_text("utf-8"))


@pytest.mark.parametrize("name", ALIKE)
def test_backends_that_write_alike_read_each_others_pages(name: str, engines: Engines, tmp_path: Path) -> None:
    brought(ALIKE[name], name, engines, tmp_path)


@pytest.mark.parametrize("name", ["flash-to-flash-infer", "flash-infer-to-flash"])
def test_backends_of_another_release_do_too(name: str, other_engines: Engines, tmp_path: Path) -> None:
    brought(ALIKE[name], name, other_engines, tmp_path)


@pytest.mark.parametrize("name", UNLIKE)
def test_pages_with_other_bytes_are_refused_by_one_sentence(name: str, engines: Engines, tmp_path: Path) -> None:
    sides, sentence = UNLIKE[name]
    prefiller, decoder = sides.plans(name)
    with started(decoder, tmp_path, engines, prefiller, sides.gpus) as pair:
        legs = pair.ask(AT_ONCE[1], ANSWER)
        answer = legs.decode.result(LIMIT_SECONDS)
        rest = pair.decoder.rest()
    assert (answer["how"], answer["tokens"]) == ("error", [])
    assert rest["figures"]["pages_received"] == 0
    for side in ("prefiller", "decoder"):
        assert sentence in (tmp_path / f"{side}.log").read_text("utf-8")


def test_what_is_refused_would_be_wrong(engines: Engines, tmp_path: Path) -> None:
    """Both sides excuse the difference; the rows that the decoder then reads are wrong."""
    excused = replace(BY_ANOTHER_WRITER, case=Case(options={"settings_may_differ": ["page format"]}))
    prefiller, decoder = excused.plans("excused")
    with started(decoder, tmp_path, engines, prefiller, excused.gpus) as pair:
        ended(pair.ask(AT_ONCE[1], ANSWER), ANSWER)
        figures = pair.decoder.rest()["figures"]
    assert figures["pages_received"] > 0
    assert figures["rows_wrong"] >= len(AT_ONCE[1])
