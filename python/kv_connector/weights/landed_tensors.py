"""The tensors that have landed, as an engine's loader takes them. torch is imported when they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from kv_connector.weights.decision import Decision
from kv_connector.weights.landing import give_up_written, map_of_process
from kv_connector.weights.manifest import Manifest, Place
from kv_connector.weights.served import TIED

_COMPARED_BYTES = 8 << 20


class MappedLandings:
    """The landings of an engine's first rank, in any of its ranks. For the thread that loads."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        """The process, the landings' descriptors, and the tensors with their division."""
        self._views: list[memoryview] = []
        self._own: list[dict[str, Place]] = []
        """What each landing has, by name."""

    def map(self, decision: Decision, rank: int, *, tied: bool = False) -> str:
        """Maps the landings that a load was decided for, and shows what has landed; returns why ``rank`` cannot.

        To be called before each load: loaders write into what they are given, such as ``loaded_weight += 1``, and a
        page that was written to would be of that version for ever, with all neighbours in it.

        ``tied``: the embedding is the head too, so that engines leave out a head that has landed.
        """
        try:
            assert decision.share is not None
            share = decision.share
            key = (decision.pid, decision.memfds, share.whole.digest, share.split, share.count)
            if self._key != key:
                shares = list(share.of_all_ranks())
                pairs = zip(decision.memfds, (each.own.length_bytes for each in shares), strict=True)
                self._views = [map_of_process(decision.pid, memfd, length) for memfd, length in pairs]
                self._own = _by_name([each.own for each in shares])
                self._key = key
            for view in self._views:
                give_up_written(view)
            return self._other_head(share.whole) if tied else ""
        except Exception as denied:
            return f"rank {rank} cannot map the landing of process {decision.pid}: {denied}"

    def _other_head(self, whole: Manifest) -> str:
        """Why a head that has landed cannot be left out; "" if it is the embedding: the tensor of its shape."""
        for head in (each for each in whole.places if each.name in TIED):
            alike = [each for each in whole.places if (each.shape, each.dtype) == (head.shape, head.dtype)]
            others = [each.name for each in alike if each.name not in TIED]
            if not any(self._are_equal(head, other) for other in others):
                return (
                    f"{head.name} differs from the embedding (none of {len(others)} tensors of its type and shape has"
                    " its bytes), and this server's model has one tensor for both, so that it would not be loaded: send"
                    " it equal or leave it out, or start the server from a model whose embeddings are not tied"
                )
        return ""

    def _are_equal(self, one: Place, other: str) -> bool:
        """Whether two tensors of one length have the same bytes, however they are divided among the landings."""
        left, right = self._parts(one.name), self._parts(other)
        return all(
            _bytes(left, at, at + _COMPARED_BYTES) == _bytes(right, at, at + _COMPARED_BYTES)
            for at in range(0, one.length_bytes, _COMPARED_BYTES)
        )

    def _parts(self, name: str) -> list[memoryview]:
        """A tensor's bytes in each landing that has some of them, by the trainer's ranks."""
        found = [(own[name], view) for own, view in zip(self._own, self._views, strict=True) if name in own]
        return [view[place.offset_bytes : place.offset_bytes + place.length_bytes] for place, view in found]

    def tensors(self, decision: Decision) -> Iterator[tuple[str, Any]]:
        """(name, tensor) of all of them: views of one landing, or copies, of which one is held at a time."""
        assert decision.share is not None
        assert decision.manifest is not None
        if len(self._views) == 1:
            yield from tensors_of(decision.manifest, self._views[0])
            return
        import torch

        landings = list(zip(self._own, self._views, strict=True))
        for place in decision.share.whole.places:
            rows = [_view(own[place.name], view) for own, view in landings if place.name in own]
            yield place.name, rows[0] if len(rows) == 1 else torch.cat(rows)

    def part_from(self, model: Any) -> None:
        """Copies what a loader took as it was: it would change with the next version that lands."""
        for view in self._views:
            part_from_landing(model, view)


def _bytes(parts: Sequence[memoryview], begin: int, end: int) -> bytes:
    """Those from ``begin`` to ``end`` of parts that lie one behind the other."""
    found, at = [], 0
    for part in parts:
        found.append(part[max(begin - at, 0) : max(end - at, 0)])
        at += len(part)
    return b"".join(found)


def _by_name(manifests: Sequence[Manifest]) -> list[dict[str, Place]]:
    """The tensors of each by name; ranks that have one manifest have one of these."""
    made: dict[int, dict[str, Place]] = {}
    for each in manifests:
        if id(each) not in made:
            made[id(each)] = {place.name: place for place in each.places}
    return [made[id(each)] for each in manifests]


def tensors_of(manifest: Manifest, landing: memoryview) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of all of them, each a view of the landing."""
    for place in manifest.places:
        yield place.name, _view(place, landing)


def part_from_landing(model: Any, landing: memoryview) -> None:
    """Copies what a loader took as it was: it would change with the next version that lands."""
    import torch

    whole = torch.frombuffer(landing, dtype=torch.uint8)
    begin, end = whole.data_ptr(), whole.data_ptr() + whole.numel()
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.layout is torch.strided and begin <= tensor.data_ptr() < end:
            tensor.data = tensor.data.clone()


def _view(place: Place, landing: memoryview) -> Any:
    import torch

    part = landing[place.offset_bytes : place.offset_bytes + place.length_bytes]
    dtype = getattr(torch, place.dtype)
    flat = torch.frombuffer(part, dtype=dtype) if part else torch.empty(0, dtype=dtype)
    return flat.reshape(place.shape)
