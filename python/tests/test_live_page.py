"""The messenger's page for people, in a real browser while KV moves."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, MissingBrowserError
from moving_pair import WAITING, go, metrics_ports, moving

from kv_connector.runtime import page_key, preflight

LIMIT_SECONDS = 900.0
WIDTH, HEIGHT = 1400, 1250
PICTURE_VARIABLE = "KV_MESSENGER_STATE_PICTURE"
"""Where a picture of the page is to be left, for the docs."""


@pytest.fixture(scope="module")
def browser() -> Browser:
    try:
        return Browser()
    except MissingBrowserError as missing:
        pytest.skip(f"no Chromium: {missing}")


@pytest.fixture(scope="module")
def pages(browser: Browser, jar: preflight.Jar, java: preflight.JavaRuntime) -> Iterator[tuple[str, str]]:
    """The addresses of a prefiller's and a decoder's while KV moves between them."""
    assert browser is not None
    assert jar.path.exists()
    assert java.launcher.exists()
    with moving() as pair:
        prefiller, decoder = (f"http://operator:{key_of(port)}@127.0.0.1:{port}/" for port in metrics_ports(pair))
        go(pair)
        yield prefiller, decoder


def key_of(port: int) -> str:
    """What an operator enters as the password."""
    return next(page_key.kept(port))


def shown(browser: Browser, url: str, *expected: str) -> str:
    """The page, once it shows what is expected: the first transfers take a moment."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        page = browser.text_of(url)
        missing = [words for words in expected if words not in page]
        if not missing:
            return page
        assert time.monotonic() < deadline, f"{missing} are not on the page:\n{page}"


def test_should_show_a_decoder_s_waiting_fetches_and_why_others_failed(
    browser: Browser, pages: tuple[str, str], tmp_path: Path
) -> None:
    expected = (
        "<p>healthy</p>",
        "Peers: 1",
        "<td>waits-0</td>",
        f"<td>waits-{WAITING - 1}</td>",
        "Last transfers: 20",
        "<td>not_connected</td>",
    )
    page = shown(browser, pages[1], *expected)
    assert "<td>prefiller</td>" in page
    assert re.search(r"<title>KV: [0-9.]+ ms</title>", page), "the last transfers are drawn"
    assert "ECONNREFUSED" in page or "refused" in page, "a failure says why"
    picture = Path(os.environ.get(PICTURE_VARIABLE) or tmp_path / "state.png")
    browser.picture(pages[1], WIDTH, HEIGHT, picture)
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert (int.from_bytes(head[16:20]), int.from_bytes(head[20:24])) == (WIDTH, HEIGHT)


def test_should_show_a_prefiller_s_grants_that_wait_for_their_prompt(browser: Browser, pages: tuple[str, str]) -> None:
    page = shown(browser, pages[0], f"Grants that wait for their prompt: {WAITING}")
    assert "<td>decoder</td>" in page
    assert "<script" not in page, "a page without scripts runs none that a peer has named"
