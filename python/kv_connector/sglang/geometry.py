"""Turns SGLang's description of its KV pools into the geometry of docs/boundary.md. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.exceptions import OptionError
from kv_connector.memory.geometry import ContextRow, DeviceMemory, Geometry, Group, Layer, Memory, Rank
from kv_connector.sglang.allocations import Allocation

STATE_PAGE_TOKENS = 1 << 30
"""The number of tokens that a slot of state is declared to hold: more than any prompt has."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor of equal items: the pages of one layer's K or V, or the rows of one kind of metadata."""

    name: str
    address: int
    length_bytes: int
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Buffers whose pages have the same shape and are allocated together."""

    buffers: Sequence[Buffer]
    group: Group


@dataclass(frozen=True, slots=True)
class Place:
    """The part of the model that a rank holds."""

    tp_size: int
    tp_rank: int
    pp_size: int
    pp_rank: int


def ranks_with_heads_of(place: Place, kv_head_counts: Iterable[int], source_tp_size: int) -> list[int]:
    """The prefiller's TP ranks that hold a head of this rank; replicas are all included.

    ``kv_head_counts`` has the number of each pool. Empty if the heads of one cannot be divided by the number of ranks.
    Latent KV counts as one head, which every rank holds.
    """
    of_pools = [_ranks_with_heads_of(place, count, source_tp_size) for count in kv_head_counts]
    return sorted(set().union(*of_pools)) if all(of_pools) else []


def _ranks_with_heads_of(place: Place, kv_head_count: int, source_tp_size: int) -> set[int]:
    wanted = _heads(place.tp_rank, place.tp_size, kv_head_count)
    return {rank for rank in range(source_tp_size) if wanted & _heads(rank, source_tp_size, kv_head_count)}


def _heads(tp_rank: int, tp_size: int, kv_head_count: int) -> set[int]:
    if kv_head_count % tp_size == 0:
        each = kv_head_count // tp_size
        return set(range(tp_rank * each, (tp_rank + 1) * each))
    return {tp_rank * kv_head_count // tp_size} if tp_size % kv_head_count == 0 else set()


def kv_buffers(kv_args: Any, latent: bool) -> list[Buffer]:
    """The buffers of the KV pool in the order in which a forward pass fills them: K before V, layer by layer."""
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


def draft_has_heads(kv_args: Any, latent: bool) -> bool:
    """Whether a draft with heads lies beside latent KV. A latent draft has pages as long as the model's.

    Latent KV is whole on each rank, so any may send it. With as many ranks on both sides each receives from its
    counterpart, and the draft's heads with it; otherwise a rank would get the draft's heads of another one.
    """
    count = len(kv_args.kv_item_lens) - kv_args.num_draft_entries
    return latent and not set(kv_args.kv_item_lens[count:]) <= set(kv_args.kv_item_lens[:count])


def _names(kind: str, count: int, latent: bool, first: int) -> Iterable[tuple[tuple[bool, int, int], str]]:
    """((whether draft, layer, part), name) of each entry: first all K, then all V."""
    draft = kind == "draft"
    if latent:
        return [((draft, layer, 0), f"{kind}.{first + layer}") for layer in range(count)]
    half = count // 2
    return [
        ((draft, index % half, index // half), f"{kind}.{first + index % half}.{'kv'[index // half]}")
        for index in range(count)
    ]


def windowed_buffers(kv_args: Any) -> list[Buffer]:
    """The buffers of the separate pool of layers with a sliding window."""
    count = len(kv_args.state_data_ptrs[0])
    names = _names("window", count, count % 2 == 1, 0)
    order = {name: place for place, name in names}
    return sorted(_buffers_beside(kv_args, [name for _, name in names]), key=lambda buffer: order[buffer.name])


def state_buffers(kv_args: Any) -> list[Buffer]:
    """The tensors with the states of layers: one or more per layer, each with one slot per request."""
    layers = kv_args.state_layer_ids[0] or range(len(kv_args.state_data_ptrs[0]))
    seen: Counter[int] = Counter()
    names = []
    for layer in layers:
        names.append(f"state.{layer}.{seen[layer]}")
        seen[layer] += 1
    return _buffers_beside(kv_args, names)


def index_buffers(kv_args: Any) -> list[Buffer]:
    """The keys of layers with an indexer of their own; a layer that reuses another's selection has none."""
    first_layer = getattr(kv_args, "prefill_start_layer", 0) or 0
    names = [f"index.{first_layer + layer}" for layer in range(len(kv_args.state_data_ptrs[0]))]
    return [buffer for buffer in _buffers_beside(kv_args, names) if buffer.length_bytes]


def _buffers_beside(kv_args: Any, names: Sequence[str]) -> list[Buffer]:
    """The buffers of the one supported pool besides the KV pages."""
    described = zip(
        names, kv_args.state_data_ptrs[0], kv_args.state_data_lens[0], kv_args.state_item_lens[0], strict=True
    )
    return [Buffer(name, int(address), int(length), int(item)) for name, address, length, item in described]


def metadata_buffers(kv_args: Any) -> list[Buffer]:
    """The buffers of the metadata in SGLang's order: the word that makes a room valid follows everything it covers."""
    described = zip(kv_args.aux_data_ptrs, kv_args.aux_data_lens, kv_args.aux_item_lens, strict=True)
    return [
        Buffer(f"metadata.{index}", int(address), int(length), int(item))
        for index, (address, length, item) in enumerate(described)
    ]


def full_pool(
    buffers: Sequence[Buffer], *, dtype: str, element_bytes: int, page_tokens: int, latent: bool, kv_head_count: int
) -> Pool:
    """The pool of layers that attend to all tokens."""
    if not buffers:
        raise OptionError("SGLang registered no KV buffers, expected one or more: this model has nothing to transfer")
    group = Group(
        kind="full",
        windowTokens=0,
        dtype=dtype,
        elementBytes=element_bytes,
        pageTokens=page_tokens,
        layout="LATENT" if latent else "NHD",
        kvHeadCount=kv_head_count,
        pageCount=_page_count(buffers),
    )
    return Pool(buffers, group)


def window_pool(full: Pool, buffers: Sequence[Buffer], window_tokens: int, kv_head_count: int) -> Pool:
    """The pool of layers that attend to a prompt's last tokens; its pages hold as many tokens as those of ``full``."""
    if not window_tokens:
        raise OptionError(
            "SGLang has a pool for layers with a sliding window and says no window's length, expected one:"
            " start with --disable-hybrid-swa-memory"
        )
    group = full.group.copy()
    group["kind"], group["windowTokens"], group["pageCount"] = "window", window_tokens, _page_count(buffers)
    group["kvHeadCount"] = kv_head_count
    return Pool(buffers, group)


def state_pool(buffers: Sequence[Buffer], formats: Sequence[str], tp_size: int) -> Pool:
    """The pool of layers that keep one state for all tokens: opaque bytes, sent to the same rank among as many ranks.

    ``formats`` describes the contents of each buffer; sides with different formats refuse each other.
    """
    of_layers: defaultdict[str, list[str]] = defaultdict(list)
    for buffer, held in zip(buffers, formats, strict=True):
        of_layers[buffer.name.rpartition(".")[0]].append(held)
    group = Group(
        kind="state",
        windowTokens=0,
        dtype="; ".join(dict.fromkeys(" ".join(of_layer) for of_layer in of_layers.values())),
        elementBytes=1,
        pageTokens=STATE_PAGE_TOKENS,
        layout="HND",
        kvHeadCount=tp_size,
        pageCount=_page_count(buffers),
    )
    return Pool(buffers, group)


def indexed_pool(full: Pool, keys: Sequence[Buffer]) -> Pool:
    """The pool of latent KV and an indexer's keys, whose pages SGLang allocates together.

    A page of keys has all keys before all of their scales, so it cannot be split, in particular not by tokens.
    """
    buffers = [*full.buffers, *keys]
    group = full.group.copy()
    group["layout"], group["pageCount"] = "HND", _page_count(buffers)
    group["dtype"] = f"{group['dtype']} beside index keys"
    return Pool(by_layer(buffers), group)


def by_layer(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Sorts buffers by layer; those of one layer keep their order."""
    return sorted(buffers, key=lambda buffer: int(buffer.name.split(".")[1]))


def describe(
    pools: Sequence[Pool],
    *,
    model: str,
    place: Place,
    allocations: Sequence[Allocation] = (),
    device: int | None = None,
) -> Geometry:
    """The geometry of one rank; the first pool is that of full attention.

    Buffers inside one of ``allocations`` share its memory; each other buffer is a memory of its own, which ``shm``
    does not reach. ``device`` is the index of the GPU that has the buffers; None = they are in host memory.
    """
    buffers = [(buffer, index) for index, pool in enumerate(pools) for buffer in pool.buffers]
    held = [_holder(buffer, allocations, device) for buffer, _ in buffers]
    index_of = {holder: index for index, holder in enumerate(dict.fromkeys(held))}
    layers = [
        Layer(
            name=buffer.name,
            groupIndex=group,
            memoryIndex=index_of[holder],
            offsetBytes=buffer.address - holder.address,
            pageStrideBytes=buffer.item_bytes,
            pageBytes=buffer.item_bytes,
        )
        for (buffer, group), holder in zip(buffers, held, strict=True)
    ]
    memories = [_memory(holder, shareable=holder in allocations) for holder in index_of]
    return Geometry(
        model=model,
        tpSize=place.tp_size,
        ppSize=place.pp_size,
        groups=[pool.group for pool in pools],
        ranks=[Rank(tpRank=place.tp_rank, ppRank=place.pp_rank, memories=memories, layers=layers)],
    )


def _memory(holder: Allocation, shareable: bool) -> Memory | DeviceMemory:
    if holder.device is None:
        return Memory(kind="host", address=holder.address, lengthBytes=holder.length_bytes, memfd=holder.memfd)
    return DeviceMemory(
        kind="cuda",
        device=holder.device,
        address=holder.address,
        lengthBytes=holder.length_bytes,
        handleKind="posixFd" if shareable else "none",
    )


def _holder(buffer: Buffer, allocations: Sequence[Allocation], device: int | None) -> Allocation:
    """The allocation that holds the buffer, or one of the buffer alone if other processes cannot map it."""
    alone = Allocation(buffer.address, buffer.length_bytes, -1, device)
    return next(
        (allocation for allocation in allocations if allocation.holds(buffer.address, buffer.length_bytes)), alone
    )


def _page_count(pool: Sequence[Buffer]) -> int:
    """The number of pages of each buffer of a pool."""
    counts = {buffer.length_bytes // buffer.item_bytes for buffer in pool}
    if len(counts) != 1 or any(buffer.length_bytes % buffer.item_bytes for buffer in pool):
        raise OptionError(
            f"SGLang's buffers have {sorted(counts)} pages, expected the same whole number in all:"
            " this kind of KV pool is not supported"
        )
    return counts.pop()


def context_rows(metadata: Sequence[Buffer], allocations: Sequence[Allocation] = ()) -> list[ContextRow]:
    """The metadata as the context rows of a transfer; ``allocations`` as in :func:`describe`."""
    memfd_of = {allocation.address: allocation.memfd for allocation in allocations}
    return [
        ContextRow(
            name=buffer.name,
            address=buffer.address,
            lengthBytes=buffer.length_bytes,
            memfd=memfd_of.get(buffer.address, -1),
            rowStrideBytes=buffer.item_bytes,
            rowBytes=buffer.item_bytes,
        )
        for buffer in metadata
    ]
