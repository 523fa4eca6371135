"""Translates between the connector's numbers of requests and their names, by which tests and simulations call them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from kv_connector import Event, Timeline
from kv_connector.runtime.commands import encode

NUMBER_LENGTH_MAX = 20


def as_sent(command: Any) -> dict[str, Any]:
    """The command as Java reads it."""
    sent: dict[str, Any] = json.loads(json.dumps(command, default=encode))
    return sent


class RequestsByName:
    """The requests of one engine. Of two with one name, the later one is meant."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._numbers: dict[str, str] = {}

    def learn(self, metadata: Any) -> dict[str, str]:
        """Takes the names in a step's metadata, in those of other connectors too.

        Returns what requests are called now, by what they were called before, if that is not the same: one that goes on
        by another number, and what it ends by the number of before.
        """
        called: dict[str, str] = {}
        for meta in getattr(metadata, "metadata", (metadata,)):
            for number, name in getattr(meta, "names", {}).items():
                before = self._numbers.get(name)
                if before is not None and before in meta.unreported:
                    del self._names[before]
                    called |= {name: before, number: name}
                self._names[number] = name
                self._numbers[name] = number
        return called

    def name(self, number: str) -> str:
        assert len(number) <= NUMBER_LENGTH_MAX, "a client's text goes to Java"
        return self._names.get(number, number)

    def number(self, name: str) -> str:
        return self._numbers.get(name, name)

    def command(self, command: Any) -> dict[str, Any]:
        """The command with names in place of numbers."""
        named = dict(command)
        if "request" in command:
            named["request"] = self.name(command["request"])
        if "chunks" in command:
            named["chunks"] = [self.command(chunk) for chunk in command["chunks"]]
        return named

    def event(self, event: Event) -> Event:
        """The event with numbers in place of names."""
        if isinstance(event, Timeline):
            fields = {**event.fields}
            fields.update({"request": self.number(fields["request"])} if "request" in fields else {})
            return Timeline(event.transfer, fields)
        request = getattr(event, "request", None)
        return event if request is None else dataclasses.replace(event, request=self.number(request))  # type: ignore[call-arg]
