"""The state of one fetch in a worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.vllm.metadata import Fetch

PROOF_WAIT_SECONDS = 1.0
"""How long a request that another prefiller may serve waits for proof that the first one no longer writes to its pages.
The proof takes milliseconds if that prefiller is dead, and never comes if it hangs."""


@dataclass(slots=True)
class OpenFetch:
    """The state of a request that waits for KV."""

    blocks: Sequence[int]
    fetch: Fetch | None = None
    """The fetch given to the messenger; None for a request that is refused."""
    other_prefillers: list[Messengers] = field(default_factory=list)
    """The prefillers to ask next, if this one fails."""
    deadline_seconds: float = 0.0
    quarantine_reason: str = ""
    """Why its pages need quarantine if no proof comes until ``proof_deadline_seconds``; "" if they do not."""
    proof_deadline_seconds: float = 0.0
    logged_as: int = logging.ERROR  # the level at which a failure is logged

    @property
    def is_shadow(self) -> bool:
        """Whether the engine does not know of it."""
        return self.fetch is not None and self.fetch.shadow
