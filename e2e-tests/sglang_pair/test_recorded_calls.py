"""SGLang with pages of one token and with overlap: right tokens, and the calls that python/tests/sglang replays.

Two pairs are recorded, see plugins/recorder.py. Their calls must be those that are kept in the tree, or the installed
SGLang is another one than the quick tests stand for. `--record` writes them anew.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import fabric
import pytest
from conftest import Reference
from kv_connector.cli.timelines import prefills
from recordings import GIVEN_UP_AT_BOTH, RETRACTED, calls_of, comparable, draft_rows, pages_of, pages_sent, section
from server_process import wait_until, words_of
from sglang_bed import Ground, Kind, Pair, Side, give_up
from sglang_workload import (
    ABORTED,
    ANSWER_TOKENS,
    LOAD,
    MIXED_AT_ONCE,
    MIXED_REQUESTS,
    RETRACTED_ANSWER_TOKENS,
    TOKENS,
    hits,
    mixed_groups,
)

pytest_plugins = ["sglang_fixtures"]
RECORDED = Path(__file__).resolve().parents[2] / "python" / "tests" / "sglang" / "recorded"
NOTICED_LIMIT_SECONDS = 600.0
OVERLAPPED = "pages-of-1-overlap"
KINDS = {
    "pages-of-16": Kind(holdable=True, recorded=True),
    OVERLAPPED: Kind(holdable=True, recorded=True, page_tokens=1, overlap=True),
}


@dataclass
class Recorder:
    """Asks a recorded pair for one request after the other, and keeps the calls of each under its title."""

    name: str
    pair: Pair
    folder: Path
    reference: Reference
    sections: list[str] = field(default_factory=list)
    _rooms: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def asked(self, title: str, prompt: str) -> None:
        """A request that is served."""
        room = next(self._rooms)
        outcome = self.pair.attempt_both_sides(prompt, ANSWER_TOKENS, f"asked-{uuid.uuid4()}", room)
        assert outcome.words == self.reference.to(prompt), f"{title}: {outcome.detail}"
        self._keep(title, room)

    def given_up(self, title: str, prompt: str, *sides: Side) -> None:
        """A request that is aborted at these sides when all of it is computed and not all of it has left."""
        room, name = next(self._rooms), f"given-up-{uuid.uuid4()}"
        with ThreadPoolExecutor(1) as pool, self.pair.halfway() as wait_begun:
            leg = pool.submit(self.pair.attempt_both_sides, prompt, ANSWER_TOKENS, name, room)
            wait_begun()
            wait_until(lambda: self._all_given(room), NOTICED_LIMIT_SECONDS, "all of it is computed and sent")
            give_up(name, sides)
            if self.pair.decoder in sides:
                assert leg.result(NOTICED_LIMIT_SECONDS).failed
        assert leg.result(NOTICED_LIMIT_SECONDS).failed
        self._keep(title, room)

    def retracted(self, title: str, prompt: str) -> None:
        """A request that the decoder is paused in the middle of, as before a weight update."""
        room, decoder = next(self._rooms), self.pair.decoder.server
        with ThreadPoolExecutor(1) as pool:
            name = f"retracted-{uuid.uuid4()}"
            leg = pool.submit(self.pair.attempt_both_sides, prompt, RETRACTED_ANSWER_TOKENS, name, room)
            wait_until(lambda: self.pair.decoder.running() == 1, NOTICED_LIMIT_SECONDS, "it is being answered")
            decoder.post("/pause_generation", {"mode": "retract"})
            assert not leg.done(), "the pause came too late"
            decoder.post("/continue_generation", {})
            words = leg.result(NOTICED_LIMIT_SECONDS).words
        assert words is not None
        assert words[:ANSWER_TOKENS] == self.reference.to(prompt)
        self._keep(title, room)

    def _all_given(self, room: int) -> bool:
        calls = calls_of(self.folder, room)
        return pages_sent(calls) == pages_of(calls)

    def _keep(self, title: str, room: int) -> None:
        self.pair.wait_at_rest()
        self.sections.append(section(title, calls_of(self.folder, room)))


def kind_of(name: str) -> Kind:
    """KV of one kind comes by libfabric, where that can be had: what SGLang asks of a backend is the same."""
    by_fabric = name != OVERLAPPED and fabric.folder() is not None
    return replace(KINDS[name], options=fabric.options() if by_fabric else {"transports": ["tcp"]})


@pytest.fixture(scope="module")
def recorder(request: pytest.FixtureRequest, ground: Ground, by_sglang: Reference) -> Iterator[Recorder]:
    with ExitStack() as held:
        apart = Ground(ground.model, ground.folder / request.param)
        pair = apart.started_pair(held, kind_of(request.param), request.param)
        yield Recorder(request.param, pair, apart.recording, by_sglang)


@pytest.mark.parametrize("recorder", KINDS, indirect=True)
def test_scheduler_calls_the_backend_as_it_was_recorded(recorder: Recorder, request: pytest.FixtureRequest) -> None:
    first, two_left, three_left, _ = hits()
    recorder.asked("cold, three passes", first)
    recorder.asked("all but the end in the cache", first)
    recorder.asked("a hit, two passes left", two_left)
    recorder.asked("a hit, three passes left", three_left)
    for tokens in (1, 16, 17):
        recorder.asked(f"cold, {tokens} tokens", TOKENS.prompts()[TOKENS.lengths.index(tokens)])
    prefiller, decoder = recorder.pair.prefiller, recorder.pair.decoder
    recorder.given_up("given up at the decoder", ABORTED.prompts()[0], decoder)
    recorder.given_up("given up at the prefiller", ABORTED.prompts()[1], prefiller)
    recorder.given_up(GIVEN_UP_AT_BOTH, ABORTED.prompts()[2], decoder, prefiller)
    recorder.retracted(RETRACTED, LOAD.prompts()[0])
    text, kept = "\n".join(recorder.sections), RECORDED / f"{recorder.name}.txt"
    if request.config.getoption("--record"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(text, encoding="utf-8")
    used = {prefill.transport for prefill in prefills(prefiller.server.log()).values()}
    assert used == set(kind_of(recorder.name).options["transports"])
    known = comparable(kept.read_text(encoding="utf-8"))
    assert comparable(text) == known, "SGLang calls otherwise than was recorded; --record writes it anew"


@pytest.mark.parametrize("recorder", [OVERLAPPED], indirect=True)
def test_prompts_that_share_beginnings_get_right_tokens(recorder: Recorder, by_sglang: Reference) -> None:
    """In groups at the same moment, with pages of one token and overlap; test_sglang.py has the other kind of pair."""
    pair, wrong = recorder.pair, []
    with ThreadPoolExecutor(MIXED_AT_ONCE) as pool:
        for group in mixed_groups():
            answers = pool.map(lambda prompt: words_of(pair.ask(prompt, ANSWER_TOKENS)), group)
            wrong += [p for p, words in zip(group, answers, strict=True) if words != by_sglang.to(p)]
    assert [len(prompt.split()) for prompt in wrong] == [], f"{len(wrong)} of {MIXED_REQUESTS} answers differ"
    rows = draft_rows(recorder.folder)
    print(f"rows of {len(rows)} requests were compared")
    assert len(rows) >= MIXED_REQUESTS
    assert set(rows) == {"equal"}, f"{rows.count('differs')} of {len(rows)} requests had other rows than were written"
    pair.wait_at_rest()
