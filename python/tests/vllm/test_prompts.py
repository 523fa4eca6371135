from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.naming.last_token import FULL_ATTENTION, STATE
from kv_connector.naming.prompt_digest import prompt_digest
from kv_connector.vllm.misfits import unfit_to_be_enqueued
from kv_connector.vllm.prompts import digest_of, leave_out_last_token


def request(**more: Any) -> SimpleNamespace:
    fields = {"prompt_token_ids": [1, 2, 3], "prompt_embeds": None, "lora_request": None, "mm_features": [], **more}
    return SimpleNamespace(**fields)


def adapter(number: int) -> SimpleNamespace:
    return SimpleNamespace(lora_name="sql", lora_int_id=number, lora_path="/nowhere")


def image(**more: Any) -> SimpleNamespace:
    place = SimpleNamespace(offset=1, length=2)
    fields = {"modality": "image", "identifier": "sql:a1", "mm_hash": "a1", "mm_position": place, **more}
    return SimpleNamespace(**fields)


def test_should_name_plain_tokens_as_any_engine_does() -> None:
    assert digest_of(request()) == prompt_digest([1, 2, 3])
    assert digest_of(request(cache_salt=None)) == prompt_digest([1, 2, 3])


def test_should_take_in_all_that_the_kv_is_computed_from() -> None:
    digests = [
        digest_of(request()),
        digest_of(request(cache_salt="tenant")),
        digest_of(request(lora_request=adapter(1))),
        digest_of(request(mm_features=[image()])),
        digest_of(request(mm_features=[image(mm_hash="b2")])),
        digest_of(request(mm_features=[image(modality="video")])),
        digest_of(request(mm_features=[image(mm_position=SimpleNamespace(offset=0, length=2))])),
    ]
    assert len(set(digests)) == len(digests)


def test_should_leave_out_what_each_side_makes_up() -> None:
    loras = [digest_of(request(lora_request=adapter(n))) for n in (1, 2)]
    assert loras[0] == loras[1]


def uncached(number: int, *tensors: Any) -> SimpleNamespace:
    """An image as vLLM tells of it with its caches off: numbered, with its content unless there are no tensors."""
    arguments = {"grid": list(tensors), "pixel_values": tensors[0]} if tensors else {}
    content = SimpleNamespace(get_data=lambda: arguments) if tensors else None
    return image(mm_hash=None, identifier=f"renderer{number}-mm-{number}-image-0", data=content)


def test_should_name_images_by_their_content_where_the_engine_only_numbers_them() -> None:
    torch = pytest.importorskip("torch", reason="torch comes with the engine: see the suite that has vLLM")
    pixels, others = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), torch.ones((2, 3), dtype=torch.bfloat16)
    of_both_sides = [digest_of(request(mm_features=[uncached(number, pixels.clone())])) for number in (1, 2)]
    assert of_both_sides[0] == of_both_sides[1]
    different = [
        of_both_sides[0],
        digest_of(request(mm_features=[uncached(1, others)])),
        digest_of(request(mm_features=[uncached(1, pixels, others)])),
        digest_of(request(mm_features=[uncached(1, pixels.reshape(3, 2))])),
        digest_of(request(mm_features=[uncached(1, pixels.to(torch.float16))])),
    ]
    assert len(set(different)) == len(different)


def test_should_take_no_two_images_for_one_whose_content_it_does_not_know() -> None:
    first, second = (digest_of(request(mm_features=[uncached(number)])) for number in (1, 2))
    assert first != second


def queued(tokens: int, *, skips_prefix_cache: bool = False) -> SimpleNamespace:
    ids = list(range(tokens))
    return request(
        prompt_token_ids=ids,
        _all_token_ids=list(ids),
        num_prompt_tokens=tokens,
        max_tokens=16,
        get_skip_reading_prefix_cache=lambda: skips_prefix_cache,
    )


def test_should_end_a_prompt_of_the_prefiller_where_the_rule_says() -> None:
    asked = queued(5)
    ids = asked.prompt_token_ids
    assert leave_out_last_token(asked, STATE) == STATE.sent_tokens(5) == 4
    assert asked.prompt_token_ids == asked._all_token_ids == [0, 1, 2, 3]
    assert (asked.num_prompt_tokens, asked.max_tokens) == (4, 1)
    assert ids == [0, 1, 2, 3, 4], "the list may be another choice's too"
    for left_alone, rule in (
        (queued(1), STATE),
        (queued(5, skips_prefix_cache=True), STATE),
        (queued(5), FULL_ATTENTION),
    ):
        tokens = left_alone.num_prompt_tokens
        assert leave_out_last_token(left_alone, rule) == tokens == len(left_alone.prompt_token_ids)
        assert left_alone.max_tokens == 16


class Vectors:
    """As torch's tensors."""

    def __bool__(self) -> bool:
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, ""),
        ({"prompt_token_ids": None, "prompt_embeds": Vectors()}, "prompt_embeds"),
        ({"mm_features": [image()]}, "mm_features"),
    ],
)
def test_should_name_what_no_prefiller_can_enqueue(fields: dict[str, Any], named: str) -> None:
    reason = unfit_to_be_enqueued(request(**fields))
    assert f"the prompt has {named}, expected plain tokens" in reason if named else reason == ""


def test_should_distinguish_prompts_of_vectors() -> None:
    torch = pytest.importorskip("torch", reason="torch comes with the engine: see the suite that has vLLM")
    vectors = torch.ones((3, 4), dtype=torch.bfloat16)
    digests = [
        digest_of(request(prompt_token_ids=None, prompt_embeds=vectors)),
        digest_of(request(prompt_token_ids=None, prompt_embeds=vectors * 2)),
        digest_of(request(prompt_token_ids=None, prompt_embeds=vectors.to(torch.float16))),
        digest_of(request(prompt_embeds=vectors, prompt_is_token_ids=[True, False, True])),
    ]
    assert len(set(digests)) == len(digests)
    assert digests[0] == digest_of(request(prompt_token_ids=None, prompt_embeds=vectors.clone()))
