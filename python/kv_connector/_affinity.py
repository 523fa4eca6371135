"""Which cores the messenger's threads may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def parents_cores() -> Iterator[None]:
    """Threads started inside may also run on the cores of the parent process.

    A thread inherits the cores of the one that starts it. vLLM pins a CPU worker's main thread to the cores of its
    forward pass, so the messenger would share one core with the computation, and starve beside an engine that spins.
    What the user allowed the whole engine, with ``taskset`` or a container, still holds. The calling thread's own cores
    are the same again afterwards.
    """
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, own | os.sched_getaffinity(os.getppid()))
    except OSError:
        yield  # the parent is gone, or its cores are not ours to use
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
