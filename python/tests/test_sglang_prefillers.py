"""Questions to bootstrap servers: each is under way once, and one that does not answer delays no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kv_connector.runtime.commands import PrefillerAddress
from kv_connector.sglang.client_fields import topology_fault
from kv_connector.sglang.prefillers import Lookup, Prefillers, RankPlace

LIMIT_SECONDS = 900.0
PLACES = [RankPlace(0, 0, rank, 0) for rank in range(8)]


class Servers:
    """One that never answers while it is black, and others that do."""

    def __init__(self) -> None:
        self.black = threading.Event()
        self.asked: list[tuple[str, int]] = []
        self.port = 7

    def __call__(self, url: str, query: Mapping[str, int]) -> Mapping[str, Any]:
        self.asked.append((url, query["target_tp_rank"]))
        if "black" in url:
            self.black.wait(LIMIT_SECONDS)
            raise OSError("no answer")
        return {"rank_ip": "there", "rank_port": self.port + query["target_tp_rank"]}


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.black.set()


def done(lookup: Lookup) -> Lookup:
    for question in lookup._waiting:
        question.exception(LIMIT_SECONDS)
    assert lookup.done()
    return lookup


def test_should_find_another_prefiller_while_one_does_not_answer(servers: Servers) -> None:
    prefillers = Prefillers(servers)
    lost = [prefillers.find("black:1", PLACES) for _ in range(20)]
    found = done(prefillers.find("white:1", PLACES[:1]))
    assert found.addresses == (PrefillerAddress("there", 7),)
    assert not any(lookup.done() for lookup in lost)
    servers.black.set()
    assert all("no answer" in done(lookup).failure for lookup in lost)
    assert len([url for url, _rank in servers.asked if "black" in url]) == len(PLACES)
    prefillers.close()


def test_should_ask_again_only_when_it_is_asked_to(servers: Servers) -> None:
    prefillers = Prefillers(servers)
    first = done(prefillers.find("white:1", PLACES[:2]))
    servers.port = 70
    assert prefillers.find("white:1", PLACES[:2]).addresses == first.addresses
    assert done(prefillers.find_again("white:1", PLACES[:2])).addresses[1] == PrefillerAddress("there", 71)
    assert prefillers.find("white:1", PLACES[:1]).addresses == (PrefillerAddress("there", 70),)
    prefillers.forget("white:1")
    servers.port = 700
    assert done(prefillers.find("white:1", PLACES[:1])).addresses == (PrefillerAddress("there", 700),)
    prefillers.close()


@pytest.mark.parametrize("late", [0, 1])
def test_should_never_mix_addresses_from_before_and_after_a_restart(late: int) -> None:
    """One rank's new address is known before the other's: a fetch from both would fail, and decline at the one."""
    port, held = 7, threading.Event()

    def ask(_url: str, query: Mapping[str, int]) -> Mapping[str, Any]:
        rank = query["target_tp_rank"]
        if port > 7 and rank == late:
            held.wait(LIMIT_SECONDS)
        return {"rank_ip": "there", "rank_port": port + rank}

    prefillers = Prefillers(ask)
    done(prefillers.find("white:1", PLACES[:2]))
    port = 70
    asked = prefillers.find_again("white:1", PLACES[:2])
    asked._waiting[1 - late].result(LIMIT_SECONDS)
    between = prefillers.find("white:1", PLACES[:2])
    held.set()
    assert [address.port for address in done(between).addresses] == [70, 71]
    assert [address.port for address in done(asked).addresses] == [70, 71]
    assert [address.port for address in done(prefillers.find("white:1", PLACES[:2])).addresses] == [70, 71]
    prefillers.close()


@pytest.mark.parametrize(
    "answer",
    [
        *({}, {"rank_ip": "there"}, [], None, {"rank_ip": "there", "rank_port": "x"}),
        *({"rank_ip": "there", "rank_port": port} for port in (0, -1, 70_000, 10**30, None, [])),
        *({"rank_ip": host, "rank_port": 7} for host in ("", "a b", "h" * 300, {}, "a/b")),
    ],
    ids=lambda answer: str(answer)[:40],
)
def test_should_take_no_address_from_a_server_that_gives_none(answer: Any) -> None:
    prefillers = Prefillers(lambda _url, _query: answer)
    lookup = done(prefillers.find("odd:1", PLACES[:1]))
    assert not lookup.addresses
    assert "does not say where" in lookup.failure
    prefillers.close()


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (8, 8, 1, 4), (1, 64, 8, 8), (65_535, 1, 1, 1)])
def test_should_take_sizes_that_a_prefiller_can_have(sizes: tuple[int, int, int, int]) -> None:
    assert topology_fault(*sizes) == ""


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("size", [0, -1, 10**9, 10**400])
def test_should_refuse_sizes_with_which_sglang_would_compute_for_ever_or_not_at_all(place: int, size: int) -> None:
    sizes = [1, 1, 1, 1]
    sizes[place] = size
    assert "expected sizes of at least 1" in topology_fault(*sizes)
