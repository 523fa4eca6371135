"""What the two halves of the connector tell each other about comparisons of last tokens: plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kv_connector.vllm.messenger_addresses import Address


@dataclass(frozen=True, slots=True)
class Proof:
    """A request whose last prompt token this step computes again: what was received of it is compared."""

    request: str
    places: Sequence[tuple[int, int]]
    """In each KV cache group the block that holds the token, and the token's offset in it."""
    blocks: Sequence[int]
    """The blocks of the fetch, none of which may be used if the comparison fails."""
    alone: bool = True
    """Whether the pass writes this token only, and none behind it."""
    may_fail: bool = True
    """Whether a difference fails the request; otherwise it is reported only."""


@dataclass(frozen=True, slots=True)
class Proved:
    """How one rank found a request's last prompt token."""

    request: str
    judged: bool
    """Whether it could be compared."""
    worst: float = 0.0
    """The largest difference in any layer, as a part of that layer's largest number."""
    finding: str = ""
    """What differs by more than rounding explains, and what that hints at; "" if nothing does."""


@dataclass(frozen=True, slots=True)
class ProofTally:
    """What the comparisons of last tokens came to, for the messenger's metrics."""

    outcome: Literal["equal", "different", "unjudged", "refused"]
    """"refused": a fetch that was not begun, because the pair of engines is refuted."""
    worst: float
    prefiller: Address
