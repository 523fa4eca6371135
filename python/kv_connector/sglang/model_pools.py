"""All pools of a model on one rank, as groups of the geometry and as parts of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.exceptions import OptionError
from kv_connector.sglang.beside_pages import PromptParts
from kv_connector.sglang.compressed_pools import COMPRESSED_KINDS, are_compressed, compressed_pool
from kv_connector.sglang.engine_facts import EngineFacts
from kv_connector.sglang.geometry import (
    Layout,
    Place,
    Pool,
    draft_buffers,
    full_pool,
    kv_buffers,
    layers_in_order,
    pool_beside,
)
from kv_connector.sglang.pool_kinds import (
    KINDS,
    SPARSE_KINDS,
    WINDOWED,
    Component,
    Model,
    PoolKind,
    Prompt,
    kinds_beside,
)


@dataclass(frozen=True, slots=True)
class ModelPools:
    """The pools of one rank."""

    pools: Sequence[Pool]
    """The groups of the geometry; the first is that of full attention."""
    groups_of: Sequence[int | None]
    """For each further group its place in ``kinds``; None = a request has the KV's pages in it."""
    kinds: Sequence[PoolKind]
    names: Sequence[str]
    """SGLang's names of the kinds."""
    model: Model

    @classmethod
    def of(cls, kv_args: Any, facts: EngineFacts, place: Place, *, latent: bool, window_tokens: int) -> ModelPools:
        """Reads them; raises OptionError for what cannot be described."""
        names = kinds_beside(kv_args)
        if are_compressed(kv_args):
            return cls._of_compressed(kv_args, facts, place, names, window_tokens)
        layers = _layers_with_full_attention(kv_args, facts, place, latent)
        draft = facts.draft
        joined = draft is None or (draft.latent, draft.kv_head_count) == (latent, 1 if latent else facts.kv_head_count)
        own = kv_buffers(kv_args, latent, layers)
        drafts = draft_buffers(kv_args, draft.latent if draft is not None else latent)
        full = full_pool(
            [*own, *(drafts if joined else [])],
            dtype=facts.dtype,
            element_bytes=facts.element_bytes,
            page_tokens=int(kv_args.page_size),
            layout=_layout(latent, names),
            kv_head_count=1 if latent else facts.kv_head_count,
            page_shares=facts.page_shares,
        )
        model = Model(
            full=full,
            place=place,
            latent=latent,
            kv_head_count=full.group["kvHeadCount"],
            layers=layers,
            windowed_layers=facts.windowed_layers,
            window_tokens=window_tokens if WINDOWED in names else 0,
            windowed_kv_head_count=facts.windowed_kv_head_count,
        )
        pools: list[Pool] = [full]
        groups_of: list[int | None] = []
        if not joined and draft is not None:
            layout, heads = _layout(draft.latent, ()), 1 if draft.latent else draft.kv_head_count
            pools.append(pool_beside(full, drafts, layout=layout, kvHeadCount=heads))
            groups_of.append(None)
        return cls._with_kinds(kv_args, pools, groups_of, [KINDS[name] for name in names], names, model)

    @classmethod
    def _of_compressed(
        cls, kv_args: Any, facts: EngineFacts, place: Place, names: Sequence[str], window_tokens: int
    ) -> ModelPools:
        full = compressed_pool(kv_args)
        model = Model(
            full=full,
            place=place,
            latent=True,
            kv_head_count=1,
            layers=(),
            windowed_layers=facts.windowed_layers,
            window_tokens=window_tokens,
            windowed_kv_head_count=1,
        )
        return cls._with_kinds(kv_args, [full], [], [COMPRESSED_KINDS[name] for name in names], names, model)

    @classmethod
    def _with_kinds(
        cls,
        kv_args: Any,
        pools: list[Pool],
        groups_of: list[int | None],
        kinds: Sequence[PoolKind],
        names: Sequence[str],
        model: Model,
    ) -> ModelPools:
        for index, (kind, component) in enumerate(zip(kinds, Component.all_of(kv_args), strict=True)):
            described = kind.pools(component, model)
            pools += described
            groups_of += [index] * len(described)
        return cls(pools, groups_of, kinds, names, model)

    @property
    def kv_head_counts(self) -> tuple[int, ...]:
        """The heads of each group over all ranks; 1 for what every rank has whole."""
        return tuple(pool.group["kvHeadCount"] for pool in self.pools)

    @property
    def leave_late(self) -> list[str]:
        """SGLang's names of the pools that cannot leave while a forward pass runs."""
        return [name for name, kind in zip(self.names, self.kinds, strict=True) if not kind.leaves_early]

    def prompt(self, page_count: int, prompt_tokens: int, first_token: int, row: int) -> PromptParts:
        """A prompt of ``page_count`` pages; ``prompt_tokens`` is its length, which only windows need.

        The decoder already has the tokens before ``first_token``. Without windows whole pages are counted. ``row`` is
        the request's in the decoder's table of requests.
        """
        whole = page_count * self.model.page_tokens
        prompt = Prompt(prompt_tokens if self.model.window_tokens else whole, first_token, row)
        return PromptParts(prompt.tokens, [kind.held(prompt, self.model) for kind in self.kinds], self.groups_of)


def _layout(latent: bool, names: Sequence[str]) -> Layout:
    """The layout of KV pages; those of MiniMax may have all tokens of a head behind each other."""
    if latent:
        return "LATENT"
    return "HND" if set(names) & set(SPARSE_KINDS) else "NHD"


def _layers_with_full_attention(kv_args: Any, facts: EngineFacts, place: Place, latent: bool) -> Sequence[int]:
    """The numbers of this rank's layers in the KV pool, in its order."""
    count = len(kv_args.kv_data_ptrs) - kv_args.num_draft_entries
    count = count if latent else count // 2
    if kv_args.kv_layer_ids:
        return [int(layer) for layer in kv_args.kv_layer_ids[:count]]
    if WINDOWED not in kinds_beside(kv_args):
        return layers_in_order(kv_args, latent)
    if len(facts.full_layers) == count:
        return facts.full_layers
    if place.pp_size > 1:
        raise OptionError(
            f"this pipeline stage has {count} layers with full attention, and SGLang's configuration names"
            f" {list(facts.full_layers)}, expected as many: start with --pp-size 1 or --disable-hybrid-swa-memory"
        )
    return range(count)
