"""A loader may write into what it is given: each load is of the bytes that have landed, and of no page before."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from kv_connector.weights.decision import Decision
from kv_connector.weights.landed_tensors import MappedLandings
from kv_connector.weights.landing import SharedMemory
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.shares import Share

torch = pytest.importorskip("torch", reason="torch comes with the engine")
PAGE_ROWS = mmap.PAGESIZE // 8
SHAPES = {
    "norm": (8,),
    "below a page": (PAGE_ROWS - 64, 4),
    "a page": (PAGE_ROWS, 4),
    "above a page": (PAGE_ROWS + 1, 4),
    "pages": (5 * PAGE_ROWS, 4),
    "neighbour": (3,),
    "last": (1, 4),
}
"""In bfloat16, so that tensors begin and end within pages, and share them."""
WHOLE = ("norm", "neighbour")
MANIFEST = Manifest.of([(name, "bfloat16", shape) for name, shape in SHAPES.items()])
VERSIONS = 4


def edges(tensor: Any) -> None:
    """The elements on both sides of each edge of a page, and the first and last of the tensor."""
    flat = tensor.view(-1)
    first = -(flat.data_ptr() % mmap.PAGESIZE) // 2 % (mmap.PAGESIZE // 2)
    for edge in range(first, flat.numel(), mmap.PAGESIZE // 2):
        flat[max(edge - 1, 0) : edge + 1] = -7.0
    flat[0] = flat[-1] = 7.0


WRITES: dict[str, Callable[[Any], object]] = {
    "zero": lambda tensor: tensor.zero_(),
    "add one": lambda tensor: tensor.add_(1.0),
    "copy": lambda tensor: tensor.copy_(torch.full_like(tensor, 3.0)),
    "first element": lambda tensor: tensor.view(-1)[:1].zero_(),
    "last element": lambda tensor: tensor.view(-1)[-1:].zero_(),
    "edges of pages": edges,
    "a norm": lambda tensor: tensor.add_(1.0) if tensor.dim() == 1 else None,
}


def content_of(version: int, rank: int, length_bytes: int) -> bytes:
    """Bytes in which each version differs from the others nearly everywhere."""
    return random.Random(version * 1000 + rank).randbytes(length_bytes)


class Landings:
    """Those of a trainer's ranks, and what has landed in them last."""

    def __init__(self, count: int) -> None:
        split = tuple(name not in WHOLE for name in SHAPES)
        self._shares = list(Share.of(MANIFEST, split, 0, count).of_all_ranks())
        self._memories = [SharedMemory(share.own.length_bytes) for share in self._shares]
        memfds = tuple(memory.memfd for memory in self._memories)
        self.decision = Decision("", 1, os.getpid(), memfds, self._shares[0], MANIFEST)

    def land(self, version: int) -> None:
        for rank, memory in enumerate(self._memories):
            memory.view[:] = content_of(version, rank, memory.length_bytes)

    def is_as_landed(self, version: int) -> bool:
        """Whether all bytes of all landings are that version's."""
        return all(
            bytes(memory.view) == content_of(version, rank, memory.length_bytes)
            for rank, memory in enumerate(self._memories)
        )

    def landed(self, name: str) -> bytes:
        """The bytes of a tensor in all landings, without their mappings in an engine."""
        parts = [
            bytes(memory.view[place.offset_bytes : place.offset_bytes + place.length_bytes])
            for share, memory in zip(self._shares, self._memories, strict=True)
            for place in share.own.places
            if place.name == name
        ]
        return b"".join(parts)


def bytes_of(tensor: Any) -> bytes:
    content: bytes = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return content


def load(mapped: MappedLandings, landings: Landings, write: Callable[[Any], object]) -> dict[str, bytes]:
    """What a loader was given, which then writes into it."""
    assert mapped.map(landings.decision, 0) == ""
    given = {}
    for name, tensor in mapped.tensors(landings.decision):
        given[name] = bytes_of(tensor)
        write(tensor)
    return given


@pytest.fixture(params=[1, 2, 3])
def landings(request: pytest.FixtureRequest) -> Landings:
    return Landings(request.param)


@pytest.mark.parametrize("written", WRITES)
def test_should_load_what_has_landed_where_a_loader_wrote_before(landings: Landings, written: str) -> None:
    mapped = MappedLandings()
    for version in range(1, VERSIONS):
        landings.land(version)
        given = load(mapped, landings, WRITES[written])
        assert [name for name in SHAPES if given[name] != landings.landed(name)] == []
        assert landings.is_as_landed(version), "a loader has written to a landing"


def test_should_load_what_has_landed_whatever_a_loader_wrote_in_any_order(landings: Landings) -> None:
    """Loaders drawn anew for each tensor of each load."""
    drawn = random.Random(7)
    mapped = MappedLandings()

    def write(tensor: Any) -> None:
        WRITES[drawn.choice(list(WRITES))](tensor)

    for version in range(1, 8):
        landings.land(version)
        given = load(mapped, landings, write)
        assert [name for name in SHAPES if given[name] != landings.landed(name)] == []


def test_should_keep_what_a_loader_took_and_wrote_to(landings: Landings) -> None:
    """A parameter that is the given tensor has what the loader made of it, also behind the next load."""
    mapped, model = MappedLandings(), torch.nn.Module()
    landings.land(1)
    assert mapped.map(landings.decision, 0) == ""
    for name, tensor in mapped.tensors(landings.decision):
        model.register_buffer(name, tensor.zero_())
    mapped.part_from(model)
    landings.land(2)
    assert load(mapped, landings, lambda _tensor: None) == {name: landings.landed(name) for name in SHAPES}
    assert all(not any(bytes_of(getattr(model, name))) for name in SHAPES)
