from __future__ import annotations

import ctypes
import json
import logging
import mmap
import os
import select
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector import HandoverError
from kv_connector.memory import handover
from kv_connector.memory.cuda_driver import CudaError
from kv_connector.memory.handover import Follower, Lead, meeting_place
from kv_connector.memory.votes import Votes

LENGTH_BYTES = 3 * mmap.PAGESIZE
LIMIT_SECONDS = 900.0
LOGGER = logging.getLogger("test")


class KvMemory:
    """KV memory of a rank, as an engine would have it: a memfd."""

    def __init__(self, length_bytes: int = LENGTH_BYTES) -> None:
        self.memfd = os.memfd_create("test-kv", os.MFD_CLOEXEC)
        os.ftruncate(self.memfd, length_bytes)
        self.bytes = mmap.mmap(self.memfd, length_bytes)


def geometry(tp_rank: int, memory: KvMemory, **more: Any) -> Any:
    described = {"kind": "host", "address": 64, "lengthBytes": LENGTH_BYTES, "memfd": memory.memfd}
    layer = {"name": "a", "memoryIndex": 0, "offsetBytes": 0, "pageStrideBytes": 64, "pageBytes": 64}
    rank = {"tpRank": tp_rank, "ppRank": 0, "memories": [described], "layers": [layer]}
    return {"model": "tiny@0", "pageTokens": 16, "tpSize": 3, "pageCount": 9, **more, "ranks": [rank]}


@pytest.fixture
def place() -> str:
    return meeting_place(str(uuid.uuid4()), 0)


@pytest.fixture(autouse=True)
def patient_greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower of a test is a thread, which may get no core between its two steps."""
    monkeypatch.setattr(handover, "_GREETING_LIMIT_SECONDS", LIMIT_SECONDS)


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def hand_over(others: ThreadPoolExecutor, place: str, own: Any, limit: float = LIMIT_SECONDS) -> Future[Follower]:
    return others.submit(Follower.hand_over, place, own, LOGGER, limit)


def lead_of(place: str, count: int = 1) -> Lead:
    return Lead(place, [(0, tp_rank) for tp_rank in range(1, count + 1)], LOGGER)


def test_should_map_the_memory_of_all_ranks(place: str, others: ThreadPoolExecutor) -> None:
    memories = [KvMemory() for _ in range(3)]
    waiting = [hand_over(others, place, geometry(tp_rank, memories[tp_rank])) for tp_rank in (2, 1)]
    lead = lead_of(place, 2)
    whole: Any = lead.gather(geometry(0, memories[0]), LIMIT_SECONDS)
    for follower in waiting:
        follower.result().close()
    assert [rank["tpRank"] for rank in whole["ranks"]] == [0, 1, 2]
    assert whole["ranks"][0] == geometry(0, memories[0])["ranks"][0]
    for memory, rank in list(zip(memories, whole["ranks"], strict=True))[1:]:
        (mapped,) = rank["memories"]
        memory.bytes[:5] = b"there"
        assert ctypes.string_at(mapped["address"], 5) == b"there"
        ctypes.memmove(mapped["address"] + LENGTH_BYTES - 4, b"back", 4)
        assert memory.bytes[-4:] == b"back"
        assert not os.get_inheritable(mapped["memfd"])
        assert rank["layers"] == geometry(0, memory)["ranks"][0]["layers"]
    lead.close()


def test_should_wait_for_a_lead_that_comes_later(place: str, others: ThreadPoolExecutor) -> None:
    waiting = hand_over(others, place, geometry(1, KvMemory()))
    assert not waiting.done()
    lead = lead_of(place)
    lead.gather(geometry(0, KvMemory()), LIMIT_SECONDS)
    waiting.result().close()
    lead.close()


def test_should_name_the_ranks_that_did_not_come(place: str, others: ThreadPoolExecutor) -> None:
    lead = lead_of(place, 2)
    waiting = hand_over(others, place, geometry(1, KvMemory()))
    assert select.select([lead._listener], [], [], LIMIT_SECONDS)[0], "rank 1 has dialled, before the limit begins"
    with pytest.raises(
        HandoverError, match="tensor-parallel rank 2 handed over no KV memory within 1 s, expected all 2"
    ):
        lead.gather(geometry(0, KvMemory()), 1.0)
    with pytest.raises(HandoverError, match=r"lead rank (did not take|has ended)"):
        waiting.result()


@pytest.mark.parametrize("gone", [(1,), (2,), (1, 2)])
def test_should_name_a_rank_that_has_not_waited_for_the_others(
    place: str, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, gone: tuple[int, ...]
) -> None:
    """Ranks do not begin at the same time, so one may have reached its limit when the last one comes."""
    left: list[int] = []

    def taken_when_it_has_left(connection: socket.socket) -> Any:
        received = receive(connection)
        rank = json.loads(received[0])["ranks"][0]["tpRank"]
        if rank in gone:
            with pytest.raises(HandoverError, match=r"had not the KV memory of all ranks within 0\.5 s"):
                waiting[rank].result()
            left.append(rank)
        return received

    receive = handover._receive_with_descriptors
    monkeypatch.setattr(handover, "_receive_with_descriptors", taken_when_it_has_left)
    limits = {rank: 0.5 if rank in gone else LIMIT_SECONDS for rank in (1, 2)}
    lead = lead_of(place, 2)
    waiting = {rank: hand_over(others, place, geometry(rank, KvMemory()), limits[rank]) for rank in limits}
    named = f"tensor-parallel rank [{''.join(map(str, gone))}] has not waited until the memory of all ranks was here"
    with pytest.raises(HandoverError, match=named):
        lead.gather(geometry(0, KvMemory()), LIMIT_SECONDS)
    assert sorted(left) == sorted(gone)
    for rank in {1, 2} - set(gone):
        try:  # it may have heard that all is there before the lead has seen that another one is gone
            waiting[rank].result().close()
        except HandoverError as refusal:
            assert "the lead rank has ended" in str(refusal)  # noqa: PT017
    lead_of(place).close()  # the name is free again


def test_should_say_that_no_lead_is_there(place: str) -> None:
    with pytest.raises(HandoverError, match=r"the lead rank could not be reached within 0\.2 s"):
        Follower.hand_over(place, geometry(1, KvMemory()), LOGGER, 0.2)


@pytest.mark.parametrize("change", [{"pageCount": 8}, {"dtype": "bfloat16"}])
def test_should_refuse_a_rank_that_differs(place: str, others: ThreadPoolExecutor, change: dict[str, Any]) -> None:
    (field,) = change
    waiting = hand_over(others, place, geometry(1, KvMemory(), **change))
    lead = lead_of(place)
    sentence = f"the geometry of tensor-parallel rank 1 has {field} {change[field]!r}, expected"
    with pytest.raises(HandoverError, match=sentence):
        lead.gather(geometry(0, KvMemory()), LIMIT_SECONDS)
    with pytest.raises(HandoverError, match=sentence):
        waiting.result()


def test_should_refuse_less_memory_than_was_announced(place: str, others: ThreadPoolExecutor) -> None:
    waiting = hand_over(others, place, geometry(1, KvMemory(mmap.PAGESIZE)))
    with pytest.raises(HandoverError, match=f"{mmap.PAGESIZE} bytes of KV memory, expected {LENGTH_BYTES}"):
        lead_of(place).gather(geometry(0, KvMemory()), LIMIT_SECONDS)
    with pytest.raises(HandoverError, match="set messenger_per to 'rank'"):
        waiting.result()


def test_should_refuse_a_second_engine_of_the_same_name(place: str, others: ThreadPoolExecutor) -> None:
    lead = lead_of(place, 2)
    with pytest.raises(HandoverError, match="two engines on this host have the same engine_id"):
        lead_of(place)
    waiting = [hand_over(others, place, geometry(1, KvMemory())) for _ in range(2)]
    with pytest.raises(HandoverError, match=r"tensor-parallel rank 1 handed over KV memory, expected .* rank 2"):
        lead.gather(geometry(0, KvMemory()), LIMIT_SECONDS)
    for follower in waiting:
        with pytest.raises(HandoverError):
            follower.result()


def test_should_refuse_memory_that_cannot_be_shared(place: str, others: ThreadPoolExecutor) -> None:
    own = geometry(1, KvMemory())
    own["ranks"][0]["memories"][0]["memfd"] = -1
    waiting = hand_over(others, place, own)
    sentence = "tensor-parallel rank 1 handed over 0 descriptors, expected 1"
    with pytest.raises(HandoverError, match=sentence):
        lead_of(place).gather(geometry(0, KvMemory()), LIMIT_SECONDS)
    with pytest.raises(HandoverError, match=sentence):
        waiting.result()


def test_should_refuse_memory_of_a_device(place: str, others: ThreadPoolExecutor) -> None:
    own = geometry(1, KvMemory())
    own["ranks"][0]["memories"][0]["kind"] = "cuda"
    follower = hand_over(others, place, own)
    with pytest.raises(HandoverError, match=r"rank 1 handed over memory of kind cuda, expected host .*'rank'"):
        lead_of(place).gather(geometry(0, KvMemory()), LIMIT_SECONDS)
    with pytest.raises(HandoverError, match="expected host as on the lead rank"):
        follower.result()


class OneMapping:
    """A driver that maps one memory and has room for no other."""

    def __init__(self) -> None:
        self._mapped = 0

    def take_in(self, _descriptor: int, length_bytes: int, _device: int) -> SimpleNamespace:
        self._mapped += 1
        if self._mapped > 1:
            raise CudaError("cuMemMap: out of memory")
        return SimpleNamespace(address=64, length_bytes=length_bytes)


def test_should_say_which_memory_of_a_device_cannot_be_mapped(place: str, others: ThreadPoolExecutor) -> None:
    memory = {"kind": "cuda", "device": 0, "address": 64, "lengthBytes": 64, "handleKind": "posixFd"}
    follows, leads = ({**geometry(rank, KvMemory())["ranks"][0], "memories": 2 * [memory]} for rank in (1, 0))
    brought = {**follows, "memories": 2 * [{**memory, "allocationBytes": 64}]}
    own: Any = {"tpSize": 2, "ranks": [leads]}
    waiting = others.submit(
        Follower._hand_over,
        place,
        {**own, "ranks": [brought]},
        [KvMemory().memfd, KvMemory().memfd],
        LOGGER,
        LIMIT_SECONDS,
    )
    lead = Lead(place, [(0, 1)], LOGGER, OneMapping())  # type: ignore[arg-type]
    with pytest.raises(HandoverError, match="tensor-parallel rank 1 cannot be mapped"):
        lead.gather(own, LIMIT_SECONDS)
    with pytest.raises(HandoverError, match="cannot be mapped"):
        waiting.result()


@pytest.mark.parametrize("message", [b"{", b"{}", b'{"ranks":[]}', b"[1]", b'{"ranks":[{"tpRank":"x","ppRank":0}]}'])
def test_should_not_hear_a_message_that_no_rank_sends(
    place: str, others: ThreadPoolExecutor, message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    lead, memory = lead_of(place), KvMemory()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as unproven:
        unproven.connect(place)
        socket.send_fds(unproven, [message], [memory.memfd])
        waiting = hand_over(others, place, geometry(1, KvMemory()))
        lead.gather(geometry(0, KvMemory()), LIMIT_SECONDS)
        waiting.result().close()
    lead.close()
    assert "cannot be read and is ignored" in caplog.text
    assert descriptors_of(memory) == 2, "the test's own and its mapping's"


def descriptors_of(memory: KvMemory) -> int:
    inode = os.fstat(memory.memfd).st_ino
    return sum(entry.stat().st_ino == inode for entry in Path("/proc/self/fd").iterdir() if entry.exists())


def test_should_not_hear_another_user(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, seen = handover._peer_uid, []

    def first_is_a_stranger(connection: socket.socket) -> int:
        seen.append(connection)
        return real(connection) + (1 if len(seen) <= 2 else 0)

    lead = lead_of(place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as unproven:
        unproven.connect(place)
        monkeypatch.setattr(handover, "_peer_uid", first_is_a_stranger)
        with pytest.raises(HandoverError, match="tensor-parallel rank 1 handed over no KV memory"):
            lead.gather(geometry(0, KvMemory()), 0.2)
        assert unproven.recv(100) == b""
    assert f"user {os.getuid() + 1} dialled the lead rank and is ignored" in caplog.text


def test_should_not_give_memory_to_another_user(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lead = lead_of(place)
    monkeypatch.setattr(handover, "_peer_uid", lambda _: os.getuid() + 1)
    with pytest.raises(HandoverError, match=f"at the lead rank's socket is user {os.getuid() + 1}"):
        Follower.hand_over(place, geometry(1, KvMemory()), LOGGER, LIMIT_SECONDS)
    lead.close()


def joined(place: str, others: ThreadPoolExecutor) -> tuple[Lead, Follower]:
    waiting = hand_over(others, place, geometry(1, KvMemory()))
    lead = lead_of(place)
    lead.gather(geometry(0, KvMemory()), LIMIT_SECONDS)
    return lead, waiting.result()


def test_should_hold_followers_until_the_lead_has_fenced(
    place: str, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handover, "FENCE_NEWS_SECONDS", 0.01)
    lead, follower = joined(place, others)
    waiting = others.submit(follower.wait_fenced, 7)
    lead.notify_fenced(6)
    while "waiting on" not in caplog.text:
        assert not waiting.done()
    lead.notify_fenced(7)
    waiting.result(LIMIT_SECONDS)
    lead.close()
    follower.close()


def test_should_not_hold_followers_of_a_lead_that_is_gone(
    place: str, others: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    lead, follower = joined(place, others)
    waiting = others.submit(follower.wait_fenced, 7)
    lead.close()
    waiting.result(LIMIT_SECONDS)
    assert "the lead rank is gone" in caplog.text
    follower.close()


def test_should_go_on_when_a_follower_is_gone(
    place: str, others: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    lead, follower = joined(place, others)
    follower.close()
    lead.notify_fenced(1)
    lead.notify_fenced(2)
    assert caplog.text.count("tensor-parallel rank 1 is gone") == 1
    lead.close()


def test_should_notify_followers_of_what_is_over_between_fences(place: str, others: ThreadPoolExecutor) -> None:
    lead, follower = joined(place, others)
    assert follower.take_votes() == Votes(set(), set())
    lead.send_votes(Votes({"sent"}, {"received"}))
    lead.notify_fenced(3)
    lead.send_votes(Votes(set(), {"later"}))
    follower.wait_fenced(3)
    assert follower.has_heard()
    assert follower.take_votes() == Votes({"sent"}, {"received", "later"})
    assert not follower.has_heard()
    lead.close()
    follower.close()


def test_should_end_a_pause_with_the_leads_word(place: str, others: ThreadPoolExecutor) -> None:
    lead, follower = joined(place, others)
    paused = others.submit(follower.pause, LIMIT_SECONDS)
    lead.send_votes(Votes({"sent"}, set()))
    paused.result(LIMIT_SECONDS / 2)
    assert follower.take_votes() == Votes({"sent"}, set())
    lead.close()
    others.submit(follower.pause, LIMIT_SECONDS).result(LIMIT_SECONDS / 2)  # its end is something to look at
    assert not follower.has_heard()
    follower.pause(0.001)
    follower.close()


def test_should_not_wait_for_a_follower_that_is_behind(place: str, others: ThreadPoolExecutor) -> None:
    """Its socket is full long before it listens; what had no room comes with what is said next."""
    lead, follower = joined(place, others)
    names = {f"{'x' * 600}-{index}" for index in range(4000)}
    lead.send_votes(Votes(names, set()))
    heard = follower.take_votes().sent
    assert len(heard) < len(names)
    for _ in range(len(names)):
        lead.send_votes(Votes(set(), set()))
        heard |= follower.take_votes().sent
        if heard == names:
            break
    assert heard == names
    lead.close()
    follower.close()


def test_should_keep_a_follower_that_hears_of_a_fence_late(
    place: str, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its connection it would overwrite pages at later fences that this messenger still reads."""
    monkeypatch.setattr(handover, "FENCE_NEWS_SECONDS", 0.01)
    lead, follower = joined(place, others)
    for connection in lead._followers.values():
        connection.settimeout(0.01)  # as a short limit of the greeting would leave it
    lead.send_votes(Votes({f"{'x' * 600}-{index}" for index in range(4000)}, set()))
    notifying = others.submit(lead.notify_fenced, 7)
    while "waiting on" not in caplog.text and not notifying.done():
        pass
    assert not notifying.done()
    follower.wait_fenced(7)
    notifying.result(LIMIT_SECONDS)
    waiting = others.submit(follower.wait_fenced, 8)
    lead.notify_fenced(8)
    waiting.result(LIMIT_SECONDS)
    assert "is gone" not in caplog.text
    lead.close()
    follower.close()


def test_should_meet_apart_from_other_engines_and_messengers() -> None:
    places = {meeting_place("a", 0), meeting_place("a", 1), meeting_place("b", 0), meeting_place("x" * 500, 0)}
    assert len(places) == 4
    assert all(len(place) < 108 and place[0] == "\0" for place in places)
