"""A head that a server with tied embeddings would leave out is the embedding, or the update is refused."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kv_connector.weights import landed_tensors
from kv_connector.weights import served as served_checkpoint
from kv_connector.weights.decision import Decision
from kv_connector.weights.landed_tensors import MappedLandings
from kv_connector.weights.landing import SharedMemory
from kv_connector.weights.manifest import ELEMENT_BYTES, Manifest
from kv_connector.weights.served import ServedCheckpoint
from kv_connector.weights.shares import Share, rows_of

ROWS, COLUMNS = 37, 8
ROW_BYTES = COLUMNS * ELEMENT_BYTES["bfloat16"]
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NORM = "model.norm.weight"
LENGTH_BYTES = ROWS * ROW_BYTES
BITS = sorted({0, 7, 8 * LENGTH_BYTES - 1, *random.Random(7).sample(range(8 * LENGTH_BYTES), 12)})


def manifest(*, head: bool, shape: tuple[int, ...] = (ROWS, COLUMNS), dtype: str = "bfloat16") -> Manifest:
    heads = [(HEAD, dtype, shape)] if head else []
    return Manifest.of([*heads, (EMBEDDING, "bfloat16", (ROWS, COLUMNS)), (NORM, "bfloat16", (COLUMNS,))])


def flipped(content: bytes, bit: int | None) -> bytes:
    if bit is None:
        return content
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


class Update:
    """What has landed, from ``count`` ranks of a trainer."""

    def __init__(self, whole: Manifest, bit: int | None, split: dict[str, bool], count: int) -> None:
        first = Share.of(whole, tuple(split.get(place.name, False) for place in whole.places), 0, count)
        embedding = random.Random(1).randbytes(LENGTH_BYTES)
        content = {EMBEDDING: embedding, HEAD: flipped(embedding, bit)}
        self._memories = []
        for share in first.of_all_ranks():
            memory = SharedMemory(share.own.length_bytes)
            for place in share.own.places:
                rows = rows_of(ROWS, share.rank, count) if split.get(place.name) else range(ROWS)
                part = content.get(place.name, bytes(LENGTH_BYTES))[rows.start * ROW_BYTES : rows.stop * ROW_BYTES]
                memory.view[place.offset_bytes : place.offset_bytes + place.length_bytes] = part[
                    : place.length_bytes
                ].ljust(place.length_bytes, b"\0")
            self._memories.append(memory)
        memfds = tuple(memory.memfd for memory in self._memories)
        self.decision = Decision("", 1, os.getpid(), memfds, first, whole)

    def refusal(self, *, tied: bool) -> str:
        return MappedLandings().map(self.decision, 0, tied=tied)


@pytest.fixture(autouse=True, params=[1 << 20, 48])
def _compared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landed_tensors, "_COMPARED_BYTES", request.param)


@pytest.mark.parametrize(
    ("count", "split"),
    [
        (1, {}),
        *((count, {HEAD: True, EMBEDDING: True}) for count in (2, 3, 5)),
        (3, {HEAD: True}),
        (3, {EMBEDDING: True}),
        (3, {}),
    ],
)
def test_should_refuse_a_head_of_which_one_bit_is_not_the_embeddings(count: int, split: dict[str, bool]) -> None:
    split = split | {NORM: True} if count > 1 else {}
    assert Update(manifest(head=True), None, split, count).refusal(tied=True) == ""
    assert Update(manifest(head=False), None, split, count).refusal(tied=True) == ""
    for bit in BITS:
        update = Update(manifest(head=True), bit, split, count)
        assert update.refusal(tied=True).startswith("lm_head.weight differs from the embedding (none of 1 tensors")
        assert update.refusal(tied=False) == ""


@pytest.mark.parametrize(
    "other", [manifest(head=True, dtype="float32"), manifest(head=True, shape=(ROWS - 1, COLUMNS))]
)
def test_should_refuse_a_head_of_another_form_than_the_embedding(other: Manifest) -> None:
    update = Update(other, None, {}, 1)
    assert "none of 0 tensors of its type and shape" in update.refusal(tied=True)
    assert update.refusal(tied=False) == ""


@pytest.mark.parametrize("tied", [True, False])
def test_should_know_whether_its_server_is_tied_when_a_sender_is_compared(
    monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    whole = manifest(head=True)
    monkeypatch.setattr(served_checkpoint, "served_manifest", lambda _find: whole)
    served = ServedCheckpoint()
    assert served.unfit(Share.of(whole, (False,) * 3, 0, 1), lambda: Path("folder"), tied=tied) == ""
    assert served.tied == tied
