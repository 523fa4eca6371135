"""What the first rank of an engine decides for all of them: it goes with the requests that SGLang broadcasts anyway.

So all ranks receive it in the same round of their schedulers, in the same order, and a round in which nothing was
decided costs nothing. Used by the scheduler's thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Decisions:
    """Among SGLang's requests on their way to all ranks; no scheduler sees it."""

    decisions: tuple[Any, ...]


class RankDecisions:
    """Those of one process's scheduler."""

    def __init__(self) -> None:
        self._decided: list[Any] = []
        self._received: list[Any] = []

    def decide(self, decision: Any) -> None:
        """The first rank's: all ranks receive it in their next round, this one too."""
        self._decided.append(decision)

    @property
    def are_pending(self) -> bool:
        """Whether something is decided that no rank has received yet."""
        return bool(self._decided)

    def take_received(self) -> list[Any]:
        """What was received since the last call."""
        received, self._received = self._received, []
        return received

    def forget(self) -> None:
        """What was decided before is for a messenger that is closed."""
        self._decided.clear()
        self._received.clear()

    def broadcast(
        self, original: Callable[..., Any], receiver: Any, requests: list[Any] | None, *args: Any, **named: Any
    ) -> Any:
        """Wraps the step in which SGLang gives the requests of the first rank, the only one that has a list, to all."""
        if self._decided and requests is not None:
            requests = [*requests, Decisions(tuple(self._decided))]
            self._decided.clear()
        received = original(receiver, requests, *args, **named)
        if not any(isinstance(each, Decisions) for each in received):
            return received
        self._received += [decision for each in received if isinstance(each, Decisions) for decision in each.decisions]
        return [each for each in received if not isinstance(each, Decisions)]


DECISIONS = RankDecisions()
"""Those of this process's scheduler."""
