"""Compares answers of a pair with those of its decoder alone: the same tokens, with the same probabilities.

A prompt of each length goes through the router first, so that its KV is computed by a prefiller and transferred, and
then to the decoder alone under another ``cache_salt``, so that the decoder computes what it may have in its cache.
"""

from __future__ import annotations

import json
import math
import random
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kv_connector.cli.engine_http import ask_json, ask_text, require_address
from kv_connector.configuration.engine_keys import NO_KEYS, EngineKeys, keys_in
from kv_connector.exceptions import OptionError
from kv_connector.runtime.plain_http import shortened

TOKEN_IDS = range(16, 250)
"""Ordinary tokens, or bytes, in the vocabulary of every model that is served; special tokens lie outside."""
SHORT_TOKENS = (2, 33)
PASS_TOKENS = (512, 2048, 8192)
"""Common values of ``--max-num-batched-tokens`` and ``--chunked-prefill-size``."""
PAGE_TOKENS = 16
"""Of an engine whose metrics page does not name it; multiples of it are borders of larger pages too."""
PAGES = (1, 8, 16)
"""A prompt ends around these numbers of whole pages."""
UNANSWERED = "the pair does not answer"
"""How the description of a length begins of which nothing could be compared."""


@dataclass(frozen=True)
class Comparison:
    """What is asked: `lengths` in tokens, none for the default; `tolerance` is of a natural logarithm."""

    router: str
    decoder: str
    model: str = ""
    lengths: tuple[int, ...] = ()
    answer_tokens: int = 8
    tolerance: float = 0.25
    seed: int | None = None
    limit_seconds: float = 300.0
    keys: EngineKeys = NO_KEYS
    """Of both servers; :func:`run` reads the environment's."""


@dataclass(frozen=True)
class Answer:
    """The tokens of an answer, the logarithm of each one's probability, and the distance to the second choice."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    leads: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """How two answers to one prompt differ. `tie`: only because two tokens were about equally probable."""

    same_tokens: bool
    tie: bool
    logprob: float
    """The largest difference over the tokens that both have before they part."""
    alike: int
    """How many tokens that is."""

    def described(self) -> str:
        """For the line that names a length."""
        if self.same_tokens:
            return f"same tokens, log-probabilities differ by {self.logprob:.3g}"
        before = f"; before it log-probabilities differ by {self.logprob:.3g}" if self.alike else ""
        return f"other tokens from number {self.alike + 1} of the answer on{before}"


def differ(pair: Answer, alone: Answer, tolerance: float) -> Difference:
    """Compares token by token, up to the first that differs."""
    largest = 0.0
    for index, (token, expected) in enumerate(zip(pair.tokens, alone.tokens, strict=False)):
        if token != expected:
            tie = max(pair.leads[index], alone.leads[index]) <= tolerance
            return Difference(same_tokens=False, tie=tie, logprob=largest, alike=index)
        largest = max(largest, abs(pair.logprobs[index] - alone.logprobs[index]))
    common = min(len(pair.tokens), len(alone.tokens))
    return Difference(len(pair.tokens) == len(alone.tokens), tie=False, logprob=largest, alike=common)


def is_same(difference: Difference, tolerance: float) -> bool:
    """Whether the two sides compute the same: tokens that differ by more than a tie, or probabilities, do not."""
    return (difference.same_tokens or difference.tie) and difference.logprob <= tolerance


def default_lengths(page_tokens: int, prompt_tokens_max: int) -> tuple[int, ...]:
    """Lengths around the borders of pages and of forward passes, and the longest; sorted, in tokens."""
    borders = [*(pages * page_tokens for pages in PAGES), *PASS_TOKENS]
    around = [length for border in borders for length in (border - 1, border, border + 1)]
    wanted = {*SHORT_TOKENS, *around, min(prompt_tokens_max, max(PASS_TOKENS) + 1)}
    return tuple(sorted(length for length in wanted if 2 <= length <= prompt_tokens_max))


def run(asked: Comparison, say: Callable[[str], object]) -> int:
    """Prints a line for each length; returns 0 if all are the same, 1 if one differs, 2 if a server cannot be asked."""
    try:
        asked = replace(asked, keys=keys_in())
        for url in (asked.router, asked.decoder):
            require_address(url)
        model, longest = served_model(asked)
        lengths = asked.lengths or default_lengths(page_tokens_of(asked), longest - asked.answer_tokens)
        too_long = [length for length in lengths if not 1 <= length <= longest - asked.answer_tokens]
        if not lengths:
            say(
                f"--answer-tokens is {asked.answer_tokens}, expected at most {longest - SHORT_TOKENS[0]}: the decoder's"
                f" max_model_len is {longest}, and a prompt needs {SHORT_TOKENS[0]}\n"
            )
            return 2
        if too_long:
            say(
                f"--lengths has {too_long[0]}, expected 1 to {longest - asked.answer_tokens}:"
                f" the decoder's max_model_len is {longest}, and the answer needs {asked.answer_tokens}\n"
            )
            return 2
        draws = random.Random(secrets.randbits(64) if asked.seed is None else asked.seed)
        say("prompt tokens   same tokens   largest difference of log-probability\n")
        return judged(compare_each(asked, model, lengths, draws, say), len(lengths), say)
    except (OSError, ValueError, OptionError) as failure:
        say(f"{failure}\n")
        return 2


def compare_each(
    asked: Comparison, model: str, lengths: Sequence[int], draws: random.Random, say: Callable[[str], object]
) -> Iterable[tuple[int, str]]:
    """For each length that differs, the length and how; the pair is asked first, see the module's docstring."""
    for length in lengths:
        prompt = draws.choices(TOKEN_IDS, k=length)
        alone_salt = f"kv-messenger-compare-{draws.getrandbits(64):x}"
        try:
            pair = answer_of(asked.router, asked, model, prompt, {})
        except OSError as failed:
            say(f"{length:13d}        failed   {failed}\n")
            yield length, f"{UNANSWERED} ({failed})"
            continue
        alone = answer_of(asked.decoder, asked, model, prompt, {"cache_salt": alone_salt})
        found = differ(pair, alone, asked.tolerance)
        word = "yes" if found.same_tokens else "tie" if found.tie else "NO"
        say(f"{length:13d}{word:>14}{found.logprob:40.6f}\n")
        if not is_same(found, asked.tolerance):
            yield length, found.described()


def judged(differing: Iterable[tuple[int, str]], count: int, say: Callable[[str], object]) -> int:
    """The last line and the status."""
    found = list(differing)
    if not found:
        say(f"{count} of {count} lengths: same\n")
        return 0
    length, how = next((each for each in found if not each[1].startswith(UNANSWERED)), found[0])
    if how.startswith(UNANSWERED):
        which, then = "has no answer", "Nothing was compared there: look at the logs of the router and of both engines"
    else:
        which = "differs"
        then = "The prefiller and the decoder compute different things: compare their options, and look at their logs"
    say(f"{count - len(found)} of {count} lengths: same; the first that {which} has {length} tokens: {how}. {then}\n")
    return 1


def served_model(asked: Comparison) -> tuple[str, int]:
    """The model's name and its longest sequence, from the decoder."""
    answered = ask_json(asked.decoder, "/v1/models", None, asked.limit_seconds, asked.keys)
    try:
        longest_of = {
            str(model["id"]): int(model.get("max_model_len") or max(PASS_TOKENS)) for model in answered["data"]
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as other:
        text = shortened(json.dumps(answered))
        raise ValueError(f"{asked.decoder}/v1/models answered {text}, expected an engine's list of models") from other
    if not longest_of:
        raise ValueError(f"{asked.decoder}/v1/models names no model, expected an engine's list of models")
    if asked.model not in ("", *longest_of):
        known = ", ".join(longest_of)
        raise ValueError(f"--model is {asked.model!r}, expected one that the decoder serves: {known}")
    name = asked.model or next(iter(longest_of))
    return name, longest_of[name]


def page_tokens_of(asked: Comparison) -> int:
    """From vLLM's metrics page; an engine without one, or another engine, has the default."""
    try:
        page = ask_text(asked.decoder, "/metrics", asked.limit_seconds, asked.keys)
    except OSError:
        return PAGE_TOKENS
    _, _, behind = page.partition('block_size="')
    size = behind.partition('"')[0]
    return int(size) if size.isdecimal() and int(size) > 0 else PAGE_TOKENS


def answer_of(url: str, asked: Comparison, model: str, prompt: list[int], more: dict[str, Any]) -> Answer:
    """A greedy answer to a prompt of token ids; raises OSError with the server's own words."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": asked.answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 2,
        **more,
    }
    answered = ask_json(url, "/v1/completions", body, asked.limit_seconds, asked.keys)
    try:
        spoken = answered["choices"][0]["logprobs"]
        chosen = tuple(float(value) for value in spoken["token_logprobs"])
        leads = tuple(lead_of(places) for places in spoken["top_logprobs"])
        tokens = tuple(str(token) for token in spoken["tokens"])
        if not tokens or not len(tokens) == len(chosen) == len(leads) or not all(map(math.isfinite, chosen)):
            raise ValueError("not one for each token")
        return Answer(tokens, chosen, leads)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as missing:
        text = shortened(json.dumps(answered))
        raise ValueError(
            f"{url} answered without log-probabilities, expected those of a completion: {text}"
        ) from missing


def lead_of(places: dict[str, float]) -> float:
    """How much more probable the first choice is than the second, as a difference of logarithms."""
    first, *others = sorted(map(float, places.values()), reverse=True)
    return first - others[0] if others else math.inf
