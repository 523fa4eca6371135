"""What the first rank of an engine decides for all of them: it goes with the requests that SGLang broadcasts anyway.

So all ranks hear it in the same round of their schedulers, in the same order, and a round in which nothing was decided
costs nothing. Used by the scheduler's thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Words:
    """Among SGLang's requests on their way to all ranks; no scheduler sees it."""

    words: tuple[Any, ...]


class RankWords:
    """Those of one process's scheduler."""

    def __init__(self) -> None:
        self._decided: list[Any] = []
        self._heard: list[Any] = []

    def say(self, word: Any) -> None:
        """The first rank's: all ranks hear it in their next round, this one too."""
        self._decided.append(word)

    @property
    def are_on_their_way(self) -> bool:
        """Whether something was said that no rank has heard yet."""
        return bool(self._decided)

    def heard(self) -> list[Any]:
        """What was heard since the last call."""
        heard, self._heard = self._heard, []
        return heard

    def forget(self) -> None:
        """What was said before is for a messenger that is closed."""
        self._decided.clear()
        self._heard.clear()

    def broadcast(
        self, original: Callable[..., Any], receiver: Any, requests: list[Any] | None, *args: Any, **named: Any
    ) -> Any:
        """Wraps the step in which SGLang gives the requests of the first rank, the only one that has a list, to all."""
        if self._decided and requests is not None:
            requests = [*requests, Words(tuple(self._decided))]
            self._decided.clear()
        received = original(receiver, requests, *args, **named)
        if not any(isinstance(each, Words) for each in received):
            return received
        self._heard += [word for each in received if isinstance(each, Words) for word in each.words]
        return [each for each in received if not isinstance(each, Words)]


WORDS = RankWords()
"""Those of this process's scheduler."""
