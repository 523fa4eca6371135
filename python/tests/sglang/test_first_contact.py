"""A decoder meets a prefiller, or cannot: how long the scheduler waits for it, and which remedy it names."""

from __future__ import annotations

import concurrent.futures
import threading
import warnings
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
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
    from kv_connector.sglang.first_contacts import FIRST_CONTACT_WAIT_SECONDS
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
        question = endpoint._first_contacts._open[SILENT]
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


@pytest.mark.parametrize("sizes", [{"dp_size": 0}, {"attn_tp_size": 0}, {"pp_size": 10**9}, {"attn_tp_size": 10**9}])
def test_should_fail_the_requests_alone_whose_prefiller_has_impossible_sizes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]
) -> None:
    """Clients name the host; SGLang computes with the sizes on the scheduler's thread, or lists them all."""
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.common import conn

    sizes_given = dict.fromkeys(("attn_tp_size", "attn_cp_size", "dp_size", "pp_size"), 1) | sizes
    sizes_given |= {"page_size": None, "kv_cache_dtype": None, "follow_bootstrap_room": True}
    answer = SimpleNamespace(status_code=200, json=lambda: sizes_given)
    monkeypatch.setattr(conn.requests, "get", lambda *_args, **_named: answer)
    endpoint = pair.decoder.endpoint
    until(lambda: endpoint.try_ensure_parallel_info(SILENT), "the answer is there")
    assert 7 % endpoint.prefill_info_table[SILENT].dp_size == 0, "as SGLang finds the rank of a room"
    found = endpoint.places(SILENT, 0, 1)
    assert isinstance(found, str)
    assert "expected sizes of at least 1" in found
    receiver = pair.new_receiver(pair.next_room())
    receiver.bootstrap_addr = SILENT
    receiver.init(0)
    assert receiver.poll() == KVPoll.Failed
    receiver.clear()
    endpoint.forget_prefiller(SILENT)
    pair.assert_nothing_held()
