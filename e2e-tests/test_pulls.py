"""Prompts whose beginning is taken from the engine that a request names: real servers, each of which may hold it."""

from __future__ import annotations

import random
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from bed import PREFILL_LEG, REST_LIMIT_SECONDS, Side, decode_leg, messenger, send_decode, start_messengers
from conftest import ROOT
from kv_connector.runtime.plain_http import ask
from prompts import random_prompt
from pulls_bed import (
    ANSWER_TOKENS,
    EXTRA,
    OPTIONS,
    PAGE_TOKENS,
    Engines,
    Tokens,
    source_of,
    streamed_words,
    whole_pages,
)
from server_process import LOOPBACK, Server, complete, free_port, greedy_completion, start_all, words_of

PREFILLERS: Final = (0, 1)
DECODER: Final = 2
NAMES: Final = ("pulls-prefiller-a", "pulls-prefiller-b", "pulls-decoder")
NAMING: Final = {**EXTRA, "answers_name_source": True}
SEQUENCES_MAX: Final = 4
TURNS: Final = 5
FIRST_TOKENS: Final = 150
NEW_TOKENS: Final = 45
"""Neither is a whole number of pages, and no turn's end is."""


@pytest.fixture(scope="module")
def engines(model: Path, run_folder: Path) -> Iterator[Engines]:
    options = {**OPTIONS, "sequences_max": SEQUENCES_MAX}
    with ExitStack() as stack:
        servers = [
            messenger(Side(name, "kv_both", index % 2, extra=NAMING, options=options), model, run_folder)
            for index, name in enumerate(NAMES)
        ]
        start_messengers(stack, servers)
        made = Engines(servers)
        made.prove_all()
        for prefiller in PREFILLERS:
            made.prove_all(fetching=(prefiller, DECODER))
        yield made


def turn(engines: Engines, prefiller: int, prompt: str, source: int | None) -> list[str]:
    """A prompt that the prefiller sends to the decoder, after it has pulled from the source what that one holds."""
    request = f"turn-{uuid.uuid4()}"
    first, decoder = engines.servers[prefiller], engines.servers[DECODER]
    leg = dict(PREFILL_LEG) | ({} if source is None else source_of(engines.servers[source]))
    complete(first.server, prompt, 1, leg, {"X-Request-Id": request})
    return words_of(send_decode(decoder, prompt, ANSWER_TOKENS, decode_leg(first, request), request))


@pytest.mark.parametrize("seed", range(3))
def test_conversations_go_on_at_any_prefiller(engines: Engines, seed: int) -> None:
    """The prefiller computes only what no engine holds, and the decoder gets only pages that it lacks."""
    order = random.Random(seed)
    prompt, at_prefillers = engines.prompt(FIRST_TOKENS), [0, 0]
    known = 0  # tokens of the conversation whose KV the decoder has: all but its last answer's last token
    for index in range(TURNS):
        prefiller = order.choice(PREFILLERS)
        tokens = len(prompt.split())
        before = [Tokens.of(server) for server in engines.servers]
        answer = turn(engines, prefiller, prompt, DECODER if index else None)
        of_prefiller, of_decoder = (
            Tokens.of(engines.servers[each]).since(before[each]) for each in (prefiller, DECODER)
        )
        assert answer == engines.alone(prompt), f"turn {index} at {NAMES[prefiller]}"
        held = whole_pages(known)
        assert of_prefiller.computed == tokens - max(held, at_prefillers[prefiller]), f"turn {index}"
        assert of_prefiller.moved == max(0, held - at_prefillers[prefiller]), f"turn {index}"
        assert of_decoder.moved == tokens - held, f"turn {index}"
        at_prefillers[prefiller] = whole_pages(tokens)
        known = tokens + ANSWER_TOKENS - 1
        prompt = f"{prompt} {' '.join(answer)} {engines.prompt(NEW_TOKENS)}"
    engines.are_at_rest()


def test_answers_name_the_engine_whose_cache_has_the_conversation(engines: Engines) -> None:
    """What an answer has is passed on unchanged, to another engine and to the same one, which asks none."""
    named, prompt, request = engines.servers[DECODER], engines.prompt(FIRST_TOKENS), f"named-{uuid.uuid4()}"
    leg = complete(engines.servers[0].server, prompt, 1, PREFILL_LEG, {"X-Request-Id": request})["kv_transfer_params"]
    assert leg["remote_kv_source"] == source_of(engines.servers[0])["remote_kv_source"]
    answer = complete(named.server, prompt, ANSWER_TOKENS, leg, {"X-Request-Id": request})
    assert answer["kv_transfer_params"] == source_of(named)
    continued = f"{prompt} {' '.join(words_of(answer))} {engines.prompt(NEW_TOKENS)}"
    held, right = whole_pages(FIRST_TOKENS + ANSWER_TOKENS - 1), engines.alone(continued)
    asked = named.metric("kv_messenger_asks_answered_total")
    for at, moved in ((1, held), (DECODER, 0)):
        before = Tokens.of(engines.servers[at])
        again = complete(engines.servers[at].server, continued, ANSWER_TOKENS, answer["kv_transfer_params"])
        assert words_of(again) == right
        assert again["kv_transfer_params"] == source_of(engines.servers[at])
        assert Tokens.of(engines.servers[at]).since(before).moved == moved
    assert named.metric("kv_messenger_asks_answered_total") == asked
    engines.are_at_rest()


@pytest.mark.parametrize("streamed", [False, True])
def test_proxy_keeps_conversations(engines: Engines, run_folder: Path, stack: ExitStack, streamed: bool) -> None:
    """With its name a conversation is pulled from the decoder that answered last, by whichever prefiller comes next.

    An answer names its engine, but for a streamed one: then the proxy's configuration does.
    """
    port, decoder = free_port(), engines.servers[DECODER]
    command = [*(sys.executable, str(ROOT / "examples" / "conversation_proxy.py"), "--port", str(port))]
    for prefiller in PREFILLERS:
        command += ["--prefiller", engines.servers[prefiller].server.url]
    address = f"={decoder.control_host()}:{decoder.control_port}" if streamed else ""
    command += ["--decoder", f"{decoder.server.url}{address}"]
    front = Server("conversation-proxy", command, port, run_folder)
    stack.callback(front.stop)
    start_all([front], print)
    for name in ({}, {"X-Session-ID": str(uuid.uuid4())}):
        prompt, moved = engines.prompt(FIRST_TOKENS), []
        for _ in range(3):
            before = [Tokens.of(engines.servers[prefiller]) for prefiller in PREFILLERS]
            answer = (
                streamed_words(front, greedy_completion(prompt, ANSWER_TOKENS), name)
                if streamed
                else unstreamed_words(front, prompt, name)
            )
            assert answer == engines.alone(prompt)
            after = [Tokens.of(engines.servers[prefiller]) for prefiller in PREFILLERS]
            moved.append(sum(now.since(was).moved for now, was in zip(after, before, strict=True)))
            prompt = f"{prompt} {' '.join(answer)} {engines.prompt(NEW_TOKENS)}"
        assert moved[0] == 0
        assert all(moved[1:]) == bool(name), moved
    engines.are_at_rest()


def unstreamed_words(front: Server, prompt: str, headers: Mapping[str, str]) -> list[str]:
    answer = complete(front, prompt, ANSWER_TOKENS, headers=headers)
    assert "kv_transfer_params" not in answer, "no client needs the addresses of engines"
    return words_of(answer)


def test_a_history_that_was_edited_is_pulled_up_to_the_edit(engines: Engines) -> None:
    """At every page's boundary and one token beside; what the asker caches then is right for every prompt."""
    pages = 3
    for place in sorted({page * PAGE_TOKENS + beside for page in range(pages + 1) for beside in (-1, 0, 1)}):
        if not 0 <= place < pages * PAGE_TOKENS:
            continue
        words = engines.prompt(pages * PAGE_TOKENS).split()
        engines.ask(DECODER, " ".join(words))
        new = engines.prompt(20)
        edited = [*words[:place], next(iter({"w1", "w2"} - {words[place]})), *words[place + 1 :]]
        assert engines.pulled(0, f"{' '.join(edited)} {new}", DECODER) == whole_pages(place), place
        for again in (words, edited):
            prompt = f"{' '.join(again)} {new}"
            assert engines.ask(0, prompt) == engines.alone(prompt), place
    engines.are_at_rest()


@pytest.mark.parametrize("tokens", [PAGE_TOKENS - 1, PAGE_TOKENS, PAGE_TOKENS + 1, 2 * PAGE_TOKENS, 257])
@pytest.mark.parametrize("beyond", [0, 1, PAGE_TOKENS])
def test_lengths_at_the_end_of_pages(engines: Engines, tokens: int, beyond: int) -> None:
    history = engines.prompt(tokens)
    engines.ask(DECODER, history)
    prompt = f"{history} {engines.prompt(beyond)}".strip() if beyond else history
    held = min(whole_pages(tokens), whole_pages(tokens + beyond - 1))
    assert engines.pulled(1, prompt, DECODER) == held
    engines.are_at_rest()


def test_a_drained_engine_hands_over(engines: Engines) -> None:
    """It gets no new requests, and other engines pull from it; the command ends after the last of them."""
    page = f"{LOOPBACK}:{engines.servers[DECODER].metrics_ports[0]}"
    history = engines.prompt(100)
    engines.ask(DECODER, history)
    drain = ["drain", "--metrics", page, "--limit-seconds", str(REST_LIMIT_SECONDS)]
    command([*drain, "--hand-over", "0"])
    try:
        assert ask("GET", f"http://{page}/ready", limit_seconds=REST_LIMIT_SECONDS).status == 503
        for prefiller in PREFILLERS:
            assert engines.pulled(prefiller, f"{history} {engines.prompt(10)}", DECODER) == whole_pages(100)
        command([*drain, "--hand-over", "1"])
    finally:
        command(["undrain", "--metrics", page])
    assert ask("GET", f"http://{page}/ready", limit_seconds=REST_LIMIT_SECONDS).status == 200
    engines.are_at_rest()


def command(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "kv_connector", *arguments], check=True, timeout=REST_LIMIT_SECONDS)


def test_salts_keep_histories_apart(engines: Engines) -> None:
    history, salt = engines.prompt(100), str(uuid.uuid4())
    engines.ask(DECODER, history, cache_salt=salt)
    prompt = f"{history} {engines.prompt(10)}"
    assert engines.pulled(0, prompt, DECODER) == 0
    assert engines.pulled(0, prompt, DECODER, cache_salt=str(uuid.uuid4())) == 0
    assert engines.pulled(0, prompt, DECODER, cache_salt=salt) == whole_pages(100)
    engines.are_at_rest()


def test_an_empty_cache_offers_nothing(engines: Engines) -> None:
    history = engines.prompt(100)
    engines.ask(DECODER, history)
    assert "error" not in engines.servers[DECODER].server.post("/reset_prefix_cache", {})
    assert engines.pulled(0, f"{history} {engines.prompt(10)}", DECODER) == 0
    engines.are_at_rest()


def test_full_engine_offers_what_it_holds(engines: Engines) -> None:
    """The answer does not wait for the end of any request that runs at the source."""
    history, server = engines.prompt(100), engines.servers[DECODER].server
    engines.ask(DECODER, history)
    running = "vllm:num_requests_running"
    with ThreadPoolExecutor(SEQUENCES_MAX) as clients:
        long = [clients.submit(complete, server, random_prompt(9, 70 + each), 1500) for each in range(SEQUENCES_MAX)]
        while server.metric(running) < SEQUENCES_MAX:
            assert not any(each.done() for each in long)
        prompt = f"{history} {engines.prompt(10)}"
        before = Tokens.of(engines.servers[0])
        answer = engines.ask(0, prompt, DECODER)
        assert Tokens.of(engines.servers[0]).since(before).moved == whole_pages(100)
        assert not any(each.done() for each in long), "the pull may have waited for a request's end"
        for each in long:
            each.result()
        assert answer == engines.alone(prompt)
    engines.are_at_rest()


HINTS: Final[tuple[object, ...]] = (
    {"remote_host": "127.0.0.1", "remote_port": 1},
    {"remote_host": "127.0.0.1"},
    {"remote_host": 7, "remote_port": 7},
    {"remote_host": "127.0.0.1", "remote_port": "1"},
    {"remote_host": "127.0.0.1:1,127.0.0.1:2", "remote_port": 0},
    {},
    [],
    "x" * 5000,
    -1,
)


@pytest.mark.parametrize("hint", HINTS, ids=range(len(HINTS)))
def test_whatever_a_hint_is_the_prompt_is_computed(engines: Engines, hint: object) -> None:
    prompt = engines.prompt(70)
    right = engines.alone(prompt)
    assert engines.ask(0, prompt, kv_transfer_params={"remote_kv_source": hint}) == right
    engines.are_at_rest()
