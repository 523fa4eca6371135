"""The questions and offers of pulls as one worker's messenger has them. Used by the worker's main thread only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Sized

from kv_connector.runtime.client import MessengerClient
from kv_connector.runtime.commands import Ask, PrefillEnded, Withdraw
from kv_connector.runtime.facade import Offered
from kv_connector.vllm.kv_groups import GroupPages
from kv_connector.vllm.messenger_commands import offer_command
from kv_connector.vllm.metadata import Offer, WorkerNews

WITHDRAW_LIMIT_SECONDS = 2.0
"""How long an engine that resets its prefix cache waits for what others fetch from it; that takes milliseconds."""


class WorkerPulls:
    """Passes on what other engines are asked and offered, and reports each answer and each release exactly once.

    A messenger that is given up answers no more: its asks are answered here, and once it is closed its offers are
    released, because it reads no page any more.
    """

    def __init__(self, client: MessengerClient, groups: Sequence[GroupPages], *, is_first: bool) -> None:
        """``is_first``: whether the engine's questions, and other engines', go by way of this messenger."""
        self._is_first = is_first
        self._client = client
        self._groups = groups
        self._offers: dict[str, float] = {}
        """Offers that the messenger has and has not released, and since when, or when they were last ended."""
        self._asks: dict[str, str] = {}
        """The transfers that are asked for, by number."""

    def ask(self, ask: Ask, news: WorkerNews) -> None:
        """Asks another engine, if this messenger is to."""
        if not self._is_first:
            return
        if self._client.submit(ask):
            self._asks[ask.request] = ask.transfer
        else:
            news.offered.append(Offered(ask.request, 0, "unreachable"))

    def offer(self, offer: Offer, news: WorkerNews, now_seconds: float) -> None:
        """Answers an engine, or keeps this messenger's part of the pages for its grants.

        What is offered is full, since the scheduler half has the output of all steps before.
        """
        if offer.held_tokens:
            self._offers[offer.request] = now_seconds
        elif not self._is_first:
            return
        if not self._client.submit(offer_command(offer, self._groups, asked=self._is_first)):
            self.on_released(offer.request, news)

    def end_again(self, now_seconds: float, unheard_seconds: float) -> None:
        """Ends offers once more that are not released after this time.

        The messenger ignores that while it has the offer, and else releases it again.
        """
        for request, since_seconds in self._offers.items():
            if now_seconds - since_seconds >= unheard_seconds:
                self._offers[request] = now_seconds
                self._client.submit(PrefillEnded(request, "finished"))

    def withdraw(self, offer: str) -> None:
        """Ends an offer unless it is being fetched."""
        if offer in self._offers:
            self._client.submit(Withdraw(offer))

    def on_offered(self, event: Offered, news: WorkerNews) -> None:
        """The other engine has answered, or cannot be asked."""
        if self._asks.pop(event.request, None) is not None:
            news.offered.append(event)

    def declined(self, transfer: str) -> None:
        """No answer of the engine that was asked for it will come."""
        self._asks = {ask: asked for ask, asked in self._asks.items() if asked != transfer}

    def on_released(self, request: str, news: WorkerNews) -> bool:
        """Nothing reads the pages of an offer any more; False if it is none."""
        if self._offers.pop(request, None) is None:
            return False
        news.released.append(request)
        return True

    def on_lost(self, news: WorkerNews, *, closed: bool) -> None:
        """The messenger was given up."""
        news.offered.extend(Offered(ask, 0, "unreachable") for ask in sorted(self._asks))
        self._asks.clear()
        if closed:
            for offer in sorted(self._offers):
                self.on_released(offer, news)

    def withdraw_all(self, poll: Callable[[], None], wait: Callable[[float], None], news: WorkerNews) -> list[str]:
        """Ends all offers that are not being fetched; returns those released until then, waiting for a limited time."""
        for offer in sorted(self._offers):
            self.withdraw(offer)
        deadline = time.monotonic() + WITHDRAW_LIMIT_SECONDS
        poll()
        while self._offers and (left_seconds := deadline - time.monotonic()) > 0:
            wait(min(left_seconds, 0.01))
            poll()
        released = list(news.released)
        news.released.clear()
        return released

    def held(self) -> dict[str, Sized]:
        """The offers and asks that are open; for leak checks at rest."""
        return {"offers": self._offers, "asks": self._asks}
