"""Memory that goes and comes back, as SGLang's scheduler asks for it; real messengers on both sides."""

from __future__ import annotations

import itertools
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kv_connector import MessengerError

if TYPE_CHECKING:
    from one_process import Pair, Side

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

PEER = "sleeps, and its KV memory was given back: wake it up, or send the request to another one"
OWN = "this engine sleeps, and its KV memory was given back: wake it up"

SIDES = (("prefiller",), ("decoder",), ("prefiller", "decoder"))


@pytest.fixture(scope="module")
def pair(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One for all: each test leaves it at rest."""
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):  # importing SGLang warns of what the machine lacks
        import torch
        from one_process import Pair

        from kv_connector.sglang.shared_memory import SharedZeros

        with SharedZeros(torch):
            opened = Pair(tmp_path_factory.mktemp("model"))
            yield opened
    opened.close()


def asleep(side: Side) -> None:
    side.endpoint.deregister_buffer_to_engine()


def awake(side: Side) -> None:
    side.endpoint.register_buffer_to_engine()


def moves(pair: Pair, seed: int) -> None:
    """A request whose every byte is compared, over memory that had other content before."""
    sources, targets, room, slot = [3, 7, 5], [9, 2, 11], pair.next_room(), seed % 4
    pair.prefiller.scribble(10 + seed)
    pair.decoder.scribble(20 + seed)
    sender, receiver = pair.begin(room, targets, slot)
    pair.write_metadata(slot, room, 44)
    sender.init(len(sources), slot)
    from one_process import pages

    sender.send(pages(*sources))
    pair.finish(sender, receiver)
    pair.assert_equal_pages(sources, targets)


def fails(polled: Any) -> str:
    """Why; polled as the scheduler does until it has failed."""
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    until(lambda: polled.poll() == KVPoll.Failed, "it fails")
    with pytest.raises(Exception) as raised:
        polled.failure_exception()
    polled.clear()
    return str(raised.value)


def nothing(_pair: Pair) -> None:
    """No request comes."""


def is_sent(pair: Pair) -> None:
    """The prefiller's leg of a request comes."""
    sender = pair.sender(pair.next_room())
    if pair.prefiller.endpoint._stand_in is not None:
        assert OWN in fails(sender)
    else:
        sender.abort()
        sender.clear()


def is_fetched(pair: Pair) -> None:
    """The decoder's leg of a request comes."""
    from one_process import pages

    receiver = pair.receiver(pair.next_room())
    receiver.send_metadata(pages(4, 6), 1)
    sentence = OWN if pair.decoder.endpoint._stand_in is not None else PEER
    if sentence == OWN or pair.prefiller.endpoint._stand_in is not None:
        assert sentence in fails(receiver)
    else:
        receiver.abort()
        assert fails(receiver)


def comes(pair: Pair) -> None:
    """Both legs come, the decoder's first."""
    is_fetched(pair)
    is_sent(pair)


def is_not_looked_at(pair: Pair) -> None:
    """The scheduler learns of a failure only after the engine has woken up."""
    if pair.prefiller.endpoint._stand_in is None:
        return
    sender = pair.sender(pair.next_room())
    awake(pair.prefiller)
    assert OWN in fails(sender)


MEANWHILE = (nothing, is_sent, is_fetched, comes, is_not_looked_at)
CALLS = ("once", "twice", "wakes first")


@pytest.mark.parametrize(
    ("sides", "meanwhile", "calls"),
    list(itertools.product(SIDES, MEANWHILE, CALLS)),
    ids=lambda each: "+".join(each) if isinstance(each, tuple) else getattr(each, "__name__", each),
)
def test_should_serve_again_after_any_sleep(
    pair: Pair, sides: tuple[str, ...], meanwhile: Callable[[Pair], None], calls: str
) -> None:
    moves(pair, 0)
    ports = [getattr(pair, side).endpoint.rank_port for side in sides]
    incarnations = [getattr(pair, side).endpoint.exchange.opened.incarnation for side in sides]
    for side in sides:
        if calls == "wakes first":
            awake(getattr(pair, side))
        for _ in range(2 if calls == "twice" else 1):
            asleep(getattr(pair, side))
    meanwhile(pair)
    for side in sides:
        for _ in range(2 if calls == "twice" else 1):
            awake(getattr(pair, side))
    assert [getattr(pair, side).endpoint.rank_port for side in sides] == ports
    woken = [getattr(pair, side).endpoint.exchange.opened.incarnation for side in sides]
    assert not set(woken) & set(incarnations)
    for seed in (1, 2):
        moves(pair, seed)
    pair.assert_nothing_held()


def test_should_not_give_back_memory_that_a_prefiller_may_write_to(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from one_process import pages

    monkeypatch.setattr("kv_connector.sglang.endpoint.SETTLE_LIMIT_SECONDS", 0.05)
    room = pair.next_room()
    sender, receiver = pair.begin(room, [4, 5], 0)
    for side in (pair.decoder, pair.prefiller):
        with pytest.raises(MessengerError, match=r"is to give its KV memory back and its requests still hold .*peer"):
            asleep(side)
    pair.write_metadata(0, room, 44)
    sender.init(2, 0)
    sender.send(pages(3, 7))
    pair.finish(sender, receiver)
    pair.assert_equal_pages([3, 7], [4, 5])
    monkeypatch.undo()
    for side in (pair.decoder, pair.prefiller):
        asleep(side)
        awake(side)
    moves(pair, 1)


def test_should_fail_what_waits_for_a_prefiller_that_falls_asleep(pair: Pair) -> None:
    from one_process import pages

    receiver = pair.receiver(pair.next_room())
    receiver.send_metadata(pages(4, 6), 1)
    from one_process import until

    waiting = "kv_messenger_grants_waiting"
    until(lambda: pair.prefiller.endpoint.exchange._messenger.stats().gauges[waiting], "the grant waits")
    asleep(pair.prefiller)
    assert "goes to sleep, and gives its KV memory back" in fails(receiver)
    awake(pair.prefiller)
    moves(pair, 1)


def test_should_know_no_pair_after_a_decoders_sleep(pair: Pair) -> None:
    moves(pair, 0)
    before = pair.decoder.endpoint.pair_check
    assert before is not None
    asleep(pair.decoder)
    awake(pair.decoder)
    after = pair.decoder.endpoint.pair_check
    assert after is not before
    assert after.pairs is not before.pairs


def test_should_answer_health_and_not_be_ready_while_it_sleeps(pair: Pair) -> None:
    opened = pair.prefiller.endpoint.exchange.opened
    asleep(pair.prefiller)
    page = f"http://{opened.metrics_host}:{opened.metrics_port}"
    with urllib.request.urlopen(f"{page}/health") as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{page}/ready")
    assert raised.value.code == 503
    raised.value.close()
    awake(pair.prefiller)
    with urllib.request.urlopen(f"{page}/ready") as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("tags", "enabled", "backup", "lost"),
    [
        ([], True, False, True),
        (None, True, False, True),
        (["weights"], True, False, True),
        (["weights"], True, True, False),
        (["weights"], False, False, False),
        (["kv_cache"], True, False, False),
    ],
)
def test_should_know_when_weights_are_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tags: list[str] | None, enabled: bool, backup: bool, lost: bool
) -> None:
    from sglang.srt import runtime_context

    from kv_connector.naming.changed_weights import ChangedWeights
    from kv_connector.sglang import weight_changes

    assert pair is not None
    monkeypatch.setattr(weight_changes, "WEIGHTS", ChangedWeights())
    features = SimpleNamespace(enable_weights_cpu_backup=backup)
    monkeypatch.setattr(runtime_context, "get_exec", lambda: SimpleNamespace(features=features))
    updater = SimpleNamespace(memory_saver_adapter=SimpleNamespace(enabled=enabled))
    weight_changes.note_release(None, updater, SimpleNamespace(tags=tags))
    assert weight_changes.WEIGHTS.name("").startswith("lost by") == lost


def test_should_have_the_methods_that_the_scheduler_looks_for(pair: Pair) -> None:
    """Its queues call them only if they exist, by these names."""
    import inspect

    from sglang.srt.disaggregation.decode import DecodePreallocQueue
    from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue

    for queue in (DecodePreallocQueue, PrefillBootstrapQueue):
        for method, called in (
            (queue.release_memory_occupation, "deregister_buffer_to_engine"),
            (queue.resume_memory_occupation, "register_buffer_to_engine"),
        ):
            assert f"self.kv_manager.{called}()" in inspect.getsource(method)
            assert hasattr(pair.prefiller.endpoint, called)
