"""The kinds of pools that SGLang names to a backend beside that of full attention (its ``StateType``).

One small class for each: it describes the pool as groups of the geometry, and says what the pool holds of a prompt. A
model may have any combination of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from kv_connector.sglang.beside_pages import NO_SLOT, BesidePages, RequestRing, RequestSlot, SamePages
from kv_connector.sglang.geometry import Buffer, Place, Pool, named_buffers, pool_beside, state_pool, window_pool
from kv_connector.sglang.state_slices import StateTensor, described, heads_of
from kv_connector.sglang.state_tensors import STATE_TENSORS
from kv_connector.sglang.window_pages import WindowPages

INTERLEAVED_SCALES_PAGE_TOKENS = 128
"""With this page size SGLang has the scales of MXFP8 head by head within a page, otherwise token by token."""


@dataclass(frozen=True, slots=True)
class Component:
    """One pool as SGLang describes it to a backend: its buffers, and for state how ranks divide them."""

    addresses: Sequence[int]
    lengths: Sequence[int]
    items: Sequence[int]
    layers: Sequence[int]
    """The number of each buffer's layer in the whole model; () = not said."""
    divided: Sequence[int]
    rows: Sequence[int]
    inputs: Sequence[Sequence[int] | None]

    @classmethod
    def all_of(cls, kv_args: Any) -> list[Component]:
        """Those of a rank, in SGLang's order."""
        count = len(kv_args.state_types)
        listed = (
            "state_data_ptrs",
            "state_data_lens",
            "state_item_lens",
            "state_layer_ids",
            "state_dim_per_tensor",
            "state_slice_outer_counts",
            "state_conv_shard_groups",
        )
        return [cls(*of) for of in zip(*(getattr(kv_args, name, [()] * count) for name in listed), strict=True)]

    @property
    def buffer_infos(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Addresses, lengths and lengths of items."""
        return self.addresses, self.lengths, self.items

    def part(self, begin: int, end: int) -> Component:
        """Some of its buffers."""
        return replace(
            self,
            addresses=self.addresses[begin:end],
            lengths=self.lengths[begin:end],
            items=self.items[begin:end],
            layers=self.layers[begin:end],
        )


@dataclass(frozen=True, slots=True)
class Model:
    """What the kinds need to know of the model on this rank."""

    full: Pool
    place: Place
    latent: bool
    kv_head_count: int
    layers: Sequence[int]
    """The numbers of this rank's layers with full attention."""
    windowed_layers: Sequence[int]
    """Of those with a sliding window; () = SGLang's configuration does not say them."""
    window_tokens: int
    windowed_kv_head_count: int

    @property
    def page_tokens(self) -> int:
        """The same in all pools that have pages."""
        return self.full.group["pageTokens"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the kinds need to know of a prompt."""

    tokens: int
    first_token: int
    """The decoder has the tokens before this one."""
    row: int = NO_SLOT
    """The request's row in SGLang's table of requests, on the decoder."""


class PoolKind(Protocol):
    """One kind of pool."""

    @property
    def leaves_early(self) -> bool:
        """Whether it can leave with the KV while a forward pass runs."""

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """The groups of the geometry; a request has the same pages in all of them."""

    def held(self, prompt: Prompt, model: Model) -> BesidePages:
        """What it holds of a prompt."""


class Windows:
    """The pages of layers with a sliding window, which have numbers of their own."""

    name: ClassVar[str] = "window"
    leaves_early: ClassVar[bool] = False

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One; its layers may have another number of heads than those with full attention."""
        count, layers = len(component.addresses), model.windowed_layers
        is_known = bool(layers) and count in (len(layers), 2 * len(layers))
        latent = count == len(layers) if is_known else model.latent or count % 2 == 1
        if not is_known:
            layers = range(count if latent else count // 2)
        buffers = named_buffers(self.name, layers, latent, *component.buffer_infos)
        heads, layout = (1, "LATENT") if latent else (model.windowed_kv_head_count, "NHD")
        return [window_pool(model.full, buffers, model.window_tokens, layout=layout, kvHeadCount=heads)]

    def held(self, prompt: Prompt, model: Model) -> BesidePages:
        """The pages of the last window."""
        return WindowPages(prompt.tokens, prompt.first_token, model.window_tokens, model.page_tokens)


class WindowScales(Windows):
    """The scales of numbers in windowed layers (MXFP8), in pages with the same numbers as their KV."""

    name: ClassVar[str] = "windowscale"

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One, divided among ranks as the KV is."""
        return [_as_scales(pool, model) for pool in super().pools(component, model)]


def _as_scales(pool: Pool, model: Model) -> Pool:
    group = pool.group.copy()
    group["layout"] = "HND" if model.page_tokens == INTERLEAVED_SCALES_PAGE_TOKENS else "NHD"
    group["dtype"], group["elementBytes"] = "scales", 1
    return Pool(pool.buffers, group)


class States:
    """The slots of layers that keep one state of all tokens: Mamba, gated delta nets, short convolutions."""

    leaves_early: ClassVar[bool] = False

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One of what ranks divide, and one of what each of them has whole."""
        tensors = _state_tensors(component)
        divided = [tensor for tensor in tensors if not tensor.replicated]
        replicated = [tensor for tensor in tensors if tensor.replicated]
        tp_size = model.place.tp_size
        heads = heads_of(divided, tp_size)
        if heads:
            buffers = [cut for tensor in divided for cut in tensor.cut(tp_size)]
            formats = [tensor.whole_format(tp_size) for tensor in divided]
        else:
            buffers, formats = [tensor.buffer for tensor in divided], [str(tensor.format) for tensor in divided]
        pools = [state_pool(model.full, buffers, described(divided, formats) or "state", heads or tp_size)]
        if replicated:
            whole = described(replicated, [str(tensor.format) for tensor in replicated])
            pools.append(state_pool(model.full, [tensor.buffer for tensor in replicated], whole, 0))
        return pools

    def held(self, prompt: Prompt, model: Model) -> BesidePages:  # noqa: ARG002 - whatever they are
        """The request's slot."""
        return RequestSlot("state")


def _state_tensors(component: Component) -> list[StateTensor]:
    """The tensors of state, each named by its layer and its place among those of that layer."""
    formats = STATE_TENSORS.formats(component.addresses)
    count = len(formats)
    divided: Sequence[int | None] = component.divided or [None] * count
    rows, inputs = component.rows or [1] * count, component.inputs or [None] * count
    seen: dict[int, int] = {}
    tensors = []
    for index, (address, length, item) in enumerate(zip(*component.buffer_infos, strict=True)):
        layer = formats[index].layer
        name = f"state.{layer}.{seen.setdefault(layer, 0)}"
        seen[layer] += 1
        buffer = Buffer(name, int(address), int(length), int(item))
        tensors.append(StateTensor(buffer, formats[index], divided[index], rows[index], inputs[index] or ()))
    return tensors


@dataclass(frozen=True, slots=True)
class KeysOfTokens:
    """What is kept of each token in pages with the same numbers as the KV, whole on every rank: an indexer's keys.

    A page may have all keys before all of their scales, so it cannot be split, in particular not by tokens.
    """

    name: str
    holds: str
    leaves_early: bool = True

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One."""
        return [_opaque(model, self.buffers(component, model.layers), self.holds, 1)]

    def buffers(self, component: Component, layers: Sequence[int]) -> list[Buffer]:
        """Of these layers, and of a draft's behind them; a layer that reuses another's selection has no keys."""
        numbers = component.layers or layers[: len(component.addresses)]
        own = component.part(0, len(numbers))
        drafts = component.part(len(numbers), len(component.addresses))
        return [
            *named_buffers(self.name, numbers, True, *own.buffer_infos),
            *named_buffers(f"draft{self.name}", range(len(drafts.addresses)), True, *drafts.buffer_infos),
        ]

    def held(self, prompt: Prompt, model: Model) -> BesidePages:
        """The KV's pages."""
        return SamePages(self.holds, prompt.first_token // model.page_tokens, self.leaves_early)


def _opaque(model: Model, buffers: Sequence[Buffer], dtype: str, head_count: int) -> Pool:
    """Pages of which nothing is known but their length: they are sent whole, or by heads that follow each other."""
    return pool_beside(model.full, buffers, dtype=dtype, elementBytes=1, layout="HND", kvHeadCount=head_count)


class Scales:
    """The scales of numbers in the KV pages (MXFP8), in pages with the same numbers, divided among ranks as the KV."""

    leaves_early: ClassVar[bool] = True

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One."""
        buffers = named_buffers("scale", model.layers, False, *component.buffer_infos)
        return [_as_scales(_opaque(model, buffers, "scales", model.kv_head_count), model)]

    def held(self, prompt: Prompt, model: Model) -> BesidePages:
        """The KV's pages."""
        return SamePages("its scales", prompt.first_token // model.page_tokens)


class DenseLayers:
    """The KV of the layers of MiniMax that attend to all tokens: SGLang lists those that select tokens as the KV."""

    leaves_early: ClassVar[bool] = False

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One."""
        layers = range(len(component.addresses) // 2)
        buffers = named_buffers("dense", layers, False, *component.buffer_infos)
        return [_opaque(model, buffers, model.full.group["dtype"], model.kv_head_count)]

    def held(self, prompt: Prompt, model: Model) -> BesidePages:
        """The KV's pages."""
        return SamePages("its dense layers", prompt.first_token // model.page_tokens, leaves_early=False)


class WaitingTokens:
    """Keys of tokens that wait to be pooled into an indexer's next key: a row for each request, whole on every rank."""

    leaves_early: ClassVar[bool] = False

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One; keys and scores of the model's layers, then those of a draft's."""
        count = 2 * len(model.layers)
        own, drafts = component.part(0, count), component.part(count, len(component.addresses))
        buffers = [
            *named_buffers("waiting", model.layers, False, *own.buffer_infos),
            *named_buffers("draftwaiting", range(len(drafts.addresses) // 2), False, *drafts.buffer_infos),
        ]
        return [state_pool(model.full, buffers, "tokens that wait for an indexer", 0)]

    def held(self, prompt: Prompt, model: Model) -> BesidePages:  # noqa: ARG002 - whatever they are
        """The request's row."""
        return RequestRing(prompt.row)


class WaitingRows:
    """As ``WaitingTokens``, where SGLang sends a request's whole row (QSA): keys of each layer, and their positions."""

    leaves_early: ClassVar[bool] = False

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One."""
        numbers = component.layers or range(len(component.addresses))
        buffers = named_buffers("pending", numbers, True, *component.buffer_infos)
        return [state_pool(model.full, buffers, "tokens that wait for an indexer", 0)]

    def held(self, prompt: Prompt, model: Model) -> BesidePages:  # noqa: ARG002 - whatever they are
        """The request's row."""
        return RequestSlot("tokens that wait for an indexer")


WINDOWED = "swa"
"""SGLang's name of the pages of layers with a sliding window."""
STATE = "mamba"
"""SGLang's name of a state that layers keep for all tokens, of whatever kind."""
SPARSE_KINDS = ("minimax_index_k", "minimax_dense_kv")
"""SGLang's names of what a MiniMax model has beside the KV of its sparse layers, whose numbers it does not say."""

INDEX = KeysOfTokens("index", "its indexer")
"""The keys by which sparse attention selects tokens."""

KINDS: Mapping[str, PoolKind] = {
    WINDOWED: Windows(),
    STATE: States(),
    "dsa": INDEX,
    "dsa_tail": WaitingTokens(),
    "qsa_pending": WaitingRows(),
    "qsa_compressed": KeysOfTokens("compressed", "its indexer", leaves_early=False),
    "block_scale": Scales(),
    "block_scale_swa": WindowScales(),
    "minimax_index_k": KeysOfTokens("sparseindex", "its indexer", leaves_early=False),
    "minimax_dense_kv": DenseLayers(),
}
"""By SGLang's names."""

OF_REQUESTS = (STATE, "dsa_tail", "qsa_pending", "c128_state")
"""Those that have one slot or row for each request, whose beginning a decoder cannot have in a cache of prefixes."""
WITHOUT_STAGES = ("qsa_pending", "qsa_compressed", *SPARSE_KINDS)
"""Those of which SGLang does not say which layers a pipeline stage has, or has something on several stages."""

REFUSED: Mapping[str, str] = {
    "swa_ring": "the rows of its ring are those of single tokens, and of DeepSeek-V4 on AMD alone",
    "c128_state": "DeepSeek-V4 pools alone have it",
    "request_row": "it belongs to the draft of DeepSeek-V4.1, whose other pools are not served",
}
"""Kinds that are known and not served, and why."""


def kinds_beside(kv_args: Any) -> list[str]:
    """SGLang's names of the model's pools besides that of full attention."""
    return [str(getattr(kind, "value", kind)) for kind in kv_args.state_types]
