"""What a worker reports to the engine after a step. A plain value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_connector.vllm.request_numbers import RequestNames


@dataclass
class Reports:
    """The requests to report to the engine after a step, by number or, for the engine, by name."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed: dict[str, Sequence[int]] = field(default_factory=dict)
    """The requests in ``received`` whose KV did not arrive, with their blocks."""

    def named(self, names: RequestNames) -> Reports:
        """The same reports by the engine's own ids; those requests are over, and their names are dropped."""
        of = names.take(self.sent | self.received)
        return Reports(
            {of[number] for number in self.sent if number in of},
            {of[number] for number in self.received if number in of},
            {of[number]: blocks for number, blocks in self.failed.items() if number in of},
        )
