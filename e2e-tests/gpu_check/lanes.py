"""Runs checks in processes of their own, some at a time, and ends those whose time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import groupby
from typing import Self

from gpu_check.check import Check
from gpu_check.report import FAILED, NOT_SHOWN, Outcome

LANES = 4
"""Checks at a time. Each has up to three engines, and each of these keeps a core busy."""
GRACE_SECONDS = 30
"""More than a check needs to import torch, and to end its engines when its own time is over."""

Run = Callable[[Check], Outcome]


def run_all(checks: Sequence[Check], run: Run, lanes: int = LANES) -> Iterator[tuple[Check, Outcome]]:
    """Each check once and as it ends: in their order, those that measure alone, the others between them in lanes."""
    for measures, group in groupby(checks, key=lambda check: check.measures):
        if measures:
            yield from ((check, run(check)) for check in group)
        else:
            yield from _beside_each_other(group, run, lanes)


def _beside_each_other(checks: Iterable[Check], run: Run, lanes: int) -> Iterator[tuple[Check, Outcome]]:
    """One that waits for another behind it."""
    waiting = list(checks)
    unended = {check.name for check in waiting}
    running: dict[Future[Outcome], Check] = {}
    pool = ThreadPoolExecutor(lanes)
    try:
        while unended:
            may_begin = [check for check in waiting if check.after not in unended]
            for check in may_begin[: lanes - len(running)]:
                waiting.remove(check)
                running[pool.submit(run, check)] = check
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                check = running.pop(future)
                unended.remove(check.name)
                yield check, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class InProcesses:
    """Runs a check by a command that prints its outcome as the last line. Any thread.

    All that a command has started ends with it, and at the end of this.
    """

    def __init__(self, command: Sequence[str], grace_seconds: float = GRACE_SECONDS) -> None:
        self._command = command
        self._grace_seconds = grace_seconds
        self._running: set[subprocess.Popen[str]] = set()

    def __call__(self, check: Check) -> Outcome:
        limit_seconds = check.limit_seconds + self._grace_seconds
        process = subprocess.Popen(
            [*self._command, check.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running.add(process)
        try:
            printed, _ = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            return Outcome(FAILED, f"not over after {limit_seconds:.0f} s: its processes were killed", limit_seconds)
        finally:
            _kill_group(process)
            self._running.discard(process)
        lines = printed.splitlines()
        if outcome := Outcome.from_line(lines[-1] if lines else ""):
            return replace(outcome, printed="\n".join(lines[:-1]).strip()) if outcome.kind == FAILED else outcome
        last = " | ".join(lines[-5:])
        return Outcome(FAILED, f"its process ended with status {process.returncode}, its last lines: {last}", 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self._running):
            _kill_group(process)


def without_gpu(run: Run) -> Run:
    def shown(check: Check) -> Outcome:
        return Outcome(NOT_SHOWN, "no GPU", 0.0) if check.needs_gpu else run(check)

    return shown


def by_host(run: Run) -> Run:
    """On a device whose numbers the host computes, and which has no clock."""

    def shown(check: Check) -> Outcome:
        return Outcome(NOT_SHOWN, check.not_by_host, 0.0) if check.not_by_host else run(check)

    return shown


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Engines that a check has left behind hold memory of the GPU."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
