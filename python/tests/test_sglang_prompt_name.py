"""What of one of SGLang's requests its digest is made of."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.changed_weights import ChangedWeights
from kv_connector.prompt_digest import prompt_digest
from kv_connector.sglang import weight_changes
from kv_connector.sglang.prompt_name import NO_DIGEST, digest_of


def request(**said: Any) -> Any:
    plain = {
        "origin_input_ids": array("q", [5, 6, 7]),
        "output_ids": array("q", [8]),
        "multimodal_inputs": None,
        "input_embeds": None,
        "positional_embed_overrides": None,
        "lora_id": None,
    }
    return SimpleNamespace(**plain | said)


def test_should_be_the_prompts() -> None:
    assert digest_of(request()) == prompt_digest([5, 6, 7])


def test_should_tell_other_tokens_adapters_and_weights_apart() -> None:
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


def test_should_tell_prompts_of_vectors_apart() -> None:
    """SGLang puts the same token ids in place of all vectors."""
    prompts = [[[0.5, 1.0], [2.0, 0.1]], [[0.5, 1.0], [2.0, 0.2]], [[0.5, 1.0, 2.0, 0.1]], [[0.5], [1.0], [2.0], [0.1]]]
    names = [digest_of(request(input_embeds=vectors)) for vectors in prompts]
    assert len({digest_of(request()), *names}) == 5
    assert digest_of(request(input_embeds=[[0.5, 1], [2, 0.1]])) == names[0]


@pytest.mark.parametrize("field", ["multimodal_inputs", "input_embeds", "positional_embed_overrides"])
def test_should_not_name_what_both_sides_may_describe_otherwise(field: str) -> None:
    assert digest_of(request(**{field: [1.0]})) == NO_DIGEST


@pytest.mark.parametrize("said", ["default", None])
def test_should_count_an_update_without_a_version_of_its_own(said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's word for no version is none, also where it is said with the weights."""
    weights = ChangedWeights()
    monkeypatch.setattr(weight_changes, "WEIGHTS", weights)
    monkeypatch.setattr(weight_changes, "_version", str)  # as it answers while SGLang's own is "default"
    updater, update = SimpleNamespace(draft_worker=None), SimpleNamespace(weight_version=said)
    weight_changes.note_update(lambda *_: SimpleNamespace(success=True, message=""), updater, update)
    assert weights.name("") != ""
