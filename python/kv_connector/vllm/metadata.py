"""What travels between the two halves of the connector: plain values, pickled by vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kv_connector.vllm.messenger_addresses import Address, Messengers
from kv_connector.vllm.vllm_api import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

PrefillOutcome = Literal["finished", "aborted", "failed"]


class PlacedBlocks(NamedTuple):
    """Blocks of the engine that follow each other in a request's table of one KV cache group."""

    first: int
    """The place of the first of them."""
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A request's part of the step's forward pass: tokens ``[first_token, end_token)``."""

    request: str
    transfer: str
    prompt_tokens: int
    cached_tokens: int
    first_token: int
    end_token: int
    groups: Sequence[PlacedBlocks]
    """Blocks of each KV cache group that were not told yet."""
    prompt_digest: str = ""


@dataclass(frozen=True, slots=True)
class Announce:
    """The engine has queued a request whose KV is to be sent."""

    request: str
    transfer: str
    prompt_digest: str


class Transfer(NamedTuple):
    """What a transfer is known by on both sides: clients use ids twice, also at the same moment."""

    id: str
    prompt_digest: str


@dataclass(frozen=True, slots=True)
class Expect:
    """The engine has queued a request that will fetch: its prefiller keeps the pages as long as this engine lives."""

    transfer: Transfer
    messengers: Messengers


@dataclass(frozen=True, slots=True)
class PrefillEnd:
    """The engine has ended a prefill and holds its pages until it is reported as sent."""

    request: str
    outcome: PrefillOutcome


@dataclass(frozen=True, slots=True)
class Fetch:
    """A request waits for the KV of tokens ``[first_token, prompt_tokens)``."""

    request: str
    transfer: str
    messengers: Messengers
    prefiller_engine_id: str
    prompt_tokens: int
    first_token: int
    groups: Sequence[Sequence[int]]
    """The blocks that are to be filled in each KV cache group."""
    prompt_token_ids: Sequence[int] | None = None
    """Present when the prefiller has to enqueue the prompt itself."""
    other_prefillers: Sequence[Messengers] = ()
    """Whom to ask, in this order, when the KV does not come from the first one."""
    prompt_digest: str = ""
    cache_salt: str = ""
    """Like the priority, for a prefiller that has to enqueue the prompt."""
    priority: int = 0

    @property
    def blocks(self) -> list[int]:
        """Those of all groups."""
        return [block for blocks in self.groups for block in blocks]


@dataclass(frozen=True, slots=True)
class Decline:
    """A transfer that will not be fetched: its prefiller need not keep the pages."""

    transfer: Transfer
    messengers: Messengers


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that the engine never had, and the ids that its transfer may have: its prefiller waits but a moment."""

    transfer_ids: Sequence[str]
    messengers: Messengers


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request whose kv_transfer_params cannot be served; it ends as a failed load."""

    request: str
    blocks: Sequence[int]


@dataclass
class StepMetadata(KVConnectorMetadata):
    """All that one step means for the workers."""

    step: int
    computes: bool = False
    """Whether the step has a forward pass."""
    layers_are_right: bool = False
    """Whether each messenger has counted a first pass right, where GPUs count: none tells a pass before that."""
    preempted: list[str] = field(default_factory=list)
    announces: list[Announce] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    """Prefills that stay in the engine and are not sent any further."""
    expects: dict[str, Expect] = field(default_factory=dict)
    """By request; not told any more when the request ends before the step."""
    prefill_ends: list[PrefillEnd] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    declines: list[Decline] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)


@dataclass
class WorkerNews(KVConnectorWorkerMetadata):
    """What the scheduler must know beside the results of transfers; each messenger names a request once."""

    taken_in: list[str] = field(default_factory=list)
    """Requests that are reported as failed in this step, and whose blocks may still be written to."""
    let_go: list[str] = field(default_factory=list)
    """Requests taken in earlier, whose blocks nothing can write to any more."""
    computed: list[Transfer] = field(default_factory=list)
    """Expected transfers that need nothing more of their prefiller's engine; a fetch of them moves or fails."""
    counted_right: int = 0
    """Messengers that have seen a GPU count its first pass right."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerNews:
        """The news of several messengers."""
        assert isinstance(other, WorkerNews)
        return WorkerNews(
            self.taken_in + other.taken_in,
            self.let_go + other.let_go,
            self.computed + other.computed,
            self.counted_right + other.counted_right,
        )


@dataclass
class MessengerAddress(KVConnectorHandshakeMetadata):
    """Where one of the engine's messengers is reached."""

    engine_id: str
    address: Address
