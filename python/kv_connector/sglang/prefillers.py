"""Finds the messengers of a prefiller's ranks by SGLang's bootstrap server, without ever blocking the scheduler.

A prefiller registers its messenger's address where other backends register the port of their own sockets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kv_connector.sglang.exchange import PrefillerAddress

LOOKUPS_AT_ONCE_MAX = 32
"""Of all prefillers. Threads appear as they are needed, and one that does not answer is asked each question once."""
LOOKUP_LIMIT_SECONDS = 5.0

_Answer = TypeVar("_Answer")
GetJson = Callable[[str, Mapping[str, int]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank of a prefiller, as the bootstrap server names it."""

    dp_rank: int
    cp_rank: int
    tp_rank: int
    pp_rank: int


@dataclass(slots=True, eq=False)
class Lookup:
    """An answer that is here, or will come. Read it by ``done``, then ``addresses`` or ``failure``."""

    addresses: tuple[PrefillerAddress, ...] = ()
    failure: str = ""
    _waiting: list[Future[PrefillerAddress]] = field(default_factory=list)

    def done(self) -> bool:
        """Whether it has come; never waits."""
        if not self._waiting:
            return True
        if not all(future.done() for future in self._waiting):
            return False
        try:
            self.addresses = tuple(future.result() for future in self._waiting)
        except Exception as fault:
            self.failure = str(fault)
        self._waiting = []
        return True


def get_json(url: str, query: Mapping[str, int]) -> Mapping[str, Any]:
    """One question to a bootstrap server; raises on anything but an answer."""
    import requests

    response = requests.get(url, params=dict(query), timeout=LOOKUP_LIMIT_SECONDS)
    if response.status_code != 200:
        raise LookupError(f"it answered {response.status_code}: {response.text[:200]}")
    answer: Mapping[str, Any] = response.json()
    return answer


class Prefillers:
    """Addresses by bootstrap server and rank. Methods are called by the scheduler's thread; questions run on others."""

    def __init__(self, ask: GetJson = get_json) -> None:
        self._ask = ask
        self._pool = ThreadPoolExecutor(LOOKUPS_AT_ONCE_MAX, thread_name_prefix="kv-messenger-lookup")
        self._lock = threading.Lock()
        self._known: dict[tuple[str, RankPlace], PrefillerAddress] = {}
        self._questions: dict[tuple[str, RankPlace], Future[PrefillerAddress]] = {}

    def find(self, bootstrap_addr: str, places: Sequence[RankPlace]) -> Lookup:
        """Where these ranks listen, as far as known; asks for the others."""
        with self._lock:
            known = [self._known.get((bootstrap_addr, place)) for place in places]
        if all(known):
            return Lookup(addresses=tuple(address for address in known if address))
        return self.find_again(bootstrap_addr, places)

    def find_again(self, bootstrap_addr: str, places: Sequence[RankPlace]) -> Lookup:
        """Asks where these ranks listen, although it may be known. A question that is under way is not asked twice."""
        return Lookup(_waiting=[self._asked(bootstrap_addr, place) for place in places])

    def forget(self, bootstrap_addr: str) -> None:
        """What was known of this bootstrap server's ranks."""
        with self._lock:
            for key in [key for key in self._known if key[0] == bootstrap_addr]:
                del self._known[key]

    def _asked(self, bootstrap_addr: str, place: RankPlace) -> Future[PrefillerAddress]:
        question = self._questions.get((bootstrap_addr, place))
        if question is None or question.done():
            question = self._pool.submit(self._find, bootstrap_addr, place)
            self._questions[bootstrap_addr, place] = question
        return question

    def run(self, question: Callable[[], _Answer]) -> Future[_Answer]:
        """Runs something else that would block."""
        return self._pool.submit(question)

    def close(self) -> None:
        """Takes no more questions; those under way end by their own limit."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _find(self, bootstrap_addr: str, place: RankPlace) -> PrefillerAddress:
        query = {
            "prefill_dp_rank": place.dp_rank,
            "prefill_cp_rank": place.cp_rank,
            "target_tp_rank": place.tp_rank,
            "target_pp_rank": place.pp_rank,
        }
        try:
            answer = self._ask(f"http://{bootstrap_addr}/route", query)
            address = PrefillerAddress(str(answer["rank_ip"]), int(answer["rank_port"]))
        except Exception as fault:
            raise LookupError(
                f"the bootstrap server {bootstrap_addr} does not say where {place} listens ({fault}): check that the"
                " prefiller runs, and that the request's bootstrap_host and bootstrap_port name it"
            ) from fault
        with self._lock:
            self._known[bootstrap_addr, place] = address
        return address
