"""The messages between the two halves of the connector: plain values, which vLLM pickles.

Each ``request`` is the number that the scheduler's half has given it (``request_numbers``), never the engine's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kv_connector.configuration.messenger_addresses import Address, Messengers
from kv_connector.runtime.commands import (
    Announce,
    Ask,
    Decline,
    Expect,
    OfferReason,
    PrefillEnded,
    Prices,
    PullEnded,
    Reject,
)
from kv_connector.runtime.facade import Connected, Disconnected, Granted, Offered
from kv_connector.vllm.proof_messages import Proof, ProofTally, Proved, ShadowProof
from kv_connector.vllm.vllm_api import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


class PlacedBlocks(NamedTuple):
    """Consecutive entries of a request's block table in one KV cache group."""

    first: int
    """The index of the first entry in the table."""
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
    """New blocks in each KV cache group, which no earlier chunk named."""
    prompt_digest: str = ""


class Transfer(NamedTuple):
    """A transfer's name on both sides. The id alone is not unique: clients reuse ids, even at the same time."""

    id: str
    prompt_digest: str


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
    """The blocks to fill in each KV cache group."""
    prompt_token_ids: Sequence[int] | None = None
    """The prompt, in a decoder-first request, whose prefiller has to enqueue it."""
    other_prefillers: Sequence[Messengers] = ()
    """The prefillers to ask, in this order, if the KV does not come from the first one."""
    prompt_digest: str = ""
    cache_salt: str = ""
    """Used, like the priority, by a prefiller that has to enqueue the prompt."""
    priority: int = 0
    limit_seconds: float = 0.0
    """0: the messenger's own limit."""
    answer_seconds: float = 0.0
    """How long a request that pulls has waited for the answer to its question; 0 = it has asked none."""
    pages_seconds: float = 0.0
    """And then for its pages."""
    shadow: bool = False
    """Whether the engine knows nothing of it: its blocks are the connector's own, and it is not reported to the engine.
    """

    @property
    def blocks(self) -> list[int]:
        """The blocks of all groups."""
        return [block for blocks in self.groups for block in blocks]


@dataclass(frozen=True, slots=True)
class Renamed:
    """The engine has other weights than those that name an open fetch."""

    request: str
    transfer: Transfer | None
    """What is to be fetched instead; None: the fetch fails."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks of the prefix cache that hold the first tokens of an asked prompt; none if there are 0 tokens."""

    request: str
    transfer: str
    prompt_digest: str
    held_tokens: int
    groups: Sequence[PlacedBlocks]
    """In each KV cache group those that the last of the tokens attends to."""
    reason: OfferReason


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request whose kv_transfer_params cannot be served; it ends as a failed load."""

    request: str
    blocks: Sequence[int]


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Everything that the workers must know about one step."""

    step: int
    computes: bool = False
    """Whether the step has a forward pass."""
    reports_end: bool = False
    """Whether the workers' news of this step name it."""
    layers_are_right: bool = False
    """Whether each messenger has checked its first pass, where GPUs count layers; none begins a step early before."""
    names: dict[str, str] = field(default_factory=dict)
    """The engine's ids of the requests that are new here, by number."""
    preempted: list[str] = field(default_factory=list)
    announces: list[Announce] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    """Prefills that continue in the engine but are not sent any further."""
    expects: dict[str, Expect] = field(default_factory=dict)
    """By the engine's id; removed again if the request ends before the step."""
    prefill_ends: list[PrefillEnded] = field(default_factory=list)
    unreported: list[str] = field(default_factory=list)
    """Those of ``prefill_ends`` that are not to be reported as sent: nothing has read their blocks."""
    expired: list[str] = field(default_factory=list)
    """Prefills that have ended, and whose blocks are not held any longer for a decoder that has not asked for them."""
    chunks: list[Chunk] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    renamed: dict[str, Renamed] = field(default_factory=dict)
    """Fetches of earlier steps, by number."""
    abandoned: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    declines: list[Decline] = field(default_factory=list)
    rejections: list[Reject] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    """Given to the messenger at the end of this step: a pass may still fill their blocks before."""
    withdrawn: list[str] = field(default_factory=list)
    """Offers that are not to be fetched any more."""
    pull_reports: list[PullEnded | Prices] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    shadow_proofs: list[ShadowProof] = field(default_factory=list)
    tallies: list[ProofTally] = field(default_factory=list)

    def needs_step(self) -> bool:
        """Whether it has to reach the workers even if the engine has no request left."""
        return bool(
            self.prefill_ends or self.abandoned or self.refusals or self.declines or self.rejections or self.offers
        )


@dataclass
class WorkerNews(KVConnectorWorkerMetadata):
    """What the scheduler must know besides the results of transfers; each messenger reports a request once."""

    taken_in: list[str] = field(default_factory=list)
    """Requests that are reported as failed in this step although their blocks may still be written to."""
    let_go: list[str] = field(default_factory=list)
    """Requests in earlier ``taken_in`` lists, to whose blocks nothing can write any more."""
    computed: list[Transfer] = field(default_factory=list)
    """Expected transfers whose prefiller has computed the prompt, or whose fetch would fail at once."""
    counted_right: int = 0
    """The number of messengers that have found their GPU's first pass counted correctly."""
    arrived: list[str] = field(default_factory=list)
    """Requests whose KV is complete, as far as this messenger receives it."""
    granted: list[str] = field(default_factory=list)
    """Prefills for which a decoder has pages, and waits."""
    connected: dict[str, str] = field(default_factory=dict)
    """The incarnation of each messenger with which a session was opened, by address; "" = it has ended."""
    moved: dict[str, Messengers] = field(default_factory=dict)
    """Requests whose KV is asked of another prefiller than the fetch named first."""
    proved: list[Proved] = field(default_factory=list)
    shadows_failed: list[str] = field(default_factory=list)
    """Shadow fetches whose KV will not come; those in ``taken_in`` may still be written to."""
    shadows_proved: list[Proved] = field(default_factory=list)
    offered: list[Offered] = field(default_factory=list)
    """The answers to this engine's asks."""
    released: list[str] = field(default_factory=list)
    """This engine's offers of which nothing reads the pages any more."""
    steps_over: list[int] = field(default_factory=list)
    """The step whose output this comes with, if it reports its end: its pass has written its KV."""

    def note(self, event: Connected | Disconnected | Granted) -> None:
        """Takes what a messenger has heard of its peers."""
        if isinstance(event, Granted):
            self.granted.append(event.request)
        else:
            self.connected[str(Address(event.host, event.port))] = event.incarnation

    def note_let_go(self, request: str) -> None:
        """Nothing can write to the blocks of a request that was reported as failed."""
        if request in self.taken_in:
            self.taken_in.remove(request)  # the proof came before the scheduler was notified
        else:
            self.let_go.append(request)

    def is_urgent(self) -> bool:
        """Whether requests of the engine wait for some of it."""
        of_pulls = self.offered or self.released
        return bool(self.let_go or self.computed or self.arrived or self.shadows_failed or of_pulls)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerNews:
        """Merges the news of several messengers."""
        assert isinstance(other, WorkerNews)
        return WorkerNews(
            self.taken_in + other.taken_in,
            self.let_go + other.let_go,
            self.computed + other.computed,
            self.counted_right + other.counted_right,
            self.arrived + other.arrived,
            self.granted + other.granted,
            self.connected | other.connected,
            self.moved | other.moved,
            self.proved + other.proved,
            self.shadows_failed + other.shadows_failed,
            self.shadows_proved + other.shadows_proved,
            self.offered + other.offered,
            self.released + other.released,
            self.steps_over + other.steps_over,
        )


@dataclass
class MessengerAddress(KVConnectorHandshakeMetadata):
    """The address of one of the engine's messengers."""

    engine_id: str
    address: Address
    compares_last_tokens: bool = False
    """Whether its ranks can compare received KV with their own; no fetch waits for a verdict otherwise."""
