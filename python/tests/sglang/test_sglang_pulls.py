"""Pulls between two of SGLang's own prefix caches: what is used is right, and no page is lost, whatever comes when."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.runtime.facade import Offered

pytestmark = pytest.mark.usefixtures("sglang_plugins")

PROMPT = list(range(1, 42))
STORIES = 300
STEPS_MAX = 50


def world(page_tokens: int = 4) -> Any:
    from pull_world import World

    return World(page_tokens)


@pytest.mark.parametrize("page_tokens", [1, 4, 16])
@pytest.mark.parametrize("parts", [1, 3])
def test_should_add_what_the_other_cache_holds(page_tokens: int, parts: int) -> None:
    w = world(page_tokens)
    w.source.compute(PROMPT[:33])
    w.asker.compute(PROMPT[:17])
    pull = w.ask(PROMPT)
    w.deliver_asks(parts)
    (offer,) = w.deliver_offers()
    held = 33 // page_tokens * page_tokens
    assert offer.held_tokens == held
    assert pull.keeps_waiting()
    w.land(offer)
    assert not pull.keeps_waiting()
    assert w.asker.cached(PROMPT) == held
    assert w.asker.messenger.outcomes == ["arrived"]
    w.assert_at_rest()


def test_should_fetch_only_what_it_lacks() -> None:
    w = world()
    w.source.compute(PROMPT)
    w.asker.compute(PROMPT[:20])
    w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    ((_, tokens, pages, _),) = w.asker.messenger.fetches
    assert tokens == (20, 40)
    assert len(pages[0].pages) == 5
    w.land(offer)
    w.assert_at_rest()


@pytest.mark.parametrize("edited_at", range(14, 23))
def test_should_use_an_edited_prompt_up_to_its_edit(edited_at: int) -> None:
    w = world()
    w.source.compute(PROMPT[:edited_at] + [99] * 20)
    w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    w.land(offer)
    assert w.asker.cached(PROMPT) == edited_at // 4 * 4
    w.assert_at_rest()


@pytest.mark.parametrize(("ours", "theirs"), [("a", "b"), ("", "b"), ("a", "")])
def test_should_share_nothing_between_salts(ours: str, theirs: str) -> None:
    w = world()
    w.source.compute(PROMPT, theirs)
    w.ask(PROMPT, ours)
    w.deliver_asks()
    w.deliver_offers()
    assert w.asker.messenger.outcomes == ["not_held"]
    w.assert_at_rest()


def test_should_ask_for_no_prompt_whose_kv_its_tokens_do_not_say() -> None:
    w = world()
    from pull_world import OF_THEIR_OWN

    for field in OF_THEIR_OWN:
        assert w.asker.pulls.queued(w.asker.request(PROMPT, 2, **{field: "set"})) is None
    assert w.asker.messenger.outcomes == ["misfit"] * len(OF_THEIR_OWN)
    assert not w.asker.messenger.asks


@pytest.mark.parametrize(
    ("source", "field"),
    [
        (7, "custom_params.remote_kv_source is 7,"),
        ({"remote_host": 1, "remote_port": 2}, "custom_params.remote_kv_source.remote_host is 1,"),
        ({"remote_host": "h", "remote_port": 0}, "custom_params.remote_kv_source.remote_port is 0,"),
    ],
)
def test_should_compute_where_the_hint_cannot_be_read(
    source: Any, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    w = world()
    request = w.asker.request(PROMPT, 2)
    request.sampling_params.custom_params = {"remote_kv_source": source}
    with caplog.at_level("WARNING"):
        assert w.asker.pulls.queued(request) is None
    assert w.asker.messenger.outcomes == ["malformed"]
    assert field in caplog.text


def test_should_ask_the_engine_from_which_tokens_come_soonest() -> None:
    """Each is tried once, in the order of their names; one that cannot be reached is left out, as it is itself."""
    w = world()
    tries: dict[int, int] = {}
    for turn in range(8):
        request = w.asker.request([*range(turn * 100, turn * 100 + 41)], 2)
        named = [{"remote_host": "127.0.0.1", "remote_port": port} for port in (w.asker.port, 2, 3, 4)]
        request.sampling_params.custom_params = {"remote_kv_source": named}
        pull = w.asker.pulls.queued(request)
        (port,) = (each.port for each in pull.source)
        tries[port] = tries.get(port, 0) + 1
        w.asker.messenger.asks.clear()
        w.asker.now[0] += 0.1
        if port == 3:
            w.asker.pulls.offered(Offered(pull.ask, 0, "unreachable"))
        else:
            w.asker.pulls.offered(Offered(pull.ask, 0, "not_held"))
            w.asker.pulls._prices.transfers.moved(pull.source, 40, 0.4 if port == 2 else 0.1)
    assert tries == {2: 1, 3: 1, 4: 6}
    w.assert_at_rest()


def test_should_offer_nothing_of_other_weights() -> None:
    w = world()
    w.source.compute(PROMPT)
    w.source.weights[0] = "changed"
    w.ask(PROMPT)
    w.deliver_asks()
    w.deliver_offers()
    assert w.asker.messenger.outcomes == ["misfit"]
    w.assert_at_rest()


def test_should_not_use_what_was_computed_with_earlier_weights() -> None:
    w = world()
    w.source.compute(PROMPT)
    w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    w.asker.weights[0] = "changed"
    w.land(offer)
    assert w.asker.cached(PROMPT) == 0
    assert w.asker.messenger.outcomes == ["misfit"]
    w.assert_at_rest()


def test_should_use_nothing_of_an_engine_that_is_not_proven() -> None:
    w = world()
    w.source.compute(PROMPT)
    w.asker.compute(PROMPT[:8])
    w.asker.proof.due, w.asker.proof.right = True, False
    w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    ((_, tokens, _, _),) = w.asker.messenger.fetches
    assert tokens == (0, 40), "all of it is fetched, to be compared"
    w.land(offer)
    assert w.asker.cached(PROMPT) == 8
    assert w.asker.messenger.outcomes == ["unproven"]
    w.assert_at_rest()


def test_should_give_back_the_pages_of_what_its_cache_has_had() -> None:
    w = world()
    w.source.compute(PROMPT)
    w.asker.compute(PROMPT[:8])
    w.asker.proof.due = True
    w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    w.asker.compute(PROMPT[:24])
    w.land(offer)
    assert w.asker.cached(PROMPT) == 40
    w.assert_at_rest()


@pytest.mark.parametrize("place", ["chunked_req", "last_batch", "running_batch", "result_queue"])
def test_should_not_add_what_a_pass_under_way_computes(place: str) -> None:
    """SGLang would free the pages of that pass, and they may be leaving for a decoder."""
    w = world()
    w.source.compute(PROMPT)
    w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    computed = SimpleNamespace(origin_input_ids=PROMPT[:30], cache_salt=None, extra_key=None, extend_end=12)
    batch = SimpleNamespace(reqs=[computed])
    scheduler = w.asker.scheduler
    scheduler.enable_overlap, scheduler.result_queue = place == "result_queue", [(batch, None)]
    if place != "result_queue":
        setattr(scheduler, place, computed if place == "chunked_req" else batch)
    w.land(offer)
    assert w.asker.cached(PROMPT) == 0
    assert w.asker.messenger.outcomes == ["not_worth"]
    w.assert_at_rest()


def test_should_add_beside_a_pass_of_another_prompt() -> None:
    w = world()
    w.source.compute(PROMPT)
    w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    other = SimpleNamespace(origin_input_ids=[*PROMPT[:3], 98], cache_salt=None, extra_key=None, extend_end=4)
    w.asker.scheduler.chunked_req = other
    w.land(offer)
    assert w.asker.cached(PROMPT) == 40


def test_should_offer_once_the_passes_that_may_write_the_pages_are_over() -> None:
    w = world()
    w.source.compute(PROMPT)
    w.source.passes.over = False
    w.ask(PROMPT)
    w.deliver_asks()
    assert not w.deliver_offers()
    w.source.passes.over = True
    w.source.offers.poll()
    assert [offer.held_tokens for offer in w.deliver_offers()] == [40]


@pytest.mark.parametrize("side", ["asker", "source"])
def test_should_leave_the_pages_that_a_prompt_in_chunks_needs(side: str) -> None:
    """SGLang ends its process where the next chunk finds no page."""
    w = world()
    w.source.compute(PROMPT)
    engine = getattr(w, side)
    rest = SimpleNamespace(origin_input_ids=[7] * 250, cache_salt=None, extra_key=None, extend_end=4)
    engine.scheduler.chunked_req = rest
    w.ask(PROMPT)
    w.deliver_asks()
    w.deliver_offers()
    assert w.asker.messenger.outcomes == ["busy"]
    w.assert_at_rest()


def test_should_keep_at_most_a_share_of_its_pages_for_others() -> None:
    from dataclasses import replace

    w = world()
    w.source.offers._rules = replace(w.source.rules, pages_share=0.1)
    w.source.compute(PROMPT)
    w.ask(PROMPT)
    w.deliver_asks()
    w.deliver_offers()
    assert w.asker.messenger.outcomes == ["busy"]
    w.assert_at_rest()


def test_should_be_late_after_its_limit_and_ignore_the_answer() -> None:
    w = world()
    w.source.compute(PROMPT)
    pull = w.ask(PROMPT)
    w.deliver_asks()
    w.asker.now[0] += 5.0
    w.asker.poll()
    assert w.asker.messenger.outcomes == ["late"]
    assert not pull.keeps_waiting()
    (offer,) = w.deliver_offers()
    assert not w.asker.messenger.fetches
    w.source.offers.released(offer.request)
    w.assert_at_rest()


@pytest.mark.parametrize("arrives", [True, False])
def test_should_keep_the_landing_of_a_request_that_left_until_nothing_writes_to_it(arrives: bool) -> None:
    w = world()
    w.source.compute(PROMPT)
    pull = w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    pull.leave()
    assert [each.request for each in w.asker.messenger.abandoned] == [w.asker.messenger.fetches[0][3].request]
    w.asker.poll()
    assert w.asker.pulls.landing_count() == 1
    w.land(offer, arrives=arrives)
    assert w.asker.cached(PROMPT) == (40 if arrives else 0)
    w.assert_at_rest()


def test_should_answer_and_give_back_all_when_its_messenger_is_lost() -> None:
    w = world()
    w.source.compute(PROMPT)
    first = w.ask(PROMPT)
    w.deliver_asks()
    w.deliver_offers()
    second = w.ask([5] * 30)
    for engine in (w.asker, w.source):
        engine.pulls.on_lost()
        engine.offers.on_lost()
    assert not first.keeps_waiting()
    assert not second.keeps_waiting()
    assert w.asker.messenger.outcomes == ["unreachable", "unreachable"]
    w.assert_at_rest()


def test_should_fetch_once_whatever_is_answered_again() -> None:
    from kv_connector.runtime.facade import Offered

    w = world()
    w.source.compute(PROMPT)
    pull = w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    w.asker.pulls.offered(Offered(pull.ask, 20, ""))
    assert len(w.asker.messenger.fetches) == 1
    w.land(offer)
    w.asker.pulls.offered(Offered(pull.ask, 20, ""))
    assert len(w.asker.messenger.fetches) == 1
    w.assert_at_rest()


def test_should_end_an_offer_again_whose_release_was_not_heard() -> None:
    from kv_connector.sglang.exchange import UNHEARD_SECONDS

    w = world()
    w.source.compute(PROMPT)
    w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    for passed_seconds in (UNHEARD_SECONDS - 1, 1, 1, UNHEARD_SECONDS - 1):
        w.source.now[0] += passed_seconds
        w.source.offers.poll()
    assert w.source.messenger.ended == [offer.request] * 2
    w.land(offer)
    w.source.now[0] += UNHEARD_SECONDS
    w.source.offers.poll()
    assert len(w.source.messenger.ended) == 2


def test_should_withdraw_what_it_has_not_given_and_what_it_has() -> None:
    w = world()
    w.source.compute(PROMPT)
    w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.source.messenger.offers
    w.source.passes.over = False
    w.ask(PROMPT[:20])
    w.deliver_asks()
    w.source.offers.withdraw()
    assert w.source.messenger.withdrawn == [offer.request]
    assert [each.reason for each in w.source.messenger.offers] == ["", "not_held"]
    w.source.offers.released(offer.request)
    w.assert_at_rest()


class Story:
    """Random events in random order, between two small caches."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.world = world(self.draw.choice([1, 4]))
        self.offers: list[Any] = []
        self.pulls: list[Any] = []
        self.asked: list[list[int]] = []

    def prompt(self) -> list[int]:
        """Of few beginnings, so that prompts share some."""
        length, edited = self.draw.randint(2, 60), self.draw.randint(1, 60)
        first = self.draw.randint(1, 2)
        return [first + (place if place < edited else place * 7) for place in range(length)]

    def step(self) -> None:
        w, draw = self.world, self.draw
        steps = [
            lambda: self.compute(w.asker),
            lambda: self.compute(w.source),
            lambda: self.ask(),
            lambda: w.deliver_asks(draw.randint(1, 3)) if w.asker.messenger.asks else None,
            lambda: self.offers.extend(w.deliver_offers()) if w.source.messenger.offers else None,
            lambda: self.land(),
            lambda: self.land(),
            lambda: draw.choice(self.pulls).leave() if self.pulls else None,
            lambda: self.wait(),
            lambda: setattr(w.source.passes, "over", draw.random() < 0.7),
            lambda: w.asker.end_passes() if draw.random() < 0.5 else setattr(w.asker.passes, "over", False),
            lambda: w.source.offers.withdraw() if draw.random() < 0.2 else None,
            lambda: w.source.offers.poll(),
            lambda: w.deliver_declines(),
            lambda: setattr(w.asker.proof, "due", draw.random() < 0.3),
            lambda: setattr(w.asker.proof, "right", draw.random() < 0.8),
        ]
        draw.choice(steps)()

    def compute(self, engine: Any) -> None:
        tokens = self.prompt()
        if engine.prefix.whole_pages(len(tokens)) <= engine.prefix.spare_count():
            engine.compute(tokens)

    def ask(self) -> None:
        self.asked.append(self.prompt())
        pull = self.world.asker.pulls.queued(self.world.asker.request(self.asked[-1], 2))
        if pull is not None:
            self.pulls.append(pull)

    def land(self) -> None:
        held = [offer for offer in self.offers if offer.request in self.world.source.offers._held]
        if held:
            self.world.land(self.draw.choice(held), arrives=self.draw.random() < 0.8)

    def wait(self) -> None:
        self.world.asker.now[0] += self.draw.choice([0.1, 6.0])
        self.world.asker.poll()
        for pull in self.pulls:
            pull.keeps_waiting()

    def end(self) -> None:
        w = self.world
        w.source.passes.over = True
        w.deliver_asks()
        self.offers += w.deliver_offers()
        self.land()
        w.asker.end_passes()
        w.asker.poll()
        for offer in self.offers:
            w.land(offer, arrives=self.draw.random() < 0.5)
        for *_, incoming in w.asker.messenger.fetches:
            incoming.failure = incoming.failure or "" if incoming.arrived else "ended"
        w.asker.now[0] += 60
        w.asker.poll()
        for number in list(w.source.offers._held):
            w.source.offers.released(number)


@pytest.mark.parametrize("first_seed", range(0, STORIES, STORIES // 6))
def test_should_hold_nothing_and_cache_nothing_wrong_after_any_story(first_seed: int) -> None:
    arrived = 0
    for seed in range(first_seed, first_seed + STORIES // 6):
        story = Story(seed)
        try:
            for _ in range(story.draw.randint(5, STEPS_MAX)):
                story.step()
            story.end()
            for tokens in [*story.asked, *(story.prompt() for _ in range(5))]:
                story.world.asker.cached(tokens)
                story.world.source.cached(tokens)
            story.world.assert_at_rest()
        except BaseException as fault:
            fault.add_note(f"seed {seed}")
            raise
        arrived += story.world.asker.messenger.outcomes.count("arrived")
    assert arrived > 0, "stories in which nothing is pulled show nothing"
