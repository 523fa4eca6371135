"""Turns SGLang's description of its KV pools into the geometry of docs/boundary.md. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector._facade import ContextRow, Geometry, Group, Layer, Memory, Rank
from kv_connector.exceptions import OptionError


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor of equal items: the pages of one layer's K or V, or the rows of one kind of metadata."""

    name: str
    address: int
    length_bytes: int
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of the model this rank holds."""

    tp_size: int
    tp_rank: int
    pp_size: int
    pp_rank: int


def ranks_with_heads_of(place: Place, kv_head_count: int, source_tp_size: int) -> list[int]:
    """The prefiller's TP ranks that hold a head of this rank's; of ranks that hold the same ones, all.

    Empty where the heads cannot be split so. Latent KV is one head, which every rank holds.
    """
    wanted = _heads(place.tp_rank, place.tp_size, kv_head_count)
    held = ((rank, _heads(rank, source_tp_size, kv_head_count)) for rank in range(source_tp_size))
    return [rank for rank, heads in held if wanted & heads]


def _heads(tp_rank: int, tp_size: int, kv_head_count: int) -> set[int]:
    if kv_head_count % tp_size == 0:
        each = kv_head_count // tp_size
        return set(range(tp_rank * each, (tp_rank + 1) * each))
    return {tp_rank * kv_head_count // tp_size} if tp_size % kv_head_count == 0 else set()


def kv_buffers(kv_args: Any, latent: bool) -> list[Buffer]:
    """The pools' buffers in the order in which the forward pass fills them: K before V, layer by layer."""
    count = len(kv_args.kv_data_ptrs)
    draft_count = kv_args.num_draft_entries
    first_layer = getattr(kv_args, "prefill_start_layer", 0) or 0
    names = [
        *_names("layer", count - draft_count, latent, first_layer),
        *_names("draft", draft_count, latent or bool(draft_count % 2), 0),
    ]
    described = zip(names, kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens, strict=True)
    buffers = [
        Buffer(name, int(address), int(length), int(item)) for (_, name), address, length, item in described if length
    ]
    order = {name: place for place, name in names}
    return sorted(buffers, key=lambda buffer: order[buffer.name])


def _names(kind: str, count: int, latent: bool, first: int) -> Iterable[tuple[tuple[bool, int, int], str]]:
    """((draft or not, layer, part), name) of each entry: first all K, then all V."""
    draft = kind == "draft"
    if latent:
        return [((draft, layer, 0), f"{kind}.{first + layer}") for layer in range(count)]
    half = count // 2
    return [
        ((draft, index % half, index // half), f"{kind}.{first + index % half}.{'kv'[index // half]}")
        for index in range(count)
    ]


def windowed_buffers(kv_args: Any) -> list[Buffer]:
    """The buffers of the pool that layers with a sliding window have of their own; none where there is no such pool."""
    if not kv_args.state_types:
        return []
    count = len(kv_args.state_data_ptrs[0])
    described = zip(
        _names("window", count, count % 2 == 1, 0),
        kv_args.state_data_ptrs[0],
        kv_args.state_data_lens[0],
        kv_args.state_item_lens[0],
        strict=True,
    )
    ordered = sorted(described, key=lambda entry: entry[0][0])
    return [Buffer(name, int(address), int(length), int(item)) for (_, name), address, length, item in ordered]


def metadata_buffers(kv_args: Any) -> list[Buffer]:
    """The metadata's buffers in SGLang's order, in which the room's word is behind all that it announces."""
    described = zip(kv_args.aux_data_ptrs, kv_args.aux_data_lens, kv_args.aux_item_lens, strict=True)
    return [
        Buffer(f"metadata.{index}", int(address), int(length), int(item))
        for index, (address, length, item) in enumerate(described)
    ]


def describe(
    kv: Sequence[Buffer],
    windowed: Sequence[Buffer] = (),
    *,
    window_tokens: int = 0,
    model: str,
    dtype: str,
    element_bytes: int,
    page_tokens: int,
    latent: bool,
    kv_head_count: int,
    place: Place,
) -> Geometry:
    """The geometry of one rank, with a second group where there are ``windowed`` buffers.

    Raises OptionError if its pages cannot be addressed.
    """
    if not kv:
        raise OptionError("SGLang registered no KV buffers, expected one or more: this model has nothing to transfer")
    pools = [(kv, 0)]
    if windowed:
        _check_windowed(kv, windowed, window_tokens)
        pools.append((windowed, window_tokens))
    buffers = [(buffer, index) for index, (pool, _) in enumerate(pools) for buffer in pool]
    memories = [
        Memory(kind="host", address=buffer.address, lengthBytes=buffer.length_bytes, memfd=-1) for buffer, _ in buffers
    ]
    layers = [
        Layer(
            name=buffer.name,
            groupIndex=group,
            memoryIndex=index,
            offsetBytes=0,
            pageStrideBytes=buffer.item_bytes,
            pageBytes=buffer.item_bytes,
        )
        for index, (buffer, group) in enumerate(buffers)
    ]
    groups = [
        Group(
            kind="window" if window else "full",
            windowTokens=window,
            dtype=dtype,
            elementBytes=element_bytes,
            pageTokens=page_tokens,
            layout="LATENT" if latent else "NHD",
            kvHeadCount=kv_head_count,
            pageCount=_page_count(pool),
        )
        for pool, window in pools
    ]
    return Geometry(
        model=model,
        tpSize=place.tp_size,
        ppSize=place.pp_size,
        groups=groups,
        ranks=[Rank(tpRank=place.tp_rank, ppRank=place.pp_rank, memories=memories, layers=layers)],
    )


def _check_windowed(kv: Sequence[Buffer], windowed: Sequence[Buffer], window_tokens: int) -> None:
    """One number of heads is said for all layers, and one window for those that have any."""
    page_bytes, others = ({buffer.item_bytes for buffer in pool} for pool in (windowed, kv))
    if page_bytes - others:
        raise OptionError(
            f"pages of layers with a sliding window have {sorted(page_bytes)} bytes and others {sorted(others)},"
            " expected the same in all: heads of different numbers or sizes are not served, choose another"
            " --disaggregation-transfer-backend"
        )
    if not window_tokens:
        raise OptionError(
            "SGLang has a pool for layers with a sliding window and says no window's length, expected one:"
            " start with --disable-hybrid-swa-memory"
        )


def _page_count(pool: Sequence[Buffer]) -> int:
    """Of every buffer of a pool."""
    counts = {buffer.length_bytes // buffer.item_bytes for buffer in pool}
    if len(counts) != 1 or any(buffer.length_bytes % buffer.item_bytes for buffer in pool):
        raise OptionError(
            f"SGLang's KV buffers have {sorted(counts)} pages, expected the same whole number in all:"
            " this kind of KV pool is not supported"
        )
    return counts.pop()


def context_rows(metadata: Sequence[Buffer]) -> list[ContextRow]:
    """The metadata as rows that go with a transfer."""
    return [
        ContextRow(
            name=buffer.name,
            address=buffer.address,
            lengthBytes=buffer.length_bytes,
            memfd=-1,
            rowStrideBytes=buffer.item_bytes,
            rowBytes=buffer.item_bytes,
        )
        for buffer in metadata
    ]
