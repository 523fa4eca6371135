"""Waiting for messengers to hold nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kv_connector.cli import idle
from kv_connector.cli.main import main
from kv_connector.runtime import page_key

REST = "".join(f"# TYPE {name} gauge\n{name} 0.0\n" for name in idle.AT_REST)
BUSY = REST.replace("kv_messenger_prefills_open 0.0", "kv_messenger_prefills_open 2.0")


class Page:
    """A messenger's page that shows one text after the other, and the last one for ever."""

    def __init__(self, *texts: str) -> None:
        self.shown = 0
        self.drained = False
        self.refuses = False
        self.key = ""
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = texts[min(page.shown, len(texts) - 1)]
                page.shown += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def do_POST(self) -> None:
                shown = self.headers.get("Authorization", "") == f"Bearer {page.key}"
                status = 403 if page.refuses else 200 if shown or not page.key else 401
                self.send_response(status)
                self.end_headers()
                given = b"draining: yes\n" if self.path == "/drain" else b"not draining: yes\n"
                self.wfile.write(given if status == 200 else b"no browser may drain it\n")
                if status == 200:
                    page.drained = self.path == "/drain"

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def pages() -> Iterator[list[Page]]:
    made: list[Page] = []
    yield made
    for page in made:
        page.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "LOOK_SECONDS", 0.01)


def test_should_wait_until_nothing_is_held(pages: list[Page]) -> None:
    pages += [Page(BUSY, REST, BUSY, REST), Page(REST)]
    assert idle.wait_idle([page.address for page in pages], 60, print) == 0
    assert pages[0].shown == 3 + idle.QUIET_LOOKS, "a quiet moment between two busy ones counts for nothing"


def test_should_undrain(pages: list[Page]) -> None:
    pages += [Page(REST)]
    assert main(["drain", "--metrics", pages[0].address, "--limit-seconds", "60"]) == 0
    assert main(["undrain", "--metrics", pages[0].address]) == 0
    assert not pages[0].drained


SECRET = "a secret of some length"


@pytest.mark.parametrize("known", ["secret", "file", "another secret, and file", "unreadable secret, and file"])
def test_should_show_the_key_that_fits(
    pages: list[Page], known: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(page_key, "FOLDERS", (tmp_path,))
    pages += [Page(REST)]
    pages[0].key = page_key.derived(SECRET)
    if "file" in known:
        page_key.keep(pages[0].key, int(pages[0].address.rpartition(":")[2]))
    if known == "secret":
        monkeypatch.setenv("KV_MESSENGER_SECRET", SECRET)
    elif "another" in known:
        monkeypatch.setenv("KV_MESSENGER_SECRET", "some other secret")
    elif "unreadable" in known:
        monkeypatch.setenv("KV_MESSENGER_SECRET_FILE", str(tmp_path / "missing"))
    assert main(["drain", "--metrics", pages[0].address, "--limit-seconds", "60"]) == 0
    assert pages[0].drained


def test_should_say_what_a_drain_needs(
    pages: list[Page], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page_key, "FOLDERS", (tmp_path,))
    pages += [Page(REST)]
    pages[0].key = "a key"
    assert main(["drain", "--metrics", pages[0].address]) == 1
    assert not pages[0].drained
    assert capsys.readouterr().err == (
        f"http://{pages[0].address}/drain refuses (401): set KV_MESSENGER_SECRET_FILE as the engine has it, or run this"
        " command as the engine's user on its host\n"
    )


@pytest.fixture(params=["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def proxy_variable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(request.param, "http://127.0.0.1:9")
    return str(request.param)


@pytest.mark.usefixtures("proxy_variable")
def test_should_ask_no_proxy(pages: list[Page], capsys: pytest.CaptureFixture[str]) -> None:
    pages += [Page(BUSY, REST)]
    assert main(["drain", "--metrics", pages[0].address, "--limit-seconds", "60"]) == 0
    assert pages[0].drained
    assert capsys.readouterr().err == ""


def test_should_say_what_is_held_when_the_limit_is_over(pages: list[Page], capsys: pytest.CaptureFixture[str]) -> None:
    pages += [Page(BUSY)]
    assert main(["wait-idle", "--metrics", pages[0].address, "--limit-seconds", "0.05"]) == 1
    sentence = f"not idle after 0.05 s ({pages[0].address}: kv_messenger_prefills_open 2.0)\n"
    assert capsys.readouterr().err == sentence


def test_should_say_that_no_page_answers(pages: list[Page], capsys: pytest.CaptureFixture[str]) -> None:
    pages += [Page(REST)]
    pages[0].close()
    gone = pages.pop().address
    assert main(["wait-idle", "--metrics", gone]) == 1
    assert f"http://{gone}/metrics cannot be read (" in capsys.readouterr().err


def test_should_not_take_another_page_for_a_messengers(pages: list[Page]) -> None:
    pages += [Page("python_info 1.0\n")]
    printed: list[str] = []
    assert idle.wait_idle([pages[0].address], 60, printed.append) == 1
    assert printed == [
        f"http://{pages[0].address}/metrics is not the page of a messenger: look at metrics_host and metrics_port of"
        " the engine\n"
    ]


def test_should_drain_all_before_it_waits(pages: list[Page]) -> None:
    pages += [Page(BUSY, REST), Page(REST)]
    arguments = [part for page in pages for part in ("--metrics", page.address)]
    assert main(["drain", *arguments, "--limit-seconds", "60"]) == 0
    assert [page.drained for page in pages] == [True, True]
    assert pages[0].shown == 1 + idle.QUIET_LOOKS


def test_should_say_that_a_page_refuses_to_be_drained(pages: list[Page], capsys: pytest.CaptureFixture[str]) -> None:
    pages += [Page(REST)]
    pages[0].refuses = True
    assert main(["drain", "--metrics", pages[0].address]) == 1
    sentence = f"http://{pages[0].address}/drain refuses (403: no browser may drain it): look at"
    assert capsys.readouterr().err.startswith(sentence)


def offering(count: int) -> str:
    """The page of an idle messenger that has answered so many questions with an offer, and more with none."""
    made = f'kv_messenger_offers_made_total{{reason="held"}} {count}.0\n'
    return f'{REST}{made}kv_messenger_offers_made_total{{reason="not_held"}} {7 * count}.0\n'


class Clock:
    """Time that passes only while nothing is looked at."""

    def __init__(self) -> None:
        self.now_seconds = 1000.0

    def monotonic(self) -> float:
        return self.now_seconds

    def sleep(self, seconds: float) -> None:
        self.now_seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(idle, "time", made)
    monkeypatch.setattr(idle, "LOOK_SECONDS", 1.0)
    return made


@pytest.mark.parametrize(("arguments", "quiet_seconds"), [(["--hand-over"], 30), (["--hand-over", "50"], 50)])
def test_should_wait_for_the_last_engine_that_pulls(
    pages: list[Page], clock: Clock, arguments: list[str], quiet_seconds: float
) -> None:
    """The time begins anew with each offer; nothing is offered to an engine whose question finds nothing."""
    pages += [Page(*(offering(each // 20) for each in range(61))), Page(REST)]
    metrics = [part for page in pages for part in ("--metrics", page.address)]
    assert main(["drain", *metrics, *arguments]) == 0
    assert all(page.drained for page in pages)
    assert clock.now_seconds - 1000 == 60 + quiet_seconds


@pytest.mark.usefixtures("clock")
def test_should_not_wait_for_engines_that_pull_unless_asked_to(pages: list[Page]) -> None:
    pages += [Page(*(offering(each) for each in range(61)))]
    assert main(["drain", "--metrics", pages[0].address]) == 0
    assert pages[0].shown == idle.QUIET_LOOKS


def test_should_end_with_its_limit_while_other_engines_still_pull(pages: list[Page], clock: Clock) -> None:
    pages += [Page(*(offering(each) for each in range(600)))]
    assert main(["drain", "--metrics", pages[0].address, "--hand-over", "--limit-seconds", "100"]) == 0
    assert clock.now_seconds - 1000 == 100


def test_should_say_that_an_engine_still_fetches_at_the_limit(
    pages: list[Page], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    pages += [Page(offering(1), offering(1), offering(1), BUSY)]
    assert main(["drain", "--metrics", pages[0].address, "--hand-over", "--limit-seconds", "100"]) == 1
    assert "kv_messenger_prefills_open 2.0" in capsys.readouterr().err
    assert clock.now_seconds - 1000 == 100
