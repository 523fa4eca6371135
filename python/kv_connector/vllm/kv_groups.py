"""vLLM's groups of KV caches: layers that get their blocks together, and which tokens of a prompt they need. Pure.

Every group has block ids from one pool, and a request has a table of blocks in each. Where a group has a sliding
window, vLLM puts its null block into the places of the table that lie before the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kv_connector.exceptions import OptionError
from kv_connector.last_token import FULL_ATTENTION, STATE, LastTokenRule

_FULL = ("FullAttentionSpec", "MLAAttentionSpec")
_WINDOWED = ("SlidingWindowSpec",)
_CHUNKED = ("ChunkedLocalAttentionSpec",)
_LATENT = ("MLAAttentionSpec",)
_STATE = ("MambaSpec",)
_STATES_SHOWN = ("SHORT_CONV", "MAMBA2", "GDN_ATTN")
"""Of vLLM's names of what computes a state: those with which both engines were shown to go on from the same one."""

STATE_PAGE_TOKENS = 1 << 30
"""How many tokens a slot of state is said to hold: more than any prompt has."""

NULL_BLOCK = 0
"""vLLM's block that is no place for KV: it takes the first one of the pool for that."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that get their blocks together."""

    layer_names: tuple[str, ...]
    """Those that own KV."""
    block_tokens: int
    window_tokens: int = 0
    """How many of the last tokens a token attends to, itself included; 0 = all."""
    chunked: bool = False
    """A token attends to those of its chunk only: chunks of ``window_tokens`` tokens follow each other."""
    latent: bool = False
    """Every tensor-parallel rank has all of it."""
    state: bool = False
    """What is kept of all tokens together: a request has one block of it."""
    state_format: str = ""
    """Which numbers a slot of state holds: vLLM registers it as bytes."""

    @property
    def kind(self) -> Literal["full", "window", "chunk", "state"]:
        """Which tokens of a prompt the layers need, as the geometry says it."""
        if self.state:
            return "state"
        if self.chunked:
            return "chunk"
        return "window" if self.window_tokens else "full"

    def blocks_of(self, tokens: int) -> int:
        """How many blocks these tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_tokens)

    def first_needed(self, first_token: int, prompt_tokens: int) -> int:
        """The first of tokens ``[first_token, prompt_tokens)`` that the prompt's last token attends to."""
        if not self.window_tokens:
            return first_token
        if self.chunked:
            return max(first_token, (prompt_tokens - 1) // self.window_tokens * self.window_tokens)
        return max(first_token, prompt_tokens - self.window_tokens)

    def needed(self, first_token: int, prompt_tokens: int) -> slice:
        """The places, in a request's table, of the blocks that are transferred of these tokens."""
        first = self.first_needed(first_token, prompt_tokens) // self.block_tokens
        return slice(first, self.blocks_of(prompt_tokens))

    def loses_first_needed(self, loaded_tokens: int) -> bool:
        """Whether vLLM drops a block that the last of these tokens needs once it takes them all as computed."""
        if self.chunked:
            return loaded_tokens % self.window_tokens == 0
        beyond = loaded_tokens - self.window_tokens + 1
        return self.window_tokens > 0 and beyond > 0 and beyond % self.block_tokens == 0


@dataclass(frozen=True, slots=True)
class GroupPages:
    """A group's blocks as pages of the messenger: a block is several that follow each other."""

    group: KvGroup
    page_tokens: int
    table: int
    """The index of the engine's group: which of a request's tables of blocks they are in."""

    @property
    def per_block(self) -> int:
        """Pages in a block."""
        return self.group.block_tokens // self.page_tokens

    def pages(self, blocks: Sequence[int]) -> list[int]:
        """All pages of the blocks."""
        ratio = self.per_block
        return [block * ratio + page for block in blocks for page in range(ratio)]

    def needed(self, blocks: Sequence[int], first_token: int, prompt_tokens: int) -> list[int]:
        """Those of ``group.needed``'s blocks that are transferred of tokens ``[first_token, prompt_tokens)``."""
        needed = self.group.first_needed(first_token, prompt_tokens)
        block_start = needed // self.group.block_tokens * self.group.block_tokens
        first = (needed - block_start) // self.page_tokens
        return self.pages(blocks)[first : -(-(prompt_tokens - block_start) // self.page_tokens)]


def transferred_blocks(groups: Sequence[KvGroup], first_token: int, prompt_tokens: int) -> int:
    """How many blocks of the pool the transfer of these tokens fills."""
    needed = [group.needed(first_token, prompt_tokens) for group in groups]
    return sum(each.stop - each.start for each in needed)


def longest_request_blocks(kv_cache_config: Any, vllm_config: Any) -> int:
    """How many blocks of the pool vLLM counts, when it starts, for one request of ``max_model_len``.

    A transfer of it may fill fewer: of a window it needs the last one only, and a request that is computed here, such
    as one with ``prompt_logprobs``, all that a forward pass writes.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return sum(-(-spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes) for spec in specs)


def has_state(groups: Sequence[KvGroup]) -> bool:
    """Whether some layers keep one state of all tokens."""
    return any(group.state for group in groups)


def last_token_rule(groups: Sequence[KvGroup]) -> LastTokenRule:
    """What the two sides share of a prompt's end. A draft of one module takes no more back than the model does."""
    return STATE if has_state(groups) else FULL_ATTENTION


def transferred_tokens(groups: Sequence[KvGroup], prompt_tokens: int) -> int:
    """How many of the prompt's tokens are transferred, from the first one on.

    The decoder computes the last one again. Pages take that; a state would have it in it twice, so there the prefiller
    leaves it out.
    """
    return last_token_rule(groups).sent_tokens(prompt_tokens)


def loaded_tokens(groups: Sequence[KvGroup], prompt_tokens: int) -> int:
    """How many of the prompt's tokens vLLM is told to take as loaded; the rest it computes. 0: all of it.

    vLLM computes the last token in any case, but drops blocks as if the next one came first: where a window's first
    token is the last one of its block, or a prompt ends with its chunk, the last prompt token would attend to the null
    block. There it is told one token less.
    """
    rule = last_token_rule(groups)
    if rule.leaves_out:
        return rule.resume_token(prompt_tokens)
    if not any(group.loses_first_needed(prompt_tokens) for group in groups):
        return prompt_tokens
    if any(group.blocks_of(prompt_tokens - 1) < group.blocks_of(prompt_tokens) for group in groups):
        return 0  # vLLM would give the last token no block before the load
    return prompt_tokens - 1


def read_groups(kv_cache_config: Any) -> tuple[KvGroup, ...]:
    """The engine's groups; raises OptionError with a sentence on one that is not served."""
    groups = kv_cache_config.kv_cache_groups
    if not groups:
        raise OptionError("the model has no KV caches, expected at least one: there is nothing to transfer")
    found = tuple(_read(group, index, len(groups)) for index, group in enumerate(groups))
    return tuple(_behind_the_last(group) for group in found) if has_state(found) else found


def _behind_the_last(group: KvGroup) -> KvGroup:
    """What the token needs that comes after those that are transferred: it has a place in its window itself."""
    if group.chunked:
        raise OptionError(
            f"layers {_worded(group.layer_names)} have chunked local attention and others state, expected one of the"
            " two: KV Messenger serves no model with both"
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
            f"{where} is of kind {' and '.join(kinds)}, expected one of {', '.join(served)}: KV Messenger serves models"
            " whose layers have full attention, a sliding window, chunked local attention, latent KV or state"
        )
    if kinds[0] in _STATE:
        return _read_state(group, specs, where)
    if any(getattr(s, "tokens_per_state", 1) != 1 for s in specs):
        raise OptionError(f"{where} holds several tokens in one state, expected one token in each")
    if getattr(group, "is_eagle_group", False):
        raise OptionError(f"{where} belongs to a draft model, expected none: start without speculative decoding")
    if not getattr(group, "enable_kv_transfer", True):
        raise OptionError(f"{where} is one that vLLM does not transfer, expected that it does")
    windows = {_window(s) for s in specs}
    if len(windows) != 1:
        raise OptionError(f"{where} has windows of {sorted(windows)} tokens, expected one window for all its layers")
    return KvGroup(
        tuple(group.layer_names),
        int(spec.block_size),
        windows.pop(),
        chunked=kinds[0] in _CHUNKED,
        latent=kinds[0] in _LATENT,
    )


def _read_state(group: Any, specs: Sequence[Any], where: str) -> KvGroup:
    types = sorted({str(getattr(s.mamba_type, "name", s.mamba_type)) for s in specs})
    if not set(types) <= set(_STATES_SHOWN):
        raise OptionError(
            f"{where} holds state of {' and '.join(types)} layers, expected of {', '.join(_STATES_SHOWN)} layers only:"
            " KV Messenger serves no model with other ones yet"
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
        raise OptionError(f"{where} holds state of formats {' and '.join(formats)}, expected one for all its layers")
    on_each_rank = all(getattr(s, "tp_replicated", False) for s in specs)
    names = tuple(group.layer_names)
    return KvGroup(names, STATE_PAGE_TOKENS, latent=on_each_rank, state=True, state_format=formats[0])


def _state_format(spec: Any) -> str:
    """What the state is made of, in the order in which a slot holds it: a convolution's inputs and the rest.

    vLLM counts the bytes of a slot by the same pairs, and by no shape that has no type.
    """
    kind = str(getattr(spec.mamba_type, "name", spec.mamba_type))
    types = [str(dtype).removeprefix("torch.") for dtype in spec.dtypes]
    return f"{kind}: {' '.join(f'{name}{list(shape)}' for name, shape in zip(types, spec.shapes, strict=False))}"


def _window(spec: Any) -> int:
    """What vLLM keeps behind the next token, and that token; or the length of a chunk; 0 = all tokens."""
    if type(spec).__name__ in _CHUNKED:
        return int(spec.attention_chunk_size)
    if type(spec).__name__ not in _WINDOWED:
        return 0
    return int(spec.sliding_window) + int(getattr(spec, "extra_retained_tokens", 0))


def _worded(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} to {names[-1]}"
