"""Finds the messengers of a prefiller's ranks through SGLang's bootstrap server, without blocking the scheduler.

A prefiller registers its messenger's address in place of the socket's port that other backends register.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

from kv_connector.runtime.commands import PrefillerAddress
from kv_connector.runtime.plain_http import ask
from kv_connector.sglang.client_fields import is_address, without_answered
from kv_connector.sglang.late_declines import LateDeclines

LOOKUPS_AT_ONCE_MAX = 32
"""For all prefillers together. Threads start on demand; an unanswered request to a server is not repeated."""
LOOKUP_LIMIT_SECONDS = 5.0

logger = logging.getLogger("sglang.srt.kv_messenger")

_Answer = TypeVar("_Answer")
GetJson = Callable[[str, Mapping[str, int]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank of a prefiller, as the bootstrap server identifies it."""

    dp_rank: int
    cp_rank: int
    tp_rank: int
    pp_rank: int


def cp_rank_of(room: int, dp_size: int, cp_size: int) -> int:
    """Which context-parallel rank of a prefiller sends a room: each holds all KV, and over many rooms sends its share.

    SGLang chooses the data-parallel rank by ``room % dp_size``, so that the rest of the division is free.
    """
    return room // dp_size % cp_size


def dp_rank_of(endpoint: Any) -> int:
    """Which of its engine's data-parallel ranks an endpoint is, as the bootstrap server and the rooms count them.

    SGLang numbers replicas of an engine (``--dp-size``) apart from the ranks of a data-parallel attention, and an
    engine has one or the other: in each replica the attention's rank is 0.
    """
    return int(endpoint.system_dp_rank if endpoint.system_dp_size > 1 else endpoint.attn_dp_rank)


@dataclass(slots=True, eq=False)
class Lookup:
    """A result that may be pending. Check ``done``, then read ``failure`` or ``addresses``."""

    addresses: tuple[PrefillerAddress, ...] = ()
    failure: str = ""
    _waiting: list[Future[PrefillerAddress]] = field(default_factory=list)

    def done(self) -> bool:
        """Whether the result is there; never blocks."""
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
    """Sends one GET request to a bootstrap server; raises unless it gets a JSON answer."""
    response = ask("GET", f"{url}?{urlencode(query)}", limit_seconds=LOOKUP_LIMIT_SECONDS)
    if response.status != 200:
        raise LookupError(f"it answered {response.status}: {response.text[:200]}")
    answer: Mapping[str, Any] = json.loads(response.text)
    return answer


def register_room(bootstrap_addr: str, room: int, dp_rank: int) -> bool:
    """Tells the bootstrap server which data-parallel rank has a room; logs an error and returns False if it cannot."""
    body = json.dumps({"bootstrap_room": room, "dp_rank": dp_rank}).encode()
    try:
        answer = ask(
            "POST",
            f"http://{bootstrap_addr}/register_dp_rank",
            body=body,
            headers={"Content-Type": "application/json"},
            limit_seconds=LOOKUP_LIMIT_SECONDS,
        )
        if answer.status != 200:
            raise OSError(f"it answered {answer.status}: {answer.text[:200]}")
    except (OSError, ValueError) as fault:
        logger.error(
            "room %d was not registered at %s, so its decoder will not find it: %s", room, bootstrap_addr, fault
        )
        return False
    return True


class Prefillers:
    """Addresses by bootstrap server and rank. Used by the scheduler's thread only; requests run on other threads."""

    def __init__(self, ask: GetJson = get_json, pool: Executor | None = None) -> None:
        self._ask = ask
        self._pool = pool or ThreadPoolExecutor(LOOKUPS_AT_ONCE_MAX, thread_name_prefix="kv-messenger-lookup")
        self._lock = threading.Lock()
        self._known: dict[tuple[str, RankPlace], PrefillerAddress] = {}
        self._questions: dict[tuple[str, RankPlace], Future[PrefillerAddress]] = {}
        self.late_declines = LateDeclines()

    def find(self, bootstrap_addr: str, places: Sequence[RankPlace]) -> Lookup:
        """The addresses of these ranks; requests those that are not known."""
        known = self.known(bootstrap_addr, places)
        return Lookup(addresses=known) if known else self.find_again(bootstrap_addr, places)

    def known(self, bootstrap_addr: str, places: Sequence[RankPlace]) -> tuple[PrefillerAddress, ...]:
        """The latest addresses of these ranks; empty unless all are known."""
        with self._lock:
            known = [self._known.get((bootstrap_addr, place)) for place in places]
        return tuple(address for address in known if address) if all(known) else ()

    def find_again(self, bootstrap_addr: str, places: Sequence[RankPlace]) -> Lookup:
        """Requests the addresses of these ranks even if they are known; reuses a request that is in progress."""
        return Lookup(_waiting=[self._asked(bootstrap_addr, place) for place in places])

    def forget(self, bootstrap_addr: str) -> None:
        """Drops the known addresses of this bootstrap server's ranks."""
        with self._lock:
            self._forget(bootstrap_addr)

    def _asked(self, bootstrap_addr: str, place: RankPlace) -> Future[PrefillerAddress]:
        question = self._questions.get((bootstrap_addr, place))
        if question is None or question.done():
            self._questions = without_answered(self._questions)
            question = self._pool.submit(self._find, bootstrap_addr, place)
            self._questions[bootstrap_addr, place] = question
        return question

    def run(self, question: Callable[[], _Answer]) -> Future[_Answer]:
        """Runs another blocking function on one of the threads."""
        return self._pool.submit(question)

    def close(self) -> None:
        """Accepts no more requests; those in progress end by their own time limits."""
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
            if not is_address(address.host, address.port):
                raise ValueError("it names no host and port")
        except Exception as fault:
            raise LookupError(
                f"the bootstrap server {bootstrap_addr} does not say where {place} listens ({fault}): check that the"
                " prefiller runs, and that the request's bootstrap_host and bootstrap_port name it"
            ) from fault
        with self._lock:
            if self._known.get((bootstrap_addr, place), address) != address:  # it was restarted, with all its ranks
                self._forget(bootstrap_addr)
            self._known[bootstrap_addr, place] = address
        return address

    def _forget(self, bootstrap_addr: str) -> None:
        for key in [key for key in self._known if key[0] == bootstrap_addr]:
            del self._known[key]
