"""SGLang's own draft workers on two real servers: what a draft has of a prompt goes with the model's KV.

Tokens are right whatever a draft guesses. How many guesses are right depends on all of its KV: they are as many as on a
single SGLang with the same draft. What the draft has on both sides is compared besides, byte for byte, and SGLang
compares its own checksums of all pages, those of the draft among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from faults import dropped_payload
from prompts import cache_home, random_prompt
from server_process import LOOPBACK, Server, free_port
from sglang_bed import PLUGINS, Ground, Kind, Pair, give_up, start
from sglang_drafts import EAGLE, EAGLE3, MTP, Guessing
from sglang_drafts import PLUGINS as DRAFTS
from sglang_servers import EngineOptions, engine
from traffic import sharing_beginning
from warm_sglang import WarmSglang

pytest_plugins = ["sglang_fixtures"]
ANSWER_TOKENS: Final = 24
LENGTHS: Final = (5, 17, 257, 720)
AT_ONCE: Final = (65, 400, 33, 512)
BEGINNING: Final = 300
ENDINGS: Final = (1, 90)
KINDS: Final = {"eagle": EAGLE, "eagle3": EAGLE3, "mtp": MTP}
IN_EVERY_RUN: Final = ("eagle",)
UNDRAFTED: Final = ("draft is none", "is EAGLE")


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    right: list[int]
    """How many of the model's passes had so many right guesses, from none on."""


@dataclass(frozen=True)
class Drafted:
    """A pair with a draft on both sides, and one SGLang with the same."""

    pair: Pair
    single: Server
    ground: Ground
    kind: Kind

    def by_pair(self, prompt: str, room: int, pair: Pair | None = None) -> Answer:
        asked = pair or self.pair
        bootstrap = {"bootstrap_host": LOOPBACK, "bootstrap_port": asked.bootstrap_port, "bootstrap_room": room}
        with ThreadPoolExecutor(1) as other:
            leg = other.submit(asked.prefiller.server.post, "/generate", body(prompt) | bootstrap)
            answered = answer(asked.decoder.server.post("/generate", body(prompt) | bootstrap))
            assert "output_ids" in leg.result(), leg.result()
        return answered

    def by_single(self, prompt: str) -> Answer:
        return answer(self.single.post("/generate", body(prompt)))

    def states(self, room: int, side: str) -> list[dict[str, Any]]:
        """What each rank had of a request."""
        files = self.ground.recording.glob("*.drafts")
        lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        return sorted(
            (line for line in lines if (line["room"], line["side"]) == (room, side)), key=lambda line: int(line["rank"])
        )


def checksums(drafted: Drafted) -> list[list[str]]:
    """Of each process that has computed any, in any order."""
    files = drafted.ground.recording.glob("*.checksums")
    return [sorted(file.read_text(encoding="utf-8").split()) for file in files]


def body(prompt: str) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
    return {"text": prompt, "sampling_params": sampling}


def answer(given: dict[str, Any]) -> Answer:
    assert "output_ids" in given, given
    return Answer(given["output_ids"], given["meta_info"]["spec_correct_drafts_histogram"])


def kv_by_head(ranks: list[dict[str, Any]]) -> list[list[str]]:
    """Of each buffer the heads of all ranks, in order."""
    return [[head for part in parts for head in part] for parts in zip(*(rank["heads"] for rank in ranks), strict=True)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, id=name, marks=[pytest.mark.at_length] * (name not in IN_EVERY_RUN))
        for name, kind in KINDS.items()
    ],
)
def drafted(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[Drafted]:
    guessing: Guessing = request.param
    folder = run_folder / f"drafts-{guessing.algorithm}"
    ground = Ground(guessing.model(cache_home()), folder)
    guesses = guessing.arguments(cache_home())
    plugins = (*DRAFTS, "draft_states", "checksums_on_cpu")
    kind = Kind(arguments=(*guesses, "--disaggregation-enable-kv-checksum"), plugins=plugins)
    plugged = {"PYTHONPATH": str(PLUGINS), "SGLANG_PLUGINS": ",".join(DRAFTS)}
    alone = EngineOptions(ground.model, environment=plugged, arguments=guesses)
    with ExitStack() as stack:
        pair = ground.started_pair(stack, kind, f"drafted-{guessing.algorithm}")
        single = engine("drafted-single", alone, folder, kind=WarmSglang)
        start(stack, [single])
        yield Drafted(pair, single, ground, kind)


def assert_arrived(drafted: Drafted, rooms: dict[int, str]) -> None:
    """All K and V of the draft, and its rows, are those of the prefiller, and of no other request."""
    seen = []
    for room in rooms:
        (left,), arrived = drafted.states(room, "prefill"), drafted.states(room, "decode")
        assert kv_by_head(arrived) == left["heads"], f"a draft's KV differs in room {room}"
        assert all(rank["rows"] == left["rows"] for rank in arrived), f"a draft's rows differ in room {room}"
        assert left["hidden"], "hidden states that are all zero would be equal without having been sent"
        seen.append(json.dumps(left["heads"]))
    assert len(set(seen)) == len(set(rooms.values())), "the draft has something else of each prompt"
    one, other = checksums(drafted)
    assert one == other, "SGLang's checksums of what was sent and of what has arrived"
    assert len(one) >= len(rooms)


def test_drafts_guess_as_on_a_single_sglang(drafted: Drafted) -> None:
    asked = [*(random_prompt(length, 810) for length in LENGTHS), *sharing_beginning(811, BEGINNING, ENDINGS)]
    rooms = dict(enumerate(asked, start=1))
    for room, prompt in rooms.items():
        assert drafted.by_pair(prompt, room) == drafted.by_single(prompt), f"{len(prompt.split())} tokens"
    assert_arrived(drafted, rooms)
    drafted.pair.wait_at_rest()


def test_prompts_at_once_have_their_own_drafts(drafted: Drafted) -> None:
    rooms = dict(enumerate((random_prompt(length, 812) for length in AT_ONCE), start=101))
    with ThreadPoolExecutor(len(rooms)) as pool:
        answers = list(pool.map(drafted.by_pair, rooms.values(), rooms))
    for given, prompt in zip(answers, rooms.values(), strict=True):
        assert given.tokens == drafted.by_single(prompt).tokens
    assert_arrived(drafted, rooms)
    drafted.pair.wait_at_rest()


def test_a_prefiller_without_the_draft_is_refused_by_a_sentence(drafted: Drafted, stack: ExitStack) -> None:
    plain, port = Kind(), free_port()
    prefiller = drafted.ground.side("prefill", plain, port, name="undrafted-prefill")
    start(stack, [prefiller.server])
    unequal = replace(drafted.pair, prefiller=prefiller, bootstrap_port=port)
    for tokens, request in ((17, "undrafted-1"), (65, "undrafted-2")):
        outcome = unequal.attempt_at_decoder(random_prompt(tokens, 813), ANSWER_TOKENS, request)
        assert outcome.failed
        assert all(words in outcome.detail for words in UNDRAFTED)
        give_up(request, [prefiller])
    assert all(words in prefiller.server.log() for words in UNDRAFTED)
    unequal.wait_at_rest()


@pytest.mark.at_length
def test_each_rank_of_a_decoder_gets_its_heads_of_the_draft(drafted: Drafted, stack: ExitStack) -> None:
    """SGLang skips its checksums there: a rank's pages are others than the prefiller's."""
    decoder = drafted.ground.side("decode", replace(drafted.kind, tp_size=2), name="drafted-decode-tp2")
    start(stack, [decoder.server])
    sharded = replace(drafted.pair, decoder=decoder)
    rooms = dict(enumerate((random_prompt(tokens, 815) for tokens in (17, 300)), start=301))
    for room, prompt in rooms.items():
        assert drafted.by_pair(prompt, room, sharded).tokens == drafted.by_single(prompt).tokens
        (left,), ranks = drafted.states(room, "prefill"), drafted.states(room, "decode")
        assert len(ranks) == 2
        assert kv_by_head(ranks) == left["heads"]
        assert [rank["rows"] for rank in ranks] == 2 * [left["rows"]]
    sharded.wait_at_rest()


@pytest.mark.at_length
def test_kv_that_did_not_come_is_found(drafted: Drafted, stack: ExitStack) -> None:
    """The comparisons can fail: everything but the payload crosses, and SGLang's checksum finds it."""
    port = free_port()
    faulty = replace(drafted.kind, options={"jvm_options": dropped_payload()})
    prefiller = drafted.ground.side("prefill", faulty, port, name="dropping-drafted-prefill")
    start(stack, [prefiller.server])
    dropping = replace(drafted.pair, prefiller=prefiller, bootstrap_port=port)
    room, prompt = 201, random_prompt(17, 814)
    outcome = dropping.attempt_both_sides(prompt, ANSWER_TOKENS, "dropped-draft", room)
    assert "KV checksum mismatch" in outcome.detail
    (left,), arrived = drafted.states(room, "prefill"), drafted.states(room, "decode")
    assert kv_by_head(arrived) != left["heads"]
