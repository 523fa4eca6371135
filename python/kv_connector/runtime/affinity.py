"""The CPU cores that the messenger's threads may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def allowed_cores() -> frozenset[int]:
    """The cores of this thread and those of the parent process."""
    try:
        own = os.sched_getaffinity(0)
    except OSError:
        return frozenset(range(os.cpu_count() or 1))  # a seccomp filter denies the question
    try:
        return frozenset(own | os.sched_getaffinity(os.getppid()))
    except OSError:
        return frozenset(own)  # the parent has ended


def all_of_them(cores: frozenset[int]) -> frozenset[int]:
    """Returns all cores: the default choice."""
    return cores


@contextmanager
def parents_cores(choose: Callable[[frozenset[int]], frozenset[int]] = all_of_them) -> Iterator[None]:
    """A context in which started threads may also run on the parent process's cores, or on those that are chosen.

    A thread inherits the affinity of the thread that starts it. vLLM pins a CPU worker's main thread to the cores of
    its forward pass, so the messenger would share a core with the computation and starve while the engine spins. Limits
    for the whole engine, by ``taskset`` or a container, still apply. The calling thread's own affinity is restored on
    exit.
    """
    try:
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, choose(allowed_cores()))
    except OSError:
        yield  # the kernel does not allow these cores
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
