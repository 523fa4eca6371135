"""What torch's FSDP2 gives each rank is what a share has, and landings of shares are the whole tensors again."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from kv_connector.weights.decision import Decision
from kv_connector.weights.landed_tensors import MappedLandings
from kv_connector.weights.landing import SharedMemory
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.shares import Share

torch = pytest.importorskip("torch", reason="torch comes with the engine")
SHAPES = {"even": (8, 3), "odd": (7, 5), "few": (1, 4), "flat": (9,), "deep": (5, 2, 3), "norm": (6,)}
WHOLE = "norm"


def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape).to(torch.bfloat16) for name, shape in SHAPES.items()}


def rows_of_torch(tensor: torch.Tensor, rank: int, count: int) -> torch.Tensor:
    """By torch's own rule of `Shard(0)`."""
    chunks = list(torch.chunk(tensor, count))
    return chunks[rank] if rank < len(chunks) else tensor[:0]


def landed(given: dict[str, torch.Tensor], count: int) -> Sequence[SharedMemory]:
    """A landing for each rank, with the rows that torch gives it."""
    memories = []
    for rank in range(count):
        own = Share.of(manifest_of(given), split_of(given), rank, count).own
        memory = SharedMemory(own.length_bytes)
        for place in own.places:
            rows = given[place.name] if place.name == WHOLE else rows_of_torch(given[place.name], rank, count)
            assert tuple(rows.shape) == place.shape
            content = rows.contiguous().view(torch.uint8).numpy().tobytes()
            memory.view[place.offset_bytes : place.offset_bytes + place.length_bytes] = content
        memories.append(memory)
    return memories


def manifest_of(given: dict[str, torch.Tensor]) -> Manifest:
    return Manifest.of([(name, "bfloat16", tuple(tensor.shape)) for name, tensor in given.items()])


def split_of(given: dict[str, torch.Tensor]) -> tuple[bool, ...]:
    return tuple(name != WHOLE for name in given)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_landings_of_all_ranks_are_the_whole_tensors(count: int) -> None:
    mapped = MappedLandings()
    for _ in range(2):
        given = tensors()
        manifest = manifest_of(given)
        memories = landed(given, count)
        share = Share.of(manifest, split_of(given), 0, count)
        memfds = tuple(memory.memfd for memory in memories)
        decision = Decision("", 1, os.getpid(), memfds, share, manifest)
        assert mapped.map(decision, 0) == ""
        seen = dict(mapped.tensors(decision))
        assert seen.keys() == given.keys()
        for name, tensor in given.items():
            assert torch.equal(seen[name], tensor), name


def test_what_a_loader_keeps_does_not_change_with_the_landing() -> None:
    given = tensors()
    memories = landed(given, 2)
    manifest = manifest_of(given)
    memfds = tuple(memory.memfd for memory in memories)
    decision = Decision("", 1, os.getpid(), memfds, Share.of(manifest, split_of(given), 0, 2), manifest)
    mapped = MappedLandings()
    assert mapped.map(decision, 0) == ""
    model = torch.nn.Module()
    for name, tensor in mapped.tensors(decision):
        model.register_buffer(name, tensor)
    mapped.part_from(model)
    for memory in memories:
        memory.view[:] = bytes(memory.length_bytes)
    for name, tensor in given.items():
        assert torch.equal(getattr(model, name), tensor), name


def test_a_landing_that_cannot_be_mapped_is_named_with_its_rank() -> None:
    given = tensors()
    manifest = manifest_of(given)
    decision = Decision("", 1, os.getpid(), (10**6,), Share.of(manifest, split_of(given), 0, 1), manifest)
    assert MappedLandings().map(decision, 3).startswith(f"rank 3 cannot map the landing of process {os.getpid()}")
