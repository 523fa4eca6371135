"""What of one of SGLang's requests its digest is made of."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.naming.changed_weights import ChangedWeights
from kv_connector.naming.prompt_digest import prompt_digest
from kv_connector.sglang import weight_changes
from kv_connector.sglang.prompt_name import digest_of


def request(**given: Any) -> Any:
    plain = {
        "origin_input_ids": array("q", [5, 6, 7]),
        "output_ids": array("q", [8]),
        "multimodal_inputs": None,
        "input_embeds": None,
        "positional_embed_overrides": None,
        "lora_id": None,
    }
    return SimpleNamespace(**plain | given)


def test_should_be_the_prompts() -> None:
    assert digest_of(request()) == prompt_digest([5, 6, 7])


def test_should_distinguish_other_tokens_adapters_and_weights() -> None:
    names = [
        digest_of(request()),
        digest_of(request(origin_input_ids=array("q", [5, 7, 6]))),
        digest_of(request(lora_id="a"), adapter="sql"),
        digest_of(request(lora_id="a"), adapter="chat"),
        digest_of(request(), weights="step 7"),
    ]
    assert len(set(names)) == 5
    assert digest_of(request(lora_id="b"), adapter="sql") == names[2], "each server may number adapters by itself"


def test_should_be_that_of_what_a_paused_decoder_wants_computed_again() -> None:
    recomputed = request(origin_input_ids=array("q", [5, 6, 7, 8]), output_ids=array("q"))
    assert digest_of(request(pd_rebootstrap_in_progress=True)) == digest_of(recomputed)


def test_should_distinguish_prompts_of_vectors() -> None:
    """SGLang puts the same token ids in place of all vectors."""
    prompts = [[[0.5, 1.0], [2.0, 0.1]], [[0.5, 1.0], [2.0, 0.2]], [[0.5, 1.0, 2.0, 0.1]], [[0.5], [1.0], [2.0], [0.1]]]
    names = [digest_of(request(input_embeds=vectors)) for vectors in prompts]
    assert len({digest_of(request()), *names}) == 5
    assert digest_of(request(input_embeds=[[0.5, 1], [2, 0.1]])) == names[0]


def picture(content: int | None, first: int = 1, last: int = 2, kind: str = "IMAGE") -> Any:
    return SimpleNamespace(modality=SimpleNamespace(name=kind), hash=content, offsets=[(first, last)])


def prompt_of(*pictures: Any) -> Any:
    """SGLang puts the same token ids in place of an image, or its hash, as its model has it."""
    return request(multimodal_inputs=SimpleNamespace(mm_items=list(pictures)))


def test_should_distinguish_images_behind_one_text() -> None:
    prompts = [
        prompt_of(picture(1)),
        prompt_of(picture(2)),
        prompt_of(picture(1, 0, 1)),
        prompt_of(picture(1), picture(2)),
        prompt_of(picture(2), picture(1)),
        prompt_of(picture(1, kind="AUDIO")),
    ]
    assert len({digest_of(request()), *map(digest_of, prompts)}) == 7
    assert digest_of(prompt_of(picture(1))) == digest_of(prompts[0])


@pytest.mark.parametrize(
    "prompts",
    [
        (request(input_embeds=[1.0]), request(input_embeds=[2.0])),
        (request(positional_embed_overrides=[1.0]), request(positional_embed_overrides=[2.0])),
        (prompt_of(picture(None)), prompt_of(picture(None, 0, 1))),
    ],
)
def test_should_name_the_adapter_and_the_weights_of_what_both_sides_may_describe_otherwise(prompts: Any) -> None:
    assert digest_of(prompts[0]) == digest_of(prompts[1]) != digest_of(request())
    named = [
        digest_of(prompts[0], adapter=adapter, weights=weights) for adapter in ("", "sql") for weights in ("", "7")
    ]
    assert len(set(named)) == 4


def test_should_name_no_image_where_its_hash_may_be_another_on_the_other_side() -> None:
    first, second = (digest_of(prompt_of(picture(n)), contents_alike=False) for n in (1, 2))
    assert first == second
    assert first != digest_of(prompt_of(picture(1)), weights="7", contents_alike=False)


@pytest.mark.parametrize("version", ["default", None])
def test_should_count_an_update_without_a_version_of_its_own(
    version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's word for no version is none, also where it is said with the weights."""
    weights = ChangedWeights()
    monkeypatch.setattr(weight_changes, "WEIGHTS", weights)
    monkeypatch.setattr(weight_changes, "_version", str)  # as it answers while SGLang's own is "default"
    updater, update = SimpleNamespace(draft_worker=None), SimpleNamespace(weight_version=version)
    weight_changes.note_update(lambda *_: SimpleNamespace(success=True, message=""), updater, update)
    assert weights.name("") != ""
