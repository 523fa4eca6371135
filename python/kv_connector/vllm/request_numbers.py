"""The connector's own short numbers for the engine's requests.

An engine's request id has text of a client in it: any length, any characters, and after a failure the same id again.
So it goes neither to Java nor to other ranks. Messengers and ranks know a request by a number, which is used once; the
names are kept on both ends and go into the engine's reports and the log. Neither class decides when a request is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from kv_connector.runtime.facade import Log, Timeline

NAME_LENGTH_MAX = 100
"""How much of a name a log line has: enough to find the request, however long its client made it."""


def shown(request_id: str) -> str:
    """A request id for a log line: one line of bounded length."""
    kept = request_id[:NAME_LENGTH_MAX]
    kept = kept if kept.isprintable() else ascii(kept)[1:-1]
    cut = len(request_id) > NAME_LENGTH_MAX
    return f"{kept}… ({len(request_id)} characters)" if cut else kept


class RequestNumbers:
    """Gives each request its number. Used by the engine core's thread only."""

    def __init__(self) -> None:
        self._count = itertools.count(1)
        self._numbers: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._new: dict[str, str] = {}

    def of(self, request_id: str) -> str:
        """The request's number, in decimal digits; a new one for a request that has none."""
        number = self._numbers.get(request_id)
        if number is None:
            number = self._numbers[request_id] = str(next(self._count))
            self._names[number] = self._new[number] = request_id
        return number

    def nameless(self) -> str:
        """A number for something that is no request of the engine; neither end remembers it."""
        return str(next(self._count))

    def name(self, number: str) -> str:
        """The request of this number; "" if it is forgotten."""
        return self._names.get(number, "")

    def take_new(self) -> dict[str, str]:
        """The requests that got their numbers since the last call, by number; the workers learn them."""
        new, self._new = self._new, {}
        return new

    def renew(self, request_id: str) -> None:
        """The workers have dropped its name with a report that was not its end: they learn it again."""
        self._new[self._numbers[request_id]] = request_id

    def adopt(self, request_id: str, number: str) -> None:
        """The request goes on by a number that was nameless; by the one of before nothing is known of it any more."""
        self.forget(request_id)
        self._numbers[request_id] = number
        self._names[number] = self._new[number] = request_id

    def forget(self, request_id: str) -> None:
        """The engine's request is over for the workers: one of the same id that comes later gets another number."""
        number = self._numbers.pop(request_id, "")
        self._names.pop(number, None)
        self._new.pop(number, None)

    def is_empty(self) -> bool:
        """Whether no request has a number; for leak checks at rest."""
        return not self._numbers


class RequestNames:
    """The names behind the numbers, in a worker. Used by the worker's main thread only."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def learn(self, new: Mapping[str, str]) -> None:
        """Takes the names of new requests, by number."""
        self._names.update(new)

    def all(self) -> dict[str, str]:
        """The names by number."""
        return dict(self._names)

    def shown(self, number: str) -> str:
        """A request for a log line: its name, cut, and the number by which messengers call it."""
        name = self._names.get(number)
        return f"{shown(name)} (number {number})" if name is not None else f"number {number}"

    def in_log(self, event: Timeline | Log) -> Timeline | Log:
        """A timeline with the request's name, cut, beside the number that the messenger gives; a line as it is."""
        if isinstance(event, Log):
            return event
        number = event.fields.get("request", "")
        name = self._names.get(number)
        fields = {**event.fields, "request": shown(name), "number": number} if name is not None else event.fields
        return Timeline(event.transfer, fields)

    def take(self, numbers: Iterable[str]) -> dict[str, str]:
        """The names of requests that are reported to the engine, by number; they are not named again."""
        return {number: self._names.pop(number) for number in numbers if number in self._names}

    def __len__(self) -> int:
        """How many names are kept; for leak checks at rest."""
        return len(self._names)
