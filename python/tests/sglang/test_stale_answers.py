"""What was learnt of a prefiller or of a request, and is not true any more when it is read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sglang_loop.ranks import SimulatedEndpoint

pytestmark = pytest.mark.usefixtures("sglang_plugins")

ADDRESS, ROOM = "p0:8998", 7


@pytest.fixture
def decoder(sglang_plugins: None) -> Iterator[SimulatedEndpoint]:
    assert sglang_plugins is None
    from sglang_loop.decode_engine import DecodeEngine
    from sglang_loop.story import draw
    from sglang_loop.world import World

    world = World(draw(0))
    (engine, *_more) = [engine for engine in world.engines.values() if isinstance(engine, DecodeEngine)]
    yield engine.ranks[0].endpoint
    assert not world.violations


def test_should_not_fail_a_request_for_a_prefiller_that_was_forgotten_after_it_had_answered(
    decoder: SimulatedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request forgets it between its answer and SGLang's next question, a second later."""
    from kv_connector.sglang import first_contacts
    from kv_connector.sglang.sglang_api import CommonEndpoint

    monkeypatch.setattr(first_contacts, "FIRST_CONTACT_WAIT_SECONDS", 0.0)
    answer: Future[bool] = Future()
    monkeypatch.setattr(decoder.prefillers, "run", lambda _question: answer)
    assert not decoder.try_ensure_parallel_info(ADDRESS)
    decoder.prefill_info_table[ADDRESS] = "its topology"
    answer.set_result(True)
    decoder.forget_prefiller(ADDRESS)
    assert not decoder.try_ensure_parallel_info(ADDRESS), "SGLang would go on, and the request would fail"

    def learn(self: Any, address: str) -> bool:
        self.prefill_info_table[address] = "its topology"
        return True

    monkeypatch.setattr(CommonEndpoint, "try_ensure_parallel_info", learn)
    again: Future[bool] = Future()
    monkeypatch.setattr(decoder.prefillers, "run", lambda question: again.set_result(question()) or again)
    assert decoder.try_ensure_parallel_info(ADDRESS), "it is asked again"


@pytest.mark.parametrize("late", ["before it is polled", "after it was polled", "after it was dropped"])
@pytest.mark.parametrize("served", [True, False])
def test_should_not_give_the_reason_of_an_earlier_request_to_the_next_one_of_its_room(
    decoder: SimulatedEndpoint, late: str, served: bool
) -> None:
    """A thread learns late that the connection of a recompute broke: its KV has arrived, or it was aborted."""
    from kv_connector.sglang.receiver import Receiver
    from kv_connector.sglang.sglang_api import KVPoll, KVTransferError

    earlier = Receiver(decoder, ADDRESS, ROOM)
    if served:
        earlier.conclude_state = KVPoll.Success
    else:
        earlier.abort()
    steps = {
        "before it is polled": lambda: None,
        "after it was polled": earlier.poll,
        "after it was dropped": lambda: (earlier.poll(), earlier.clear()),
    }
    steps[late]()
    decoder._fail_prefill_recompute(earlier, "the recompute failed")
    assert earlier.poll() == (KVPoll.Success if served else KVPoll.Failed)
    earlier.clear()
    following = Receiver(decoder, ADDRESS, ROOM)
    following.abort()
    with pytest.raises(KVTransferError, match=r"Aborted by AbortReq"):
        following.failure_exception()
    assert not getattr(decoder, "failure_records", {}), "nothing is kept by room"


def test_should_fetch_from_a_prefiller_that_was_started_again_while_the_request_waited_for_pages(
    decoder: SimulatedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request has asked for its addresses since: at the old ones it would fail, and its prompt be declined."""
    from types import SimpleNamespace

    from kv_connector.runtime.commands import PrefillerAddress
    from kv_connector.sglang.beside_pages import PromptParts
    from kv_connector.sglang.prefillers import RankPlace
    from kv_connector.sglang.receiver import Receiver
    from kv_connector.sglang.sglang_api import KVPoll

    place = RankPlace(0, 0, 0, 0)
    before, after = PrefillerAddress("p0", 7000), PrefillerAddress("p0", 7010)
    fetched: list[Any] = []
    monkeypatch.setattr(decoder, "places", lambda *_: [place])
    monkeypatch.setattr(decoder.exchange, "fetch", lambda _room, prefillers, **_: fetched.append(prefillers))
    monkeypatch.setattr(decoder, "prompt_parts", lambda page_count, *_: PromptParts(page_count))
    decoder.kv_args = SimpleNamespace(page_size=1)
    decoder.prefillers._known[ADDRESS, place] = before
    waiting = Receiver(decoder, ADDRESS, ROOM)
    waiting.init(0)
    assert waiting.poll() == KVPoll.WaitingForInput
    decoder.prefillers._known[ADDRESS, place] = after
    waiting.send_metadata([3], 1)
    decoder.forget_prefiller(ADDRESS)
    waiting.send_metadata([3], 1)
    assert fetched == [(after,), (after,)], "what is forgotten is looked up if the fetch fails"
