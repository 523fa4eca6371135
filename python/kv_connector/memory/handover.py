"""Ranks that share a messenger hand their KV memory to the lead rank, whose process hosts it.

The lead listens on an abstract Unix socket whose name each rank can compute. Each follower sends its geometry together
with the descriptors of its memory. Both sides accept only a peer of their own user, which the kernel tells them. The
connections stay open: a follower must not overwrite pages of preempted requests before the lead's messenger has stopped
reading them, and is notified of that here. It is also notified which requests are over, if the engine needs the reports
of all ranks.

Used by each rank's main thread only. Independent of the JVM and of engines.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import hashlib
import itertools
import json
import logging
import mmap
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Self, cast

from kv_connector.exceptions import HandoverError
from kv_connector.memory.cuda_driver import CudaError
from kv_connector.memory.device_memory import DeviceMemories
from kv_connector.memory.geometry import DeviceMemory, Geometry, Memory
from kv_connector.memory.votes import VOTES, Votes

HANDOVER_LIMIT_SECONDS = 120.0
"""The time from a rank's allocation of its KV memory until all ranks of its messenger have handed theirs over."""
MESSAGE_LENGTH_MAX_BYTES = 128 << 10
MEMORIES_MAX = 250
"""Linux passes at most 253 descriptors with a message."""
FENCE_NEWS_SECONDS = 10.0
"""The interval at which a rank that waits for a fence logs that it waits."""

_GREETING_LIMIT_SECONDS = 10.0
_DIAL_INTERVAL_SECONDS = 0.05
"""The interval between attempts to connect: there is no notification when the lead has bound its socket."""
_REMEDY = "or set messenger_per to 'rank'"
_UCRED = struct.Struct("3i")
_STEP = struct.Struct("<cQ")
_FENCED = b"F"
_ACCEPTED = b"accepted"

Rank = tuple[int, int]
"""(pipeline rank, tensor-parallel rank)."""


def meeting_place(engine_id: str, group_index: int) -> str:
    """The name of the lead's socket; abstract, so that no file is left behind."""
    digest = hashlib.sha256(f"{engine_id}/{group_index}".encode()).hexdigest()[:32]
    return f"\0kv-messenger/{digest}"


def why_memory_cannot_be_shared() -> str:
    """ "" if a rank can allocate its KV cache in memory that another process can map, else what is missing."""
    if not hasattr(os, "memfd_create"):
        return "this Python knows no memfd_create"
    try:
        descriptor = os.memfd_create("kv-messenger-probe", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            mmap.mmap(descriptor, mmap.PAGESIZE).close()
        finally:
            os.close(descriptor)
    except OSError as fault:
        return f"memory for other processes cannot be made ({fault})"
    return ""


class Lead:
    """The side of the rank that hosts the messenger. Created early, so that followers can connect to it."""

    def __init__(
        self,
        place: str,
        followers: Iterable[Rank],
        logger: logging.Logger,
        device_memories: DeviceMemories | None = None,
    ) -> None:
        """``device_memories`` maps the other ranks' GPU memory; None if this rank has host memory."""
        self._place = place
        self._device_memories = device_memories
        self._missing = set(followers)
        self._logger = logger
        self._followers: dict[Rank, socket.socket] = {}
        self._unreported: dict[Rank, deque[bytes]] = {}
        """Messages for which a follower's socket had no room; they are sent again with each step."""
        self._mappings: list[mmap.mmap] = []
        self._taken_in: list[int] = []
        """The addresses of other ranks' GPU memory."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(place)
        except OSError as fault:
            self._listener.close()
            raise HandoverError(
                f"the lead rank cannot listen for the other ranks ({fault}): two engines on this host have the same"
                f" engine_id; give each its own, {_REMEDY}"
            ) from fault
        self._listener.listen(len(self._missing))

    def gather(self, own: Geometry, limit_seconds: float = HANDOVER_LIMIT_SECONDS) -> Geometry:
        """Maps the memory of all ranks here and returns their geometry; raises HandoverError if one is missing."""
        try:
            return self._gather(own, limit_seconds)
        except HandoverError:
            self.close()
            raise

    def _gather(self, own: Geometry, limit_seconds: float) -> Geometry:
        expected = len(self._missing)
        ranks = list(own["ranks"])
        deadline = time.monotonic() + limit_seconds
        while self._missing:
            self._listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                raise HandoverError(
                    f"{_named(self._missing)} handed over no KV memory within {limit_seconds:g} s, expected all"
                    f" {expected} other ranks of this messenger: see in their logs what keeps them, {_REMEDY}"
                ) from None
            ranks.extend(self._receive(connection, own))
        self._listener.close()
        for rank, connection in self._followers.items():
            try:
                connection.sendall(_ACCEPTED)
            except OSError as fault:
                gone = f"{_named([rank])} has not waited until the memory of all ranks was here ({fault})"
                raise HandoverError(f"{gone}: see in its log what has ended it, {_REMEDY}") from fault
        return cast("Geometry", {**own, "ranks": sorted(ranks, key=_rank_of)})

    def _receive(self, connection: socket.socket, own: Geometry) -> Sequence[Any]:
        """The ranks that a follower hands over; none from an unproven process, which must not prevent the start."""
        if _peer_uid(connection) != os.getuid():
            self._logger.warning("user %d dialled the lead rank and is ignored", _peer_uid(connection))
            connection.close()
            return ()
        connection.settimeout(_GREETING_LIMIT_SECONDS)
        descriptors: list[int] = []
        try:
            message, descriptors = _receive_with_descriptors(connection)
            brought = cast("Geometry", json.loads(message))
            rank = _rank_of(brought["ranks"][0])
        except (OSError, ValueError, LookupError, TypeError) as fault:
            self._logger.warning("a message to the lead rank cannot be read and is ignored: %s", fault)
            _close(descriptors)
            connection.close()
            return ()
        try:
            self._check(rank, brought, own)
            mapped = self._map(rank, brought["ranks"][0], descriptors, own)
        except HandoverError as refusal:
            _close(descriptors)
            with contextlib.suppress(OSError):
                connection.sendall(str(refusal).encode())
            connection.close()
            raise
        on_device = [memory["kind"] == "cuda" for memory in mapped["memories"]]
        _close(itertools.compress(descriptors, on_device))  # mapped: the driver does not need them any more
        self._missing.discard(rank)
        self._followers[rank] = connection
        return [mapped]

    def _check(self, rank: Rank, brought: Geometry, own: Geometry) -> None:
        if rank not in self._missing:
            raise HandoverError(
                f"{_named([rank])} handed over KV memory, expected {_named(self._missing)}: two engines on this host"
                f" have the same engine_id; give each its own, {_REMEDY}"
            )
        for field in sorted((own.keys() | brought.keys()) - {"ranks"}):
            theirs, ours = brought.get(field), own.get(field)
            if theirs != ours:
                raise HandoverError(
                    f"the geometry of {_named([rank])} has {field} {theirs!r}, expected {ours!r} as on the lead rank:"
                    f" start all ranks with the same options, {_REMEDY}"
                )

    def _map(self, rank: Rank, described: Any, descriptors: Sequence[int], own: Geometry) -> Any:
        memories = described["memories"]
        kinds, expected = ({memory["kind"] for memory in each} for each in (memories, own["ranks"][0]["memories"]))
        if kinds != expected:
            raise HandoverError(
                f"{_named([rank])} handed over memory of kind {' and '.join(sorted(kinds))}, expected"
                f" {' and '.join(sorted(expected))} as on the lead rank; set messenger_per to 'rank'"
            )
        if len(descriptors) != len(memories):
            raise HandoverError(
                f"{_named([rank])} handed over {len(descriptors)} descriptors, expected {len(memories)}, one for each"
                f" of its memories: its KV memory cannot be shared; set messenger_per to 'rank'"
            )
        return {
            **described,
            "memories": [self._mapped(rank, *each, own) for each in zip(memories, descriptors, strict=True)],
        }

    def _mapped(self, rank: Rank, memory: Any, descriptor: int, own: Geometry) -> Memory | DeviceMemory:
        if memory["kind"] == "cuda":
            return self._mapped_on_device(rank, memory, descriptor, own)
        length_bytes, held_bytes = memory["lengthBytes"], os.fstat(descriptor).st_size
        if held_bytes < length_bytes:
            raise HandoverError(
                f"{_named([rank])} handed over {held_bytes} bytes of KV memory, expected {length_bytes}: its KV"
                f" memory cannot be shared; set messenger_per to 'rank'"
            )
        mapping = mmap.mmap(descriptor, length_bytes)
        self._mappings.append(mapping)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        return {"kind": "host", "address": address, "lengthBytes": length_bytes, "memfd": descriptor}

    def _mapped_on_device(self, rank: Rank, memory: Any, descriptor: int, own: Geometry) -> DeviceMemory:
        """Maps memory of another GPU for the lead's device, with which the messenger copies."""
        reaching = next(each["device"] for each in own["ranks"][0]["memories"] if each["kind"] == "cuda")
        if self._device_memories is None:
            raise HandoverError(
                f"{_named([rank])} handed over memory of a GPU, which the lead rank has no way to map; set"
                " messenger_per to 'rank'"
            )
        try:
            taken = self._device_memories.take_in(descriptor, memory["allocationBytes"], reaching)
        except CudaError as fault:
            raise HandoverError(
                f"the memory of {_named([rank])} cannot be mapped for the lead rank's GPU {reaching} ({fault}): set"
                " messenger_per to 'rank'"
            ) from fault
        self._taken_in.append(taken.address)
        return {
            "kind": "cuda",
            "device": reaching,
            "address": taken.address,
            "lengthBytes": memory["lengthBytes"],
            "handleKind": memory["handleKind"],
        }

    def notify_fenced(self, step: int) -> None:
        """Allows the followers to overwrite the pages of requests that were preempted before this step.

        Waits for a follower that is behind. If the connection were closed instead, the follower would assume that this
        process has ended and reads nothing, and would not wait for later fences.
        """
        for rank, connection in list(self._followers.items()):
            self._notify_fenced(rank, connection, _STEP.pack(_FENCED, step))

    def _notify_fenced(self, rank: Rank, connection: socket.socket, message: bytes) -> None:
        connection.settimeout(FENCE_NEWS_SECONDS)
        while True:
            try:
                connection.sendall(message)
            except TimeoutError:
                self._logger.error(
                    "%s does not hear that preempted requests are read no more, waiting on", _named([rank])
                )
            except OSError as fault:
                self._lose(rank, fault)
                return
            else:
                return

    def send_votes(self, votes: Votes) -> None:
        """Passes reports to the followers, which repeat them to the engine. Never waits; the rest is sent next step."""
        messages = votes.messages()
        for rank, connection in list(self._followers.items()):
            unreported = self._unreported.setdefault(rank, deque())
            unreported.extend(messages)
            connection.setblocking(False)
            try:
                while unreported:
                    connection.send(unreported[0])
                    unreported.popleft()
            except BlockingIOError:
                continue
            except OSError as fault:
                self._lose(rank, fault)

    def _lose(self, rank: Rank, fault: OSError) -> None:
        self._logger.error("%s is gone: %s", _named([rank]), fault)
        self._followers.pop(rank).close()

    def close(self) -> None:
        """Closes the connections; the memory stays mapped until the process ends, or until ``unmap``."""
        self._listener.close()
        for connection in self._followers.values():
            connection.close()
        self._followers.clear()

    def unmap(self) -> None:
        """Unmaps the other ranks' GPU memory, which they cannot give back before. The messenger is closed."""
        while self._taken_in and self._device_memories is not None:
            self._device_memories.free(self._taken_in.pop())


class Follower:
    """The side of a rank whose KV memory the lead's messenger reads and writes."""

    def __init__(self, connection: socket.socket, logger: logging.Logger) -> None:
        self._connection = connection
        self._logger = logger
        self._heard = Votes(set(), set())
        self._ended = False

    @classmethod
    def hand_over(
        cls,
        place: str,
        own: Geometry,
        logger: logging.Logger,
        limit_seconds: float = HANDOVER_LIMIT_SECONDS,
        device_memories: DeviceMemories | None = None,
    ) -> Self:
        """Hands the memory of ``own`` to the lead and waits until it has that of all ranks; raises HandoverError.

        ``device_memories`` has allocated this rank's GPU memory; None if it has host memory.
        """
        with ExitStack() as exported:
            described, descriptors = _described(own, device_memories, exported)
            return cls._hand_over(place, described, descriptors, logger, limit_seconds)

    @classmethod
    def _hand_over(
        cls, place: str, own: object, descriptors: Sequence[int], logger: logging.Logger, limit_seconds: float
    ) -> Self:
        message = json.dumps(own, separators=(",", ":")).encode()
        if len(message) > MESSAGE_LENGTH_MAX_BYTES:
            raise HandoverError(
                f"the geometry of this rank takes {len(message)} bytes, expected at most {MESSAGE_LENGTH_MAX_BYTES}:"
                " set messenger_per to 'rank'"
            )
        deadline = time.monotonic() + limit_seconds
        connection = _dial(place, deadline, limit_seconds)
        try:
            if _peer_uid(connection) != os.getuid():
                raise HandoverError(
                    f"at the lead rank's socket is user {_peer_uid(connection)}, expected {os.getuid()}: end the"
                    f" process that took its name, {_REMEDY}"
                )
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            _await_acceptance(connection, message, descriptors, limit_seconds)
        except BaseException:
            connection.close()
            raise
        return cls(connection, logger)

    def wait_fenced(self, step: int) -> None:
        """Returns when the lead's messenger reads no page of a request that was preempted before this step.

        There is no time limit: pages that are still read must not be overwritten. A lead that has ended reads none.
        """
        while not self._ended:
            try:
                message = self._read(FENCE_NEWS_SECONDS)
            except TimeoutError:
                self._logger.error("preempted requests are still being read, waiting on")
                continue
            if message[:1] == _FENCED and _STEP.unpack(message)[1] >= step:
                return

    def has_heard(self) -> bool:
        """Whether the lead has reported more requests as over."""
        with contextlib.suppress(BlockingIOError):
            while not self._ended:
                self._read(0.0)
        return bool(self._heard.sent or self._heard.received)

    def pause(self, limit_seconds: float) -> None:
        """Returns when there is a message from the lead, or after the limit."""
        if self._ended:
            time.sleep(limit_seconds)
        else:
            waiting = select.poll()
            waiting.register(self._connection, select.POLLIN)
            waiting.poll(limit_seconds * 1e3)

    def take_votes(self) -> Votes:
        """Takes the lead's reports since the last call."""
        self.has_heard()
        heard, self._heard = self._heard, Votes(set(), set())
        return heard

    def _read(self, limit_seconds: float) -> bytes:
        """The next message, b"" after the end of the connection; stores the requests that it names."""
        self._connection.settimeout(limit_seconds)
        try:
            message = self._connection.recv(MESSAGE_LENGTH_MAX_BYTES)
        except (TimeoutError, BlockingIOError):
            raise
        except OSError as fault:
            self._end(str(fault))
            return b""
        if not message:
            self._end("it closed the connection")
        elif message[:1] == VOTES:
            self._heard.hear(message)
        return message

    def _end(self, reason: str) -> None:
        self._ended = True
        self._logger.error("the lead rank is gone: %s", reason)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def _described(own: Geometry, device_memories: DeviceMemories | None, exported: ExitStack) -> tuple[object, list[int]]:
    """The geometry for the lead, and a descriptor for each memory.

    Memory that cannot be shared has no descriptor; the lead notices that, and the start fails on both sides at once.
    """
    (rank,) = own["ranks"]
    memories: list[object] = []
    descriptors: list[int] = []
    for memory in rank["memories"]:
        memories.append(memory)
        if memory["kind"] == "host":
            descriptors += [memory["memfd"]] if memory["memfd"] >= 0 else []
        elif device_memories is not None and (held := device_memories.range_at(memory["address"])) is not None:
            memories[-1] = {**memory, "allocationBytes": held.length_bytes}
            descriptors.append(device_memories.export(held.address))
            exported.callback(os.close, descriptors[-1])
    return {**own, "ranks": [{**rank, "memories": memories}]}, descriptors[:MEMORIES_MAX]


def _dial(place: str, deadline: float, limit_seconds: float) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection.connect(place)
        except OSError as fault:
            connection.close()
            if time.monotonic() >= deadline:
                raise HandoverError(
                    f"the lead rank could not be reached within {limit_seconds:g} s ({fault}): see in its log what"
                    f" keeps it, {_REMEDY}"
                ) from fault
            time.sleep(_DIAL_INTERVAL_SECONDS)
        else:
            return connection


def _await_acceptance(
    connection: socket.socket, message: bytes, descriptors: Sequence[int], limit_seconds: float
) -> None:
    try:
        socket.send_fds(connection, [message], list(descriptors))
        answer = connection.recv(MESSAGE_LENGTH_MAX_BYTES)
    except TimeoutError:
        raise HandoverError(
            f"the lead rank had not the KV memory of all ranks within {limit_seconds:g} s: see in its log which is"
            f" missing, {_REMEDY}"
        ) from None
    except OSError as fault:
        raise HandoverError(f"the lead rank did not take this rank's KV memory ({fault}): see its log") from fault
    if answer != _ACCEPTED:
        raise HandoverError(answer.decode(errors="replace") or "the lead rank has ended: see its log")


def _receive_with_descriptors(connection: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(MEMORIES_MAX * array.array("i").itemsize)
    message, ancillary, flags, _ = connection.recvmsg(MESSAGE_LENGTH_MAX_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        _close(descriptors)
        raise ValueError("it is longer than any rank's")
    return message, list(descriptors)


def _peer_uid(connection: socket.socket) -> int:
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)


def _rank_of(described: Any) -> Rank:
    return int(described["ppRank"]), int(described["tpRank"])


def _named(ranks: Iterable[Rank]) -> str:
    named = [f"tensor-parallel rank {tp}" + (f" of pipeline stage {pp}" if pp else "") for pp, tp in sorted(ranks)]
    return " and ".join(named)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
