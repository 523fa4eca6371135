from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from release import Release
from simulated_engine import LAYERS, STORAGE_ADDRESS, SimulatedEngine, tensors
from simulated_tensor import SimulatedTensor

from kv_connector import OptionError
from kv_connector.naming.model_fingerprint import fingerprint
from kv_connector.vllm.geometry import describe
from kv_connector.vllm.head_counts import HeadCounts, heads_of_layer
from kv_connector.vllm.kv_groups import STATE_PAGE_TOKENS, KvGroup


def described(kv_caches: dict[str, Any], **more: Any) -> Any:
    given = {
        "layer_names": list(kv_caches),
        "groups": [KvGroup(tuple(kv_caches), 128)],
        "model": "tiny@0",
        "cache_dtype": "auto",
        "kv_head_counts": HeadCounts(frozenset({4})),
        "tp": (0, 1),
        "pp": (0, 1),
        **more,
    }
    geometry, _ = describe(kv_caches, **given)
    return geometry


def changed(kv_caches: dict[str, SimulatedTensor], **fields: Any) -> dict[str, SimulatedTensor]:
    return {name: dataclasses.replace(tensor, **fields) for name, tensor in kv_caches.items()}


def test_should_describe_what_the_engine_registers() -> None:
    page_bytes = 4 * 128 * 128 * 4
    assert described(tensors(10)) == {
        "model": "tiny@0",
        "tpSize": 1,
        "ppSize": 1,
        "groups": [
            {
                "kind": "full",
                "windowTokens": 0,
                "dtype": "float32",
                "elementBytes": 4,
                "pageTokens": 128,
                "layout": "HND",
                "kvHeadCount": 4,
                "pageCount": 10,
            }
        ],
        "ranks": [
            {
                "tpRank": 0,
                "ppRank": 0,
                "memories": [{"kind": "host", "address": STORAGE_ADDRESS, "lengthBytes": 40 * page_bytes, "memfd": -1}],
                "layers": [
                    {
                        "name": name,
                        "groupIndex": 0,
                        "memoryIndex": 0,
                        "offsetBytes": index * 10 * page_bytes,
                        "pageStrideBytes": page_bytes,
                        "pageBytes": page_bytes,
                    }
                    for index, name in enumerate(LAYERS)
                ],
            }
        ],
    }


def test_should_number_kernel_blocks_when_they_are_smaller_than_the_scheduler_s() -> None:
    found = described(tensors(10, page_tokens=32))
    (group,) = found["groups"]
    assert (group["pageTokens"], group["pageCount"], found["ranks"][0]["layers"][0]["pageBytes"]) == (
        32,
        40,
        4 * 32 * 128 * 4,
    )


def test_should_know_tokens_outermost() -> None:
    assert described(changed(tensors(2), strides=(65536, 128, 512, 1)))["groups"][0]["layout"] == "NHD"


@pytest.mark.parametrize("head_stride", [576, 73728])
def test_should_know_latent_kv(head_stride: int) -> None:
    latent = changed(tensors(2), shape=(2, 1, 128, 576), strides=(73728, head_stride, 576, 1))
    found = described(latent, groups=[KvGroup(LAYERS, 128, latent=True)], kv_head_counts=HeadCounts(frozenset({8})))
    (group,) = found["groups"]
    assert (group["layout"], group["kvHeadCount"], found["ranks"][0]["layers"][0]["pageBytes"]) == (
        "LATENT",
        1,
        73728 * 4,
    )


def test_should_take_pages_of_all_layers_side_by_side() -> None:
    page = 4 * 128 * 128
    apart = {
        name: dataclasses.replace(
            tensor, strides=(4 * page, 128 * 128, 128, 1), address=STORAGE_ADDRESS + index * page * 4
        )
        for index, (name, tensor) in enumerate(tensors(3).items())
    }
    layers = described(apart)["ranks"][0]["layers"]
    assert [layer["offsetBytes"] for layer in layers] == [0, page * 4, 2 * page * 4, 3 * page * 4]
    assert {layer["pageStrideBytes"] for layer in layers} == {16 * page}


def test_should_leave_out_layers_that_share_the_kv_of_others() -> None:
    registered = tensors(2)
    registered["alias"] = registered[LAYERS[0]]
    assert [layer["name"] for layer in described(registered, layer_names=LAYERS)["ranks"][0]["layers"]] == list(LAYERS)


def test_should_describe_the_heads_of_one_rank() -> None:
    found = described(tensors(2), kv_head_counts=HeadCounts(frozenset({8})), tp=(1, 2))
    assert (found["groups"][0]["kvHeadCount"], found["ranks"][0]["tpRank"], found["tpSize"]) == (8, 1, 2)


ELSEWHERE = SimpleNamespace(data_ptr=lambda: 7, nbytes=lambda: 1)
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "on a GPU": ({"device": SimpleNamespace(type="xpu")}, "expected the host or a CUDA device"),
    "three dimensions": ({"shape": (2, 128, 128), "strides": (16384, 128, 1)}, r"expected \(pages, heads, tokens"),
    "heads outside pages": ({"strides": (16384, 32768, 128, 1)}, "set VLLM_KV_CACHE_LAYOUT to HND or NHD"),
    "other heads than the model": ({"shape": (2, 2, 128, 128), "strides": (32768, 16384, 128, 1)}, "has 2 KV heads"),
}


@pytest.mark.parametrize("case", list(UNFIT))
def test_should_refuse_what_it_cannot_address_with_one_sentence(case: str) -> None:
    fields, sentence = UNFIT[case]
    with pytest.raises(OptionError, match=sentence):
        described(changed(tensors(2), **fields))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"storage": ELSEWHERE}, "is in another allocation"),
        ({"dtype": "torch.int8"}, "pages of torch.int8, expected 2 of torch.float32"),
        ({"strides": (65536, 128, 512, 1)}, "has another KV layout"),
    ],
)
def test_should_refuse_layers_that_differ(fields: dict[str, Any], sentence: str) -> None:
    registered = tensors(2)
    registered[LAYERS[2]] = dataclasses.replace(registered[LAYERS[2]], **fields)
    with pytest.raises(OptionError, match=sentence):
        described(registered)


def test_should_refuse_when_no_layer_is_registered() -> None:
    with pytest.raises(OptionError, match="expected layers of"):
        described(tensors(2), layer_names=["another"])


@pytest.mark.parametrize(
    ("cache_dtype", "tensor_dtype", "expected"),
    [
        ("auto", "torch.bfloat16", "bfloat16"),
        ("bfloat16", "torch.bfloat16", "bfloat16"),
        ("half", "torch.float16", "float16"),
        ("fp8_e4m3", "torch.uint8", "fp8_e4m3"),
        ("fp8_e5m2", "torch.uint8", "fp8_e5m2"),
        ("nvfp4_4over6", "torch.uint8", "nvfp4_4over6"),
        ("fp8_inc", "torch.float8_e4m3fn", "fp8_inc"),
        ("auto", "torch.uint8", "uint8"),
    ],
)
def test_should_say_number_formats_that_tensors_of_bytes_hide(
    cache_dtype: str, tensor_dtype: str, expected: str
) -> None:
    kv_caches = changed(tensors(10), dtype=tensor_dtype)
    assert described(kv_caches, cache_dtype=cache_dtype)["groups"][0]["dtype"] == expected


def test_should_distinguish_the_page_formats_of_releases(vllm_release: Release) -> None:
    known = [vllm_release.vllm_api.page_format(f"{minor}.1+cpu") for minor in vllm_release.vllm_api.KNOWN_RELEASES]
    assert len(set(known)) == len(known)
    assert vllm_release.vllm_api.page_format("0.32.0") == vllm_release.vllm_api.page_format("0.32.9rc1")
    unknown = [vllm_release.vllm_api.page_format(release) for release in ("0.99.0", "0.99.1", "of unknown version")]
    assert len({*known, *unknown}) == len(known) + len(unknown)


def test_should_compare_configuration_and_page_format_also_under_a_model_id(vllm_release: Release) -> None:
    named = SimulatedEngine(vllm_release, "kv_producer", extra={"model_id": "ours"}).messenger.geometry["model"]
    unnamed = SimulatedEngine(vllm_release, "kv_producer").messenger.geometry["model"]
    assert named.split("@")[0] == "ours"
    assert unnamed.split("@")[0] == "tiny"
    assert named.split("@")[1] == unnamed.split("@")[1]
    assert named.endswith(vllm_release.vllm_api.own_page_format())


def test_should_distinguish_models_by_what_shapes_their_kv() -> None:
    config = SimpleNamespace(rope_theta=10000.0, num_key_value_heads=4)
    same = fingerprint("/models/tiny", config, "CPU_ATTN:vec")
    assert same == fingerprint("/elsewhere/tiny/", SimpleNamespace(**vars(config)), "CPU_ATTN:vec")
    assert same.startswith("tiny@")
    assert same.endswith("/CPU_ATTN:vec")
    others = [
        fingerprint("/models/small", config, "CPU_ATTN:vec"),
        fingerprint("/models/tiny", SimpleNamespace(rope_theta=5e5, num_key_value_heads=4), "CPU_ATTN:vec"),
        fingerprint("/models/tiny", config, "CPU_ATTN:amx"),
    ]
    assert same not in others


class DifferingConfig:
    """A configuration as transformers reads one whose layers differ: a field that does is refused."""

    num_attention_heads = 8

    def __init__(self, heads: int) -> None:
        self._heads = heads

    @property
    def num_key_value_heads(self) -> int:
        raise RuntimeError("'num_key_value_heads' is a per-layer attribute and may vary across layers")

    @property
    def per_layer_config(self) -> object:
        return object()

    def to_dict(self) -> dict[str, Any]:
        return {"num_key_value_heads": 8, "per_layer_config": {"1": {"num_key_value_heads": self._heads}}}


def test_should_distinguish_models_whose_layers_differ() -> None:
    two, again, four = (fingerprint("/models/tiny", DifferingConfig(heads), "x") for heads in (2, 2, 4))
    assert two == again
    assert two != four


def test_should_describe_groups_that_lie_in_the_same_place() -> None:
    kv_caches = tensors(10, layers=("full", "windowed"))
    kv_caches["windowed"] = dataclasses.replace(kv_caches["windowed"], address=STORAGE_ADDRESS)
    groups = [KvGroup(("full",), 128), KvGroup(("windowed",), 128, 256)]
    found = described(kv_caches, layer_names=["windowed", "full"], groups=groups)
    assert [(group["kind"], group["windowTokens"]) for group in found["groups"]] == [("full", 0), ("window", 256)]
    assert [(layer["name"], layer["groupIndex"]) for layer in found["ranks"][0]["layers"]] == [
        ("windowed", 1),
        ("full", 0),
    ]
    assert {layer["offsetBytes"] for layer in found["ranks"][0]["layers"]} == {0}


def with_heads(kv_caches: dict[str, SimulatedTensor], heads_by_layer: dict[str, int]) -> dict[str, SimulatedTensor]:
    """The same pages, of which some layers have another number of heads."""
    return {
        name: dataclasses.replace(
            tensor,
            shape=(10, heads_by_layer.get(name, 4), 128, 128),
            strides=(4 * 128 * 128, 128 * 128, 128, 1),
        )
        for name, tensor in kv_caches.items()
    }


def test_should_make_groups_of_their_own_of_layers_with_other_numbers_of_heads() -> None:
    kv_caches = with_heads(tensors(10), {LAYERS[0]: 2, LAYERS[2]: 2})
    windowed = with_heads(tensors(10, layers=("windowed",)), {"windowed": 1})
    groups = [KvGroup(LAYERS, 256), KvGroup(("windowed",), 128, 256)]
    geometry, pages = describe(
        {**kv_caches, **windowed},
        layer_names=[*LAYERS, "windowed"],
        groups=groups,
        model="tiny@0",
        cache_dtype="auto",
        kv_head_counts=HeadCounts(frozenset({1, 2, 4})),
        tp=(0, 1),
        pp=(0, 1),
    )
    assert [(group["kind"], group["kvHeadCount"]) for group in geometry["groups"]] == [
        ("full", 2),
        ("full", 4),
        ("window", 1),
    ]
    layers = geometry["ranks"][0]["layers"]
    assert [layer["groupIndex"] for layer in layers] == [0, 1, 0, 1, 2]
    assert [layer["pageBytes"] for layer in layers] == [heads * 128 * 128 * 4 for heads in (2, 4, 2, 4, 1)]
    assert [(each.table, each.group.block_tokens, each.page_tokens) for each in pages] == [
        (0, 256, 128),
        (0, 256, 128),
        (1, 128, 128),
    ]


def test_should_find_the_numbers_of_heads_in_a_model_s_configuration() -> None:
    fields = {
        "num_key_value_heads": 16,
        "per_layer_config": {"5": {"num_key_value_heads": 4, "head_dim": 512}},
        "attention_other_setting": {"num_attention_groups": 2},
        "num_kv_heads": [3, 5],
        "num_attention_heads": 64,
    }
    model = SimpleNamespace(hf_text_config=SimpleNamespace(to_dict=lambda: fields), get_total_num_kv_heads=lambda: 16)
    draft = SimpleNamespace(hf_text_config=SimpleNamespace(), get_total_num_kv_heads=lambda: 8)
    assert HeadCounts.read(model, None).of("model.layers.5.attn") == {2, 3, 4, 5, 16}
    assert HeadCounts.read(model, draft).of("model.layers.5.attn") == {2, 3, 4, 5, 8, 16}
    model.model_arch_config = SimpleNamespace(per_layer_overrides=[{}, {"total_num_kv_heads": 4}, {"head_size": 512}])
    known = HeadCounts.read(model, None)
    assert [known.of(f"model.layers.{index}.attn") for index in range(3)] == [{16}, {4}, {16}]
    assert known.of("draft.3.layers.1.attn") == known.of("model.layers.3.attn") == known.named
    assert HeadCounts.read(model, draft).by_layer == (), "the draft's layers are numbered like the model's"


@pytest.mark.parametrize(
    ("on_rank", "tp_size", "expected"), [(16, 1, 16), (4, 1, 4), (8, 2, 16), (2, 2, 4), (2, 8, 16), (1, 8, 4)]
)
def test_should_find_a_layer_s_heads_over_all_ranks(on_rank: int, tp_size: int, expected: int) -> None:
    assert heads_of_layer("a", on_rank, (4, 16), tp_size) == expected


def test_should_refuse_heads_of_which_the_configuration_leaves_two_numbers() -> None:
    with pytest.raises(OptionError, match="names 4 or 16, expected one that fits tensor_parallel_size 16: take a sm"):
        heads_of_layer("a", 1, (4, 16), 16)
    with pytest.raises(OptionError, match="has 3 KV heads on this rank, expected 4 or 16 of 4 or 16 with tensor"):
        heads_of_layer("a", 3, (4, 16), 1)


def test_should_describe_a_slot_of_state_as_one_run() -> None:
    slots = changed(tensors(4, layers=("state",)), shape=(4, 1000), strides=(1024, 1))
    group = KvGroup(("state",), STATE_PAGE_TOKENS, state=True, state_format="MAMBA2: float32[1000]")
    found = described(slots, groups=[group])
    assert found["groups"][0]["dtype"] == "MAMBA2: float32[1000]"
    assert (found["groups"][0]["kind"], found["groups"][0]["pageTokens"]) == ("state", STATE_PAGE_TOKENS)
    (layer,) = found["ranks"][0]["layers"]
    assert (layer["pageBytes"], layer["pageStrideBytes"]) == (4000, 4096)
    (of_two,) = described(slots, groups=[group], tp=(0, 2))["groups"]
    assert (of_two["layout"], of_two["kvHeadCount"]) == ("HND", 2), "each rank has a part of its own"
    alike = dataclasses.replace(group, latent=True)
    (of_two,) = described(slots, groups=[alike], tp=(0, 2))["groups"]
    assert (of_two["layout"], of_two["kvHeadCount"]) == ("LATENT", 1), "each rank has all of it"
    with pytest.raises(OptionError, match="expected slots that are one run of bytes"):
        described(changed(slots, strides=(1024, 2)), groups=[group])
