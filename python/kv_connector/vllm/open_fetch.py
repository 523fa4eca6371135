"""The state of one fetch in a worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.runtime.commands import Reject
from kv_connector.vllm.messenger_commands import prefillers
from kv_connector.vllm.metadata import Fetch, Transfer

OUTDATED = "other weights or another adapter were loaded here while it was fetched, and no prefiller has it of those"
PROOF_WAIT_SECONDS = 1.0
"""How long a request that another prefiller may serve waits for proof that the first one no longer writes to its pages.
The proof takes milliseconds if that prefiller is dead, and never comes if it hangs."""


@dataclass(slots=True)
class OpenFetch:
    """The state of a request that waits for KV."""

    blocks: Sequence[int]
    fetch: Fetch | None = None
    """The fetch as last given to the messenger; None for a request that is refused."""
    other_prefillers: list[Messengers] = field(default_factory=list)
    """The prefillers to ask next, if this one fails."""
    deadline_seconds: float = 0.0
    quarantine_reason: str = ""
    """Why its pages need quarantine if no proof comes until ``proof_deadline_seconds``; "" if they do not."""
    proof_deadline_seconds: float = 0.0
    logged_as: int = logging.ERROR  # the level at which a failure is logged
    is_outdated: bool = False
    """Whether the engine has other weights than those that name it: what arrives under that name is not used."""
    renamed: Transfer | None = None
    """What is asked for in its place, when the prefiller ends the fetch and nothing writes to its pages."""

    @classmethod
    def of(cls, fetch: Fetch, deadline_seconds: float) -> OpenFetch:
        """One that the messenger gets now."""
        level = logging.WARNING if fetch.shadow else logging.ERROR
        return cls(fetch.blocks, fetch, list(fetch.other_prefillers), deadline_seconds, logged_as=level)

    @property
    def is_shadow(self) -> bool:
        """Whether the engine does not know of it."""
        return self.fetch is not None and self.fetch.shadow

    def awaits_proof(self, reason: str, now_seconds: float) -> bool:
        """Whether it may be asked for again, once it is proven that nothing writes to its pages; for a limited time."""
        if not (self.other_prefillers or self.renamed):
            return False
        self.quarantine_reason = reason or "its pages may still be written to"
        self.proof_deadline_seconds = now_seconds + PROOF_WAIT_SECONDS
        return True

    def rename(self, transfer: Transfer | None) -> None:
        """Other weights name what the request needs; None: it cannot be asked for."""
        self.is_outdated, self.renamed = True, transfer

    def abandon(self) -> None:
        """The request needs nothing any more: the client has left, or the engine was told to abort it."""
        self.other_prefillers.clear()
        self.renamed, self.logged_as = None, logging.INFO

    def rejection(self) -> list[Reject]:
        """For a fetch that failed: no request may ask for its transfer again, whose prefill need not wait for long."""
        fetch = self.fetch
        if fetch is None or fetch.shadow or self.logged_as == logging.INFO:
            return []
        if fetch.prompt_token_ids is not None or fetch.limit_seconds:  # of a pull, as of decoder first, it has ended
            return []
        return [Reject(fetch.transfer, prefillers(fetch.messengers))]

    def take_renamed(self) -> Fetch | None:
        """The fetch by its new name, which is this one from now on; None if it has no other."""
        if self.fetch is None or self.renamed is None:
            return None
        self.is_outdated, transfer, self.renamed = False, self.renamed, None
        return self._take(replace(self.fetch, transfer=transfer.id, prompt_digest=transfer.prompt_digest))

    def take_next(self) -> Fetch | None:
        """The fetch from the next prefiller, which is this one from now on; None if there is no other."""
        if self.fetch is None or self.is_outdated or not self.other_prefillers:
            return None
        return self._take(replace(self.fetch, messengers=self.other_prefillers.pop(0)))

    def _take(self, fetch: Fetch) -> Fetch:
        self.fetch, self.quarantine_reason = fetch, ""
        return fetch
