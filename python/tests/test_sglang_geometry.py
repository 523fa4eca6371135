"""What SGLang says of its pools as a geometry, and which ranks hold a decoder's heads; no SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector import OptionError
from kv_connector.sglang.engine_facts import Draft, EngineFacts
from kv_connector.sglang.geometry import Place, describe, ranks_with_heads_of
from kv_connector.sglang.model_pools import ModelPools
from kv_connector.sglang.state_tensors import STATE_TENSORS, SlotFormat

HERE = Place(1, 0, 1, 0)


def model_pools(
    kv_args: Any, place: Place = HERE, latent: bool = False, window_tokens: int = 39, **facts: Any
) -> ModelPools:
    known = {"options": None, "model": "tiny@0", "weights_digest": "", "loaded_digest": "", "settings": {}}
    kinds = {"dtype": "bfloat16", "element_bytes": 2, "kv_head_count": 2, "windowed_kv_head_count": 4}
    facts_given = EngineFacts(**{**known, **kinds, **facts})
    return ModelPools.of(kv_args, facts_given, place, latent=latent, window_tokens=window_tokens)


def described(kv_args: Any, place: Place = HERE, **facts_given: Any) -> Any:
    return describe(model_pools(kv_args, place, **facts_given).pools, model="tiny@0", place=place)


def layers_of(found: Any) -> list[tuple[str, int, int]]:
    """Name, group and bytes of a page."""
    return [(layer["name"], layer["groupIndex"], layer["pageBytes"]) for layer in found["ranks"][0]["layers"]]


def registered(
    *beside: tuple[str, list[int], list[int]], items: tuple[int, ...] = (64, 64), page_tokens: int = 16, drafts: int = 0
) -> SimpleNamespace:
    """Ten pages of KV, and pools of other kinds: (SGLang's name, pages of each buffer, bytes of a page of each)."""
    return SimpleNamespace(
        page_size=page_tokens,
        kv_layer_ids=[],
        kv_data_ptrs=[1000 * (1 + k) for k in range(len(items))],
        kv_data_lens=[10 * item for item in items],
        kv_item_lens=list(items),
        num_draft_entries=drafts,
        state_types=[name for name, _, _ in beside],
        state_data_ptrs=[[10000 * (1 + n) + 1000 * k for k in range(len(of))] for n, (_, _, of) in enumerate(beside)],
        state_data_lens=[[p * item for p, item in zip(pages, of, strict=True)] for _, pages, of in beside],
        state_item_lens=[of for _, _, of in beside],
        **{name: [[] for _ in beside] for name in ("state_layer_ids", "state_dim_per_tensor")},
        **{name: [[] for _ in beside] for name in ("state_slice_outer_counts", "state_conv_shard_groups")},
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
    return registered(("swa", [4] * 4, [64] * 4))


def test_should_ask_all_ranks_that_hold_heads_of_any_pool() -> None:
    assert ranks_with_heads_of(Place(2, 0, 1, 0), [4], 4) == [0, 1]
    assert ranks_with_heads_of(Place(2, 0, 1, 0), [4, 1], 4) == [0, 1, 2, 3]
    assert ranks_with_heads_of(Place(2, 0, 1, 0), [4, 3], 4) == []


@pytest.mark.parametrize(
    ("draft", "latent", "expected"),
    [
        pytest.param(Draft(False, 2), False, [("NHD", 2)], id="as many heads: in the model's group"),
        pytest.param(Draft(False, 1), False, [("NHD", 2), ("NHD", 1)], id="other heads"),
        pytest.param(Draft(True, 1), True, [("LATENT", 1)], id="both latent"),
        pytest.param(Draft(False, 4), True, [("LATENT", 1), ("NHD", 4)], id="heads beside latent KV"),
        pytest.param(Draft(True, 1), False, [("NHD", 2), ("LATENT", 1)], id="latent beside heads"),
        pytest.param(None, False, [("NHD", 2)], id="a draft of which nothing is known"),
    ],
)
def test_should_give_a_draft_with_other_heads_a_group_of_its_own(
    draft: Draft | None, latent: bool, expected: list[tuple[str, int]]
) -> None:
    found = described(registered(items=(64, 64, 32, 32), drafts=2), latent=latent, draft=draft)
    assert [(group["layout"], group["kvHeadCount"]) for group in found["groups"]] == expected
    of_draft = [(name, group) for name, group, _ in layers_of(found) if name.startswith("draft")]
    names = ["draft.0", "draft.1"] if (latent if draft is None else draft.latent) else ["draft.0.k", "draft.0.v"]
    assert of_draft == [(name, len(expected) - 1) for name in names]


def test_should_have_a_drafts_group_on_a_stage_without_its_layers() -> None:
    found = described(registered(), draft=Draft(False, 1))
    assert [(group["kvHeadCount"], group["pageCount"]) for group in found["groups"]] == [(2, 10), (1, 10)]


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
    assert [memory["address"] for memory in rank["memories"]] == [1000, 2000, 10000, 12000, 11000, 13000]


def test_should_name_layers_with_and_without_windows_by_their_numbers_in_the_model() -> None:
    stage = Place(1, 0, 2, 1)
    found = described(two_pools(), stage, full_layers=[7], windowed_layers=[6, 8])
    names = ["layer.7.k", "layer.7.v", "window.6.k", "window.6.v", "window.8.k", "window.8.v"]
    assert [name for name, _, _ in layers_of(found)] == names
    with pytest.raises(
        OptionError, match=r"stage has 1 layers with full attention, .* names \[7, 9\], expected as many"
    ):
        described(two_pools(), stage, full_layers=[7, 9], windowed_layers=[6, 8])


def test_should_say_why_a_pool_of_windowed_layers_is_not_served() -> None:
    with pytest.raises(OptionError, match="says no window's length, expected one"):
        described(two_pools(), window_tokens=0)


def states_beside(tensors: list[tuple[int, SlotFormat]], pages: int = 5, **divided: list[Any]) -> SimpleNamespace:
    """One layer with attention, and tensors of state with some slots: (bytes of a slot, what is in it)."""
    kv_args = registered(("mamba", [pages] * len(tensors), [length for length, _ in tensors]))
    for address, (_, held) in zip(kv_args.state_data_ptrs[0], tensors, strict=True):
        STATE_TENSORS._formats[address] = held
    for name, of in divided.items():
        setattr(kv_args, name, [of])
    return kv_args


def convolution(layer: int, *shape: int) -> SlotFormat:
    return SlotFormat("bfloat16", shape, (), True, layer)


def recurrence(layer: int, *shape: int) -> SlotFormat:
    return SlotFormat("float32", shape, (), False, layer)


MAMBA = [(288, convolution(0, 48, 3)), (288, convolution(2, 48, 3)), (1024, recurrence(0, 4, 8, 8))]


def test_should_describe_slots_of_state_as_a_group_of_bytes() -> None:
    found = described(states_beside([*MAMBA, (1024, recurrence(2, 4, 8, 8))]), Place(2, 1, 1, 0))
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
    states = [("state.0.0", 1, 288), ("state.2.0", 1, 288), ("state.0.1", 1, 1024), ("state.2.1", 1, 1024)]
    assert layers_of(found)[2:] == states
    memories = [memory["address"] for memory in found["ranks"][0]["memories"]]
    assert memories == [1000, 2000, 10000, 11000, 12000, 13000]


def test_should_name_every_way_in_which_layers_hold_their_state() -> None:
    tensors = [MAMBA[0], MAMBA[1], (1024, recurrence(2, 4, 8, 8))]
    found = described(states_beside(tensors))
    assert found["groups"][1]["dtype"] == "bfloat16[48, 3]; bfloat16[48, 3] float32[4, 8, 8]"


def test_should_cut_states_into_parts_that_ranks_of_other_numbers_have_too() -> None:
    """Queries, keys and values of 8, 8 and 16 channels over both ranks, then the heads of a recurrence."""
    tensors = [(16 * 3 * 2, convolution(5, 16, 3)), (4 * 64 * 4, recurrence(5, 4, 8, 8))]
    facts_given = {"state_dim_per_tensor": [16, 4], "state_slice_outer_counts": [1, 1]}
    kv_args = states_beside(tensors, **facts_given, state_conv_shard_groups=[[8, 8, 16], None])
    found = described(kv_args, Place(2, 1, 1, 0))
    group = found["groups"][1]
    assert (group["kvHeadCount"], group["dtype"]) == (8, "bfloat16[32, 3] of 8 + 8 + 16 float32[8, 8, 8]")
    assert layers_of(found)[2:] == [
        ("state.5.0.0", 1, 24),
        ("state.5.0.1", 1, 24),
        ("state.5.0.2", 1, 48),
        ("state.5.1", 1, 1024),
    ]
    parts = found["ranks"][0]["layers"][2:5]
    assert [(part["offsetBytes"], part["pageStrideBytes"]) for part in parts] == [(0, 96), (24, 96), (48, 96)]


def test_should_cut_each_row_of_a_state_whose_channels_are_last() -> None:
    facts_given = {"state_dim_per_tensor": [4], "state_slice_outer_counts": [3]}
    kv_args = states_beside([(24, convolution(0, 3, 4))], **facts_given, state_conv_shard_groups=[[4, 4]])
    found = described(kv_args, Place(2, 0, 1, 0))
    assert (found["groups"][1]["kvHeadCount"], found["groups"][1]["dtype"]) == (4, "bfloat16[3, 8] of 4 + 4")
    parts = [(layer["offsetBytes"], layer["pageBytes"]) for layer in found["ranks"][0]["layers"][2:]]
    assert parts == [(0, 4), (4, 4), (8, 4), (12, 4), (16, 4), (20, 4)]


@pytest.mark.parametrize(
    ("inputs", "dimensions", "held"),
    [
        pytest.param(None, 16, convolution(0, 16, 3), id="a convolution of unknown inputs"),
        pytest.param([8, 8, 8], 16, convolution(0, 16, 3), id="inputs of another length"),
        pytest.param([7, 25], 16, convolution(0, 16, 3), id="inputs that ranks cannot divide"),
        pytest.param([16, 16], 16, SlotFormat("bfloat16", (16, 3), (1, 16), True, 0), id="transposed"),
    ],
)
def test_should_send_states_to_the_same_rank_alone_where_it_is_not_known_how_ranks_divide_them(
    inputs: list[int] | None, dimensions: int, held: SlotFormat
) -> None:
    facts_given = {"state_dim_per_tensor": [dimensions], "state_slice_outer_counts": [1]}
    kv_args = states_beside([(96, held)], **facts_given, state_conv_shard_groups=[inputs])
    found = described(kv_args, Place(2, 0, 1, 0))
    assert (found["groups"][1]["kvHeadCount"], found["groups"][1]["dtype"]) == (2, str(held))
    assert layers_of(found)[2:] == [("state.0.0", 1, 96)]


def test_should_have_what_every_rank_has_whole_in_another_group() -> None:
    tensors = [(1024, recurrence(0, 4, 8, 8)), (32, recurrence(0, 8))]
    facts_given = {"state_dim_per_tensor": [4, 0], "state_slice_outer_counts": [1, 1]}
    found = described(states_beside(tensors, **facts_given, state_conv_shard_groups=[None, None]), Place(2, 0, 1, 0))
    groups = [(group["layout"], group["kvHeadCount"], group["dtype"]) for group in found["groups"][1:]]
    assert groups == [("HND", 8, "float32[8, 8, 8]"), ("LATENT", 1, "float32[8]")]


def test_should_say_why_slots_of_state_cannot_be_addressed() -> None:
    kv_args = states_beside([MAMBA[0], MAMBA[1]])
    kv_args.state_data_lens = [[5 * 288, 6 * 288]]
    with pytest.raises(OptionError, match=r"SGLang's buffers have \[5, 6\] pages, expected the same whole number"):
        described(kv_args)


def test_should_describe_an_indexers_keys_beside_the_layer_that_they_are_of() -> None:
    found = described(registered(("dsa", [10, 10], [32, 32]), page_tokens=64), Place(2, 1, 1, 0), latent=True)
    groups = [(g["kind"], g["layout"], g["kvHeadCount"], g["pageCount"], g["dtype"]) for g in found["groups"]]
    assert groups == [("full", "LATENT", 1, 10, "bfloat16"), ("full", "HND", 1, 10, "its indexer")]
    assert layers_of(found) == [("layer.0", 0, 64), ("index.0", 1, 32), ("layer.1", 0, 64), ("index.1", 1, 32)]


def test_should_refuse_buffers_that_are_not_one_kind_for_each_layer() -> None:
    kv_args = registered(items=(64, 64, 8, 8))
    kv_args.kv_layer_ids = [3, 3, 3, 3]
    with pytest.raises(
        OptionError, match=r"registered 4 buffers of the kind 'layer' for the layers \[3, 3\], expected 2"
    ):
        described(kv_args)


def test_should_leave_layers_without_an_indexer_out() -> None:
    found = described(registered(("dsa", [10, 10], [0, 32])), latent=True)
    assert [name for name, _, _ in layers_of(found)] == ["layer.0", "layer.1", "index.1"]


def test_should_name_a_stages_keys_by_the_layers_numbers_in_the_model() -> None:
    kv_args = registered(("dsa", [10, 10], [32, 32]))
    kv_args.prefill_start_layer = 2
    found = described(kv_args, Place(1, 0, 2, 1), latent=True)
    assert [name for name, _, _ in layers_of(found)] == ["layer.2", "index.2", "layer.3", "index.3"]


def test_should_name_a_drafts_keys_otherwise_than_the_models() -> None:
    kv_args = registered(("dsa", [10] * 3, [32] * 3), items=(64, 64, 64), drafts=1)
    found = described(kv_args, latent=True, draft=Draft(True, 1))
    names = ["layer.0", "index.0", "layer.1", "index.1", "draft.0", "draftindex.0"]
    assert [name for name, _, _ in layers_of(found)] == names
    assert [group for _, group, _ in layers_of(found)] == [0, 1, 0, 1, 0, 1]


def test_should_describe_any_pools_together() -> None:
    beside = [("swa", [4] * 2, [64] * 2), ("block_scale", [10] * 2, [8] * 2), ("block_scale_swa", [4] * 2, [8] * 2)]
    pools = model_pools(registered(*beside, ("dsa_tail", [7] * 2, [96] * 2)), draft=Draft(False, 1))
    kinds = [(p.group["kind"], p.group["layout"], p.group["kvHeadCount"], p.group["pageCount"]) for p in pools.pools]
    assert kinds == [
        ("full", "NHD", 2, 10),
        ("full", "NHD", 1, 10),
        ("window", "NHD", 4, 4),
        ("full", "NHD", 2, 10),
        ("window", "NHD", 4, 4),
        ("state", "LATENT", 1, 7),
    ]
    assert pools.groups_of == [None, 0, 1, 2, 3]
    assert pools.leave_late == ["swa", "block_scale_swa", "dsa_tail"]
    parts = pools.prompt(page_count=3, prompt_tokens=40, first_token=0, row=5)
    assert (parts.prompt_tokens, parts.leaves_early) == (40, False)
