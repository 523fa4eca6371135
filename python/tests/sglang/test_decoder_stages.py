"""A decoder of two pipeline stages ends each transfer alike on both; see sharded.py.

The schedulers are SGLang's own methods by which stages agree, over queues that hold one request.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sharded import ShardedPair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def pair(open_ranks: Callable[..., ShardedPair]) -> ShardedPair:
    return open_ranks({"pp_size": 2}, {"pp_size": 2})


class Queue:
    """Stands for SGLang's queue of transfers: it takes out those that have ended by the state on this stage."""

    def __init__(self, receiver: Any) -> None:
        self.queue = [SimpleNamespace(req=SimpleNamespace(rid="asked"), kv_receiver=receiver)]
        self.failures: list[str] = []

    def resolve_deferred_releases(self) -> None:
        """Holds no pages."""

    def pop_transferred(self, requests: list[str]) -> list[Any]:
        from sglang.srt.disaggregation.base.conn import KVPoll

        named = [waiting for waiting in self.queue if waiting.req.rid in requests]
        states = {id(waiting): waiting.kv_receiver.poll() for waiting in named}
        for waiting in named:
            if states[id(waiting)] == KVPoll.Failed:
                with pytest.raises(Exception, match=r"\w") as failure:
                    waiting.kv_receiver.failure_exception()
                self.failures.append(str(failure.value))
                waiting.kv_receiver.ensure_abort_notified(force_arm=True)
        ended = [waiting for waiting in named if states[id(waiting)] in (KVPoll.Failed, KVPoll.Success)]
        self.queue = [waiting for waiting in self.queue if waiting not in ended]
        return [waiting.req for waiting in ended if states[id(waiting)] == KVPoll.Success]


class Stages:
    """The schedulers of both stages, and what each has passed on."""

    def __init__(self, receivers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        from sglang.srt.managers import scheduler_pp_mixin

        def polls(pollers: list[Any], *_groups: Any) -> list[int]:
            return [int(receiver.poll()) for receiver in pollers]

        monkeypatch.setattr(scheduler_pp_mixin, "poll_and_all_reduce_attn_cp_tp_group", polls)
        self.queues = [Queue(receiver) for receiver in receivers]
        self.schedulers = [self._scheduler(scheduler_pp_mixin.SchedulerPPMixin, stage) for stage in range(2)]
        self._passed: bytes = b""

    def _scheduler(self, mixin: Any, stage: int) -> Any:
        scheduler = mixin()
        scheduler.pp_group = SimpleNamespace(is_first_rank=stage == 0)
        scheduler.attn_cp_cpu_group = scheduler.attn_tp_cpu_group = None
        scheduler.disagg_decode_transfer_queue = self.queues[stage]
        scheduler.enable_hisparse = False
        scheduler.waiting_queue = []
        scheduler._pp_recv_pyobj_from_prev_stage = lambda: pickle.loads(self._passed)
        return scheduler

    def turn(self) -> None:
        """Once round the ring: what has ended, from stage to stage; then its release, in the same order."""
        for scheduler in self.schedulers:
            self._pass(scheduler._pp_pd_get_decode_transferred_ids())
        for scheduler in self.schedulers:
            self._pass(scheduler.process_decode_transfer_queue(pickle.loads(self._passed)))

    def _pass(self, message: Any) -> None:
        self._passed = pickle.dumps(message or [])  # so SGLang sends whatever is empty

    def waiting(self) -> list[int]:
        return [len(queue.queue) for queue in self.queues]

    def arrived(self) -> list[int]:
        return [len(scheduler.waiting_queue) for scheduler in self.schedulers]

    def failures(self) -> list[list[str]]:
        return [queue.failures for queue in self.queues]


def send_all(pair: ShardedPair, senders: list[Any], room: int) -> None:
    from one_process import pages

    pair.wait_until_stages_agree(senders)
    for side, sender in zip(pair.prefillers, senders, strict=True):
        sender.init(2, 3)
        side.metadata.output_ids[3, 0] = 9
        side.metadata.bootstrap_room[3, 0] = room
        sender.send(pages(3, 4), [])


def clear(senders: list[Any], receivers: list[Any]) -> None:
    for end in (*senders, *receivers):
        end.clear()


def test_should_end_a_transfer_once_it_has_arrived_on_both_stages(
    pair: ShardedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room, senders, receivers = pair.begin(None)
    stages = Stages(receivers, monkeypatch)
    receivers[0].send_metadata(pages(7, 2), 6, decode_prefix_len=0)
    send_all(pair, senders, room)
    wait_for(receivers[0], KVPoll.Success)
    stages.turn()
    assert stages.waiting() == [1, 1], "the second stage has not asked for its layers yet"
    receivers[1].send_metadata(pages(7, 2), 6, decode_prefix_len=0)
    wait_for(receivers[1], KVPoll.Success)
    stages.turn()
    assert stages.waiting() == [0, 0]
    assert stages.arrived() == [1, 1]
    pair.finish(senders, receivers)
    pair.assert_equal_pages([3, 4], [7, 2])
    pair.assert_nothing_held()


@pytest.mark.parametrize("failing", [0, 1])
def test_should_fail_on_both_stages_what_one_of_them_gave_up(
    pair: ShardedPair, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    from one_process import wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room, senders, receivers = pair.begin([7, 2])
    stages = Stages(receivers, monkeypatch)
    send_all(pair, senders, room)
    for receiver in receivers:
        wait_for(receiver, KVPoll.Success)
    receivers[failing].abort()
    stages.turn()
    assert stages.waiting() == [0, 0]
    assert stages.arrived() == [0, 0], "a stage would compute a request that the other one does not have"
    assert "Aborted" in stages.failures()[failing][0]
    assert f"pipeline stage {failing}: Aborted by AbortReq." in stages.failures()[1 - failing][0]
    clear(senders, receivers)
    pair.assert_nothing_held()


@pytest.mark.parametrize("failing", [0, 1])
def test_should_keep_pages_of_a_stage_that_was_still_being_written_to(
    pair: ShardedPair, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room, senders, receivers = pair.begin([7, 2])
    stages = Stages(receivers, monkeypatch)
    pair.wait_until_stages_agree(senders)
    receivers[failing].abort()
    stages.turn()
    assert stages.waiting() == [0, 0]
    assert stages.arrived() == [0, 0]
    for side, receiver in zip(pair.decoders, receivers, strict=True):
        assert receiver.abort_notified, "SGLang then asks when its pages are safe"
        until(lambda e=side.endpoint: e.is_abort_release_safe(room, 2), "nothing can write to the pages")
    pair.wait_until_stages_agree(senders, KVPoll.Failed)
    for sender in senders:
        with pytest.raises(Exception, match=r"\w"):
            sender.failure_exception()
    clear(senders, receivers)
    pair.assert_nothing_held()
