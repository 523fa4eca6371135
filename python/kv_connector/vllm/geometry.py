"""Turns the KV tensors that the engine registers into the geometry of docs/boundary.md. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from kv_connector.exceptions import OptionError
from kv_connector.memory.geometry import DeviceMemory, Geometry, Group, Layer, Memory, Rank
from kv_connector.vllm.head_counts import HeadCounts, heads_of_layer
from kv_connector.vllm.kv_groups import STATE_PAGE_TOKENS, GroupPages, KvGroup

PageLayout = Literal["HND", "NHD", "LATENT"]


class KvTensor(Protocol):
    """The part of a torch tensor's interface that is used here."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes, in elements."""

    @property
    def dtype(self) -> object:
        """Element type."""

    @property
    def device(self) -> Any:
        """The device that holds it."""

    def stride(self) -> Sequence[int]:
        """Strides, in elements."""

    def data_ptr(self) -> int:
        """Address of the first element."""

    def element_size(self) -> int:
        """Bytes of an element."""

    def untyped_storage(self) -> Any:
        """The allocation of which it is a view."""


def describe(
    tensors: Mapping[str, KvTensor],
    *,
    layer_names: Sequence[str],
    groups: Sequence[KvGroup],
    model: str,
    cache_dtype: str,
    kv_head_counts: HeadCounts,
    tp: tuple[int, int],
    pp: tuple[int, int],
) -> tuple[Geometry, list[GroupPages]]:
    """The geometry of one rank, and for each of its groups the engine's group to which its pages belong.

    ``tp`` and ``pp`` are (rank, size). A group of the engine whose layers differ in their number of heads becomes
    several groups here, which share its blocks. ``cache_dtype`` is the engine's name of the number format, with "auto"
    resolved if the checkpoint names a format. ``layer_names`` are the layers of all groups in order; tensors of other
    layers are aliases and are left out. Raises OptionError if pages cannot be addressed.
    """
    owned = {name: tensors[name] for name in layer_names if name in tensors}
    if not owned:
        raise OptionError(f"the engine registered KV for {sorted(tensors)}, expected layers of {list(layer_names)}")
    first_name, first = next(iter(owned.items()))
    if first.device.type not in ("cpu", "cuda"):
        raise OptionError(
            f"the KV cache is on device {str(first.device)!r}, expected the host or a CUDA device: take"
            " KvMessengerConnector out of --kv-transfer-config"
        )
    base, length_bytes = first.untyped_storage().data_ptr(), first.untyped_storage().nbytes()
    for name, tensor in owned.items():
        if tensor.untyped_storage().data_ptr() != base:
            raise OptionError(
                f"the KV of layer {name!r} is in another allocation than that of {first_name!r}, expected one"
                " allocation for all layers: unset options that allocate KV caches apart"
            )
    alike = [part for index, group in enumerate(groups) for part in _parts(index, group, owned, kv_head_counts, tp[1])]
    described = [_described(part, owned, cache_dtype, tp[1]) for part in alike]
    index_of = {name: index for index, part in enumerate(alike) for name in part.group.layer_names}
    geometry = Geometry(
        model=model,
        tpSize=tp[1],
        ppSize=pp[1],
        groups=described,
        ranks=[
            Rank(
                tpRank=tp[0],
                ppRank=pp[0],
                memories=[_memory(first.device, base, length_bytes)],
                layers=[_layer(name, tensor, index_of[name], base) for name, tensor in owned.items()],
            )
        ],
    )
    pages = [GroupPages(p.group, g["pageTokens"], p.table) for p, g in zip(alike, described, strict=True)]
    return geometry, pages


@dataclass(frozen=True, slots=True)
class _Part:
    """Layers of one of the engine's groups that have the same number of heads."""

    table: int
    """The index of the engine's group."""
    group: KvGroup
    head_count: int
    """KV heads of each layer over all ranks."""


def _parts(
    table: int, group: KvGroup, tensors: Mapping[str, KvTensor], kv_head_counts: HeadCounts, tp_size: int
) -> list[_Part]:
    """Splits a group by number of heads, in ascending order, so that both sides get the same order."""
    names = [name for name in group.layer_names if name in tensors]
    if not names:
        raise OptionError(
            f"this rank has none of layers {list(group.layer_names)}, expected one of each KV cache group: start with"
            " pipeline_parallel_size 1"
        )
    if group.state or group.latent:
        return [_Part(table, replace(group, layer_names=tuple(names)), 1)]
    layers_by_heads: dict[int, list[str]] = {}
    for name in names:
        _, on_rank, _ = _page_layout(name, tensors[name], latent=False)
        heads = heads_of_layer(name, on_rank, kv_head_counts.of(name), tp_size)
        layers_by_heads.setdefault(heads, []).append(name)
    return [
        _Part(table, replace(group, layer_names=tuple(layers)), heads)
        for heads, layers in sorted(layers_by_heads.items())
    ]


def _described(part: _Part, tensors: Mapping[str, KvTensor], cache_dtype: str, tp_size: int) -> Group:
    """The geometry's group for a part; raises OptionError if its layers differ."""
    group = part.group
    owned = {name: tensors[name] for name in group.layer_names}
    first_name, first = next(iter(owned.items()))
    if group.state:
        return _state_group(group, owned, tp_size)
    layout, _, page_tokens = _page_layout(first_name, first, group.latent)
    for name, tensor in owned.items():
        _check_alike(name, tensor, first_name, first, group.latent)
    if group.block_tokens % page_tokens:
        raise OptionError(
            f"a block of the scheduler has {group.block_tokens} tokens and a page of the KV cache has {page_tokens} in"
            f" layer {first_name!r}, expected a multiple: set block_size to one"
        )
    return Group(
        kind=group.kind,
        windowTokens=group.window_tokens,
        dtype=_number_format(cache_dtype, first.dtype),
        elementBytes=first.element_size(),
        pageTokens=page_tokens,
        layout=layout,
        kvHeadCount=part.head_count,
        pageCount=int(first.shape[0]),
    )


def _state_group(group: KvGroup, owned: Mapping[str, KvTensor], tp_size: int) -> Group:
    """A group of layers that keep one state for all tokens in a slot, whose contents are opaque here.

    So a rank's part of the state is treated like a head: it is sent whole, to the same rank of an engine with as many
    ranks.
    """
    first_name, first = next(iter(owned.items()))
    for name, tensor in owned.items():
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        dense = [math.prod(shape[place + 1 :]) for place in range(1, len(shape))]
        inside = zip(shape[1:], strides[1:], dense, strict=True)
        if any(size > 1 and stride != run for size, stride, run in inside) or strides[0] < math.prod(shape[1:]):
            raise OptionError(
                f"the state of layer {name!r} has shape {shape} with strides {strides}, expected slots that are one run"
                " of bytes: report this with the engine's version"
            )
        if shape[0] != first.shape[0] or tensor.dtype != first.dtype:
            raise OptionError(
                f"layer {name!r} has {shape[0]} slots of {tensor.dtype}, expected {first.shape[0]} of {first.dtype} as"
                f" in layer {first_name!r}"
            )
    return Group(
        kind="state",
        windowTokens=0,
        dtype=group.state_format,
        elementBytes=first.element_size(),
        pageTokens=STATE_PAGE_TOKENS,
        layout="LATENT" if group.latent else "HND",
        kvHeadCount=1 if group.latent else tp_size,
        pageCount=int(first.shape[0]),
    )


def _number_format(cache_dtype: str, tensor_dtype: object) -> str:
    """The number format. Tensors of many formats are registered as bytes, so the engine's name takes precedence."""
    tensor_format = str(tensor_dtype).removeprefix("torch.")
    plain = tensor_format in ("bfloat16", "float16", "float32", "float64")
    return tensor_format if plain or cache_dtype == "auto" else cache_dtype


def _check_alike(name: str, tensor: KvTensor, first_name: str, first: KvTensor, latent: bool) -> None:
    """Raises OptionError unless two layers differ in their offset only: a group describes all its layers at once."""
    if tensor.dtype != first.dtype or tensor.shape[0] != first.shape[0]:
        raise OptionError(
            f"layer {name!r} has {tensor.shape[0]} pages of {tensor.dtype}, expected {first.shape[0]} of"
            f" {first.dtype} as in layer {first_name!r}"
        )
    if _page_layout(name, tensor, latent) != _page_layout(first_name, first, latent):
        raise OptionError(
            f"layer {name!r} has another KV layout than {first_name!r}, expected the same in all layers of a"
            " KV cache group"
        )


def _page_layout(name: str, tensor: KvTensor, latent: bool) -> tuple[PageLayout, int, int]:
    """(layout, heads, tokens) of a page; raises OptionError unless a page is one contiguous run of bytes."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if len(shape) != 4:
        raise OptionError(f"the KV of layer {name!r} has shape {shape}, expected (pages, heads, tokens, content)")
    _, heads, tokens, content = (int(size) for size in shape)
    within = tuple(0 if size == 1 else stride for size, stride in zip(shape[1:], strides[1:], strict=True))
    if strides[0] >= heads * tokens * content:
        if latent and heads == 1 and within == (0, _unless_one(tokens, content), _unless_one(content, 1)):
            return "LATENT", heads, tokens
        if within == _dense((heads, tokens, content), (tokens * content, content, 1)):
            return "HND", heads, tokens
        if within == _dense((heads, tokens, content), (content, heads * content, 1)):
            return "NHD", heads, tokens
    raise OptionError(
        f"the KV of layer {name!r} has shape {shape} with strides {strides}, expected pages that are one run of bytes:"
        " set VLLM_KV_CACHE_LAYOUT to HND or NHD"
    )


def _dense(sizes: tuple[int, int, int], strides: tuple[int, int, int]) -> tuple[int, ...]:
    return tuple(_unless_one(size, stride) for size, stride in zip(sizes, strides, strict=True))


def _unless_one(size: int, stride: int) -> int:
    """The stride, or 0 for a dimension of size one, whose stride means nothing."""
    return 0 if size == 1 else stride


def _memory(device: Any, address: int, length_bytes: int) -> Memory | DeviceMemory:
    if device.type == "cpu":
        return {"kind": "host", "address": address, "lengthBytes": length_bytes, "memfd": -1}
    return {
        "kind": "cuda",
        "device": int(device.index or 0),
        "address": address,
        "lengthBytes": length_bytes,
        "handleKind": "none",
    }


def _layer(name: str, tensor: KvTensor, group_index: int, base: int) -> Layer:
    element_bytes = tensor.element_size()
    return Layer(
        name=name,
        groupIndex=group_index,
        memoryIndex=0,
        offsetBytes=tensor.data_ptr() - base,
        pageStrideBytes=int(tensor.stride()[0]) * element_bytes,
        pageBytes=math.prod(tensor.shape[1:]) * element_bytes,
    )
