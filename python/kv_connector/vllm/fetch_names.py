"""The names by which fetches ask for transfers. Used by the engine core's thread only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kv_connector.vllm.beginnings import part_of
from kv_connector.vllm.metadata import Transfer
from kv_connector.vllm.request_name import or_of_prompt
from kv_connector.vllm.transfer_params import Receive


class FetchNames:
    """A transfer's name has the digest of what is fetched, which is kept while a request waits.

    A long prompt's takes milliseconds.
    """

    def __init__(self, digest_of: Callable[[Any], str]) -> None:
        """``digest_of``: of a request's prompt, and of the weights with which the engine computes it."""
        self._digest_of = digest_of
        self._digests: dict[str, str] = {}
        """By request id."""

    def queued(self, request: Any, ask: Receive) -> Transfer:
        """As ``of``; the digest is kept."""
        self._digests[request.request_id] = self._digest_of(part_of(request, ask))
        return self.of(request, ask)

    def of(self, request: Any, ask: Receive) -> Transfer:
        """The transfer that the request asks for, as the prefiller knows it."""
        digest = self._digests.get(request.request_id) or self._digest_of(part_of(request, ask))
        return Transfer(or_of_prompt(ask.transfer, digest), digest)

    def forget(self, request_id: str) -> None:
        """The request has its blocks, or has ended."""
        self._digests.pop(request_id, None)

    def __len__(self) -> int:
        """The number of digests that are kept; for leak checks at rest."""
        return len(self._digests)
