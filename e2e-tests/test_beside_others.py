"""Both engines' connector is vLLM's MultiConnector, around ours and one that keeps KV in files, asked before ours."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bed import Bed, decoder, prefiller, way_of
from conftest import Reference
from server_process import words_of
from workload import ANSWER_TOKENS, BOTH_LEGS

PROMPTS = 6


def store(folder: Path) -> dict[str, Any]:
    return {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }


def test_tokens_are_right_beside_a_connector_that_saves_what_is_computed(bed: Bed, reference: Reference) -> None:
    stores = [bed.folder / f"store-of-{side}" for side in ("prefiller", "decoder")]
    with ExitStack() as stack:
        sending, receiving = bed.started(
            stack,
            prefiller("prefiller-beside", options={"beside": store(stores[0])}),
            decoder("decoder-beside", options={"beside": store(stores[1])}),
        )
        prompts = BOTH_LEGS["shm"].prompts()[-PROMPTS:]
        for index, prompt in enumerate(prompts):
            answer = way_of(index)(sending, receiving, prompt, ANSWER_TOKENS)
            assert words_of(answer) == reference.to(prompt), f"prompt of {len(prompt.split())} tokens"
        assert receiving.metric("kv_messenger_fetches_arrived_total") == len(prompts)
        for each in (sending, receiving):
            each.wait_at_rest()
            assert "kv_messenger_" in each.server.get("/metrics"), "MultiConnector hands figures on by our name"
    assert all(list(each.glob("*/*.safetensors")) for each in stores), "the other connector had no part"
