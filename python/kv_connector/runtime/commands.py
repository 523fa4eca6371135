"""The commands of docs/boundary.md, and their parts: plain values, whose fields Java's CommandReader reads."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

PrefillOutcome = Literal["finished", "aborted", "failed"]
ComparisonOutcome = Literal["equal", "different", "unjudged"]
OfferReason = Literal["", "not_held", "busy", "misfit", "unavailable", "peer_too_old", "unreachable", "late"]
"""Why nothing is offered, "" if something is; an engine that is asked gives none of the last three."""
PullOutcome = Literal[
    "arrived",
    "failed",
    "proves",
    "not_worth",
    "not_held",
    "unproven",
    "late",
    "expired",
    "busy",
    "misfit",
    "unavailable",
    "peer_too_old",
    "unreachable",
    "aborted",
    "malformed",
    "off",
    "role",
    "policy_fail",
]

DIFFERENCE_MAX = 1e6
"""What an infinite difference is counted as; no difference between right engines is near it."""


class Command:
    """A command; a field that is None is left out."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PrefillerAddress:
    """The address of the messenger of one of a prefiller's ranks."""

    host: str
    port: int
    engine_id: str = ""
    """The id that it is expected to have; "" if unknown."""


@dataclass(frozen=True, slots=True)
class ChunkPages:
    """Pages of one group, from this position in the prompt on."""

    first_page: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class FetchPages:
    """The pages of one group that a fetch fills."""

    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A request's part of a forward pass: tokens ``[first_token, end_token)``."""

    request: str
    transfer: str
    prompt_digest: str
    prompt_tokens: int
    cached_tokens: int
    first_token: int
    end_token: int
    groups: Sequence[ChunkPages]


@dataclass(frozen=True, slots=True)
class Step(Command):
    """A forward pass begins that computes these chunks."""

    step: int
    counter_start: int
    chunks: Sequence[Chunk]


@dataclass(frozen=True, slots=True)
class StepEnded(Command):
    """The forward pass is queued to its end."""

    step: int
    counter_end: int


@dataclass(frozen=True, slots=True)
class StepFailed(Command):
    """The forward pass failed: nothing of it that was not sent yet is sent."""

    step: int


@dataclass(frozen=True, slots=True)
class Announce(Command):
    """The engine has queued a request whose KV is to be sent."""

    request: str
    transfer: str
    prompt_digest: str


@dataclass(frozen=True, slots=True)
class Computed(Command):
    """The KV of the tokens before ``end_token`` is complete; reported outside of any step."""

    request: str
    transfer: str
    prompt_digest: str
    prompt_tokens: int
    end_token: int
    groups: Sequence[ChunkPages]


@dataclass(frozen=True, slots=True)
class PrefillEnded(Command):
    """The engine has ended a prefill and holds its pages until it is reported as released."""

    request: str
    outcome: PrefillOutcome
    context_slot: int | None = None


@dataclass(frozen=True, slots=True)
class Fetch(Command):
    """A request waits for the KV of tokens ``[first_token, prompt_tokens)``, of all these messengers."""

    request: str
    transfer: str
    prompt_digest: str
    prefillers: Sequence[PrefillerAddress]
    prompt_tokens: int
    first_token: int
    groups: Sequence[FetchPages]
    limit_millis: int
    """0: the messenger's own limit."""
    context_slot: int | None = None
    context_kinds: Sequence[str] | None = None
    prompt_token_ids: Sequence[int] | None = None
    """The prompt, if the prefiller has to enqueue it; with the next two."""
    cache_salt: str | None = None
    priority: int | None = None
    answer_micros: int | None = None
    """From the question to its answer, of a request that pulls; with the next one, for its timeline."""
    pages_micros: int | None = None
    """From the answer until it had pages."""


@dataclass(frozen=True, slots=True)
class Expect(Command):
    """The engine has queued a request that will fetch: its prefiller keeps the pages as long as this engine runs."""

    transfer: str
    prompt_digest: str
    prefillers: Sequence[PrefillerAddress]


@dataclass(frozen=True, slots=True)
class Decline(Command):
    """A transfer that will not be fetched: its prefiller need not keep the pages."""

    transfer: str
    prompt_digest: str
    prefillers: Sequence[PrefillerAddress]


@dataclass(frozen=True, slots=True)
class Reject(Command):
    """A request that never reached the engine, or whose prompt is not known any more: its prefiller stops waiting."""

    transfer: str
    prefillers: Sequence[PrefillerAddress]


@dataclass(frozen=True, slots=True)
class Abandon(Command):
    """The engine has ended a request that fetches; its pages stay held until the messenger has ended it."""

    request: str


@dataclass(frozen=True, slots=True)
class ReportEnd(Command):
    """The end of a fetch has not been heard: if the messenger has no such fetch any more, it reports ``failed``."""

    request: str


@dataclass(frozen=True, slots=True)
class Ask(Command):
    """Asks another engine how much of these tokens its prefix cache holds; one ``offered`` follows."""

    request: str
    transfer: str
    prompt_digest: str
    prefillers: Sequence[PrefillerAddress]
    prompt_token_ids: Sequence[int]
    cache_salt: str
    priority: int
    limit_millis: int


@dataclass(frozen=True, slots=True)
class Offer(Command):
    """Answers an ask: pages that hold the first ``held_tokens`` and stay until ``released``; none if that is 0."""

    request: str
    transfer: str
    prompt_digest: str
    asked: bool
    """Whether the question came to this messenger; it came to the engine's first one."""
    held_tokens: int
    groups: Sequence[ChunkPages]
    reason: OfferReason


@dataclass(frozen=True, slots=True)
class Withdraw(Command):
    """An offer that no grant has taken is released at once."""

    request: str


@dataclass(frozen=True, slots=True)
class PullEnded(Command):
    """What came of a request that names another engine to pull from. Times are 0 where nothing was offered, fetched."""

    outcome: PullOutcome
    tokens: int
    ask_micros: int
    pull_micros: int


@dataclass(frozen=True, slots=True)
class SourcePrice:
    """What it takes to get tokens from an engine; see ``TransferPrice``."""

    source: str
    """The address of its first messenger, ``host:port``."""
    dead_millis: int
    """For how long it is not chosen, since it was lost a moment ago; 0 if it was not."""
    open_micros: int
    answer_micros: int
    queue_micros: int
    fixed_micros: int
    """What moving any number of tokens takes."""
    picos_per_token: int
    tokens_min: int
    """The price is known from here to ``tokens_max``; neither is given where it is a guess by other engines."""
    tokens_max: int
    known_millis: int
    """For how long it is."""


@dataclass(frozen=True, slots=True)
class Prices(Command):
    """What tokens take now, from other engines and computed here; all that was reported before is void."""

    sources: Sequence[SourcePrice]
    compute_picos_per_token: int | None = None
    """None: nothing was computed yet."""


@dataclass(frozen=True, slots=True)
class Compared(Command):
    """Received KV was compared with own; see ``compared``."""

    outcome: ComparisonOutcome
    difference_millionths: int
    prefillers: Sequence[PrefillerAddress]


@dataclass(frozen=True, slots=True)
class Refuted(Command):
    """This many fetches were not begun, because their prefiller computes another KV."""

    fetches: int


def compared(outcome: ComparisonOutcome, worst: float, prefiller: PrefillerAddress) -> Compared:
    """The KV of a prompt was compared. ``worst``: the largest difference, as a part of a layer's largest number."""
    return Compared(outcome, round(min(worst, DIFFERENCE_MAX) * 1e6), [prefiller])


def name_of(command: Command) -> str:
    """The command's name in JSON."""
    name = type(command).__name__
    return name[0].lower() + name[1:]


def encode(value: Any) -> dict[str, Any]:
    """The JSON object of a command or a part of one, for ``json.dumps``; TypeError for anything else."""
    named = {"do": name_of(value)} if isinstance(value, Command) else {}
    given = ((wire, getattr(value, field)) for field, wire in _wire_names(value.__class__))
    return named | {wire: each for wire, each in given if each is not None}


@functools.cache
def _wire_names(kind: type) -> Sequence[tuple[str, str]]:
    names = [field.name for field in fields(kind)]
    return [(name, name[0] + name.title().replace("_", "")[1:]) for name in names]
