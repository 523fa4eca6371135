"""What SGLang says of its pools as a geometry, and which ranks hold a decoder's heads; no SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector import OptionError
from kv_connector.sglang.geometry import (
    Place,
    describe,
    draft_has_heads,
    full_pool,
    index_buffers,
    indexed_pool,
    kv_buffers,
    ranks_with_heads_of,
    state_buffers,
    state_pool,
    window_pool,
    windowed_buffers,
)


@pytest.mark.parametrize(
    ("tp_rank", "tp_size", "kv_head_count", "source_tp_size", "expected"),
    [
        pytest.param(1, 2, 8, 2, [1], id="the twin"),
        pytest.param(1, 2, 8, 4, [2, 3], id="more ranks there"),
        pytest.param(3, 4, 8, 2, [1], id="fewer ranks there"),
        pytest.param(1, 3, 12, 2, [0, 1], id="sizes of which none divides the other"),
        pytest.param(0, 2, 2, 8, [0, 1, 2, 3], id="all that hold the same head"),
        pytest.param(5, 8, 2, 2, [1], id="more ranks than heads here"),
        pytest.param(1, 2, 1, 4, [0, 1, 2, 3], id="latent KV is on every rank"),
        pytest.param(0, 2, 8, 3, [], id="heads that cannot be split so"),
    ],
)
def test_should_name_every_rank_that_may_send(
    tp_rank: int, tp_size: int, kv_head_count: int, source_tp_size: int, expected: list[int]
) -> None:
    assert ranks_with_heads_of(Place(tp_size, tp_rank, 1, 0), [kv_head_count], source_tp_size) == expected


def two_pools() -> SimpleNamespace:
    """One layer with full attention, and two with a window, as SGLang describes them."""
    return SimpleNamespace(
        kv_data_ptrs=[1000, 2000],
        kv_data_lens=[640, 640],
        kv_item_lens=[64, 64],
        num_draft_entries=0,
        state_types=["swa"],
        state_data_ptrs=[[3000, 4000, 5000, 6000]],
        state_data_lens=[[256] * 4],
        state_item_lens=[[64] * 4],
    )


def full(kv_args: Any) -> Any:
    return full_pool(
        kv_buffers(kv_args, latent=False),
        dtype="bfloat16",
        element_bytes=2,
        page_tokens=16,
        latent=False,
        kv_head_count=2,
    )


def described(kv_args: Any, window_tokens: int = 39) -> Any:
    first = full(kv_args)
    pools = [first, window_pool(first, windowed_buffers(kv_args), window_tokens, 4)]
    return describe(pools, model="tiny@0", place=Place(1, 0, 1, 0))


def test_should_ask_all_ranks_that_hold_heads_of_any_pool() -> None:
    assert ranks_with_heads_of(Place(2, 0, 1, 0), [4], 4) == [0, 1]
    assert ranks_with_heads_of(Place(2, 0, 1, 0), [4, 1], 4) == [0, 1, 2, 3]
    assert ranks_with_heads_of(Place(2, 0, 1, 0), [4, 3], 4) == []


@pytest.mark.parametrize(
    ("draft_lengths", "has_heads"),
    [([], False), ([18432], False), ([18432, 18432], False), ([4096, 4096], True), ([18432, 4096], True)],
)
def test_should_tell_a_draft_with_heads_from_a_latent_one(draft_lengths: list[int], has_heads: bool) -> None:
    kv_args = SimpleNamespace(num_draft_entries=len(draft_lengths), kv_item_lens=[18432, 18432, *draft_lengths])
    assert draft_has_heads(kv_args, latent=True) == has_heads
    assert not draft_has_heads(kv_args, latent=False), "pages of heads are divided among ranks like the draft's"


def test_should_describe_layers_with_a_window_as_a_group_of_their_own() -> None:
    found = described(two_pools())
    groups = [(g["kind"], g["windowTokens"], g["pageCount"], g["kvHeadCount"]) for g in found["groups"]]
    assert groups == [("full", 0, 10, 2), ("window", 39, 4, 4)]
    (rank,) = found["ranks"]
    assert [(layer["name"], layer["groupIndex"], layer["memoryIndex"]) for layer in rank["layers"]] == [
        ("layer.0.k", 0, 0),
        ("layer.0.v", 0, 1),
        ("window.0.k", 1, 2),
        ("window.0.v", 1, 3),
        ("window.1.k", 1, 4),
        ("window.1.v", 1, 5),
    ]
    assert [memory["address"] for memory in rank["memories"]] == [1000, 2000, 3000, 5000, 4000, 6000]


def test_should_say_why_a_pool_of_windowed_layers_is_not_served() -> None:
    with pytest.raises(OptionError, match="says no window's length, expected one"):
        described(two_pools(), window_tokens=0)


def states_beside(lengths: list[int], layer_ids: list[int]) -> SimpleNamespace:
    """One layer with attention, and layers of which each has some tensors of state with five slots."""
    addresses = [10000 + 1000 * index for index in range(len(lengths))]
    return SimpleNamespace(
        kv_data_ptrs=[1000, 2000],
        kv_data_lens=[640, 640],
        kv_item_lens=[64, 64],
        num_draft_entries=0,
        state_types=["mamba"],
        state_layer_ids=[layer_ids],
        state_data_ptrs=[addresses],
        state_data_lens=[[5 * length for length in lengths]],
        state_item_lens=[lengths],
    )


def test_should_describe_slots_of_state_as_a_group_of_bytes() -> None:
    kv_args = states_beside([288, 288, 1024, 1024], [0, 2, 0, 2])
    buffers = state_buffers(kv_args)
    state = state_pool(buffers, ["bfloat16[48, 3]"] * 2 + ["float32[4, 8, 8]"] * 2, tp_size=2)
    found = describe([full(kv_args), state], model="tiny@0", place=Place(2, 1, 1, 0))
    assert found["groups"][1] == {
        "kind": "state",
        "windowTokens": 0,
        "dtype": "bfloat16[48, 3] float32[4, 8, 8]",
        "elementBytes": 1,
        "pageTokens": 1 << 30,
        "layout": "HND",
        "kvHeadCount": 2,
        "pageCount": 5,
    }
    (rank,) = found["ranks"]
    layers = [
        (layer["name"], layer["groupIndex"], layer["memoryIndex"], layer["pageBytes"]) for layer in rank["layers"]
    ]
    assert layers[2:] == [
        ("state.0.0", 1, 2, 288),
        ("state.2.0", 1, 3, 288),
        ("state.0.1", 1, 4, 1024),
        ("state.2.1", 1, 5, 1024),
    ]
    assert [memory["address"] for memory in rank["memories"]] == [1000, 2000, 10000, 11000, 12000, 13000]


def test_should_name_every_way_in_which_layers_hold_their_state() -> None:
    buffers = state_buffers(states_beside([288, 288, 1024], [0, 2, 2]))
    named = state_pool(buffers, ["bfloat16[48, 3]", "bfloat16[48, 3]", "float32[4, 8, 8]"], tp_size=1).group["dtype"]
    assert named == "bfloat16[48, 3]; bfloat16[48, 3] float32[4, 8, 8]"


def test_should_name_states_by_their_order_where_sglang_says_no_layers() -> None:
    assert [buffer.name for buffer in state_buffers(states_beside([8, 8], []))] == ["state.0.0", "state.1.0"]


def test_should_say_why_slots_of_state_cannot_be_addressed() -> None:
    kv_args = states_beside([288, 288], [0, 2])
    kv_args.state_data_lens = [[5 * 288, 6 * 288]]
    with pytest.raises(OptionError, match=r"SGLang's buffers have \[5, 6\] pages, expected the same whole number"):
        state_pool(state_buffers(kv_args), ["a", "a"], tp_size=1)


def indexer_beside(key_bytes: list[int]) -> SimpleNamespace:
    """Two layers with latent KV in ten pages, and as many with an indexer's keys; 0: that layer has none."""
    return SimpleNamespace(
        kv_data_ptrs=[1000, 2000],
        kv_data_lens=[640, 640],
        kv_item_lens=[64, 64],
        num_draft_entries=0,
        state_types=["dsa"],
        state_data_ptrs=[[3000, 4000]],
        state_data_lens=[[10 * length for length in key_bytes]],
        state_item_lens=[key_bytes],
    )


def indexed(kv_args: Any) -> Any:
    pages = {"dtype": "bfloat16", "element_bytes": 2, "page_tokens": 64, "latent": True, "kv_head_count": 1}
    return indexed_pool(full_pool(kv_buffers(kv_args, latent=True), **pages), index_buffers(kv_args))


def test_should_describe_an_indexers_keys_in_the_pages_that_hold_the_kv() -> None:
    found = describe([indexed(indexer_beside([32, 32]))], model="tiny@0", place=Place(2, 1, 1, 0))
    assert found["groups"] == [
        {
            "kind": "full",
            "windowTokens": 0,
            "dtype": "bfloat16 beside index keys",
            "elementBytes": 2,
            "pageTokens": 64,
            "layout": "HND",
            "kvHeadCount": 1,
            "pageCount": 10,
        }
    ]
    (rank,) = found["ranks"]
    assert [(layer["name"], layer["pageBytes"]) for layer in rank["layers"]] == [
        ("layer.0", 64),
        ("index.0", 32),
        ("layer.1", 64),
        ("index.1", 32),
    ]


def test_should_leave_layers_without_an_indexer_out_and_want_a_page_of_keys_for_each_page() -> None:
    assert [buffer.name for buffer in index_buffers(indexer_beside([0, 32]))] == ["index.1"]
    kv_args = indexer_beside([32, 32])
    kv_args.state_data_lens = [[9 * 32, 9 * 32]]
    with pytest.raises(OptionError, match=r"SGLang's buffers have \[9, 10\] pages, expected the same whole number"):
        indexed(kv_args)
