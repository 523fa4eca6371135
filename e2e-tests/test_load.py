"""One prefiller feeds three decoders, many requests at once; afterwards nothing is held anywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from bed import Bed, Messenger, decoder, serial, together
from conftest import Reference
from server_process import words_of
from workload import ANSWER_TOKENS, LOAD, LOAD_IN_FLIGHT

BY_MODULE_PATH = {"connector_module": "kv_connector.vllm.connector", "environment": {"VLLM_PLUGINS": ""}}
"""Registration without the wheel's plug-in, which is switched off; one decoder of three is started so."""


def test_three_decoders_share_a_prefiller_and_nothing_leaks(bed: Bed, reference: Reference, stack: ExitStack) -> None:
    decoders = [bed.decoder, *bed.started(stack, decoder("decoder-2"), decoder("decoder-3", options=BY_MODULE_PATH))]
    ways = (together, serial)

    def one(index: int, prompt: str) -> tuple[str, Messenger, list[str]]:
        target = decoders[index % len(decoders)]
        return prompt, target, words_of(ways[index % len(ways)](bed.prefiller, target, prompt, ANSWER_TOKENS))

    with ThreadPoolExecutor(LOAD_IN_FLIGHT) as pool:
        answers = list(pool.map(one, *zip(*enumerate(LOAD.prompts()), strict=True)))
    wrong = [
        f"{len(prompt.split())} tokens at {target.server.name}"
        for prompt, target, words in answers
        if words != reference.to(prompt)
    ]
    assert not wrong, f"{len(wrong)} of {len(answers)} answers differ from a single vLLM's: {wrong}"
    for side in (bed.prefiller, *decoders):
        side.wait_at_rest()
