"""The prefills that one worker's messenger sends: from their announcement until nothing reads their pages any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass

from kv_connector.exceptions import MessengerError
from kv_connector.runtime import commands
from kv_connector.runtime.client import MessengerClient
from kv_connector.runtime.commands import Announce, PrefillEnded, PrefillOutcome
from kv_connector.vllm.kv_groups import GroupPages
from kv_connector.vllm.messenger_commands import chunk_of_step
from kv_connector.vllm.metadata import Chunk
from kv_connector.vllm.request_numbers import RequestNames

FENCE_LIMIT_SECONDS = 10.0
"""The limit of one wait for the fence, which is repeated: pages that are still read must not be overwritten."""
FENCE_ATTEMPTS_MAX = 6


@dataclass(slots=True)
class _Ended:
    """The state of a prefill that the engine has ended and holds."""

    outcome: PrefillOutcome
    deadline_seconds: float
    """When its end is submitted again."""


class OutgoingPrefills:
    """Reports each ended prefill as sent exactly once, whatever fails.

    Used by the worker's main thread, which waits in ``fence`` only.
    """

    def __init__(
        self,
        client: MessengerClient,
        names: RequestNames,
        unheard_seconds: float,
        *,
        on_sent: Callable[[str], object],
        logger: logging.Logger,
        now_seconds: Callable[[], float],
    ) -> None:
        """``on_sent`` is called for each ended prefill once nothing reads its pages any more.

        ``unheard_seconds``: how long the messenger may take to release an ended prefill until it is asked again.
        """
        self._client = client
        self._names = names
        self._unheard_seconds = unheard_seconds
        self._on_sent = on_sent
        self._logger = logger
        self._now_seconds = now_seconds
        self._sending: set[str] = set()
        """Prefills that the messenger knows, announced or begun, and that have not ended."""
        self._ended: dict[str, _Ended] = {}
        """Ended prefills that the messenger has not released; the engine waits for them."""
        self._lost: set[str] = set()
        """Prefills that were given up here, but that the engine has not ended yet."""
        self._released_early: set[str] = set()
        """The prefills in ``_lost`` that the messenger has released."""

    def fence(self, preempted: Sequence[str]) -> None:
        """Returns when nothing reads the blocks of preempted requests, which are overwritten next.

        Raises MessengerError if the messenger can neither be fenced nor closed.
        """
        waiting = [request for request in preempted if request in self._sending or request in self._lost]
        for _ in range(FENCE_ATTEMPTS_MAX):
            if not waiting or self._client.lost_because:
                break
            fenced = self._client.fence(waiting, FENCE_LIMIT_SECONDS)
            if fenced is None:
                break
            waiting = [request for request in waiting if request not in fenced]
            if waiting:
                self._logger.error("preempted requests %s are still being read, waiting on", self._shown(waiting))
        else:
            self._client.give_up(f"preempted requests {self._shown(waiting)} were still being read after the last wait")
        if waiting and not self._client.closed:
            raise MessengerError(
                f"the pages of preempted requests {self._shown(waiting)} may still be read by a messenger that can"
                " neither be fenced nor closed, expected neither: this engine ends before it overwrites them, start it"
                " again"
            )
        self._released_early.update(self._lost.intersection(preempted))

    def _shown(self, requests: Iterable[str]) -> str:
        return " and ".join(map(self._names.shown, requests))

    def announce(self, announce: Announce) -> None:
        """Submits a prefill that is queued."""
        if self._client.submit(announce):
            self._sending.add(announce.request)

    def begun(self, requests: Iterable[str]) -> None:
        """The messenger has taken chunks of these prefills."""
        self._sending.update(requests)

    def described(self, chunks: Iterable[Chunk], groups: Sequence[GroupPages]) -> list[commands.Chunk]:
        """The chunks of a step as the messenger gets them; a prefill of which one cannot be described is given up."""
        found = []
        for chunk in chunks:
            try:
                found.append(chunk_of_step(chunk, groups))
            except Exception:
                self._logger.exception(
                    "request %s is not sent: its chunk could not be told", self._names.shown(chunk.request)
                )
                self.give_up(chunk.request)
        return found

    def is_given_up(self, request: str) -> bool:
        """Whether no further chunk of it is sent, though the engine has not ended it."""
        return request in self._lost

    def give_up(self, request: str) -> None:
        """Stops sending a request: its decoder is notified, and the engine ends it later."""
        if request in self._lost or self._client.lost_because:
            return
        self._sending.discard(request)
        self._lost.add(request)
        self._client.end(PrefillEnded(request, "failed"))

    def end(self, end: PrefillEnded) -> None:
        """The engine has ended a prefill, and holds its pages until they are reported as sent."""
        known = end.request in self._sending or end.request in self._lost
        self._sending.discard(end.request)
        if not known or end.request in self._released_early or self._client.closed:
            self._released_early.discard(end.request)
            self._lost.discard(end.request)
            self._on_sent(end.request)
            return
        ended = self._ended[end.request] = _Ended(end.outcome, self._now_seconds() + self._unheard_seconds)
        if end.request in self._lost:
            self._lost.discard(end.request)
            ended.outcome = "failed"
        else:
            self._client.end(end)

    def expire(self, request: str) -> None:
        """Has the messenger wait no longer for a decoder that has not asked for an ended prefill."""
        if (ended := self._ended.get(request)) is not None:
            ended.outcome = "failed"
            self._client.end(PrefillEnded(request, "failed"))

    def repeat_ends(self) -> None:
        """Submits again the ends that the messenger should have answered by its own limits.

        It ignores one while it has the prefill, and else releases it again.
        """
        now_seconds = self._now_seconds()
        for request, ended in list(self._ended.items()):
            if now_seconds >= ended.deadline_seconds:
                ended.deadline_seconds = now_seconds + self._unheard_seconds
                self._client.submit(PrefillEnded(request, ended.outcome))

    def on_released(self, request: str) -> None:
        """Nothing reads the prefill's pages any more."""
        if request in self._ended:
            del self._ended[request]
            self._on_sent(request)
        elif request in self._lost:
            self._released_early.add(request)
        else:
            self._logger.warning("request %s was released and is not held", self._names.shown(request))

    def on_closed(self) -> None:
        """The messenger is closed: it reads no page any more."""
        for request in self._ended:
            self._on_sent(request)
        self._ended.clear()
        self._released_early.update(self._lost)

    def held(self) -> Mapping[str, Sized]:
        """The prefills in each state; for leak checks at rest."""
        return {
            "sending": self._sending,
            "ended": self._ended,
            "lost": self._lost,
            "released_early": self._released_early,
        }
