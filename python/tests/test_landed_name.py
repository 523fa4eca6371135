"""What weights that have landed are called."""

from __future__ import annotations

import itertools

from kv_connector.weights.landed_name import landed_name
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.shares import Share

TENSORS = [("a", "int8", [8, 2]), ("b", "int8", [8, 2])]
MANIFESTS = [
    Manifest.of(each)
    for each in (
        TENSORS,
        TENSORS[::-1],
        [("a", "uint8", [8, 2]), TENSORS[1]],
        [("a", "int8", [16, 1]), TENSORS[1]],
        [("c", "int8", [8, 2]), TENSORS[1]],
    )
]
SPLITS = tuple(split for split in itertools.product([True, False], repeat=2) if any(split))


def test_should_differ_in_bytes_tensors_and_their_division() -> None:
    names: dict[str, object] = {}
    for manifest, split, count in itertools.product(MANIFESTS, SPLITS, (1, 2, 3)):
        for digests in itertools.product("12", repeat=count):
            of_ranks = {landed_name(Share.of(manifest, split, rank, count), digests) for rank in range(count)}
            assert len(of_ranks) == 1, "whichever rank announced itself last"
            (name,) = of_ranks
            what = (manifest.digest, split if count > 1 else "whole", count, digests)
            assert names.setdefault(name, what) == what
    assert len(names) == len(MANIFESTS) * (2 + len(SPLITS) * (4 + 8))
