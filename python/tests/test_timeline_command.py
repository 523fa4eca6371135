"""``kv-messenger timeline``: logs of engines become a table, a picture and a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_timelines import FETCH, PREFILL, line

from kv_connector.cli.main import main

SUMMARY = line(
    transfer="t2",
    side="prefiller",
    transport="shm",
    promptTokens=700,
    bytes=3_670_016,
    firstSubmittedNs=1_000_000,
    lastLeftNs=9_500_000,
    forwardEndNs=9_000_000,
    layersSent=12,
    layersSentEarly=11,
)


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    for name, text in (("prefiller.log", PREFILL + SUMMARY), ("decoder.log", FETCH)):
        (tmp_path / name).write_text("INFO something else\n" + text)
    return [str(tmp_path / "prefiller.log"), str(tmp_path / "decoder.log")]


def test_should_print_a_line_for_each_side(logs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", *logs]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["transfer", "side", "transport"]
    assert [row.split()[:2] for row in rows[:3]] == [["t1", "prefiller"], ["t2", "prefiller"], ["t1", "decoder"]]
    assert rows[1].split() == ["t2", "prefiller", "shm", "700", "3.7", "11/12", "8.50", "0.50", "-"]


def test_should_show_what_a_pull_waited_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log, trace = tmp_path / "asker.log", tmp_path / "trace.json"
    times = {"askedNs": 9_000_000, "grantedNs": 9_500_000, "readyNs": 10_000_000, "polledNs": 0}
    waits = {"answerMicros": 2000, "pagesMicros": 3000}
    log.write_text(line(transfer="pull-1", side="decoder", pages=4, bytes=1024, **times, **waits))
    assert main(["timeline", str(log), "--perfetto", str(trace)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["pull-1", "asker", *"--", "0.0", *"---", "6.00"]
    begun = {each["name"]: each["ts"] for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "b"}
    assert begun == {"question": 4000, "no pages yet": 6000, "pages granted": 9000, "KV on its way": 9500}


def test_should_split_the_hand_over_of_what_both_sides_report(
    logs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timeline", *logs]) == 0
    header, *rows = capsys.readouterr().out.splitlines()[4:]
    assert header.startswith("hand-over")
    assert [row.split() for row in rows] == [["t1", "0.00", "0.00", "0.00", "1.00", "1.00"]]


def test_should_draw_the_longest_transfer_of_which_both_sides_are_known(logs: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "transfer.svg"
    assert main(["timeline", *logs, "--svg", str(picture)]) == 0
    assert "512 tokens" in picture.read_text()


def test_should_say_what_a_picture_needs(logs: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for more in ([], ["--transfer", "t2"]):
        assert main(["timeline", logs[0], "--svg", str(tmp_path / "transfer.svg"), *more]) == 1
        assert 'whose option timelines is "full"' in capsys.readouterr().err


def test_should_write_a_trace_in_which_every_span_has_its_time(logs: list[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert main(["timeline", *logs, "--perfetto", str(trace)]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    passes = [(event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert passes == [(0.1, 0.1), (0.2, 0.1)]
    began = {event["id"]: event["ts"] for event in events if event["ph"] == "b"}
    ended = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
    assert began.keys() == ended.keys()
    assert all(began[span] <= ended[span] for span in began)
    named = {event["name"] for event in events if event["ph"] == "b"}
    assert named == {"layer 0", "layer 1", "sent over shm", "pages granted", "KV on its way"}


def test_should_say_which_option_logs_without_timelines_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "engine.log").write_text("nothing of interest\n")
    assert main(["timeline", str(tmp_path / "engine.log")]) == 1
    assert "option timelines" in capsys.readouterr().err
    assert main(["timeline", str(tmp_path / "none.log")]) == 1
    assert "none.log" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\0b", "", "/nowhere/a.log"])
def test_should_say_that_a_name_is_no_log(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", name]) == 1
    assert "name an engine's log" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["a\0b", "\ud800", "[" * 100_000, '{"a":' * 10_000, "", "/nowhere/a.json"])
def test_should_say_that_options_are_no_options(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ping", "--answer", "--kv-transfer-config", given]) == 2
    assert "--kv-transfer-config is" in capsys.readouterr().err
