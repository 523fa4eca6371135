from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from release import Release
from simulated_engine import LAYERS, STORAGE_ADDRESS, SimulatedEngine, SimulatedTensor, tensors

from kv_connector import OptionError
from kv_connector.model_fingerprint import fingerprint
from kv_connector.vllm.geometry import describe
from kv_connector.vllm.kv_groups import STATE_PAGE_TOKENS, KvGroup


def described(kv_caches: dict[str, Any], **more: Any) -> Any:
    said = {
        "layer_names": list(kv_caches),
        "groups": [KvGroup(tuple(kv_caches), 128)],
        "model": "tiny@0",
        "cache_dtype": "auto",
        "kv_head_count": 4,
        "tp": (0, 1),
        "pp": (0, 1),
        **more,
    }
    return describe(kv_caches, **said)


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
    found = described(latent, groups=[KvGroup(LAYERS, 128, latent=True)], kv_head_count=8)
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
    found = described(tensors(2), kv_head_count=8, tp=(1, 2))
    assert (found["groups"][0]["kvHeadCount"], found["ranks"][0]["tpRank"], found["tpSize"]) == (8, 1, 2)


ELSEWHERE = SimpleNamespace(data_ptr=lambda: 7, nbytes=lambda: 1)
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "on a GPU": ({"device": SimpleNamespace(type="cuda")}, "expected 'cpu'"),
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


def test_should_tell_the_page_formats_of_releases_apart(vllm_release: Release) -> None:
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


def test_should_tell_models_apart_by_what_shapes_their_kv() -> None:
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
