"""The pools of DeepSeek-V4, whose layers compress their KV: SGLang lists their buffers by kind, not by layer.

Every buffer is paged by the pages of all tokens, of the last window, or of requests, and is whole on every rank. What
is in a page is not described: a page goes as it is. A page of compressed KV stands for as many tokens as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kv_connector.exceptions import OptionError
from kv_connector.sglang.beside_pages import BesidePages, RequestBlock
from kv_connector.sglang.geometry import STATE_PAGE_TOKENS, Buffer, Pool, named_buffers
from kv_connector.sglang.pool_kinds import Component, Model, PoolKind, Prompt, Windows

PENDING = "c128_state"
"""SGLang's name of the tokens that are not compressed yet, of layers that compress 128 of them into one."""
RATIOS = (0, 4, 128)
"""How many tokens a layer compresses into one: 0 is a layer with its window alone. DeepSeek-V4.1 has others."""


def are_compressed(kv_args: Any) -> bool:
    """Whether the model's KV is in these pools."""
    return bool(getattr(kv_args, "mla_compression_ratios", None))


def compressed_pool(kv_args: Any) -> Pool:
    """The pages of all tokens: compressed KV, and the keys of indexers."""
    buffers = _named("compressed", kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens)
    return Pool(
        buffers,
        {
            "kind": "full",
            "windowTokens": 0,
            "dtype": f"compressed {getattr(kv_args, 'kv_layout', None)}",
            "elementBytes": 1,
            "pageTokens": int(kv_args.page_size),
            "layout": "HND",
            "kvHeadCount": 1,
            "pageCount": _fewest_pages(buffers),
        },
    )


def _named(kind: str, addresses: Sequence[int], lengths: Sequence[int], items: Sequence[int]) -> list[Buffer]:
    return named_buffers(kind, range(len(addresses)), True, addresses, lengths, items)


def _fewest_pages(buffers: Sequence[Buffer]) -> int:
    """SGLang rounds the length of each up, by its own rule; its allocator gives no page beyond the shortest."""
    return min((buffer.length_bytes // buffer.item_bytes for buffer in buffers), default=0)


class CompressedWindows(Windows):
    """The KV of the last window's tokens, and what layers and indexers have not compressed yet of each of its pages."""

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One."""
        if not model.window_tokens:
            raise OptionError(
                "SGLang says no length of the windows of a model whose layers compress their KV, expected one: choose"
                " another --disaggregation-transfer-backend"
            )
        buffers = _named(self.name, *component.buffer_infos)
        group = model.full.group.copy()
        group["kind"], group["windowTokens"], group["pageCount"] = "window", model.window_tokens, _fewest_pages(buffers)
        return [Pool(buffers, group)]


class PendingTokens:
    """The tokens of a request that a layer has not compressed yet, in a block for each request."""

    leaves_early: ClassVar[bool] = False

    def pools(self, component: Component, model: Model) -> list[Pool]:
        """One."""
        buffers = _named("uncompressed", *component.buffer_infos)
        group = model.full.group.copy()
        group["kind"], group["pageTokens"], group["layout"] = "state", STATE_PAGE_TOKENS, "LATENT"
        group["dtype"], group["pageCount"] = "tokens that are not compressed", _fewest_pages(buffers)
        return [Pool(buffers, group)]

    def held(self, prompt: Prompt, model: Model) -> BesidePages:  # noqa: ARG002 - whatever they are
        """The request's block."""
        return RequestBlock(prompt.row)


COMPRESSED_KINDS: Mapping[str, PoolKind] = {"swa": CompressedWindows(), PENDING: PendingTokens()}
"""By SGLang's names."""
