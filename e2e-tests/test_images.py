"""A model that reads images, on a pair: tokens are those of one engine by itself, and equal pixels are one prompt.

That engine is the prefiller, asked without a transfer and with a salt, so that it finds nothing of the transfers in its
cache.
"""

from __future__ import annotations

import base64
import io
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from bed import PREFILL_LEG, Messenger, decode_leg, decoder, messenger, prefiller, prove, start_messengers
from make_image_model import PATCH_PIXELS, SQUARE_PIXELS, cached_image_model
from prompts import cache_home, random_prompt
from server_process import greedy_completion

PAGE_TOKENS: Final = 32
CHUNK_TOKENS: Final = 300
ANSWER_TOKENS: Final = 8
SMALL: Final = (3 * SQUARE_PIXELS, 2 * SQUARE_PIXELS)
"""Six tokens."""
LARGE: Final = (8 * SQUARE_PIXELS, 7 * SQUARE_PIXELS)
"""56 tokens, more than a page."""
AROUND_PAGES: Final = (1, 7, 15, 16, 17, 22, 23, 24, 25, 31, 32, 33, 57, 120)
"""Words before an image, so that it begins and ends at each side of a page's end."""

Part = dict[str, Any]


def image(seed: int, size: tuple[int, int] = SMALL) -> Part:
    from PIL import Image

    draw = random.Random(seed)
    drawn = Image.new("RGB", size)
    drawn.putdata([(draw.randrange(256), draw.randrange(256), draw.randrange(256)) for _ in range(size[0] * size[1])])
    png = io.BytesIO()
    drawn.save(png, "PNG")
    url = "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def text(tokens: int) -> Part:
    return {"type": "text", "text": random_prompt(tokens, 1)}


def messages() -> Iterator[list[Part]]:
    for before in AROUND_PAGES:
        yield [text(before), image(3), text(before)]
    for first, second in ((1, 2), (2, 1), (1, 1)):
        yield [text(40), image(first), image(second), text(9)]
    yield [text(40), image(1, LARGE), text(9)]
    yield [text(40), image(1)]
    yield [image(1)]
    yield [text(100)]
    yield [text(30), image(5, LARGE), image(6, LARGE), text(30), image(7), text(33)]


@dataclass(frozen=True)
class Pair:
    prefiller: Messenger
    decoder: Messenger

    def alone(self, parts: list[Part]) -> list[str]:
        return self._ask(self.prefiller, parts, str(uuid.uuid4()), cache_salt=uuid.uuid4().hex)

    def serial(self, parts: list[Part]) -> list[str]:
        request = f"serial-{uuid.uuid4()}"
        self._ask(self.prefiller, parts, request, max_tokens=1, kv_transfer_params=PREFILL_LEG)
        return self._ask(self.decoder, parts, request, kv_transfer_params=decode_leg(self.prefiller, request))

    def together(self, parts: list[Part]) -> list[str]:
        request = f"together-{uuid.uuid4()}"
        with ThreadPoolExecutor(1) as other:
            leg = other.submit(self._ask, self.prefiller, parts, request, max_tokens=1, kv_transfer_params=PREFILL_LEG)
            answer = self._ask(self.decoder, parts, request, kv_transfer_params=decode_leg(self.prefiller, request))
            leg.result()
            return answer

    def _ask(self, side: Messenger, parts: list[Part], request: str, **changes: object) -> list[str]:
        body = {**greedy_completion("", ANSWER_TOKENS), "messages": [{"role": "user", "content": parts}], **changes}
        del body["prompt"]
        answer = side.server.post("/v1/chat/completions", body, {"X-Request-Id": request})
        if "choices" not in answer:
            raise AssertionError(f"the request failed: {answer}")
        content: str = answer["choices"][0]["message"]["content"]
        return content.split()

    def is_at_rest(self) -> None:
        self.prefiller.wait_at_rest()
        self.decoder.wait_at_rest()


@pytest.fixture(scope="module")
def pair(run_folder: Path) -> Iterator[Pair]:
    model = cached_image_model(cache_home())
    arguments = (
        *("--max-num-batched-tokens", str(CHUNK_TOKENS), "--chat-template-content-format", "openai"),
        *("--limit-mm-per-prompt", '{"image": 4, "video": 0}'),
    )
    options = {"page_tokens": PAGE_TOKENS, "arguments": arguments}
    with ExitStack() as stack:
        source = messenger(prefiller("prefiller-images", options=options), model, run_folder)
        target = messenger(decoder("decoder-images", options=options), model, run_folder)
        start_messengers(stack, [source, target])
        prove(source, target)
        yield Pair(source, target)


def test_tokens_are_those_of_one_engine(pair: Pair) -> None:
    before = pair.decoder.metric("kv_messenger_fetches_arrived_total")
    answers = []
    for index, parts in enumerate(messages()):
        expected = pair.alone(parts)
        way = pair.serial if index % 2 else pair.together
        assert way(parts) == expected, f"message {index}"
        answers.append(expected)
    assert pair.decoder.metric("kv_messenger_fetches_arrived_total") - before == len(answers)
    assert len({tuple(answer) for answer in answers}) > len(answers) // 2, "an image shows in the tokens"
    pair.is_at_rest()


def test_messages_at_once_have_right_answers(pair: Pair) -> None:
    asked = list(messages())[-8:]
    with ThreadPoolExecutor(len(asked)) as clients:
        answers = list(clients.map(pair.together, asked))
    assert answers == [pair.alone(parts) for parts in asked]
    pair.is_at_rest()


def test_a_decoder_does_not_take_another_images_kv(pair: Pair) -> None:
    """Both legs have one request's name, and texts that are equal."""
    request = f"other-{uuid.uuid4()}"
    sent, wanted = ([text(40), image(seed), text(20)] for seed in (8, 9))
    pair._ask(pair.prefiller, sent, request, max_tokens=1, kv_transfer_params=PREFILL_LEG)
    before = pair.decoder.metric("kv_messenger_fetches_arrived_total")
    with pytest.raises(AssertionError, match="the request failed"):
        pair._ask(pair.decoder, wanted, request, kv_transfer_params=decode_leg(pair.prefiller, request))
    assert pair.decoder.metric("kv_messenger_fetches_arrived_total") == before
    assert pair.serial(wanted) == pair.alone(wanted)


def sized(name: str) -> Part:
    """The place of a small image that only the prefiller is sent, under the same name."""
    import torch

    grid = torch.tensor([1, SMALL[1] // PATCH_PIXELS, SMALL[0] // PATCH_PIXELS])
    file = io.BytesIO()
    torch.save(grid, file)
    return {
        "type": "image_embeds",
        "image_embeds": {"image_grid_thw": base64.b64encode(file.getvalue()).decode()},
        "uuid": name,
    }


@pytest.mark.parametrize("images", [1, 2])
def test_a_decoder_answers_about_images_that_it_is_not_sent(pair: Pair, images: int) -> None:
    names = [f"{uuid.uuid4()}" for _ in range(images)]
    sent = [part for at, name in enumerate(names) for part in (text(40), {**image(40 + at), "uuid": name})]
    named = [part for name in names for part in (text(40), sized(name))]
    plain = [part for at in range(images) for part in (text(40), image(40 + at))]
    request = f"not-sent-{uuid.uuid4()}"
    pair._ask(pair.prefiller, [*sent, text(9)], request, max_tokens=1, kv_transfer_params=PREFILL_LEG)
    leg = decode_leg(pair.prefiller, request)
    answer = pair._ask(pair.decoder, [*named, text(9)], request, kv_transfer_params=leg)
    assert answer == pair.alone([*plain, text(9)])


@pytest.mark.parametrize("asked", ["no prefiller", "the prompt's log-probabilities"])
def test_a_decoder_refuses_an_image_that_it_would_have_to_compute_and_is_not_sent(pair: Pair, asked: str) -> None:
    """vLLM's worker would look for the content, and end the engine."""
    request, name = f"refused-{uuid.uuid4()}", f"{uuid.uuid4()}"
    more: dict[str, object] = {}
    if asked != "no prefiller":
        sent = [text(40), {**image(50), "uuid": name}, text(9)]
        pair._ask(pair.prefiller, sent, request, max_tokens=1, kv_transfer_params=PREFILL_LEG)
        more = {"prompt_logprobs": 1, "kv_transfer_params": decode_leg(pair.prefiller, request)}
    with pytest.raises(AssertionError, match="the request failed"):
        pair._ask(pair.decoder, [text(40), sized(name), text(9)], request, **more)
    refused = "without its content, which this engine would have to compute"
    assert [line for line in pair.decoder.server.log().splitlines() if request in line and refused in line]
    assert pair.serial([text(30), image(51)]) == pair.alone([text(30), image(51)])
    pair.is_at_rest()
