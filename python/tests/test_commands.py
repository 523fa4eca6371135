"""The commands have the names and the fields that Java's CommandReader reads; its source is read, no JVM runs."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from kv_connector.runtime import commands
from kv_connector.runtime.commands import (
    DIFFERENCE_MAX,
    Chunk,
    ChunkPages,
    Command,
    Fetch,
    FetchPages,
    PrefillerAddress,
    Refuted,
    SourcePrice,
    Step,
    compared,
    encode,
    name_of,
)

JAVA = Path(__file__).parents[2] / "connector-java"
READER = JAVA / "connector/src/main/java/io/kvmessenger/connector/CommandReader.java"
PORT = JAVA / "messenger/src/main/java/io/kvmessenger/messenger/port"
METHOD = re.compile(r"^    (?:private )?static .*? (\w+)\(Fields fields\) \{$(.*?)^    \}$", re.MULTILINE | re.DOTALL)
CASE = re.compile(r'case "(\w+)" ->(.*?)(?=case "|default ->)', re.DOTALL)
READ = re.compile(r'\b(\w+)\s*\.\s*(?:\w+)\(\s*"(\w+)"')
CALL = re.compile(r"\b(\w+)\(fields\)")
BODIES = dict(METHOD.findall(READER.read_text(encoding="utf-8")))
CASES = dict(CASE.findall(BODIES["command"]))
KINDS = {
    kind.__name__[0].lower() + kind.__name__[1:]: kind
    for kind in Command.__subclasses__()
    if kind.__module__ == Command.__module__
}
THERE = PrefillerAddress("there", 7)


def read_by(body: str, of: str = "fields") -> set[str]:
    """The names that are read from the variable ``of``, here and in the methods that get it."""
    own = {name for variable, name in READ.findall(body) if variable == of}
    return own.union(*(read_by(BODIES[method]) for method in CALL.findall(body) if of == "fields"))


def wired(kind: Any) -> set[str]:
    return {re.sub(r"_(\w)", lambda found: found[1].upper(), field.name) for field in fields(kind)}


def test_java_has_a_case_for_each_command_and_python_a_class() -> None:
    assert CASES.keys() == KINDS.keys()


@pytest.mark.parametrize("name", sorted(KINDS))
def test_java_reads_the_fields_of_a_command(name: str) -> None:
    assert read_by(CASES[name]) == wired(KINDS[name])


@pytest.mark.parametrize(
    ("method", "variable", "part"),
    [
        ("chunk", "fields", Chunk),
        ("chunkPages", "group", ChunkPages),
        ("fetch", "group", FetchPages),
        ("prefillers", "prefiller", PrefillerAddress),
        ("sourcePrice", "fields", SourcePrice),
    ],
)
def test_java_reads_the_fields_of_a_part(method: str, variable: str, part: type) -> None:
    assert read_by(BODIES[method], variable) == wired(part)


@pytest.mark.parametrize(
    ("source", "outcomes"),
    [
        ("EngineCommand.java", commands.PrefillOutcome),
        ("ComparisonOutcome.java", commands.ComparisonOutcome),
        ("PullOutcome.java", commands.PullOutcome),
    ],
)
def test_java_knows_the_outcomes(source: str, outcomes: Any) -> None:
    assert constants(source) == list(get_args(outcomes))


def test_java_knows_the_reasons_for_which_nothing_is_offered() -> None:
    held, *reasons = constants("OfferOutcome.java")
    assert held == "held"
    assert get_args(commands.OfferReason) == ("", *reasons)


def test_whatever_keeps_an_offer_away_is_an_outcome_of_the_pull() -> None:
    assert set(get_args(commands.OfferReason)[1:]) <= set(get_args(commands.PullOutcome))


def constants(source: str) -> list[str]:
    """The constants of the enum of outcomes in a file of Java's, as they are written in commands."""
    declared = re.search(
        r"enum \w*Outcome\b[^{]*\{(.*?)^$",
        (PORT / source).read_text(encoding="utf-8") + "\n\n",
        re.DOTALL | re.MULTILINE,
    )
    assert declared is not None
    known = re.findall(r"^ +([A-Z_]+)\b", declared[1], re.MULTILINE)
    return [name.lower() for name in known]


def test_a_command_is_an_object_with_its_name_and_without_what_is_absent() -> None:
    fetch = Fetch("1", "t", "", [THERE], 32, 0, [FetchPages([3, 4])], 0)
    assert json.loads(json.dumps(fetch, default=encode)) == {
        "do": "fetch",
        "request": "1",
        "transfer": "t",
        "promptDigest": "",
        "prefillers": [{"host": "there", "port": 7, "engineId": ""}],
        "promptTokens": 32,
        "firstToken": 0,
        "groups": [{"pages": [3, 4]}],
        "limitMillis": 0,
    }


def test_the_chunks_of_a_step_have_no_name() -> None:
    step = Step(2, 41, [Chunk("1", "t", "", 32, 0, 16, 32, [ChunkPages(1, [4])])])
    assert name_of(step) == "step"
    assert json.loads(json.dumps(step, default=encode))["chunks"] == [
        {
            "request": "1",
            "transfer": "t",
            "promptDigest": "",
            "promptTokens": 32,
            "cachedTokens": 0,
            "firstToken": 16,
            "endToken": 32,
            "groups": [{"firstPage": 1, "pages": [4]}],
        }
    ]


def test_only_commands_and_their_parts_are_encoded() -> None:
    with pytest.raises(TypeError):
        json.dumps([Refuted(1), object()], default=encode)


def test_a_difference_is_counted_in_millionths_and_an_infinite_one_as_a_number() -> None:
    assert compared("equal", 0.25, THERE).difference_millionths == 250_000
    assert compared("different", math.inf, THERE).difference_millionths == DIFFERENCE_MAX * 1e6
