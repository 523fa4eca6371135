"""Models of which some layers keep one state of all tokens: it goes with the pages, and the decoder goes on from it.

Prefix caching is off, as it has to be, so that an engine asked without a transfer computes the whole prompt: the
prefiller's own answers are the reference, and no third engine has to start.

What vLLM answers with an LFM2 depends on the batch and on how a prompt is cut into passes: on CPU, in float32,
log-probabilities differ by 0.01, and of four prompts asked at once, without any transfer, one or two were answered
otherwise than alone in each of eight rounds. So its prompts are asked one at a time, and end one token behind a pass,
where one engine cuts them as two do: a decoder computes a prompt's last token in a pass of its own. A Falcon-H1 has no
such differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from bed import Messenger, decode_leg, decoder, messenger, prefiller, prove, serial, start_messengers, together, way_of
from faults import STEP_LIMIT_SECONDS, body_of, dropped_payload, leave
from make_model import TinyFalconH1, TinyLfm2, cached_model
from prompts import cache_home, random_prompt
from server_process import complete, wait_until, words_of
from traffic import sharing_beginning

PAGE_TOKENS: Final = 128
CHUNK_TOKENS: Final = 512
OPTIONS: Final[Mapping[str, Any]] = {
    "page_tokens": PAGE_TOKENS,
    "prefix_caching": False,
    "arguments": ("--max-num-batched-tokens", str(CHUNK_TOKENS)),
}
ANSWER_TOKENS: Final = 8
BEGINNING: Final = 60
ENDINGS: Final = (1, 20, 60, 90)
"""All of these prompts fit into one pass."""
Model = tuple[TinyLfm2 | TinyFalconH1, tuple[int, ...]]
FALCON_H1: Final[Model] = (TinyFalconH1(), (1, 2, 64, 128, 129, 257, 514, 1024, 1700))
MODELS: Final[tuple[Model, ...]] = ((TinyLfm2(), (1, 2, 3, 513, 1025, 1537)), FALCON_H1)
"""With the lengths of their prompts; one of 1 is computed by the decoder alone."""


@dataclass(frozen=True)
class Pair:
    prefiller: Messenger
    decoder: Messenger
    lengths: tuple[int, ...]

    def alone(self, prompt: str) -> list[str]:
        """What one engine answers by itself."""
        return words_of(complete(self.prefiller.server, prompt, ANSWER_TOKENS))

    def arrived(self) -> float:
        return self.decoder.metric("kv_messenger_fetches_arrived_total")

    def is_at_rest(self) -> None:
        self.prefiller.wait_at_rest()
        self.decoder.wait_at_rest()


def family_of(model: Model) -> str:
    return model[0].family


@pytest.fixture(scope="module", params=MODELS, ids=family_of)
def pair(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[Pair]:
    shape, lengths = request.param
    family, model = shape.family, cached_model(cache_home(), shape)
    options = OPTIONS
    with ExitStack() as stack:
        source = messenger(prefiller(f"prefiller-{family}", options=options), model, run_folder)
        target = messenger(decoder(f"decoder-{family}", options=options), model, run_folder)
        start_messengers(stack, [source, target])
        if request.param == FALCON_H1:  # an LFM2 on a CPU is not compared
            prove(source, target)
        yield Pair(source, target, lengths)


def test_tokens_are_those_of_one_engine(pair: Pair) -> None:
    before = pair.arrived()
    for index, length in enumerate(pair.lengths):
        prompt = random_prompt(length, 500)
        answer = way_of(index)(pair.prefiller, pair.decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == pair.alone(prompt), f"prompt of {length} tokens"
    assert pair.arrived() - before == len(pair.lengths) - 1
    pair.is_at_rest()


@pytest.mark.parametrize("pair", [FALCON_H1], indirect=True, ids=family_of)
def test_prompts_at_once_that_share_a_beginning_are_answered_as_one_after_the_other(pair: Pair) -> None:
    prompts = sharing_beginning(501, BEGINNING, ENDINGS)
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = list(clients.map(lambda p: together(pair.prefiller, pair.decoder, p, ANSWER_TOKENS), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        by_itself = serial(pair.prefiller, pair.decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == words_of(by_itself), f"prompt of {len(prompt.split())} tokens"
    pair.is_at_rest()


def test_state_is_sent_once_whatever_the_length(pair: Pair) -> None:
    """Two prompts of as many pages differ in nothing that is sent; a page more is all that a longer one costs."""
    sent = [bytes_for(pair, length) for length in (2 * PAGE_TOKENS + 2, 3 * PAGE_TOKENS, 4 * PAGE_TOKENS)]
    page, state = sent[2] - sent[1], sent[0] - 3 * (sent[2] - sent[1])
    print(f"{page:.0f} bytes for each page of {PAGE_TOKENS} tokens and {state:.0f} of state were sent")
    assert sent[0] == sent[1]
    assert state > 0
    assert math.isclose(bytes_for(pair, 1000), 8 * page + state)


@pytest.mark.parametrize("pair", [FALCON_H1], indirect=True, ids=family_of)
def test_no_wrong_token_comes_of_a_prefiller_of_which_nothing_is_known(pair: Pair, run_folder: Path) -> None:
    """One sends no byte of its KV. The other one is killed while it owes what its first requests are compared with."""
    target, model = pair.decoder, cached_model(cache_home(), FALCON_H1[0])
    faulty = prefiller("prefiller-dropping", options=OPTIONS, extra={"jvm_options": dropped_payload()})
    with ExitStack() as stack:
        dropping = messenger(faulty, model, run_folder)
        killed = messenger(prefiller("prefiller-killed", options=OPTIONS), model, run_folder)
        start_messengers(stack, [dropping, killed])
        right = random_prompt(300, 510)
        assert words_of(serial(dropping, target, right, ANSWER_TOKENS)) == pair.alone(right)
        for seed in (511, 512):
            answer = serial(dropping, target, random_prompt(300, seed), ANSWER_TOKENS)
            assert "choices" not in answer or answer["choices"][0]["finish_reason"] == "error", "wrong KV became tokens"
        assert target.metric("kv_messenger_last_tokens_compared_total", reason="different") == 1
        assert target.metric("kv_messenger_fetches_refuted_total") > 0
        for request in ("leaves", "stays"):
            prompt, leg = random_prompt(1700, 513), decode_leg(killed, request)
            if request == "leaves":
                asked = body_of(prompt, 512, leg, stream=False)
                leave(target.server, asked, request, lambda: wait_until_fetched(target))
            else:
                answer = complete(target.server, prompt, ANSWER_TOKENS, leg, {"X-Request-Id": request})
                assert words_of(answer) == pair.alone(prompt), "computed here, although no prefill was asked for"
        killed.server.kill()
        target.wait_at_rest()
    pair.is_at_rest()


def wait_until_fetched(target: Messenger) -> None:
    wait_until(lambda: target.metric("kv_messenger_fetches_open") > 0, STEP_LIMIT_SECONDS, "a fetch is open")


def bytes_for(pair: Pair, length: int) -> float:
    before = pair.prefiller.metric("kv_messenger_sent_bytes_total")
    words_of(serial(pair.prefiller, pair.decoder, random_prompt(length, 502), 1))
    pair.is_at_rest()
    return pair.prefiller.metric("kv_messenger_sent_bytes_total") - before
