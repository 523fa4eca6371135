"""Which cores the messenger's threads may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def allowed_cores() -> frozenset[int]:
    """Those of this thread, and those of the parent process."""
    own = os.sched_getaffinity(0)
    try:
        return frozenset(own | os.sched_getaffinity(os.getppid()))
    except OSError:
        return frozenset(own)  # the parent is gone


def all_of_them(cores: frozenset[int]) -> frozenset[int]:
    """No choice among the cores."""
    return cores


@contextmanager
def parents_cores(choose: Callable[[frozenset[int]], frozenset[int]] = all_of_them) -> Iterator[None]:
    """Threads started inside may also run on the cores of the parent process, or on those of them that are chosen.

    A thread inherits the cores of the one that starts it. vLLM pins a CPU worker's main thread to the cores of its
    forward pass, so the messenger would share one core with the computation, and starve beside an engine that spins.
    What the user allowed the whole engine, with ``taskset`` or a container, still holds. The calling thread's own cores
    are the same again afterwards.
    """
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, choose(allowed_cores()))
    except OSError:
        yield  # the cores are not ours to use
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
