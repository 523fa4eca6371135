"""The names by which fetches ask for transfers. Used by the engine core's thread only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kv_connector.vllm.beginnings import part_of
from kv_connector.vllm.metadata import Transfer
from kv_connector.vllm.prompts import computed_with
from kv_connector.vllm.request_name import or_of_prompt
from kv_connector.vllm.transfer_params import Receive


class _Waiting(NamedTuple):
    """A request that waits, the digest of what it will fetch, and that of what it is named by beside its prompt."""

    request: Any
    ask: Receive
    digest: str
    computed_with: str

    def transfer(self) -> Transfer:
        return Transfer(or_of_prompt(self.ask.transfer, self.digest), self.digest)


class FetchNames:
    """A transfer's name has the digest of what is fetched, which is kept while a request waits.

    A long prompt's takes milliseconds. The names of open fetches are kept until their KV has come.
    """

    def __init__(self, digest_of: Callable[[Any], str]) -> None:
        """``digest_of``: of a request's prompt, and of the weights with which the engine computes it."""
        self._digest_of = digest_of
        self._waiting: dict[str, _Waiting] = {}
        """By request id."""
        self._fetching: dict[str, _Waiting] = {}

    def queued(self, request: Any, ask: Receive) -> Transfer:
        """As ``of``; the digest is kept."""
        waiting = self._named(request, ask)
        self._waiting[request.request_id] = waiting
        return waiting.transfer()

    def _named(self, request: Any, ask: Receive) -> _Waiting:
        digest, weights = self._digest_of(part_of(request, ask)), computed_with(request, self._digest_of)
        return _Waiting(request, ask, digest, weights)

    def of(self, request: Any, ask: Receive) -> Transfer:
        """The transfer that the request asks for, as the prefiller knows it."""
        waiting = self._waiting.get(request.request_id)
        digest = waiting.digest if waiting is not None else self._digest_of(part_of(request, ask))
        return Transfer(or_of_prompt(ask.transfer, digest), digest)

    def fetching(self, request: Any, ask: Receive) -> Transfer:
        """As ``of``; the request has its blocks, and asks for the transfer now."""
        waiting = self._waiting.get(request.request_id) or self._named(request, ask)
        self._fetching[request.request_id] = waiting
        return waiting.transfer()

    def held(self, request: Any, ask: Receive) -> Transfer:
        """What the prefiller has, by its answer if that names it: for a decline."""
        digest = ask.prompt_digest or self.of(request, ask).prompt_digest
        return Transfer(or_of_prompt(ask.transfer, digest), digest)

    def why_not_held(self, request: Any, ask: Receive) -> str:
        """Why the prefiller has not what the request asks for, if its answer names something else; else ""."""
        if not ask.prompt_digest or ask.prompt_digest == self.of(request, ask).prompt_digest:
            return ""
        return (
            "the prefiller's answer names KV of other weights, of another adapter or of other tokens, expected those"
            " that this engine has for the prompt: weights may have changed since, or the two sides have not the same"
        )

    def waiting(self) -> list[tuple[Any, Receive]]:
        """The requests that wait, with what they ask for."""
        return [(each.request, each.ask) for each in self._waiting.values()]

    def renamed(self) -> list[tuple[Any, Receive, Transfer]]:
        """Takes the digests anew; returns the requests that have another one now, with their names before."""
        return [(before.request, before.ask, before.transfer()) for before in self._renamed(self._waiting)]

    def renamed_fetches(self) -> list[tuple[Any, Transfer]]:
        """The same of open fetches, with their names now."""
        before = self._renamed(self._fetching)
        return [(each.request, self._fetching[each.request.request_id].transfer()) for each in before]

    def _renamed(self, named: dict[str, _Waiting]) -> list[_Waiting]:
        changed = []
        for request_id, before in list(named.items()):
            if computed_with(before.request, self._digest_of) != before.computed_with:
                changed.append(before)
                named[request_id] = self._named(before.request, before.ask)
        return changed

    def forget(self, request_id: str) -> None:
        """The request has its blocks, or has ended."""
        self._waiting.pop(request_id, None)

    def fetched(self, request_id: str) -> None:
        """Its fetch is over, or could not be planned, or is not needed any more."""
        self._waiting.pop(request_id, None)
        self._fetching.pop(request_id, None)

    def __len__(self) -> int:
        """The number of digests that are kept; for leak checks at rest."""
        return len(self._waiting) + len(self._fetching)
