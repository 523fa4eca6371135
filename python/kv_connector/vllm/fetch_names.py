"""The names by which fetches ask for transfers. Used by the engine core's thread only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kv_connector.vllm.beginnings import part_of
from kv_connector.vllm.metadata import Transfer
from kv_connector.vllm.request_name import or_of_prompt
from kv_connector.vllm.transfer_params import Receive


class _Waiting(NamedTuple):
    """A request that waits, and the digest of what it will fetch."""

    request: Any
    ask: Receive
    digest: str

    def transfer(self) -> Transfer:
        return Transfer(or_of_prompt(self.ask.transfer, self.digest), self.digest)


class FetchNames:
    """A transfer's name has the digest of what is fetched, which is kept while a request waits.

    A long prompt's takes milliseconds.
    """

    def __init__(self, digest_of: Callable[[Any], str]) -> None:
        """``digest_of``: of a request's prompt, and of the weights with which the engine computes it."""
        self._digest_of = digest_of
        self._waiting: dict[str, _Waiting] = {}
        """By request id."""

    def queued(self, request: Any, ask: Receive) -> Transfer:
        """As ``of``; the digest is kept."""
        waiting = _Waiting(request, ask, self._digest_of(part_of(request, ask)))
        self._waiting[request.request_id] = waiting
        return waiting.transfer()

    def of(self, request: Any, ask: Receive) -> Transfer:
        """The transfer that the request asks for, as the prefiller knows it."""
        waiting = self._waiting.get(request.request_id)
        digest = waiting.digest if waiting is not None else self._digest_of(part_of(request, ask))
        return Transfer(or_of_prompt(ask.transfer, digest), digest)

    def renamed(self) -> list[tuple[Any, Receive, Transfer]]:
        """Takes the digests anew; returns the requests that have another one now, with their names before."""
        changed = []
        for request_id, (request, ask, before) in list(self._waiting.items()):
            digest = self._digest_of(part_of(request, ask))
            if digest != before:
                changed.append((request, ask, self._waiting[request_id].transfer()))
                self._waiting[request_id] = _Waiting(request, ask, digest)
        return changed

    def forget(self, request_id: str) -> None:
        """The request has its blocks, or has ended."""
        self._waiting.pop(request_id, None)

    def __len__(self) -> int:
        """The number of digests that are kept; for leak checks at rest."""
        return len(self._waiting)
