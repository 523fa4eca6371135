"""Models of other families, each on a pair of its own: tokens are those of one engine by itself.

That engine is the prefiller, asked without a transfer and with a salt, so that it finds nothing of the transfers in its
cache.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from bed import Messenger, decoder, messenger, prefiller, prove, serial, start_messengers, together, way_of
from make_model import TinyGemma, TinyGemma4, TinyGptOss, TinyLlama4, TinyMistral, TinyQwen3Moe, cached_model
from prompts import cache_home, random_prompt
from server_process import greedy_completion, words_of
from traffic import sharing_beginning

PAGE_TOKENS: Final = 32
CHUNK_TOKENS: Final = 300
"""Of a forward pass: it ends neither with a page nor with a window."""
ANSWER_TOKENS: Final = 8
LENGTHS: Final = (1, 2, 31, 32, 33, 127, 128, 129, 159, 255, 256, 257, 288, 512, 700, 1700)
"""Around pages, and around windows of 128 and chunks of 256 tokens."""
BEGINNING: Final = 300
ENDINGS: Final = (5, 90, 212, 287)


@dataclass(frozen=True)
class Family:
    """What is started, and with what; layers that do not attend to everything, and the first token that they need."""

    shape: TinyLlama4 | TinyGptOss | TinyMistral | TinyQwen3Moe | TinyGemma | TinyGemma4
    local_layers: int = 0
    first_needed: Callable[[int], int] = lambda _: 0
    name: str = ""
    arguments: tuple[str, ...] = ()
    shared_layers: int = 0
    """Those without KV of their own."""
    full_row_bytes: int = 0
    """What a token takes in a layer that attends to everything, if it is another number than in the others."""

    def __str__(self) -> str:
        return self.name or self.shape.family


FAMILIES: Final = (
    Family(TinyLlama4(), 3, lambda tokens: (tokens - 1) // TinyLlama4.chunk_tokens * TinyLlama4.chunk_tokens),
    Family(TinyGptOss(), 2, lambda tokens: tokens - TinyGptOss.window_tokens),
    Family(TinyMistral(), 4, lambda tokens: tokens - TinyMistral.window_tokens),
    Family(TinyQwen3Moe()),
    Family(
        TinyGemma(),
        5,
        lambda tokens: tokens - TinyGemma.window_tokens,
        name="gemma3-without-prefix-caching",
        arguments=("--no-enable-prefix-caching",),
    ),
    Family(TinyGemma(), name="gemma3-in-one-group", arguments=("--disable-hybrid-kv-cache-manager",)),
    Family(
        TinyGemma4(),
        5,
        lambda tokens: tokens - TinyGemma4.window_tokens,
        shared_layers=TinyGemma4.shared_layer_count,
        full_row_bytes=TinyGemma4.global_kv_head_count * 2 * TinyGemma4.global_head_dim * 4,
    ),
)
AT_LENGTH: Final = ("gemma3-in-one-group", "gemma3-without-prefix-caching")
"""Gemma 3 is in test_windows.py too, and both forms in the engine loop: with --at-length."""


@dataclass(frozen=True)
class Pair:
    family: Family
    prefiller: Messenger
    decoder: Messenger
    salt: str

    def alone(self, prompt: str) -> list[str]:
        body = {**greedy_completion(prompt, ANSWER_TOKENS), "cache_salt": self.salt}
        return words_of(self.prefiller.server.post("/v1/completions", body))

    def arrived(self) -> float:
        return self.decoder.metric("kv_messenger_fetches_arrived_total")

    def is_at_rest(self) -> None:
        self.prefiller.wait_at_rest()
        self.decoder.wait_at_rest()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(family, id=str(family), marks=[pytest.mark.at_length] * (str(family) in AT_LENGTH))
        for family in FAMILIES
    ],
)
def pair(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[Pair]:
    family: Family = request.param
    model = cached_model(cache_home(), family.shape)
    arguments = ("--max-num-batched-tokens", str(CHUNK_TOKENS), *family.arguments)
    options = {"page_tokens": PAGE_TOKENS, "arguments": arguments}
    with ExitStack() as stack:
        source = messenger(prefiller(f"prefiller-{family}", options=options), model, run_folder)
        target = messenger(decoder(f"decoder-{family}", options=options), model, run_folder)
        start_messengers(stack, [source, target])
        prove(source, target)
        yield Pair(family, source, target, str(uuid.uuid4()))


def test_tokens_are_those_of_one_engine(pair: Pair) -> None:
    before = pair.arrived()
    for index, length in enumerate(LENGTHS):
        prompt = random_prompt(length, 700)
        answer = way_of(index)(pair.prefiller, pair.decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == pair.alone(prompt), f"prompt of {length} tokens"
    assert pair.arrived() - before == len(LENGTHS)
    pair.is_at_rest()


def test_prompts_at_once_that_share_a_beginning_have_right_answers(pair: Pair) -> None:
    prompts = sharing_beginning(701, BEGINNING, ENDINGS)
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = list(clients.map(lambda p: together(pair.prefiller, pair.decoder, p, ANSWER_TOKENS), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert words_of(answer) == pair.alone(prompt), f"prompt of {len(prompt.split())} tokens"
    pair.is_at_rest()


def test_pages_that_the_last_token_does_not_attend_to_are_not_sent(pair: Pair) -> None:
    family, length = pair.family, 1999
    before = pair.prefiller.metric("kv_messenger_sent_bytes_total")
    words_of(serial(pair.prefiller, pair.decoder, random_prompt(length, 702), 1))
    pair.is_at_rest()
    sent = pair.prefiller.metric("kv_messenger_sent_bytes_total") - before
    row_bytes = family.shape.kv_head_count * 2 * family.shape.head_dim * 4
    full_row_bytes = family.full_row_bytes or row_bytes
    local_page_tokens = PAGE_TOKENS * full_row_bytes // row_bytes  # vLLM gives all groups pages of one length in bytes
    full_layers = family.shape.layer_count - family.local_layers - family.shared_layers
    in_full = math.ceil(length / PAGE_TOKENS)
    of_local = math.ceil(length / local_page_tokens) - family.first_needed(length) // local_page_tokens
    page_bytes = PAGE_TOKENS * full_row_bytes
    print(f"{sent:.0f} bytes were sent, {in_full * (full_layers + family.local_layers) * page_bytes} in all pages")
    assert sent == (in_full * full_layers + of_local * family.local_layers) * page_bytes
