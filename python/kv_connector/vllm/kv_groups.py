"""vLLM's KV cache groups: layers that share a block table, and the tokens of a prompt that they need. Pure.

The block ids of all groups come from one pool, and a request has a block table in each group. In a group with a sliding
window, the entries of the table that lie before the window are vLLM's null block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kv_connector.exceptions import OptionError
from kv_connector.naming.last_token import FULL_ATTENTION, STATE, LastTokenRule

_FULL = ("FullAttentionSpec", "MLAAttentionSpec")
_WINDOWED = ("SlidingWindowSpec",)
_CHUNKED = ("ChunkedLocalAttentionSpec",)
_LATENT = ("MLAAttentionSpec",)
_STATE = ("MambaSpec",)
_STATES_SHOWN = ("SHORT_CONV", "MAMBA2", "GDN_ATTN")
"""The kinds of state, by vLLM's names, for which tests show that both engines continue from the same state."""

STATE_PAGE_TOKENS = 1 << 30
"""The number of tokens that a slot of state is declared to hold: more than any prompt has."""

_LEAVE_OUT = "take KvMessengerConnector out of --kv-transfer-config"
"""The remedy for a model that is not served."""

NULL_BLOCK = 0
"""The id of vLLM's null block, the first of the pool, which never holds KV."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table."""

    layer_names: tuple[str, ...]
    """The layers that own KV."""
    block_tokens: int
    window_tokens: int = 0
    """The number of last tokens to which a token attends, itself included; 0 = all."""
    chunked: bool = False
    """Whether a token attends only to its own chunk of ``window_tokens`` tokens (chunked local attention)."""
    latent: bool = False
    """Whether the KV is replicated on all tensor-parallel ranks."""
    state: bool = False
    """Whether the layers keep one state for all tokens; a request then has one block."""
    state_format: str = ""
    """The types and shapes in a slot of state, which vLLM registers as bytes."""
    both_ways: bool = False
    """Whether the tokens of a pass attend to later ones too, so that the KV of a prompt depends on all of it."""

    @property
    def kind(self) -> Literal["full", "window", "chunk", "state"]:
        """The group's kind in the geometry, which tells the tokens of a prompt that the layers need."""
        if self.state:
            return "state"
        if self.chunked:
            return "chunk"
        return "window" if self.window_tokens else "full"

    def blocks_of(self, tokens: int) -> int:
        """The number of blocks that hold this many tokens; the last one may be partly filled."""
        return -(-tokens // self.block_tokens)

    def first_needed(self, first_token: int, prompt_tokens: int) -> int:
        """The first of tokens ``[first_token, prompt_tokens)`` that the prompt's last token attends to."""
        if not self.window_tokens:
            return first_token
        if self.chunked:
            return max(first_token, (prompt_tokens - 1) // self.window_tokens * self.window_tokens)
        return max(first_token, prompt_tokens - self.window_tokens)

    def needed(self, first_token: int, prompt_tokens: int) -> slice:
        """The range of a request's block table that is transferred for tokens ``[first_token, prompt_tokens)``."""
        first = self.first_needed(first_token, prompt_tokens) // self.block_tokens
        return slice(first, self.blocks_of(prompt_tokens))

    def loses_first_needed(self, loaded_tokens: int) -> bool:
        """Whether vLLM drops a block that the last of these tokens needs when all of them count as computed."""
        if self.chunked:
            return loaded_tokens % self.window_tokens == 0
        beyond = loaded_tokens - self.window_tokens + 1
        return self.window_tokens > 0 and beyond > 0 and beyond % self.block_tokens == 0


@dataclass(frozen=True, slots=True)
class GroupPages:
    """A group's blocks as pages of the messenger: a block is one page or several consecutive ones."""

    group: KvGroup
    page_tokens: int
    table: int
    """The index of the engine's group, and so of the request's block table."""

    @property
    def per_block(self) -> int:
        """Pages in a block."""
        return self.group.block_tokens // self.page_tokens

    def pages(self, blocks: Sequence[int]) -> list[int]:
        """All pages of the blocks."""
        ratio = self.per_block
        return [block * ratio + page for block in blocks for page in range(ratio)]

    def needed(self, blocks: Sequence[int], first_token: int, prompt_tokens: int) -> list[int]:
        """The pages to transfer for tokens ``[first_token, prompt_tokens)``; ``blocks`` as in ``group.needed``."""
        needed = self.group.first_needed(first_token, prompt_tokens)
        block_start = needed // self.group.block_tokens * self.group.block_tokens
        first = (needed - block_start) // self.page_tokens
        return self.pages(blocks)[first : -(-(prompt_tokens - block_start) // self.page_tokens)]


def transferred_blocks(groups: Sequence[KvGroup], first_token: int, prompt_tokens: int) -> int:
    """The number of blocks of the pool that a transfer of tokens ``[first_token, prompt_tokens)`` fills."""
    needed = [group.needed(first_token, prompt_tokens) for group in groups]
    return sum(each.stop - each.start for each in needed)


def longest_request_blocks(kv_cache_config: Any, vllm_config: Any) -> int:
    """The number of blocks that vLLM reckons with, at its start, for one request of ``max_model_len``.

    A transfer of such a request may fill fewer, because it needs only the last window. A request that is computed here,
    such as one with ``prompt_logprobs``, needs all blocks that a forward pass writes.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return sum(-(-spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes) for spec in specs)


def has_state(groups: Sequence[KvGroup]) -> bool:
    """Whether some layers keep one state for all tokens."""
    return any(group.state for group in groups)


def last_token_rule(groups: Sequence[KvGroup]) -> LastTokenRule:
    """How the two sides divide the last tokens of a prompt. A draft with one module needs no other rule."""
    return STATE if has_state(groups) else FULL_ATTENTION


def transferred_tokens(groups: Sequence[KvGroup], prompt_tokens: int) -> int:
    """The number of the prompt's tokens that are transferred, counted from the first one.

    The decoder computes the last token again. Pages are simply overwritten; a state would contain the token twice, so
    with state the prefiller leaves it out.
    """
    return last_token_rule(groups).sent_tokens(prompt_tokens)


def loaded_tokens(groups: Sequence[KvGroup], prompt_tokens: int) -> int:
    """The number of the prompt's tokens that are reported to vLLM as loaded; it computes the rest. 0: all of it.

    vLLM computes the last token in any case, but drops blocks as if the next token came first. If a window's first
    token is the last one of its block, or a prompt ends with a chunk, the last prompt token would attend to the null
    block. Then one token less is reported.
    """
    rule = last_token_rule(groups)
    if rule.leaves_out:
        return rule.resume_token(prompt_tokens)
    if not any(group.loses_first_needed(prompt_tokens) for group in groups):
        return prompt_tokens
    if any(group.blocks_of(prompt_tokens - 1) < group.blocks_of(prompt_tokens) for group in groups):
        return 0  # vLLM would not allocate the last token's block before the load
    return prompt_tokens - 1


def loaded_of_beginning(groups: Sequence[KvGroup], tokens: int, *, proves: bool, has_drafts: bool) -> int:
    """As ``loaded_tokens``, for the first tokens of a longer prompt.

    ``proves``: the last one of them is computed here too, so that both sides have it to compare. With ``has_drafts`` it
    is where that is possible, because a draft's KV of it depends on the token that follows; else one guess is worse.
    """
    loaded = loaded_tokens(groups, tokens)
    if last_token_rule(groups).leaves_out or not (proves or has_drafts):
        return loaded
    if any(group.blocks_of(tokens - 1) < group.blocks_of(tokens) for group in groups):
        return 0 if proves else loaded  # vLLM would not allocate the last token's block before the load
    return tokens - 1


def read_groups(kv_cache_config: Any) -> tuple[KvGroup, ...]:
    """Reads the engine's groups; raises OptionError if one is not supported."""
    groups = kv_cache_config.kv_cache_groups
    if not groups:
        raise OptionError(f"the model has no KV caches, expected at least one: {_LEAVE_OUT}")
    found = tuple(_read(group, index, len(groups)) for index, group in enumerate(groups))
    return tuple(_behind_the_last(group) for group in found) if has_state(found) else found


def _behind_the_last(group: KvGroup) -> KvGroup:
    """The group as the next token, after the transferred ones, needs it: that token takes one place of its window."""
    if group.chunked:
        raise OptionError(
            f"layers {_worded(group.layer_names)} have chunked local attention and others state, expected one of the"
            f" two: {_LEAVE_OUT}"
        )
    return replace(group, window_tokens=group.window_tokens - 1) if group.window_tokens > 1 else group


def _read(group: Any, index: int, count: int) -> KvGroup:
    spec = group.kv_cache_spec
    specs = list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]
    where = f"KV cache group {index} of {count} (layers {_worded(group.layer_names)})"
    kinds = sorted({type(s).__name__ for s in specs})
    served = _FULL + _WINDOWED + _CHUNKED + _STATE
    if len(kinds) != 1 or kinds[0] not in served:
        raise OptionError(
            f"{where} is of kind {' and '.join(kinds)}, expected one of {', '.join(served)} (full attention, a"
            f" sliding window, chunked local attention, latent KV, state): {_LEAVE_OUT}"
        )
    if kinds[0] in _STATE:
        return _read_state(group, specs, where)
    if any(getattr(s, "tokens_per_state", 1) != 1 for s in specs):
        raise OptionError(f"{where} holds several tokens in one state, expected one token in each: {_LEAVE_OUT}")
    if getattr(group, "is_eagle_group", False):
        raise OptionError(f"{where} belongs to a draft model, expected none: start without speculative decoding")
    if not getattr(group, "enable_kv_transfer", True):
        raise OptionError(f"{where} is one that vLLM does not transfer, expected that it does: {_LEAVE_OUT}")
    windows = {_window(s) for s in specs}
    if len(windows) != 1:
        raise OptionError(
            f"{where} has windows of {sorted(windows)} tokens, expected one window for all its layers: {_LEAVE_OUT}"
        )
    return KvGroup(
        tuple(group.layer_names),
        int(spec.block_size),
        windows.pop(),
        chunked=kinds[0] in _CHUNKED,
        latent=kinds[0] in _LATENT,
        both_ways=any(getattr(s, "non_causal", False) for s in specs),
    )


def _read_state(group: Any, specs: Sequence[Any], where: str) -> KvGroup:
    types = sorted({str(getattr(s.mamba_type, "name", s.mamba_type)) for s in specs})
    if not set(types) <= set(_STATES_SHOWN):
        raise OptionError(
            f"{where} holds state of {' and '.join(types)} layers, expected of {', '.join(_STATES_SHOWN)} layers only:"
            f" {_LEAVE_OUT}"
        )
    modes = sorted({str(s.mamba_cache_mode) for s in specs})
    if modes != ["none"]:
        raise OptionError(
            f"{where} holds state that is kept for prefixes too (mamba_cache_mode {' and '.join(modes)}), expected"
            " 'none': start with --no-enable-prefix-caching"
        )
    if any(s.num_speculative_blocks for s in specs):
        raise OptionError(f"{where} holds states of drafted tokens, expected none: start without speculative decoding")
    formats = sorted({_state_format(s) for s in specs})
    if len(formats) != 1:
        raise OptionError(
            f"{where} holds state of formats {' and '.join(formats)}, expected one for all its layers: {_LEAVE_OUT}"
        )
    on_each_rank = all(getattr(s, "tp_replicated", False) for s in specs)
    names = tuple(group.layer_names)
    return KvGroup(names, STATE_PAGE_TOKENS, latent=on_each_rank, state=True, state_format=formats[0])


def _state_format(spec: Any) -> str:
    """The types and shapes in a slot of state, in their order: a convolution's inputs, then the rest.

    vLLM computes the size of a slot from the same pairs, and ignores shapes without a type.
    """
    kind = str(getattr(spec.mamba_type, "name", spec.mamba_type))
    types = [str(dtype).removeprefix("torch.") for dtype in spec.dtypes]
    return f"{kind}: {' '.join(f'{name}{list(shape)}' for name, shape in zip(types, spec.shapes, strict=False))}"


def _window(spec: Any) -> int:
    """The tokens that vLLM keeps before the next one, plus that one; or the length of a chunk; 0 = all tokens."""
    if type(spec).__name__ in _CHUNKED:
        return int(spec.attention_chunk_size)
    if type(spec).__name__ not in _WINDOWED:
        return 0
    return int(spec.sliding_window) + int(getattr(spec, "extra_retained_tokens", 0))


def _worded(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} to {names[-1]}"
