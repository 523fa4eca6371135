"""Bugs put into the connector on purpose: the simulation has to see them. ``PythonMutation`` in Java names them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from release import Release


def _scheduler_half(release: Release) -> Any:
    return release.connector.SchedulerHalf


def _worker_half(release: Release) -> Any:
    return release.connector.WorkerHalf


def abort_taken_for_its_end(release: Release) -> Any:
    half = _worker_half(release)
    real = half.begin

    def begin(self: Any, meta: Any) -> None:
        real(self, meta)
        for request in meta.abandoned:
            if self._fetching.pop(request, None) is not None:
                self._reports.received.add(request)

    return mock.patch.object(half, "begin", begin)


def blocks_freed_when_prefilled(release: Release) -> Any:
    half = _scheduler_half(release)
    real = half.finished

    def finished(self: Any, request: Any) -> Any:
        held, answer = real(self, request)
        return held and not self._ended.holds(request.request_id), answer

    return mock.patch.object(half, "finished", finished)


def decline_missing(release: Release) -> Any:
    return mock.patch.object(_scheduler_half(release), "_decline", return_value=None)


def failure_unreported(release: Release) -> Any:
    def fail(self: Any, request: str, reason: str) -> None:  # noqa: ARG001
        self._fetching.pop(request)

    return mock.patch.object(_worker_half(release), "_fail", fail)


def preemption_untold(release: Release) -> Any:
    half = _scheduler_half(release)
    real = half.build

    def build(self: Any, scheduler_output: Any) -> Any:
        meta = real(self, scheduler_output)
        meta.preempted.clear()
        return meta

    return mock.patch.object(half, "build", build)


def progress_kept(release: Release) -> Any:
    prefill = _scheduler_half(release).allocated.__globals__["Prefill"]
    return mock.patch.object(prefill, "forget_progress", return_value=None)


def failure_taken_for_success(release: Release) -> Any:
    def fail(self: Any, request: str, reason: str) -> None:  # noqa: ARG001
        self._fetching.pop(request)
        self._reports.received.add(request)

    return mock.patch.object(_worker_half(release), "_fail", fail)


MUTANTS: dict[str, Callable[[Release], Any]] = {
    mutant.__name__.upper(): mutant
    for mutant in (
        abort_taken_for_its_end,
        blocks_freed_when_prefilled,
        decline_missing,
        failure_unreported,
        preemption_untold,
        progress_kept,
        failure_taken_for_success,
    )
}


@contextlib.contextmanager
def applied(name: str, release: Release) -> Iterator[None]:
    """The connector with that bug, or as it is under the name NONE."""
    if name == "NONE":
        yield
        return
    with MUTANTS[name](release):
        yield
