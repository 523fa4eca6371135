"""Weights that change while a prompt waits: it is named by those that compute it, or it is not exchanged.

Both halves with real messengers in one process, and the hooks that SGLang's scheduler calls. A prompt waits in each of
its states, and the prefiller alone or both sides get other weights.
"""

from __future__ import annotations

import itertools
from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

SideName = Literal["prefill", "decode"]
State = Literal["queued", "granted", "begun", "sent"]
STATES: tuple[State, ...] = ("queued", "granted", "begun", "sent")
"""Of a prompt of three pages, when weights change: its pages of the first pass are sent once it has begun."""
SOURCES, TARGETS, SLOT, CONTEXT = [3, 5, 6], [9, 2, 11], 4, 2
PREFIX_PAGES = 2
"""The decoder has so many in its cache, before those that are sent."""


class Weights:
    """What each side names its weights."""

    def __init__(self) -> None:
        self.names: dict[SideName, str] = {"prefill": "", "decode": ""}
        self.of: SideName = "decode"

    def name(self) -> str:
        return self.names[self.of]


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Weights:
    from kv_connector.sglang import weight_changes

    both = Weights()
    monkeypatch.setattr(weight_changes, "name", both.name)
    return both


class Story:
    """One prompt on both sides, by the hooks and in the order of SGLang's schedulers."""

    def __init__(self, pair: Pair, weights: Weights) -> None:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        self._pair, self._weights = pair, weights
        self.room = pair.next_room()
        pair.prefiller.scribble(self.room)
        pair.decoder.scribble(self.room + 1)
        self._prefix = PREFIX_PAGES * pair.prefiller.endpoint.kv_args.page_size
        self.given = 0
        self.ends: dict[SideName, int] = {}
        self.why = ""
        made = [Req(side, "", array("q", range(5, 85)), SamplingParams()) for side in ("prefill", "decode")]
        self._request, self._waiting = made[0], SimpleNamespace(kv_receiver=pair.receiver(self.room), req=made[1])
        made[1].kv = SimpleNamespace(req_pool_idx=3)
        self._queue = SimpleNamespace(kv_manager=pair.prefiller.endpoint, scheduler=None, queue=[made[0]])
        self._target = SimpleNamespace(kv_manager=pair.decoder.endpoint, scheduler=None)

    # ---- the prefiller's scheduler

    def queue(self) -> None:
        from kv_connector.sglang.hooks import name_sender, note_weights

        self._weights.of = "prefill"
        name_sender(self._queue, self._request, 4)
        self._request.disagg_kv_sender = self._pair.sender(self.room)
        note_weights(None, self._queue, self._request, 4)

    def prefiller_round(self) -> int:
        """What SGLang does before it looks which requests have their pages."""
        from kv_connector.sglang.hooks import name_queued

        self._weights.of = "prefill"
        if "prefill" in self.ends:
            return self.ends["prefill"]
        name_queued(self._queue)
        state = int(self._request.disagg_kv_sender.poll())
        self._note("prefill", state, self._request.disagg_kv_sender)
        return state

    def pop(self) -> None:
        """The request leaves the queue with its pages' number, as SGLang counts them."""
        self._queue.queue = []
        sender = self._request.disagg_kv_sender
        assert sender.pop_decode_prefix_len() == self._prefix
        sender.init(len(SOURCES), CONTEXT)

    def compute(self, end: int) -> None:
        """A forward pass of the prompt to this page, and what SGLang gives behind it."""
        from one_process import pages

        from kv_connector.sglang.hooks import run_batch

        self._weights.of = "prefill"
        mode = SimpleNamespace(is_extend=lambda: True)
        batch = SimpleNamespace(reqs=[self._request], forward_mode=mode, extend_num_tokens=16)
        run_batch(lambda *_: None, SimpleNamespace(), batch)
        if end == len(SOURCES):
            self._pair.write_metadata(CONTEXT, self.room, 123)
        self._request.disagg_kv_sender.send(pages(*SOURCES[self.given : end]), [] if end == len(SOURCES) else None)
        self.given = end

    # ---- the decoder's scheduler

    def ask(self) -> None:
        from one_process import pages

        from kv_connector.sglang.hooks import name_receiver

        self._weights.of = "decode"
        name_receiver(self._target, self._waiting)
        self._waiting.kv_receiver.send_metadata(pages(*TARGETS), SLOT, decode_prefix_len=self._prefix)

    def decoder_round(self) -> int:
        self._weights.of = "decode"
        if "decode" in self.ends:
            return self.ends["decode"]
        state = int(self._waiting.kv_receiver.poll())
        self._note("decode", state, self._waiting.kv_receiver)
        return state

    def _note(self, side: SideName, state: int, half: Any) -> None:
        from sglang.srt.disaggregation.base.conn import KVPoll

        from kv_connector.sglang.sglang_api import KVTransferError

        if state == KVPoll.Failed:
            with pytest.raises(KVTransferError) as why:
                half.failure_exception()
            self.why += f"{side}: {why.value} "
        if state in (KVPoll.Success, KVPoll.Failed):
            half.clear()
            self.ends[side] = state

    # ---- both

    def until_granted(self) -> None:
        from one_process import until
        from sglang.srt.disaggregation.base.conn import KVPoll

        until(lambda: self.prefiller_round() in (KVPoll.WaitingForInput, KVPoll.Failed), "the prefiller has its grant")

    def reach(self, state: State) -> None:
        self.queue()
        if state == "queued":
            return
        self.ask()
        self.until_granted()
        self.pop()
        if state == "begun":
            self.compute(1)
        elif state == "sent":
            self.compute(len(SOURCES))

    def end(self, first: SideName) -> None:
        """Both schedulers go on, one of them for some rounds alone; a leg that is left alone is out of time then."""
        from one_process import until
        from sglang.srt.disaggregation.base.conn import KVPoll

        from kv_connector.sglang import sender

        rounds = {"prefill": self._prefiller_goes_on, "decode": self.decoder_round}
        if self._waiting.kv_receiver._ask is None:
            self.ask()
        for _ in range(5):
            rounds[first]()
        until(lambda: [each() for each in rounds.values()] and "decode" in self.ends, "the decoder's leg has ended")
        with pytest.MonkeyPatch.context() as out_of_time:
            out_of_time.setattr(sender, "RENAMED_LIMIT_SECONDS", 0)
            out_of_time.setattr(self._pair.prefiller.endpoint, "bootstrap_timeout", 0)
            until(lambda: [self._prefiller_goes_on()] and len(self.ends) == 2, "both legs have ended")
        if self.ends["decode"] == KVPoll.Success:
            assert self.ends["prefill"] == KVPoll.Success

    def _prefiller_goes_on(self) -> None:
        from sglang.srt.disaggregation.base.conn import KVPoll

        state = self.prefiller_round()
        if state == KVPoll.WaitingForInput and self._queue.queue:
            self.pop()
        if not self._queue.queue and "prefill" not in self.ends and self.given < len(SOURCES):
            self.compute(self.given + 1)


def outcome(pair: Pair, story: Story) -> bool:
    """Whether the prompt came; nothing else may have come of it, and nothing is held."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    came = story.ends["decode"] == KVPoll.Success
    if came:
        pair.assert_equal_pages(SOURCES, TARGETS)
        assert pair.decoder.metadata.output_ids[SLOT, 0] == 123
    pair.assert_nothing_held()
    return came


ORDERS: tuple[SideName, ...] = ("prefill", "decode")


@pytest.mark.parametrize(("state", "first"), list(itertools.product(STATES, ORDERS)))
def test_should_exchange_what_waits_where_both_sides_get_the_same_weights(
    pair: Pair, weights: Weights, state: State, first: SideName
) -> None:
    """As a trainer does it: both are paused, both are updated, and then go on in any order."""
    story = Story(pair, weights)
    story.reach(state)
    weights.names = {"prefill": "step 2", "decode": "step 2"}
    if state != "sent":
        pair.prefiller.scribble(11)
    story.end(first)
    assert outcome(pair, story), story.why


def test_should_exchange_what_is_asked_for_before_both_sides_are_updated_and_queued_after_it(
    pair: Pair, weights: Weights
) -> None:
    """Each side names it when it comes, so the two legs name different prompts until the decoder asks once more."""
    story = Story(pair, weights)
    story.ask()
    weights.names = {"prefill": "step 2", "decode": "step 2"}
    story.queue()
    story.end("prefill")
    assert outcome(pair, story), story.why


@pytest.mark.parametrize(("state", "first"), list(itertools.product(STATES, ORDERS)))
def test_should_exchange_nothing_that_weights_compute_which_the_decoder_has_not(
    pair: Pair, weights: Weights, state: State, first: SideName
) -> None:
    story = Story(pair, weights)
    story.reach(state)
    weights.names["prefill"] = "step 2"
    story.end(first)
    assert outcome(pair, story) == (state == "sent"), "what was computed before is of the decoder's weights"
    if state != "sent":
        assert "weights" in story.why


def test_should_decline_by_its_present_name_what_it_does_not_ask_for(pair: Pair, weights: Weights) -> None:
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector.sglang.hooks import name_new_receiver

    story = Story(pair, weights)
    story.queue()
    name_new_receiver(story._waiting, story._target)
    weights.names = {"prefill": "step 2", "decode": "step 2"}
    story.prefiller_round()
    weights.of = "decode"
    story._waiting.kv_receiver.abort()
    until(lambda: story.prefiller_round() == KVPoll.Failed, "the prefiller knows that its prompt is not wanted")
    assert "declined the transfer" in story.why
    pair.assert_nothing_held()


@pytest.mark.parametrize("state", ["queued", "granted", "begun"])
@pytest.mark.parametrize("named_anew", [False, True])
def test_should_end_at_once_where_its_decoder_has_given_up_what_it_had_asked_for(
    pair: Pair, weights: Weights, monkeypatch: pytest.MonkeyPatch, state: State, named_anew: bool
) -> None:
    """A client leaves before or after the prefiller, which a trainer had paused, has named the prompt anew."""
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector.sglang import sender

    monkeypatch.setattr(sender, "RENAMED_LIMIT_SECONDS", float("inf"))
    story = Story(pair, weights)
    story.reach(state)
    if state == "queued":
        story.ask()
    weights.names = {"prefill": "step 2", "decode": "step 2"}
    if named_anew and state == "queued":
        story.prefiller_round()
    elif named_anew:
        story.compute(story.given + 1)
    weights.of = "decode"
    story._waiting.kv_receiver.abort()
    until(lambda: pair.decoder.endpoint.exchange.is_quiet(story.room), "the decoder's pages are free")
    until(lambda: [story._prefiller_goes_on()] and "prefill" in story.ends, "the prefiller's leg has ended")
    assert story.ends["prefill"] == KVPoll.Failed
    pair.assert_nothing_held()
