"""What make gpu-check prints is true, and so is its status: nothing that was not shown is printed as passed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gpu_check import pack
from gpu_check.report import (
    FAILED,
    IN_PART,
    NOT_SHOWN,
    PASSED,
    SKIPPED,
    InPart,
    NotShown,
    Outcome,
    Report,
    Skipped,
    outcome_of,
)


def outcome(run: Callable[[], str | InPart], needs_gpu: bool = False, beside: bool = True) -> tuple[str, int]:
    """(the check's line, the status), beside a check that passes."""
    lines: list[str] = []
    report = Report(lines.append)
    report.add("it", outcome_of(run))
    if beside:
        report.add("another", outcome_of(lambda: "seen"))
    return lines[0], report.end(needs_gpu=needs_gpu)


def raising(fault: Exception) -> Callable[[], str]:
    def run() -> str:
        raise fault

    return run


@pytest.mark.parametrize(
    ("run", "word", "status", "status_with_gpu"),
    [
        (lambda: "1,000 replays", "passed", 0, 0),
        (raising(AssertionError("the count is 3, expected 4")), "failed", 1, 1),
        (raising(OSError("no such library")), "failed", 1, 1),
        (raising(Skipped("not built: it moves no such memory")), "skipped", 0, 0),
        (raising(NotShown("no GPU")), "not shown", 0, 1),
        (lambda: InPart("9 rows", "tokens"), "in part", 0, 1),
    ],
)
def test_line_and_status_say_what_was_seen(
    run: Callable[[], str | InPart], word: str, status: int, status_with_gpu: int
) -> None:
    line, code = outcome(run)
    assert line.startswith(word)
    assert code == status
    assert outcome(run, needs_gpu=True)[1] == status_with_gpu


def test_run_in_which_nothing_passed_fails() -> None:
    assert outcome(raising(NotShown("no GPU")), beside=False)[1] == 1


def test_run_in_which_a_check_passed_in_part_does_not_fail_and_its_line_names_what_is_not_shown() -> None:
    line, code = outcome(lambda: InPart("9 rows", "tokens"), beside=False)
    assert line.startswith("in part   it: 9 rows; not shown: tokens [")
    assert code == 0


def test_last_line_counts_what_passed_failed_and_was_not_shown() -> None:
    lines: list[str] = []
    report = Report(lines.append)
    for kind, count in (PASSED, 2), (FAILED, 1), (NOT_SHOWN, 3):
        for at in range(count):
            report.add(f"{kind} {at}", Outcome(kind, "", 0.0))
    report.end(needs_gpu=False)
    assert lines[-1] == "2 passed, 1 failed, 3 not shown"
    report.add("absent", Outcome(SKIPPED, "", 0.0))
    report.end(needs_gpu=False)
    assert lines[-1] == "2 passed, 1 failed, 3 not shown, 1 skipped"
    report.add("half", Outcome(IN_PART, "", 0.0))
    report.end(needs_gpu=False)
    assert lines[-1] == "2 passed, 1 failed, 3 not shown, 1 in part, 1 skipped"


def test_line_stays_one_line() -> None:
    line, _ = outcome(raising(ValueError("two\nlines")))
    assert "\n" not in line
    assert "two lines" in line


def test_what_a_failed_check_printed_stands_before_its_line() -> None:
    lines: list[str] = []
    Report(lines.append).add("it", Outcome(FAILED, "wrong", 1.0, "the end of a log"))
    assert lines == ["--- it:\nthe end of a log", "failed    it: wrong [1.0 s]"]


def test_file_begins_with_a_script_that_ends_where_its_payload_begins() -> None:
    header = pack.HEADER % (pack.HEADER.count("\n") + 1, pack.UNPACK, "gpu_check", "")
    assert header.count("\n") == pack.HEADER.count("\n")
    assert f"tail -n +{header.count(chr(10)) + 1} " in header
    assert '"' not in pack.UNPACK
