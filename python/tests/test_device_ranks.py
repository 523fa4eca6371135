"""KV memory of eight ranks, a process each, in their lead's process, against the stand-in: no GPU has run it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from cuda_stand_in import Device, library_or_skip
from test_device_memory import GRANULE, RANKS, bytes_at, geometry

from kv_connector.memory.device_memory import DeviceMemories
from kv_connector.memory.handover import Follower, Lead, meeting_place

LOGGER = logging.getLogger("test")
LIMIT_SECONDS = 900.0
TEXT_BYTES = 16


def text_of(rank: int, word: int) -> bytes:
    return b"rank %d word %d" % (rank, word)


def run_rank(library: str, place: str, rank: int, connection: Connection) -> None:
    """A follower: writes to its memory what it is told, until it is told nothing more."""
    device = Device(library)
    memories = DeviceMemories(device.driver)
    held = memories.allocate(GRANULE * (1 + rank % 2), 0)
    kv = geometry(rank, held.address, held.length_bytes - 100)
    follower = Follower.hand_over(place, kv, LOGGER, device_memories=memories)
    connection.send("handed over")
    while (word := connection.recv()) is not None:
        text = text_of(rank, word)
        bytes_at(device, held.address, GRANULE)[: len(text)] = text
        connection.send("written")
    memories.close()
    connection.send(f"{device.stand_in.standInHeld()} left")
    follower.close()


class Ranks:
    """The followers' processes, and the lead's side of them."""

    def __init__(self, library: str, lead_memories: DeviceMemories) -> None:
        place = meeting_place(str(uuid.uuid4()), 0)
        spawn = multiprocessing.get_context("spawn")
        self.processes: dict[int, Any] = {}
        self.connections: dict[int, Connection] = {}
        self.lead = Lead(place, [(0, rank) for rank in range(1, RANKS)], LOGGER, lead_memories)
        for rank in range(1, RANKS):
            self.connections[rank], theirs = spawn.Pipe()
            self.processes[rank] = spawn.Process(target=run_rank, args=(library, place, rank, theirs), daemon=True)
            self.processes[rank].start()
            theirs.close()
        own = lead_memories.allocate(GRANULE, 0)
        whole: Any = self.lead.gather(geometry(0, own.address, GRANULE), LIMIT_SECONDS)
        self.memories = {rank["tpRank"]: rank["memories"][0] for rank in whole["ranks"]}
        for rank in self.connections:
            assert self.hear(rank) == "handed over"

    def hear(self, rank: int) -> Any:
        assert self.connections[rank].poll(LIMIT_SECONDS), f"rank {rank} says nothing"
        return self.connections[rank].recv()

    def write(self, rank: int, word: int) -> None:
        self.connections[rank].send(word)
        assert self.hear(rank) == "written"

    def close(self) -> None:
        self.lead.close()
        for process in self.processes.values():
            process.kill()
            process.join(LIMIT_SECONDS)


@pytest.fixture
def device() -> Device:
    return Device(library_or_skip())


@pytest.fixture
def memories(device: Device) -> Iterator[DeviceMemories]:
    made = DeviceMemories(device.driver)
    yield made
    made.close()
    assert device.stand_in.standInHeld() == 0


@pytest.fixture
def ranks(memories: DeviceMemories) -> Iterator[Ranks]:
    made = Ranks(library_or_skip(), memories)
    yield made
    made.close()


def test_should_have_the_memory_of_eight_processes_in_one(
    device: Device, ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    """What a rank writes is there; of one that is killed the memory stays and its end is seen; all others go on."""
    assert len({memory["address"] for memory in ranks.memories.values()}) == RANKS

    def seen(rank: int) -> bytes:
        return bytes(bytes_at(device, ranks.memories[rank]["address"], GRANULE)[:TEXT_BYTES]).rstrip(b"\0")

    for rank in ranks.connections:
        ranks.write(rank, 1)
    assert [seen(rank) for rank in ranks.connections] == [text_of(rank, 1) for rank in ranks.connections]

    killed = ranks.processes[3]
    os.kill(killed.pid, signal.SIGKILL)
    killed.join(LIMIT_SECONDS)
    assert seen(3) == text_of(3, 1)
    for step in range(2):
        ranks.lead.notify_fenced(step)
    assert "tensor-parallel rank 3 is gone" in caplog.text
    others = [rank for rank in ranks.connections if rank != 3]
    for rank in others:
        ranks.write(rank, 2)
    assert [seen(rank) for rank in others] == [text_of(rank, 2) for rank in others]

    for rank in others:  # a rank that ends first leaves its memory to the lead
        ranks.connections[rank].send(None)
        assert ranks.hear(rank) == "0 left"
        ranks.processes[rank].join(LIMIT_SECONDS)
        assert ranks.processes[rank].exitcode == 0
    assert [seen(rank) for rank in others] == [text_of(rank, 2) for rank in others]
