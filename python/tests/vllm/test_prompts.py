from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.prompt_digest import prompt_digest
from kv_connector.vllm.prompts import digest_of


def request(**more: Any) -> SimpleNamespace:
    said = {"prompt_token_ids": [1, 2, 3], "prompt_embeds": None, "lora_request": None, "mm_features": [], **more}
    return SimpleNamespace(**said)


def image(**more: Any) -> SimpleNamespace:
    place = SimpleNamespace(offset=1, length=2)
    said = {"modality": "image", "identifier": "sql:a1", "mm_hash": "a1", "mm_position": place, **more}
    return SimpleNamespace(**said)


def test_should_name_plain_tokens_as_any_engine_does() -> None:
    assert digest_of(request()) == prompt_digest([1, 2, 3])
    assert digest_of(request(cache_salt=None)) == prompt_digest([1, 2, 3])


def test_should_take_in_all_that_the_kv_is_computed_from() -> None:
    said = [
        digest_of(request()),
        digest_of(request(cache_salt="tenant")),
        digest_of(request(lora_request=SimpleNamespace(lora_name="sql", lora_int_id=1))),
        digest_of(request(mm_features=[image()])),
        digest_of(request(mm_features=[image(mm_hash="b2")])),
        digest_of(request(mm_features=[image(modality="video")])),
        digest_of(request(mm_features=[image(mm_position=SimpleNamespace(offset=0, length=2))])),
    ]
    assert len(set(said)) == len(said)


def test_should_leave_out_what_each_side_makes_up() -> None:
    loras = [digest_of(request(lora_request=SimpleNamespace(lora_name="sql", lora_int_id=n))) for n in (1, 2)]
    assert loras[0] == loras[1]
    uncached = [
        digest_of(request(mm_features=[image(mm_hash=None, identifier=f"renderer{n}-mm-{n}-image-0")])) for n in (1, 2)
    ]
    assert uncached[0] == uncached[1]


def test_should_tell_prompts_of_vectors_apart() -> None:
    torch = pytest.importorskip("torch", reason="torch comes with the engine: see the suite that has vLLM")
    vectors = torch.ones((3, 4), dtype=torch.bfloat16)
    said = [
        digest_of(request(prompt_token_ids=None, prompt_embeds=vectors)),
        digest_of(request(prompt_token_ids=None, prompt_embeds=vectors * 2)),
        digest_of(request(prompt_token_ids=None, prompt_embeds=vectors.to(torch.float16))),
        digest_of(request(prompt_embeds=vectors, prompt_is_token_ids=[True, False, True])),
    ]
    assert len(set(said)) == len(said)
    assert said[0] == digest_of(request(prompt_token_ids=None, prompt_embeds=vectors.clone()))
