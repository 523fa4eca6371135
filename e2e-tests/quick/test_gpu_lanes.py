"""Checks of a GPU that run beside each other: in which order, and what is left when one breaks or hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_check.catalogue import catalogue
from gpu_check.check import Check
from gpu_check.lanes import InProcesses, by_host, run_all, without_gpu
from gpu_check.report import FAILED, NOT_SHOWN, PASSED, Outcome
from gpu_check.sglang_on_torch.catalogue import catalogue as catalogue_of_sglang
from gpu_check.vllm_checks import OTHER_WEIGHTS
from processes import is_over
from server_process import wait_until

LANES = 3
LIMIT_SECONDS = 3600.0


class Runs:
    """Records which checks are under way together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.under_way: set[str] = set()
        self.beside: dict[str, set[str]] = {}
        self.ended_before: dict[str, set[str]] = {}
        self.ended: set[str] = set()

    def __call__(self, check: Check) -> Outcome:
        with self._lock:
            self.under_way.add(check.name)
            self.ended_before[check.name] = set(self.ended)
            for name in self.under_way:
                self.beside.setdefault(name, set()).update(self.under_way - {name})
        with self._lock:
            self.under_way.remove(check.name)
            self.ended.add(check.name)
        return Outcome(PASSED, "seen", 0.0)


def check(name: str, **settings: Any) -> Check:
    return replace(Check(name, lambda: "seen"), **settings)


@pytest.mark.parametrize("of", ["vLLM", "SGLang"])
def test_each_check_of_a_catalogue_runs_once_and_those_that_measure_run_alone(tmp_path: Path, of: str) -> None:
    checks = catalogue(tmp_path, "", 100, large_model=False) if of == "vLLM" else catalogue_of_sglang(tmp_path, "cuda")
    runs = Runs()
    assert sorted(each.name for each, _ in run_all(checks, runs, LANES)) == sorted(each.name for each in checks)
    assert all(not runs.beside[each.name] for each in checks if each.measures)
    assert all(each.after in runs.ended_before[each.name] for each in checks if each.after)
    assert all(each.needs_gpu for each in checks if of in each.name)


def test_checks_of_sglang_on_the_cpu_do_not_say_that_they_had_a_gpu(tmp_path: Path) -> None:
    assert not any(each.needs_gpu for each in catalogue_of_sglang(tmp_path, "cpu"))


def test_so_many_run_at_a_time_and_no_more() -> None:
    together = threading.Barrier(LANES)
    count, most, lock = 0, 0, threading.Lock()

    def run(_: Check) -> Outcome:
        nonlocal count, most
        with lock:
            count += 1
            most = max(most, count)
        together.wait()
        with lock:
            count -= 1
        return Outcome(PASSED, "seen", 0.0)

    assert len(list(run_all([check(str(at)) for at in range(2 * LANES)], run, LANES))) == 2 * LANES
    assert most == LANES


def test_check_whose_answers_come_from_one_that_is_left_out_runs() -> None:
    assert len(list(run_all([check("pair", after="alone")], Runs(), LANES))) == 1


def test_check_after_one_that_failed_runs() -> None:
    failed = Outcome(FAILED, "wrong", 0.0)
    checks = [check("alone"), check("pair", after="alone")]
    assert [each.name for each, _ in run_all(checks, lambda _: failed, LANES)] == ["alone", "pair"]


def test_those_that_measure_keep_their_place_among_the_others() -> None:
    checks = [check("a"), check("b", measures=True), check("c"), check("d", measures=True)]
    assert [each.name for each, _ in run_all(checks, Runs(), LANES)] == ["a", "b", "c", "d"]


def test_what_comes_first_on_a_gpu_is_what_it_has_most_to_show_of(tmp_path: Path) -> None:
    names = [each.name for each in catalogue(tmp_path, "", 0, large_model=False)]
    first = ("gpu: pair", "gpu: captures", "gpu: vLLM", "gpu: what", "gpu: 512", "gpu: a context", "gpu: a killed")
    begins = [next(at for at, name in enumerate(names) if name.startswith(each)) for each in first]
    assert begins == sorted(begins)
    assert begins[0] == 0


def test_where_the_host_computes_what_is_of_a_gpu_alone_is_not_shown_and_says_why() -> None:
    run = by_host(Runs())
    assert run(check("gpu: a")).kind == PASSED
    outcome = run(check("gpu: b", not_by_host="no clock"))
    assert (outcome.kind, outcome.detail) == (NOT_SHOWN, "no clock")


def test_where_the_host_computes_what_is_left_out_is_measured_or_computed(tmp_path: Path) -> None:
    """The stand-in's events are a millisecond apart, always: a cost would pass."""
    checks = catalogue(tmp_path, "", 0, large_model=False)
    of_a_gpu = ("cost", "rate", "in one call", "context", "stand-in", OTHER_WEIGHTS)
    for each in checks:
        assert bool(each.not_by_host) == any(words in each.name for words in of_a_gpu), each.name
    named = {each.name for each in checks}
    assert all(each.not_by_host for each in catalogue(tmp_path, "", 1, large_model=False) if each.name not in named)


def test_without_a_gpu_its_checks_are_not_shown() -> None:
    run = without_gpu(Runs())
    assert run(check("gpu: a")).kind == NOT_SHOWN
    assert run(check("cpu: a")).kind == PASSED


def processes(script: str, grace_seconds: float = 60.0) -> InProcesses:
    return InProcesses([sys.executable, "-c", script], grace_seconds)


def test_outcome_is_the_last_line_whatever_is_printed_before_it() -> None:
    seen = Outcome(PASSED, "two\nlines", 1.5)
    with processes(f"print('noise'); print({seen.as_line()!r})") as run:
        assert run(check("it")) == seen


def test_what_the_process_of_a_failed_check_printed_is_kept() -> None:
    wrong = Outcome(FAILED, "wrong", 1.5)
    with processes(f"print('why'); print(); print({wrong.as_line()!r})") as run:
        assert run(check("it")) == replace(wrong, printed="why")


def test_process_that_ends_without_an_outcome_has_failed() -> None:
    with processes("import os; print('torn', flush=True); os.kill(os.getpid(), 11)") as run:
        outcome = run(check("it"))
    assert outcome.kind == FAILED
    assert "status -11" in outcome.detail
    assert "torn" in outcome.detail


LEAVES_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], stdout=subprocess.DEVNULL)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep({seconds})
"""


@pytest.mark.parametrize("seconds", [0, 3600])
def test_what_a_check_has_started_ends_with_it(tmp_path: Path, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit begins when it has a child, however long a busy machine needs for that."""
    pid_file = tmp_path / "pid"

    class Started(subprocess.Popen[str]):
        def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
            wait_until(lambda: pid_file.exists() and bool(pid_file.read_text()), LIMIT_SECONDS, "it has a child")
            return super().communicate(input, timeout)

    monkeypatch.setattr(subprocess, "Popen", Started)
    with processes(LEAVES_A_CHILD.format(seconds=seconds), grace_seconds=2.0) as run:
        outcome = run(check(str(pid_file), limit_seconds=0))
    assert outcome.kind == FAILED
    await_end(int(pid_file.read_text()))


def test_checks_that_are_under_way_end_with_the_run(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with processes(LEAVES_A_CHILD.format(seconds=3600)) as run:
        thread = threading.Thread(target=run, args=(check(str(pid_file)),))
        thread.start()
        while not (pid_file.exists() and pid_file.read_text()):
            thread.join(0.01)
    thread.join()
    await_end(int(pid_file.read_text()))


def await_end(pid: int) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_over(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)
