"""Turns SGLang's description of its KV pools into the geometry of docs/boundary.md. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kv_connector.exceptions import OptionError
from kv_connector.memory.geometry import ContextRow, DeviceMemory, Geometry, Group, Layer, Memory, Rank
from kv_connector.sglang.allocations import Allocation

STATE_PAGE_TOKENS = 1 << 30
"""The number of tokens that a slot of state is declared to hold: more than any prompt has."""
Layout = Literal["HND", "NHD", "LATENT"]

COUNTED_KINDS = ("layer", "index")
"""The kinds of buffers that are complete when their layer's attention is: an indexer writes its keys before it."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor of equal items: the pages of one layer's K or V, or the rows of one kind of metadata."""

    name: str
    address: int
    length_bytes: int
    item_bytes: int
    first_byte: int = 0
    """Of each item's part that this buffer stands for."""
    part_bytes: int = 0
    """The length of that part; 0 = whole items."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Buffers whose pages have the same shape and are allocated together; a pipeline stage may have none of them."""

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


def kv_buffers(kv_args: Any, latent: bool, layers: Sequence[int] = ()) -> list[Buffer]:
    """The model's own KV buffers in the order in which a forward pass fills them: K before V, layer by layer.

    ``layers`` are their numbers in the whole model; () = they follow each other from this stage's first on.
    """
    count = len(kv_args.kv_data_ptrs) - kv_args.num_draft_entries
    layers = layers or layers_in_order(kv_args, latent)
    return named_buffers("layer", layers, latent, *(of[:count] for of in _kv_infos(kv_args)))


def draft_buffers(kv_args: Any, latent: bool) -> list[Buffer]:
    """The KV buffers of a draft's layers, which SGLang lists behind the model's; a draft counts its layers from 0."""
    count = kv_args.num_draft_entries
    if not count:
        return []
    layers = range(count if latent else count // 2)
    return named_buffers("draft", layers, latent, *(of[-count:] for of in _kv_infos(kv_args)))


def layers_in_order(kv_args: Any, latent: bool) -> range:
    """The numbers of this stage's layers in a model whose layers all have their KV in the one pool."""
    count = len(kv_args.kv_data_ptrs) - kv_args.num_draft_entries
    first = getattr(kv_args, "prefill_start_layer", 0) or 0
    return range(first, first + (count if latent else count // 2))


def _kv_infos(kv_args: Any) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    return kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens


def named_buffers(
    kind: str,
    layers: Sequence[int],
    latent: bool,
    addresses: Sequence[int],
    lengths: Sequence[int],
    items: Sequence[int],
) -> list[Buffer]:
    """The buffers of one kind, layer by layer: one of each layer if they are latent, else all K are before all V.

    What SGLang lists with no bytes is left out: a layer that has none of this kind.
    """
    parts = [""] if latent else [".k", ".v"]
    if len(addresses) != len(set(layers)) * len(parts):
        raise OptionError(
            f"SGLang registered {len(addresses)} buffers of the kind {kind!r} for the layers {list(layers)}, expected"
            f" {len(parts)} for each layer: this kind of KV pool is not supported"
        )
    names = [f"{kind}.{layer}{part}" for part in parts for layer in layers]
    by_name = {
        name: Buffer(name, int(address), int(length), int(item))
        for name, address, length, item in zip(names, addresses, lengths, items, strict=True)
        if length
    }
    return [
        by_name[name] for layer in layers for name in (f"{kind}.{layer}{part}" for part in parts) if name in by_name
    ]


def metadata_buffers(kv_args: Any) -> list[Buffer]:
    """The buffers of the metadata in SGLang's order: the word that makes a room valid follows everything it covers."""
    described = zip(kv_args.aux_data_ptrs, kv_args.aux_data_lens, kv_args.aux_item_lens, strict=True)
    return [
        Buffer(f"metadata.{index}", int(address), int(length), int(item))
        for index, (address, length, item) in enumerate(described)
    ]


def full_pool(
    buffers: Sequence[Buffer],
    *,
    dtype: str,
    element_bytes: int,
    page_tokens: int,
    layout: Layout,
    kv_head_count: int,
    page_shares: int = 1,
) -> Pool:
    """The pool of layers that attend to all tokens; ``page_shares`` is the number of ranks that divide its pages."""
    if not buffers:
        raise OptionError("SGLang registered no KV buffers, expected one or more: this model has nothing to transfer")
    group = Group(
        kind="full",
        windowTokens=0,
        dtype=dtype,
        elementBytes=element_bytes,
        pageTokens=page_tokens,
        layout=layout,
        kvHeadCount=kv_head_count,
        pageCount=_page_count(buffers),
    )
    if page_shares > 1:
        group["pageShares"] = page_shares
    return Pool(buffers, group)


def pool_beside(full: Pool, buffers: Sequence[Buffer], **differing: Any) -> Pool:
    """A pool whose pages hold as many tokens as those of ``full``; ``differing`` are the fields of its group."""
    group = full.group.copy()
    group["pageCount"] = _page_count(buffers) if buffers else full.group["pageCount"]
    group.update(differing)  # type: ignore[typeddict-item]
    return Pool(buffers, group)


def window_pool(full: Pool, buffers: Sequence[Buffer], window_tokens: int, **differing: Any) -> Pool:
    """The pool of layers that attend to a prompt's last tokens."""
    if not window_tokens:
        raise OptionError(
            "SGLang has a pool for layers with a sliding window and says no window's length, expected one:"
            " start with --disable-hybrid-swa-memory"
        )
    return pool_beside(full, buffers, kind="window", windowTokens=window_tokens, **differing)


def state_pool(full: Pool, buffers: Sequence[Buffer], dtype: str, head_count: int) -> Pool:
    """The pool of what a request has one slot of, for all its tokens; ``dtype`` says what a slot holds.

    ``head_count`` is the number of equal parts into which the slots of all ranks together can be divided, each of them
    whole on one rank; 0 = every rank has the whole slot.
    """
    return pool_beside(
        full,
        buffers,
        kind="state",
        dtype=dtype,
        elementBytes=1,
        pageTokens=STATE_PAGE_TOKENS,
        layout="HND" if head_count else "LATENT",
        kvHeadCount=head_count or 1,
    )


def by_layer(buffers: Sequence[tuple[Buffer, int]]) -> list[tuple[Buffer, int]]:
    """Sorts buffers, each with its group, as a forward pass completes them; the counted kinds come first."""
    return sorted(buffers, key=lambda each: _place_in_pass(each[0].name))


def _place_in_pass(name: str) -> tuple[bool, int]:
    return (False, int(name.split(".")[1])) if is_counted(name) else (True, 0)


def is_counted(name: str) -> bool:
    """Whether a buffer of that name is complete when its layer's attention is."""
    return name.split(".")[0] in COUNTED_KINDS


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
    buffers = by_layer([(buffer, index) for index, pool in enumerate(pools) for buffer in pool.buffers])
    held = [_holder(buffer, allocations, device) for buffer, _ in buffers]
    index_of = {holder: index for index, holder in enumerate(dict.fromkeys(held))}
    layers = [
        Layer(
            name=buffer.name,
            groupIndex=group,
            memoryIndex=index_of[holder],
            offsetBytes=buffer.address - holder.address + buffer.first_byte,
            pageStrideBytes=buffer.item_bytes,
            pageBytes=buffer.part_bytes or buffer.item_bytes,
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
