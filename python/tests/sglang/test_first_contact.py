"""A decoder meets a prefiller, or cannot: how long the scheduler waits for it, and which remedy it names."""

from __future__ import annotations

import concurrent.futures
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

SILENT = "127.0.0.1:1"
TRIES = 15
"""At this interval SGLang asks for a prefiller before it gives the request up."""


@pytest.fixture(scope="module")
def pair(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair for all tests: it starts a JVM."""
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):  # importing SGLang warns of what the machine lacks
        from one_process import Pair

        opened = Pair(tmp_path_factory.mktemp("model"))
    yield opened
    opened.close()


def test_should_wait_once_for_a_prefiller_that_does_not_answer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's thread: each wait is one in which no token is computed."""
    from kv_connector.sglang.endpoint import FIRST_CONTACT_WAIT_SECONDS
    from kv_connector.sglang.sglang_api import CommonEndpoint

    endpoint = pair.decoder.endpoint
    may_answer = threading.Event()
    waits: list[float] = []

    def ask(_endpoint: Any, _bootstrap_addr: str) -> bool:
        may_answer.wait()
        return False

    def wait(_futures: Iterable[Any], limit_seconds: float) -> None:
        waits.append(limit_seconds)

    monkeypatch.setattr(CommonEndpoint, "try_ensure_parallel_info", ask)
    monkeypatch.setattr(concurrent.futures, "wait", wait)
    try:
        assert not any(endpoint.try_ensure_parallel_info(SILENT) for _try in range(TRIES))
        assert waits == [FIRST_CONTACT_WAIT_SECONDS]
        question = endpoint._first_contacts[SILENT]
    finally:
        may_answer.set()
    assert question.result() is False
    assert not any(endpoint.try_ensure_parallel_info(SILENT) for _try in range(TRIES))
    assert waits == [FIRST_CONTACT_WAIT_SECONDS], "asked again, and not waited for again"
    endpoint.forget_prefiller(SILENT)


def test_should_name_the_option_by_which_a_decoder_caches_parts_of_pages(pair: Pair) -> None:
    from one_process import PAGE_TOKENS, pages
    from sglang.srt.disaggregation.base.conn import KVPoll

    receiver = pair.receiver(pair.next_room())
    receiver.send_metadata(pages(3), 0, decode_prefix_len=PAGE_TOKENS + 1)
    assert receiver.poll() == KVPoll.Failed
    with pytest.raises(Exception, match=r"17 tokens .* start it without --disaggregation-decode-enable-radix-cache"):
        receiver.failure_exception()
    receiver.clear()
    pair.assert_nothing_held()
