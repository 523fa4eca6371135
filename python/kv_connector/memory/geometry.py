"""The description of the KV cache that a messenger serves: memories, layers, ranks and rows, as in docs/boundary.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict


class Memory(TypedDict):
    """Host memory with KV, as mapped by this process; ``memfd`` is -1 if no other process can map it."""

    kind: Literal["host"]
    address: int
    lengthBytes: int
    memfd: int


class DeviceMemory(TypedDict):
    """A GPU's memory with KV; ``handleKind`` is the kind of handle by which other processes can import it."""

    kind: Literal["cuda"]
    device: int
    address: int
    lengthBytes: int
    handleKind: Literal["none", "posixFd", "fabric"]


class Layer(TypedDict):
    """The place of one layer's pages in one of its rank's memories."""

    name: str
    groupIndex: int
    memoryIndex: int
    offsetBytes: int
    pageStrideBytes: int
    pageBytes: int


class Rank(TypedDict):
    """One rank's part of the KV cache."""

    tpRank: int
    ppRank: int
    memories: Sequence[Memory | DeviceMemory]
    layers: list[Layer]


class Group(TypedDict):
    """Layers whose pages have the same shape and are allocated together."""

    kind: Literal["full", "window", "chunk", "state"]
    windowTokens: int
    dtype: str
    elementBytes: int
    pageTokens: int
    layout: Literal["HND", "NHD", "LATENT"]
    kvHeadCount: int
    pageCount: int
    pageShares: NotRequired[int]
    """Among how many ranks pages are divided: page ``p`` is page ``p // n`` of rank ``p % n``; left out = 1."""


class Geometry(TypedDict):
    """The KV cache of the ranks that one messenger serves, under the names of docs/boundary.md."""

    model: str
    weightsDigest: NotRequired[str]
    """Distinguishes two trainings of one model; "" or absent if unknown."""
    settings: NotRequired[Mapping[str, str]]
    """What else decides which KV the engine computes, by name; absent if unknown."""
    settingsMayDiffer: NotRequired[Sequence[str]]
    """Names of settings that this side excuses."""
    tpSize: int
    ppSize: int
    groups: list[Group]
    ranks: list[Rank]


class ContextRow(TypedDict):
    """One kind of row that a transfer carries besides KV; row ``n`` belongs to the engine's slot ``n``."""

    name: str
    address: int
    lengthBytes: int
    memfd: int
    rowStrideBytes: int
    rowBytes: int
    sending: NotRequired[Literal["always", "onRequest"]]
    """Sent with all transfers (if absent), or only with those whose ``fetch`` names it in ``contextKinds``."""


def is_shareable(memory: Memory | DeviceMemory) -> bool:
    """Whether other processes can map the memory."""
    return memory["memfd"] >= 0 if memory["kind"] == "host" else memory["handleKind"] != "none"
