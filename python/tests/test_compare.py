"""``kv-messenger compare``: a pair and its decoder are two HTTP servers that answer as engines do."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kv_connector.cli.compare import PAGE_TOKENS, Answer, default_lengths, differ, is_same
from kv_connector.cli.main import main

LONGEST = 1024
Choice = Callable[[list[int], int], tuple[str, dict[str, float]]]
"""Of a prompt and the index of the token: the token, and the first choices with their log-probabilities."""


def right(prompt: list[int], index: int) -> tuple[str, dict[str, float]]:
    token = f"t{(sum(prompt) + index) % 97}"
    return token, {token: -0.1, "other": -2.5}


def wrong_from(length: int) -> Choice:
    def choose(prompt: list[int], index: int) -> tuple[str, dict[str, float]]:
        return right(prompt if len(prompt) < length else [*prompt, 1], index)

    return choose


def less_sure(prompt: list[int], index: int) -> tuple[str, dict[str, float]]:
    token, _places = right(prompt, index)
    return token, {token: -1.1, "other": -2.5}


def near_tie(prompt: list[int], index: int) -> tuple[str, dict[str, float]]:
    token, _places = right(prompt, index)
    return token, {token: math.log(0.42), "other": math.log(0.41)}


def near_tie_the_other_way(prompt: list[int], index: int) -> tuple[str, dict[str, float]]:
    if index != 3:
        return near_tie(prompt, index)
    return "other", {"other": math.log(0.42), right(prompt, index)[0]: math.log(0.41)}


class Engine:
    """An API server that remembers what it was asked."""

    def __init__(self, choose: Choice, fails_from: int = LONGEST) -> None:
        self.choose = choose
        self.fails_from = fails_from
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "served", "max_model_len": LONGEST}]}
        self.asked.append(body)
        prompt = body["prompt"]
        if len(prompt) >= self.fails_from:
            return 500, {"error": "the KV did not come"}
        chosen = [self.choose(prompt, index) for index in range(body["max_tokens"])]
        tokens = [token for token, _places in chosen]
        places = [places for _token, places in chosen]
        logprobs = {
            "tokens": tokens,
            "token_logprobs": [at[token] for token, at in chosen],
            "top_logprobs": places,
        }
        return 200, {"choices": [{"text": "".join(tokens), "logprobs": logprobs}]}


@contextmanager
def served(engine: Engine) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.reply(200, b'vllm:cache_config_info{block_size="32",engine="0"} 1.0\n')
            else:
                self.reply_json(*engine.answer(self.path, {}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply_json(*engine.answer(self.path, body))

        def reply_json(self, status: int, answer: dict[str, Any]) -> None:
            self.reply(status, json.dumps(answer).encode())

        def reply(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def compared(pair: Engine, decoder: Engine, *more: str) -> int:
    with served(pair) as router_url, served(decoder) as decoder_url:
        return main(["compare", router_url, decoder_url, *more])


def test_should_find_equal_sides_the_same_at_every_length(capsys: pytest.CaptureFixture[str]) -> None:
    pair, decoder = Engine(right), Engine(right)
    assert compared(pair, decoder) == 0
    lengths = [len(asked["prompt"]) for asked in pair.asked]
    assert lengths == list(default_lengths(32, LONGEST - 8)), "the decoder's metrics page names its pages"
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(lengths)} of {len(lengths)} lengths: same"


def test_should_have_the_decoder_compute_what_was_transferred_to_it() -> None:
    pair, decoder = Engine(right), Engine(right)
    assert compared(pair, decoder, "--lengths", "20,300") == 0
    salts = [asked["cache_salt"] for asked in decoder.asked]
    assert len(set(salts)) == len(salts) == 2, "a hit in its cache would compare the pair with itself"
    assert all("cache_salt" not in asked for asked in pair.asked)
    assert [asked["prompt"] for asked in pair.asked] == [asked["prompt"] for asked in decoder.asked]


def test_should_ask_new_prompts_each_time() -> None:
    pair, decoder = Engine(right), Engine(right)
    for _again in range(2):
        compared(pair, decoder, "--lengths", "40")
    first, second = (asked["prompt"] for asked in pair.asked)
    assert first != second, "a prompt that both sides have in their caches shows nothing"


@pytest.mark.parametrize("first_wrong", [2, 31, 32, 33, 257, 513])
def test_should_name_the_first_length_that_differs(capsys: pytest.CaptureFixture[str], first_wrong: int) -> None:
    assert compared(Engine(wrong_from(first_wrong)), Engine(right), "--lengths", "1,2,31,32,33,257,513") == 1
    assert f"the first that differs has {first_wrong} tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first_other", "sentence"),
    [(0, "number 1 of the answer on."), (5, "number 6 of the answer on; before it log-probabilities differ by 0.")],
)
def test_should_say_from_which_token_on_answers_differ(
    capsys: pytest.CaptureFixture[str], first_other: int, sentence: str
) -> None:
    def parts(prompt: list[int], index: int) -> tuple[str, dict[str, float]]:
        return right([*prompt, 1] if index >= first_other else prompt, index)

    assert compared(Engine(parts), Engine(right), "--lengths", "20") == 1
    assert f"has 20 tokens: other tokens from {sentence}" in capsys.readouterr().out


def test_should_find_other_probabilities_of_the_same_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(Engine(less_sure), Engine(right), "--lengths", "20") == 1
    assert "same tokens, log-probabilities differ by 1" in capsys.readouterr().out
    assert compared(Engine(less_sure), Engine(right), "--lengths", "20", "--tolerance", "1.5") == 0


def test_should_let_two_equally_probable_tokens_change_places() -> None:
    assert compared(Engine(near_tie_the_other_way), Engine(near_tie), "--lengths", "20") == 0


def test_should_count_a_request_that_the_pair_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(Engine(right, fails_from=200), Engine(right), "--lengths", "20,200") == 1
    assert "the pair does not answer" in capsys.readouterr().out


@pytest.mark.parametrize("wrong_from_tokens", [20, 30, LONGEST])
@pytest.mark.parametrize("fails_from", [20, 30, LONGEST])
def test_should_say_of_no_length_that_it_was_compared_if_the_pair_fails_it(
    capsys: pytest.CaptureFixture[str], wrong_from_tokens: int, fails_from: int
) -> None:
    """Of several faults the one that shows what the sides compute is named."""
    compared(Engine(wrong_from(wrong_from_tokens), fails_from), Engine(right), "--lengths", "20,30")
    last = capsys.readouterr().out.splitlines()[-1]
    differs, fails = wrong_from_tokens < min(fails_from, LONGEST), fails_from < LONGEST
    assert ("compute different things" in last) == differs, last
    assert ("Nothing was compared" in last) == (fails and not differs), last


def test_should_say_which_server_cannot_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with served(Engine(right)) as decoder_url:
        assert main(["compare", "http://127.0.0.1:1", decoder_url, "--lengths", "20"]) == 1
    assert "http://127.0.0.1:1/v1/completions cannot be asked" in capsys.readouterr().out
    assert main(["compare", "http://127.0.0.1:1", "http://127.0.0.1:1"]) == 2
    assert main(["compare", "http://127.0.0.1:1", "127.0.0.1:8200"]) == 2
    assert "expected one such as http://" in capsys.readouterr().out


@pytest.mark.parametrize("lengths", ["0", "20,1017", "x", "20,,30", "-1", "1.5"])
def test_should_refuse_lengths_that_no_prompt_can_have(lengths: str) -> None:
    with pytest.raises(SystemExit) if not all(part.isdecimal() for part in lengths.split(",")) else no_exit() as ended:
        assert compared(Engine(right), Engine(right), f"--lengths={lengths}") == 2
    assert ended is None or ended.value.code == 2


@contextmanager
def no_exit() -> Iterator[None]:
    yield None


OTHER_SERVERS: tuple[Any, ...] = (
    {},
    {"data": None},
    {"data": {"id": "served"}},
    {"data": [{}]},
    {"data": ["served"]},
    {"data": []},
    {"data": [{"id": "served", "max_model_len": "long"}]},
    {"data": [{"id": "served", "max_model_len": 9}]},
)


@pytest.mark.parametrize("models", OTHER_SERVERS)
def test_should_not_call_sides_equal_or_different_that_it_could_not_ask(
    models: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    class Other(Engine):
        def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            return (200, models) if path == "/v1/models" else super().answer(path, body)

    assert compared(Engine(right), Other(right)) == 2
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "expected " in printed


def test_should_not_call_sides_equal_whose_answers_have_no_second_choice(capsys: pytest.CaptureFixture[str]) -> None:
    def without(_prompt: list[int], _index: int) -> tuple[str, dict[str, float]]:
        return "t", {"t": -0.1}

    class Other(Engine):
        def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            status, answer = super().answer(path, body)
            for choice in answer.get("choices", ()):
                choice["logprobs"]["top_logprobs"] = [{}] * body["max_tokens"]
            return status, answer

    assert compared(Other(without), Engine(right), "--lengths", "20") == 2
    assert "expected those of a completion" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--limit-seconds", "--tolerance", "--answer-tokens"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e300", "", "x", "9" * 5000, "\u00b2"])
def test_should_refuse_numbers_that_would_wait_for_ever_or_judge_nothing(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [["compare", "http://127.0.0.1:1", "http://127.0.0.1:1"]]
    if option == "--limit-seconds":
        commands += [[name, "--metrics", "127.0.0.1:1"] for name in ("wait-idle", "drain")]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([*command, f"{option}={value}"])
        assert ended.value.code == 2
        printed = capsys.readouterr().err
        assert option in printed
        assert "expected a" in printed


def test_should_name_the_models_that_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(Engine(right), Engine(right), "--model", "another") == 2
    assert "expected one that the decoder serves: served" in capsys.readouterr().out


def test_should_go_past_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert compared(Engine(right), Engine(right), "--lengths", "20") == 0


def test_lengths_lie_on_both_sides_of_every_border() -> None:
    lengths = default_lengths(PAGE_TOKENS, 10_000)
    for border in (PAGE_TOKENS, 8 * PAGE_TOKENS, 512, 2048, 8192):
        assert {border - 1, border, border + 1} <= set(lengths)
    assert default_lengths(PAGE_TOKENS, 40) == (2, 15, 16, 17, 33, 40)


def test_an_answer_that_ends_early_differs() -> None:
    whole = Answer(("a", "b"), (-0.1, -0.1), (2.0, 2.0))
    cut = Answer(("a",), (-0.1,), (2.0,))
    assert not is_same(differ(cut, whole, 0.25), 0.25)
    assert is_same(differ(whole, whole, 0.0), 0.0)
