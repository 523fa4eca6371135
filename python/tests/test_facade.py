"""The facade over a table made in Python: what is sent, what is understood, what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from kv_connector import (
    Arrived,
    Failed,
    Granted,
    Log,
    Messenger,
    MessengerError,
    MessengerPort,
    Opened,
    Prefilled,
    Released,
    Stopped,
    Timeline,
)
from kv_connector.runtime.commands import Abandon
from kv_connector.runtime.function_table import Function

OPENED = Opened(5, "e", "7", "127.0.0.1", 1, "127.0.0.1", 2, 4096)


class RecordingTable:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[Function, int, Any]] = []

    def call(self, function: Function, handle: int, request: bytes, _out: object) -> bytes:
        return self.wait(function, handle, request)

    def wait(self, function: Function, handle: int, request: bytes, _capacity_bytes: int = 0) -> bytes:
        self.calls.append((function, handle, json.loads(request) if request else None))
        answer = self.answers.pop(0) if self.answers else None
        return b"" if answer is None else json.dumps(answer).encode()


def messenger(*answers: Any) -> tuple[Messenger, RecordingTable]:
    table = RecordingTable(*answers)
    return Messenger(table, OPENED), table  # type: ignore[arg-type]


def test_should_be_a_messenger_port() -> None:
    port: MessengerPort = messenger()[0]
    assert port.opened is OPENED


def test_should_understand_every_event() -> None:
    events = [
        {"event": "released", "request": "a"},
        {"event": "prefilled", "transfer": "t-a", "promptDigest": "ab"},
        {"event": "granted", "request": "a", "promptTokens": 40, "firstToken": 16, "contextKinds": ["logits"]},
        {"event": "stopped", "request": "a", "reason": "gone"},
        {"event": "arrived", "request": "b", "pages": 3},
        {"event": "failed", "request": "c", "reason": "why"},
        {"event": "timeline", "transfer": "t", "chunks": [1]},
        {"event": "log", "level": "warning", "message": "m"},
    ]
    assert messenger({"events": events})[0].poll() == [
        Released("a"),
        Prefilled("t-a", "ab"),
        Granted("a", 40, 16, ("logits",)),
        Stopped("a", "gone"),
        Arrived("b", 3),
        Failed("c", "why"),
        Timeline("t", {"chunks": [1]}),
        Log("warning", "m"),
    ]


def test_should_take_the_events_beside_one_of_another_version(caplog: pytest.LogCaptureFixture) -> None:
    events = [{"event": "sung"}, {"event": "released", "request": "1"}]
    assert messenger({"events": events})[0].poll() == [Released("1")]
    assert "event is 'sung', which this wheel does not know" in caplog.text


def test_should_send_commands_in_one_request_and_none_when_there_are_none() -> None:
    opened, table = messenger()
    opened.submit([])
    opened.submit([Abandon("a"), Abandon("b")])
    assert [call[0] for call in table.calls] == [Function.SUBMIT]
    assert table.calls[0][2] == {"commands": [{"do": "abandon", "request": "a"}, {"do": "abandon", "request": "b"}]}


def test_should_fence_in_milliseconds() -> None:
    opened, table = messenger({"fenced": ["a"]})
    assert opened.fence(["a", "b"], 0.25) == ["a"]
    assert table.calls == [(Function.FENCE, 5, {"requests": ["a", "b"], "limitMillis": 250})]
    assert opened.fence([], 1) == []


def test_should_close_once_and_refuse_calls_afterwards() -> None:
    opened, table = messenger()
    opened.close()
    opened.close()
    assert [call[0] for call in table.calls] == [Function.CLOSE]
    with pytest.raises(MessengerError, match="is closed: open another one"):
        opened.poll()


def test_should_name_only_what_listens() -> None:
    opened = Opened(1, "e", "i", "127.0.0.1", -1, "127.0.0.1", 8080, 0)
    assert str(opened) == "engine e, incarnation i, metrics 127.0.0.1:8080"
    assert "control 127.0.0.1:14579" in str(dataclasses.replace(opened, control_port=14579))
