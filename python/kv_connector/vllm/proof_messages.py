"""What the two halves of the connector tell each other about comparisons of computed KV: plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kv_connector.configuration.messenger_addresses import Address


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


Place = tuple[int, int]
"""A block and the offset of a token in it."""


@dataclass(frozen=True, slots=True)
class ComparedToken:
    """A token that both sides have computed, with the places of its KV in each KV cache group."""

    own: Sequence[Place | None]
    """None in groups that do not keep the token or have no KV of single tokens."""
    received: Sequence[Place | None]
    alike_around: bool
    """Whether the blocks of both places hold nothing but tokens that both sides have computed."""


@dataclass(frozen=True, slots=True)
class ShadowProof:
    """A prompt that was computed here, and whose KV was fetched into other blocks: some of its tokens are compared."""

    request: str
    """The number of the shadow fetch."""
    tokens: Sequence[ComparedToken]


@dataclass(frozen=True, slots=True)
class Proved:
    """How one rank found the tokens of a request that were to be compared."""

    request: str
    """The engine's id, or the number of a shadow fetch."""
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
