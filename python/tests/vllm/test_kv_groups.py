"""Which blocks of a request's tables are transferred, held against the window's own definition."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector import OptionError
from kv_connector.naming.last_token import STATE
from kv_connector.vllm import kv_groups
from kv_connector.vllm.kv_groups import (
    STATE_PAGE_TOKENS,
    GroupPages,
    KvGroup,
    loaded_of_beginning,
    loaded_tokens,
    longest_request_blocks,
    read_groups,
    transferred_blocks,
    transferred_tokens,
)

FULL = KvGroup(("full",), 4)


class FullAttentionSpec:
    block_size = 4
    non_causal = False


class SlidingWindowSpec:
    def __init__(self, window: int = 6, extra: int = 0) -> None:
        self.block_size = 4
        self.sliding_window = window
        self.extra_retained_tokens = extra


class MambaSpec:
    block_size = 2048
    tokens_per_state = -1

    shapes = ((3, 640), (8, 64, 16))
    dtypes = ("torch.bfloat16", "torch.float32")

    def __init__(self, mode: str = "none", drafted: int = 0, mamba_type: str = "SHORT_CONV") -> None:
        self.mamba_type = SimpleNamespace(name=mamba_type)
        self.mamba_cache_mode = mode
        self.num_speculative_blocks = drafted


class ChunkedLocalAttentionSpec:
    block_size = 4
    attention_chunk_size = 8


class CrossAttentionSpec:
    block_size = 4


def windowed(window: int, block_tokens: int = 4) -> KvGroup:
    return KvGroup(("windowed",), block_tokens, window)


def chunked(chunk: int) -> KvGroup:
    return KvGroup(("chunked",), 4, chunk, chunked=True)


LOCAL = [kind(tokens) for kind in (windowed, chunked) for tokens in range(1, 12)]


def config(*specs: Any, **fields: Any) -> SimpleNamespace:
    groups = [
        SimpleNamespace(layer_names=[f"layer.{index}"], kv_cache_spec=spec, **fields)
        for index, spec in enumerate(specs)
    ]
    return SimpleNamespace(kv_cache_groups=groups)


def attended(group: KvGroup, first_token: int, prompt_tokens: int) -> set[int]:
    """What the prompt's last token, and every later one, may attend to of what is not computed yet."""
    last, local = prompt_tokens - 1, group.window_tokens
    return {
        token
        for token in range(first_token, prompt_tokens)
        if (token // local == last // local if group.chunked else last - token < local)
    }


def named(group: KvGroup) -> str:
    return f"{group.kind} of {group.window_tokens}"


@pytest.mark.parametrize("group", LOCAL, ids=named)
def test_should_transfer_the_blocks_that_the_last_token_attends_to(group: KvGroup) -> None:
    for prompt_tokens in range(1, 24):
        for first_token in range(0, prompt_tokens, 4):
            needed = group.needed(first_token, prompt_tokens)
            touched = {token // 4 for token in attended(group, first_token, prompt_tokens)}
            assert set(range(needed.start, needed.stop)) == touched


def test_should_transfer_every_block_where_all_tokens_are_attended_to() -> None:
    assert FULL.needed(8, 17) == slice(2, 5)
    assert transferred_blocks([FULL, windowed(6)], 0, 17) == 5 + 3


def test_should_count_as_many_blocks_for_the_longest_request_as_vllm_does() -> None:
    def of_bytes(most: int) -> Any:
        spec = SimpleNamespace(page_size_bytes=10, max_memory_usage_bytes=lambda config: most * config.factor)
        return SimpleNamespace(kv_cache_spec=spec)

    caches = SimpleNamespace(kv_cache_groups=[of_bytes(40), of_bytes(11)])
    assert longest_request_blocks(caches, SimpleNamespace(factor=2)) == 8 + 3


@pytest.mark.parametrize("page_tokens", [1, 2, 4])
def test_should_leave_out_pages_of_the_first_block_that_lie_before_what_is_attended_to(page_tokens: int) -> None:
    for group in LOCAL:
        pages = GroupPages(group, page_tokens, 0)
        for prompt_tokens in range(1, 24):
            table = [7 + 3 * place for place in range(group.blocks_of(prompt_tokens))]
            found = pages.needed(table[group.needed(0, prompt_tokens)], 0, prompt_tokens)
            ratio = 4 // page_tokens
            held = sorted({token // page_tokens for token in attended(group, 0, prompt_tokens)})
            assert found == [table[page // ratio] * ratio + page % ratio for page in held]


def kept_by_vllm(group: KvGroup, computed_tokens: int) -> int:
    """The first place that holds a block, as ``get_num_skipped_tokens`` of vLLM's managers decides it."""
    if group.chunked:
        return computed_tokens // group.window_tokens * group.window_tokens // group.block_tokens
    return max(0, computed_tokens - group.window_tokens + 1) // group.block_tokens


@pytest.mark.parametrize("local", LOCAL, ids=named)
def test_should_never_let_vllm_drop_a_block_that_the_last_token_attends_to(local: KvGroup) -> None:
    groups = [FULL, local]
    loaded_by_length = {}
    for prompt_tokens in range(1, 24):
        loaded = loaded_by_length[prompt_tokens] = loaded_tokens(groups, prompt_tokens)
        assert loaded in (0, prompt_tokens - 1, prompt_tokens)
        if loaded:
            needed = groups[1].needed(0, prompt_tokens)
            assert kept_by_vllm(groups[1], loaded) <= needed.start
            assert groups[1].blocks_of(loaded) == needed.stop
    if local.window_tokens % 4 == 0 if local.chunked else local.window_tokens % 4 != 2:
        assert all(loaded > 0 for prompt_tokens, loaded in loaded_by_length.items() if prompt_tokens > 1)
    assert loaded_tokens([FULL], 9) == 9


def test_should_read_windows_and_refuse_what_it_does_not_serve() -> None:
    found = read_groups(config(FullAttentionSpec(), SlidingWindowSpec(6, 2)))
    assert found == (KvGroup(("layer.0",), 4), KvGroup(("layer.1",), 4, 8))
    assert [group.kind for group in found] == ["full", "window"]
    (_, local) = read_groups(config(FullAttentionSpec(), ChunkedLocalAttentionSpec()))
    assert (local, local.kind) == (KvGroup(("layer.1",), 4, 8, chunked=True), "chunk")
    with pytest.raises(OptionError, match=r"group 1 of 2 \(layers layer.1\) is of kind CrossAttentionSpec"):
        read_groups(config(FullAttentionSpec(), CrossAttentionSpec()))
    with pytest.raises(OptionError, match="have chunked local attention and others state, expected one of the two"):
        read_groups(config(ChunkedLocalAttentionSpec(), MambaSpec()))
    with pytest.raises(OptionError, match="belongs to a draft model"):
        read_groups(config(FullAttentionSpec(), is_eagle_group=True))
    with pytest.raises(OptionError, match="vLLM does not transfer"):
        read_groups(config(FullAttentionSpec(), enable_kv_transfer=False))
    with pytest.raises(OptionError, match="no KV caches"):
        read_groups(config())


@pytest.mark.parametrize("marks", [(False,), (True,), (False, True), (True, False), (False, False)])
def test_should_know_layers_whose_tokens_attend_to_later_ones(marks: tuple[bool, ...]) -> None:
    """In one group, whether its layers have one spec or several."""
    specs = []
    for mark in marks:
        specs.append(FullAttentionSpec())
        specs[-1].non_causal = mark
    alike = {f"layer.{index}": spec for index, spec in enumerate(specs)}
    spec = specs[0] if len(specs) == 1 else SimpleNamespace(kv_cache_specs=alike, block_size=4)
    (found,) = read_groups(config(spec))
    assert (found.kind, found.both_ways) == ("full", any(marks))


def test_should_read_state_and_say_what_keeps_it_from_being_served() -> None:
    full, state = read_groups(config(FullAttentionSpec(), MambaSpec()))
    assert (full.kind, state.kind) == ("full", "state")
    assert state.block_tokens == STATE_PAGE_TOKENS
    with pytest.raises(
        OptionError, match=r"kept for prefixes too \(mamba_cache_mode align\), expected 'none': start with"
    ):
        read_groups(config(FullAttentionSpec(), MambaSpec("align")))
    with pytest.raises(
        OptionError, match="holds state of MAMBA1 layers, expected of SHORT_CONV, MAMBA2, GDN_ATTN layers only"
    ):
        read_groups(config(FullAttentionSpec(), MambaSpec(mamba_type="MAMBA1")))
    with pytest.raises(OptionError, match="states of drafted tokens, expected none"):
        read_groups(config(FullAttentionSpec(), MambaSpec(drafted=2)))


def test_should_say_what_numbers_a_slot_holds_that_vllm_registers_as_bytes() -> None:
    found = {read_groups(config(MambaSpec(mamba_type=kind)))[0].state_format for kind in ("MAMBA2", "SHORT_CONV")}
    assert found == {f"{kind}: bfloat16[3, 640] float32[8, 64, 16]" for kind in ("MAMBA2", "SHORT_CONV")}
    untyped = MambaSpec()
    untyped.dtypes = ("torch.bfloat16",)
    assert read_groups(config(untyped))[0].state_format == "SHORT_CONV: bfloat16[3, 640]", (
        "vLLM gives the rest no bytes"
    )
    two = MambaSpec()
    two.dtypes = ("torch.float32", "torch.float32")
    uniform = SimpleNamespace(kv_cache_specs={"a": MambaSpec(), "b": two})
    with pytest.raises(OptionError, match=r"of formats SHORT_CONV: bfloat16\[3, 640\] .* and SHORT_CONV: float32"):
        read_groups(config(uniform))


@pytest.mark.parametrize("window", range(2, 12))
def test_should_leave_out_of_a_window_beside_state_the_token_that_the_decoder_computes(window: int) -> None:
    """vLLM drops what lies before the window of the first token that is computed; the rest of it is transferred."""
    windowed_group, _state = groups = read_groups(config(SlidingWindowSpec(window), MambaSpec()))
    for prompt_tokens in range(2, 24):
        transferred = transferred_tokens(groups, prompt_tokens)
        needed = windowed_group.needed(0, transferred)
        first_kept = kept_by_vllm(windowed(window), loaded_tokens(groups, prompt_tokens))
        assert needed == slice(first_kept, windowed_group.blocks_of(transferred))
        attended_to = attended(windowed(window), 0, prompt_tokens) - {prompt_tokens - 1}
        assert {token // 4 for token in attended_to} == set(range(needed.start, needed.stop))


def test_should_transfer_state_as_one_block_of_all_tokens_but_the_last() -> None:
    """The decoder computes the last token, which a state must not hold twice."""
    groups = read_groups(config(FullAttentionSpec(), MambaSpec()))
    for prompt_tokens in range(2, 20):
        transferred = transferred_tokens(groups, prompt_tokens)
        assert transferred == loaded_tokens(groups, prompt_tokens) == prompt_tokens - 1
        assert transferred == STATE.sent_tokens(prompt_tokens) == STATE.resume_token(prompt_tokens)
        assert groups[1].needed(0, transferred) == slice(0, 1)
        assert GroupPages(groups[1], STATE_PAGE_TOKENS, 1).needed([5], 0, transferred) == [5]
    assert loaded_tokens(groups, 1) == 0
    assert transferred_tokens([FULL], 9) == 9


@pytest.mark.parametrize("has_drafts", [False, True])
@pytest.mark.parametrize("proves", [False, True])
@pytest.mark.parametrize("tokens", range(1, 3 * FULL.block_tokens + 2))
def test_should_leave_the_last_token_of_a_beginning_where_it_is_wanted(
    tokens: int, proves: bool, has_drafts: bool
) -> None:
    begins_block = tokens % FULL.block_tokens == 1
    wanted = tokens - 1 if (proves or has_drafts) and not begins_block else tokens
    expected = 0 if proves and begins_block else wanted
    assert loaded_of_beginning([FULL], tokens, proves=proves, has_drafts=has_drafts) == expected


@pytest.mark.parametrize("proves", [False, True])
def test_should_continue_a_beginning_s_state_where_its_prefiller_has_ended(proves: bool) -> None:
    groups = read_groups(config(FullAttentionSpec(), MambaSpec()))
    loaded = [loaded_of_beginning(groups, tokens, proves=proves, has_drafts=False) for tokens in (1, 2, 3, 129)]
    assert loaded == [loaded_tokens(groups, tokens) for tokens in (1, 2, 3, 129)] == [0, 1, 2, 128]


@pytest.mark.parametrize("has_drafts", [False, True])
@pytest.mark.parametrize("proves", [False, True])
@pytest.mark.parametrize("local", LOCAL, ids=named)
def test_should_never_let_vllm_drop_a_block_that_a_beginning_fills(
    local: KvGroup, proves: bool, has_drafts: bool
) -> None:
    for tokens in range(1, 24):
        loaded = loaded_of_beginning([FULL, local], tokens, proves=proves, has_drafts=has_drafts)
        assert loaded in (0, tokens - 1, tokens)
        if loaded:
            needed = local.needed(0, tokens)
            assert kept_by_vllm(local, loaded) <= needed.start
            assert local.blocks_of(loaded) == needed.stop


def test_should_name_a_remedy_in_each_refusal_of_a_model() -> None:
    source = Path(kv_groups.__file__).read_text(encoding="utf-8")
    raised = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "OptionError"
    ]
    assert len(raised) > 8
    assert not [each for each in raised if "_LEAVE_OUT" not in each and "start with" not in each]
