"""Commands that ask a server which is no messenger, hangs, closes or sends garbage: one sentence, a status."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kv_connector.cli import idle, protected_pages
from kv_connector.cli.compare import Answer, Comparison, answer_of
from kv_connector.cli.main import main
from kv_connector.runtime import plain_http

SHORT_SECONDS = 0.5
"""The limit of what is asked of a server that is wrong."""
LIMIT_SECONDS = 600.0
"""That of a server which answers: its thread may get no core for a while."""
WHOLE = "".join(f"{name} 0.0\n" for name in idle.AT_REST)
STATE = json.dumps({"peers": [], "fetches": []})

Send = Callable[[socket.socket], None]


def http(body: bytes, status: int = 200, length: int | None = None) -> Send:
    """An answer whose header may name another length."""
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode()
    return lambda end: end.sendall(head + body)


def slowly(begin: bytes, each: bytes) -> Send:
    """Sends something again and again, so that no single read waits long."""

    def send(end: socket.socket) -> None:
        end.sendall(begin)
        while True:
            end.sendall(each)
            time.sleep(SHORT_SECONDS / 10)

    return send


def hang(end: socket.socket) -> None:
    while end.recv(1 << 16):
        pass


SERVERS: dict[str, Send] = {
    "closes": lambda _end: None,
    "hangs": hang,
    "a byte at a time": slowly(b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    "a byte of a header at a time": slowly(b"HTTP/1.1 200 OK\r\nA: ", b"x"),
    "goes on and on": slowly(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "garbage": lambda end: end.sendall(random.Random(1).randbytes(5000)),
    "too short": http(WHOLE.encode()[:40], length=1000),
    "shorter than a page": http(WHOLE.encode().splitlines(keepends=True)[0]),
    "empty": http(b""),
    "another page": http(b"<html>hello</html>"),
    "beyond ASCII": http(b"\xff\xfe\xfd"),
    "deep JSON": http(b"[" * 100_000),
    "JSON": http(b'{"data": [], "status": "ok"}'),
    "a redirect": http(b"", status=302),
    "an error": http(b"<p>\x1b[31m" * 2000, status=500),
    "a refusal": http(b"", status=401),
}
COMMANDS = {
    "drain": lambda page, limit: ["drain", "--metrics", page, "--limit-seconds", limit],
    "undrain": lambda page, _: ["undrain", "--metrics", page],
    "wait-idle": lambda page, limit: ["wait-idle", "--metrics", page, "--limit-seconds", limit],
    "state": lambda page, _: ["state", "--metrics", page],
    "page-key": lambda page, _: ["page-key", "--metrics", page],
    "compare": lambda page, limit: ["compare", f"http://{page}", f"http://{page}", "--limit-seconds", limit],
}


def run(command: str, page: str, limit_seconds: float = LIMIT_SECONDS) -> int:
    return main(COMMANDS[command](page, str(limit_seconds)))


@contextlib.contextmanager
def serving(send: Send) -> Iterator[str]:
    """A server that reads a request and then does what it is told; its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(end: socket.socket) -> None:
        with end, contextlib.suppress(OSError):
            end.recv(1 << 16)
            send(end)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    set_page_limit(monkeypatch, LIMIT_SECONDS)
    monkeypatch.setattr(idle, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(protected_pages, "keys", lambda _page: ["a key"])


def set_page_limit(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(protected_pages, "PAGE_LIMIT_SECONDS", seconds)
    monkeypatch.setattr(idle, "PAGE_LIMIT_SECONDS", seconds)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("command", COMMANDS)
def test_should_end_with_one_sentence(
    server: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_page_limit(monkeypatch, SHORT_SECONDS)
    began = time.monotonic()
    with serving(SERVERS[server]) as page:
        status = run(command, page, SHORT_SECONDS)
    printed = capsys.readouterr()
    given = printed.out if command == "compare" else printed.err
    if command == "page-key" and status == 0:
        assert printed.out == "a key\n", "whatever is no refusal may be a messenger's"
        return
    assert status == (2 if command == "compare" else 1), printed
    assert time.monotonic() - began < 60 * SHORT_SECONDS
    assert page in given
    assert len(given.splitlines()) == 1, "one sentence"
    assert len(given) < 800
    assert given.replace("\n", "").isprintable()


def test_should_take_what_a_messenger_answers(capsys: pytest.CaptureFixture[str]) -> None:
    for command, body in (("undrain", "not draining: /ready says so\n"), ("state", STATE), ("wait-idle", WHOLE)):
        with serving(http(body.encode())) as page:
            assert run(command, page) == 0, command
    assert capsys.readouterr().out == f"{STATE}\n"


@pytest.mark.parametrize("missing", range(len(idle.AT_REST)))
def test_should_not_take_a_missing_gauge_for_zero(missing: int, capsys: pytest.CaptureFixture[str]) -> None:
    lines = WHOLE.splitlines(keepends=True)
    del lines[missing]
    with serving(http("".join(lines).encode())) as page:
        assert run("wait-idle", page) == 1
    assert idle.AT_REST[missing] in capsys.readouterr().err


PAGES = [f"127.0.0.1:{port}" for port in ("", "x", "0", "70000", "9" * 5000, "٣٣٣", "-1", "1.5", " 1", "1e3")]
PAGES += [
    "",
    ":",
    ":80",
    "host",
    "a b:1",
    "a/b:1",
    "https://host:1",
    "http://http://host:1",
    "u@host:1",
    "a\nb:1",
    "x" * 9000,
]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("command", ["drain", "undrain", "wait-idle", "state", "page-key"])
def test_should_refuse_what_is_no_address(command: str, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        run(command, page)
    given = capsys.readouterr().err.splitlines()[-1]
    assert refused.value.code == 2
    assert given.endswith(", expected HOST:PORT, such as 127.0.0.1:14800")
    assert len(given) < 400


def test_should_take_the_address_that_a_browser_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(http(STATE.encode())) as page:
        assert run("state", f"http://{page}/") == 0
    assert capsys.readouterr().out == f"{STATE}\n"


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "url", ["", "a", "http://", "http://[::1", "http://h:x", "http://h:0", "ftp://h:1", "http://u@h:1"]
)
def test_should_refuse_the_address_of_either_server(place: int, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is sent: the other one is never asked."""
    urls = ["http://127.0.0.1:9", "http://127.0.0.1:9"]
    urls[place] = url
    assert main(["compare", *urls]) == 2
    assert capsys.readouterr().out == f"the address is {url!r}, expected one such as http://127.0.0.1:8000\n"


NUMBERS = ("", "x", "-1", "nan", "inf", "-inf", "1e9", "9" * 5000, "1,", "0x1", "\udcff", "1 2")


@pytest.mark.parametrize("option", ["--limit-seconds", "--answer-tokens", "--tolerance", "--lengths"])
def test_should_refuse_what_is_no_number(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in NUMBERS:
        with pytest.raises(SystemExit) as refused:
            main(["compare", "http://127.0.0.1:1", "http://127.0.0.1:1", f"{option}={text}"])
        given = capsys.readouterr().err.splitlines()[-1]
        assert refused.value.code == 2
        assert f"argument {option}: is " in given
        assert ", expected " in given
        assert len(given) < 400


TOKEN: dict[str, Any] = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0, "b": -2}]}
ODD_VALUES = (None, "x", -1, 0.5, [], {}, [[]], [None], ["x"], [-1.0, -2.0], True, 10**400, float("nan"), float("inf"))


@pytest.mark.parametrize("name", TOKEN)
def test_should_say_that_an_answer_has_no_log_probabilities(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of an answer in turn is another value: what cannot be compared is not the same."""

    def answers(spoken: dict[str, Any]) -> Answer:
        text = json.dumps({"choices": [{"logprobs": spoken}]})
        monkeypatch.setattr(plain_http, "ask", lambda *_, **__: plain_http.Answer(200, text))
        return answer_of("http://pair:1", Comparison("http://pair:1", "http://pair:2"), "m", [1, 2], {})

    assert answers(TOKEN) == Answer(("a",), (-1.0,), (1.0,))
    for odd in ODD_VALUES:
        if name == "tokens" and odd in ("x", ["x"]):
            continue
        for value in (odd, [odd]):
            if name == "tokens" and isinstance(value, list) and len(value) == 1:
                continue  # whatever it is, its text is compared
            with contextlib.suppress(ValueError, OSError):
                got = answers({**TOKEN, name: value})
                assert len(got.tokens) == len(got.logprobs) == len(got.leads) == 1
                assert abs(got.logprobs[0]) < float("inf")


@pytest.mark.parametrize("longest", [None, "x", "100", -5, 0, 1, True, [], {}, 10**400, 1e400, float("nan")])
def test_should_say_that_a_list_of_models_is_none(longest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(http(json.dumps({"data": [{"id": "m", "max_model_len": longest}]}).encode())) as page:
        assert run("compare", page) == 2
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert len(printed.out.splitlines()) in (1, 2)
