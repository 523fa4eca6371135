from __future__ import annotations

import os
import threading

from conftest import RunPython

from kv_connector.runtime.affinity import parents_cores

CORES = os.sched_getaffinity(0)
PINNED_CHILD = """
import os, threading
from kv_connector.runtime.affinity import parents_cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
seen = []
with parents_cores():
    thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
print(len(seen[0]), len(os.sched_getaffinity(0)))
"""


def test_should_start_threads_on_the_parents_cores_and_stay_pinned_itself(run_python: RunPython) -> None:
    assert run_python(PINNED_CHILD).stdout.split() == [str(len(CORES)), "1"]


def test_should_give_no_core_that_the_parent_does_not_have() -> None:
    seen: list[set[int]] = []
    with parents_cores():
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen[0] == CORES | os.sched_getaffinity(os.getppid())
    assert os.sched_getaffinity(0) == CORES
