"""How tensors are divided among the ranks of a trainer: by rows, as FSDP2 divides them. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kv_connector.weights.manifest import Manifest, ManifestError, Place

LANDINGS_MAX = 64
"""Of one server: each has a messenger, of two threads, eight descriptors and 1.6 MB of the JVM's heap."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one of ``count`` ranks has of the tensors of ``whole``: its rows of those that are split.

    Each of the others is in the share of rank 0. Make it with :meth:`of`.
    """

    whole: Manifest
    split: tuple[bool, ...]
    """Whether a tensor is split, in the manifest's order."""
    rank: int
    count: int
    own: Manifest
    """The rank's tensors, each with the shape that it has there."""

    @classmethod
    def of(cls, whole: Manifest, split: tuple[bool, ...], rank: int, count: int) -> Share:
        """Raises ManifestError for what no rank has."""
        if not 0 <= rank < count or len(split) != len(whole.places):
            raise ManifestError(
                f"the share is rank {rank}'s of {count}, with {len(split)} of {len(whole.places)} tensors: use the same"
                " release on both sides"
            )
        return cls(whole, split, rank, count, _own(whole, split, rank, count))

    @classmethod
    def announced(cls, body: Mapping[str, Any]) -> Share:
        """As :meth:`described` has it, or a sender of whole tensors; raises ManifestError, KeyError or ValueError."""
        whole = Manifest.of(zip(body["names"], body["dtype_names"], body["shapes"], strict=True))
        split = tuple(bool(each) for each in body.get("split") or [False] * len(whole.places))
        return cls.of(whole, split, int(body.get("rank", 0)), int(body.get("rank_count", 1)))

    def described(self) -> dict[str, object]:
        """What a server has to be given of it, as JSON."""
        described: dict[str, object] = {**self.whole.described()}
        if self.count > 1:
            described |= {"split": list(self.split), "rank": self.rank, "rank_count": self.count}
        return described

    def of_all_ranks(self) -> Iterator[Share]:
        """The share of each rank, by rank. Ranks with the same rows have one manifest: few are made for many ranks."""
        for ranks in self._alike():
            own = _own(self.whole, self.split, ranks.start, self.count)
            for rank in ranks:
                yield Share(self.whole, self.split, rank, self.count, own)

    def _alike(self) -> list[range]:
        """All ranks in runs that have the same shapes: rank 0, and where a number of rows comes to its end."""
        rows = {place.shape[0] for place, divided in zip(self.whole.places, self.split, strict=True) if divided}
        full = {count // -(-count // self.count) for count in rows if count}
        cuts = sorted({0, 1, self.count, *full, *(each + 1 for each in full)} & set(range(self.count + 1)))
        return [range(begin, end) for begin, end in itertools.pairwise(cuts)]


def why_too_many(share: Share) -> str:
    """Why no server takes this share; "" if that does not depend on how many there are."""
    if share.count <= LANDINGS_MAX:
        return ""
    return (
        f"the trainer has {share.count} ranks that send, expected at most {LANDINGS_MAX}, since each has a landing and"
        " a messenger in a server: gather the tensors and send them whole from rank 0"
    )


def rows_of(rows: int, rank: int, count: int) -> range:
    """The rows of a split tensor that a rank has: as many as each rank before it, fewer or none at the end."""
    each = -(-rows // count)
    return range(min(rank * each, rows), min((rank + 1) * each, rows))


def _own(whole: Manifest, split: tuple[bool, ...], rank: int, count: int) -> Manifest:
    return Manifest.of(_rows(whole, split, rank, count)) if count > 1 else whole


def _rows(
    whole: Manifest, split: tuple[bool, ...], rank: int, count: int
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for place, divided in zip(whole.places, split, strict=True):
        if divided:
            yield place.name, place.dtype, _shape(place, rank, count)
        elif rank == 0:
            yield place.name, place.dtype, place.shape


def _shape(place: Place, rank: int, count: int) -> tuple[int, ...]:
    if not place.shape:
        raise ManifestError(f"tensor {place.name} has no rows, and is split: send it whole")
    return (len(rows_of(place.shape[0], rank, count)), *place.shape[1:])
