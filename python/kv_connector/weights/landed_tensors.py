"""The tensors that have landed, as an engine's loader takes them. torch is imported when they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from kv_connector.weights.decision import Decision
from kv_connector.weights.landing import give_up_written, map_of_process
from kv_connector.weights.manifest import Manifest, Place


class MappedLandings:
    """The landings of an engine's first rank, in any of its ranks. For the thread that loads."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        """The process, the landings' descriptors, and the tensors with their division."""
        self._views: list[memoryview] = []
        self._own: list[dict[str, Place]] = []
        """What each landing has, by name."""

    def map(self, decision: Decision, rank: int) -> str:
        """Maps the landings that a load was decided for, and shows what has landed; returns why ``rank`` cannot.

        To be called before each load: loaders write into what they are given, such as ``loaded_weight += 1``, and a
        page that was written to would be of that version for ever, with all neighbours in it.
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
        except Exception as denied:
            return f"rank {rank} cannot map the landing of process {decision.pid}: {denied}"
        return ""

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
