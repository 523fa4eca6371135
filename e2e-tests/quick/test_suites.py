"""The totals that CI prints are true: a failure, an error, no report, or a skip that nobody allowed fails the run."""

from __future__ import annotations

import importlib.util
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from processes import is_over
from server_process import wait_until

ROOT = Path(__file__).resolve().parents[2]
REPORT = """<testsuites><testsuite>
<testcase classname="a.B" name="passes"/>
<testcase classname="a.B" name="fails"><failure message="no"/></testcase>
<testcase classname="a.B" name="breaks"><error message="no"/></testcase>
<testcase classname="a.B" name="skips"><skipped message="no such device"/></testcase>
</testsuite></testsuites>"""
PASSING = '<testsuite><testcase classname="a.B" name="passes"/></testsuite>'


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("suites", ROOT / ".ci" / "suites.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "suites", module)
    spec.loader.exec_module(module)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "allowed-skips.txt").write_text("# reasons\na.B::allowed # there is no device in CI\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "REPORTS", tmp_path / "build" / "reports")
    monkeypatch.setattr(module, "SIDE_BY_SIDE", 2)
    return module


def writing(suites: ModuleType, report: str, status: int = 0) -> int:
    """The status of a run of one suite that writes `report` and ends with `status`."""
    command = ["bash", "-c", f"printf '%s' '{report}' > build/reports/one.xml; exit {status}"]
    return int(suites.run([suites.Suite("one", command, "build/reports/one.xml")]))


def test_every_kind_of_result_is_counted(suites: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert writing(suites, REPORT) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 passed, 3 failed, 1 skipped"  # the third failure is the skip
    assert "skipped and not allowed to: a.B::skips: no such device" in lines


def test_allowed_skip_is_printed_and_does_not_fail(suites: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    report = PASSING.replace('"passes"/>', '"allowed"><skipped message="none"/></testcase>')
    assert writing(suites, report) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "skipped: a.B::allowed: none" in lines
    assert lines[-1] == "0 passed, 0 failed, 1 skipped"


def test_passing_reports_do_not_hide_a_failing_command(suites: ModuleType) -> None:
    assert writing(suites, PASSING, status=3) == 1


def test_suite_without_a_report_fails(suites: ModuleType) -> None:
    assert suites.run([suites.Suite("one", ["true"], "build/reports/one.xml")]) == 1


def test_report_of_an_earlier_run_does_not_count(suites: ModuleType) -> None:
    folder = suites.ROOT / "target"
    folder.mkdir()
    (folder / "TEST-old.xml").write_text(PASSING)
    assert suites.run([suites.Suite("one", ["true"], "target/TEST-*.xml")]) == 1


def test_suite_that_does_not_end_fails_with_all_that_it_started(
    suites: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "INTERRUPTED_SECONDS", 0.1)
    deaf = "trap '' INT; echo $$ > deaf; sleep 600 & echo $! > child; : > runs; wait"
    end_its_time_once_it_runs(suites, monkeypatch)
    begun = time.monotonic()
    assert suites.run([suites.Suite("hangs", ["bash", "-c", deaf], limit_seconds=1.0), suites.Suite("two", ["true"])])
    assert time.monotonic() - begun < 600, "it waited for the child"
    lines = capsys.readouterr().out.splitlines()
    assert "failed: hangs: had not ended after 1 s" in lines
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"
    for name in ("deaf", "child"):
        pid = int((suites.ROOT / name).read_text())
        wait_until(partial(is_over, pid), 600, f"{name} has ended")


def end_its_time_once_it_runs(suites: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of a second is over when the command has made a file, however long a busy machine needs for that."""
    now = SimpleNamespace(monotonic=lambda: time.monotonic() if (suites.ROOT / "runs").exists() else 0.0)
    monkeypatch.setattr(suites, "time", now)


def test_interrupted_suite_keeps_what_it_has_reported(
    suites: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where interrupts were ignored when the run began."""
    end_its_time_once_it_runs(suites, monkeypatch)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = "trap 'printf %s \"$0\" > build/reports/one.xml; exit 2' INT; : > runs; while :; do sleep 0.05; done"
    command = ["bash", "-c", report, PASSING]
    assert suites.run([suites.Suite("hangs", command, "build/reports/one.xml", limit_seconds=1.0)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_later_suites_run_after_a_failure(suites: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert suites.run([suites.Suite("one", ["false"]), suites.Suite("two", ["true"])]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_two_suites_run_side_by_side_and_the_next_when_one_is_over(
    suites: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the first two waits for the other one's file, and the first then for the third's."""
    meet = "echo {0} says; touch {0}; until [ -e {1} ]; do sleep 0.05; done"
    beside = partial(suites.Suite, beside=True, limit_seconds=60.0)
    chosen = [
        beside("a", ["bash", "-c", f"{meet.format('a', 'b')}; {meet.format('a', 'after')}"]),
        beside("b", ["bash", "-c", f"test ! -e after && {meet.format('b', 'a')}"]),
        beside("after b", ["bash", "-c", "test -e b && test ! -e alone && touch after"]),
        suites.Suite("alone", ["bash", "-c", "test -e after && touch alone"]),
    ]
    assert suites.run(chosen) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "4 passed, 0 failed, 0 skipped"
    assert "=== b\nb says\n\n=== b: 1 passed" in out, "one that runs beside others is printed in one piece"


def test_suite_beside_another_that_does_not_end_fails(suites: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [
        suites.Suite("hangs", ["sleep", "600"], limit_seconds=1.0, beside=True),
        suites.Suite("fails", ["false"], beside=True),
    ]
    assert suites.run(chosen) == 1
    lines = capsys.readouterr().out.splitlines()
    assert {"failed: hangs: had not ended after 1 s", "failed: fails: status 1"} <= set(lines)
    assert lines[-1] == "0 passed, 2 failed, 0 skipped"


def test_interrupt_ends_what_runs_side_by_side(suites: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes to the main thread; `result` of a suite is where that waits."""
    both = [suites.Suite(name, ["bash", "-c", f"touch {name}; exec sleep 600"], beside=True) for name in ("a", "b")]
    later = suites.Suite("later", ["touch", "later"], beside=True)

    def interrupted(_future: object) -> None:
        wait_until(lambda: all((suites.ROOT / name).exists() for name in ("a", "b")), 600, "both run")
        raise KeyboardInterrupt

    monkeypatch.setattr(suites.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        suites.run([*both, later])
    assert not (suites.ROOT / "later").exists()
