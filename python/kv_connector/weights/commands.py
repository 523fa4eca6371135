"""The commands of a messenger of weights: docs/boundary.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kv_connector.runtime.commands import Command


@dataclass(frozen=True, slots=True)
class Dial(Command):
    """A server connects to a sender."""

    host: str
    port: int
    ticket: str
    refusal: str = ""
    """Why the sender can write nothing here; "" if it can."""


@dataclass(frozen=True, slots=True)
class Apply(Command):
    """A server's engine would load this update now; ``decided`` answers."""

    update_id: int


@dataclass(frozen=True, slots=True)
class Applied(Command):
    """Every rank has loaded the update, or, with a reason, none has begun to."""

    update_id: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Send(Command):
    """A sender's memory, as it is now, goes to these servers."""

    update_id: int
    version: int
    tickets: Sequence[str]
