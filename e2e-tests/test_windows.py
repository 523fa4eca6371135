"""A model of which most layers attend to a window: vLLM gives each kind of layer pages of its own, and drops old ones.

What lies before the last window of a prompt is on no page any more, is not asked for and not sent.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from bed import (
    PREFILL_LEG,
    Messenger,
    decode_leg,
    decoder,
    messenger,
    prefiller,
    prove,
    serial,
    start_messengers,
    way_of,
)
from conftest import Reference, asked
from make_model import TinyGemma, cached_model
from prompts import cache_home, random_prompt
from server_process import complete, words_of
from traffic import sharing_beginning

MODEL: Final = TinyGemma()
WINDOW: Final = MODEL.window_tokens
PAGE_TOKENS: Final = 32
CHUNK_TOKENS: Final = 128
WINDOWED_LAYERS: Final = 5
POOL_PAGES: Final = 400
"""Of all groups: few enough that what is dropped is soon used for something else."""
ANSWER_TOKENS: Final = 8
ROW_BYTES: Final = MODEL.kv_head_count * 2 * MODEL.head_dim * 4

BEFORE_WINDOW: Final = (1, 2, 31, 32, 33, 200)
CROSSING: Final = (255, 256, 257, 287, 288, 289, 319, 320)
"""287 and 319: the window of the last token begins with the last token of a page."""
LONG: Final = (700, 831, 1700)
BEGINNINGS: Final = (100, 300, 640)
ENDINGS: Final = (5, 31, 90, 287)
PREFILLER_GOES_ON: Final = 575
ACROSS_RANKS: Final = (1, 33, 200, 257, 289, 700, 831, 1700)


def own_prompts() -> dict[int, str]:
    return {length: random_prompt(length, 300) for length in (*BEFORE_WINDOW, *CROSSING, *LONG, PREFILLER_GOES_ON)}


def sharing_prompts(beginning: int) -> list[str]:
    return sharing_beginning(beginning, beginning, ENDINGS)


@dataclass(frozen=True)
class Pair:
    prefiller: Messenger
    decoder: Messenger
    reference: Reference

    def is_at_rest(self) -> None:
        self.prefiller.wait_at_rest()
        self.decoder.wait_at_rest()

    def arrived(self) -> float:
        return self.decoder.metric("kv_messenger_fetches_arrived_total")


def across_ranks(decoder_ranks: int) -> list[str]:
    """Of each decoder its own, so that none is in a cache."""
    return [random_prompt(length, 310 + decoder_ranks) for length in ACROSS_RANKS]


def started(stack: ExitStack, model: Path, folder: Path, rank_count: int) -> tuple[Messenger, Messenger]:
    arguments = ("--max-num-batched-tokens", str(CHUNK_TOKENS), "--num-gpu-blocks-override", str(POOL_PAGES))
    options = {"page_tokens": PAGE_TOKENS, "arguments": arguments, "tp_size": rank_count}
    source = messenger(prefiller(f"prefiller-windows-{rank_count}", options=options), model, folder)
    target = messenger(decoder(f"decoder-windows-{rank_count}", options=options), model, folder)
    start_messengers(stack, [source, target])
    return source, target


@pytest.fixture(scope="module")
def pair(run_folder: Path) -> Iterator[Pair]:
    model = cached_model(cache_home(), MODEL)
    sharing = [prompt for beginning in BEGINNINGS for prompt in sharing_prompts(beginning)]
    across = [prompt for rank_count in (1, 2) for prompt in across_ranks(rank_count)]
    reference = asked(model, [*own_prompts().values(), *sharing, *across])
    with ExitStack() as stack:
        source, target = started(stack, model, run_folder, 1)
        prove(source, target)
        yield Pair(source, target, reference)


@pytest.mark.parametrize("lengths", [BEFORE_WINDOW, CROSSING, LONG], ids=["shorter", "crossing", "long"])
def test_tokens_are_those_of_a_single_vllm(pair: Pair, lengths: tuple[int, ...]) -> None:
    before = pair.arrived()
    for index, length in enumerate(lengths):
        prompt = own_prompts()[length]
        answer = way_of(index)(pair.prefiller, pair.decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == pair.reference.to(prompt, ANSWER_TOKENS), f"prompt of {length} tokens"
    assert pair.arrived() - before == len(lengths)
    pair.is_at_rest()


def several(choices: int, prompt: str) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "n": choices,
        "temperature": 1.0,
        "top_k": 1,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }


def choices_of(pair: Pair, prompt: str, choices: int) -> list[list[str]]:
    """Both legs at once, for several answers to one prompt."""
    request = f"windows-{uuid.uuid4()}"
    body, headers = several(choices, prompt), {"X-Request-Id": request}
    first = {"max_tokens": 1, "kv_transfer_params": dict(PREFILL_LEG)}
    leg = {"max_tokens": ANSWER_TOKENS, "kv_transfer_params": decode_leg(pair.prefiller, request)}
    with ThreadPoolExecutor(1) as other:
        prefill = other.submit(pair.prefiller.server.post, "/v1/completions", {**body, **first}, headers)
        answer = pair.decoder.server.post("/v1/completions", {**body, **leg}, headers)
        prefill.result()
    assert "choices" in answer, answer
    return [str(choice["text"]).split() for choice in answer["choices"]]


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_prompts_that_share_a_beginning_have_right_answers(pair: Pair, beginning: int) -> None:
    """At once, so that some of the pages that they share are still to be computed; then from the decoder's cache."""
    prompts = sharing_prompts(beginning)
    with ThreadPoolExecutor(len(prompts)) as clients:
        found = list(clients.map(lambda at: choices_of(pair, prompts[at], 2 if at % 2 else 1), range(len(prompts))))
    for prompt, answers in zip(prompts, found, strict=True):
        right = pair.reference.to(prompt, ANSWER_TOKENS)
        assert answers == [right] * len(answers), f"prompt of {len(prompt.split())} tokens"
    for prompt in prompts:
        kept = words_of(complete(pair.decoder.server, prompt, ANSWER_TOKENS))
        assert kept == pair.reference.to(prompt, ANSWER_TOKENS), f"kept of a prompt of {len(prompt.split())} tokens"
    pair.is_at_rest()


def test_pages_before_the_window_are_not_sent(pair: Pair) -> None:
    length = 1999
    before = pair.prefiller.metric("kv_messenger_sent_bytes_total")
    words_of(serial(pair.prefiller, pair.decoder, random_prompt(length, 301), 1))
    pair.is_at_rest()
    in_full = math.ceil(length / PAGE_TOKENS)
    in_window = in_full - (length - WINDOW) // PAGE_TOKENS
    pages = in_full * (MODEL.layer_count - WINDOWED_LAYERS) + in_window * WINDOWED_LAYERS
    sent = pair.prefiller.metric("kv_messenger_sent_bytes_total") - before
    print(f"{sent:.0f} bytes were sent, {in_full * MODEL.layer_count * PAGE_TOKENS * ROW_BYTES} are in all pages")
    assert sent == pages * PAGE_TOKENS * ROW_BYTES


def test_window_stays_while_the_prefiller_decodes_on(pair: Pair) -> None:
    """It drops pages of the prompt's last window then, and gives them to others, before the decoder has asked."""
    prompt, request = own_prompts()[PREFILLER_GOES_ON], f"goes-on-{uuid.uuid4()}"
    headers = {"X-Request-Id": request}
    answer = complete(pair.prefiller.server, prompt, 2 * PAGE_TOKENS, PREFILL_LEG, headers)
    assert words_of(answer)[:ANSWER_TOKENS] == pair.reference.to(prompt, ANSWER_TOKENS)
    for seed in range(3):
        words_of(complete(pair.prefiller.server, random_prompt(600, 400 + seed), 1))
    answer = complete(pair.decoder.server, prompt, ANSWER_TOKENS, decode_leg(pair.prefiller, request), headers)
    assert words_of(answer) == pair.reference.to(prompt, ANSWER_TOKENS)
    pair.is_at_rest()


def test_tokens_are_those_of_a_single_vllm_where_one_side_has_two_ranks(pair: Pair, run_folder: Path) -> None:
    model = cached_model(cache_home(), MODEL)
    with ExitStack() as stack:
        source, target = started(stack, model, run_folder, 2)
        for decoder_ranks, way in ((1, Pair(source, pair.decoder, pair.reference)), (2, replace(pair, decoder=target))):
            prove(way.prefiller, way.decoder)
            before = way.arrived()
            for index, prompt in enumerate(across_ranks(decoder_ranks)):
                answer = way_of(index)(way.prefiller, way.decoder, prompt, ANSWER_TOKENS)
                right = pair.reference.to(prompt, ANSWER_TOKENS)
                assert words_of(answer) == right, f"{len(prompt.split())} tokens to {decoder_ranks} ranks"
            assert way.arrived() - before == len(ACROSS_RANKS)
            way.is_at_rest()
