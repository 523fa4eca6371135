"""What the messenger costs a worker that has nothing to do: nearly nothing. (Its boot: test_wheel.py.)"""

from __future__ import annotations

import re
import time

import pytest
from bed import Bed, Messenger
from processes import ThreadCost, descendants, maps_a_jvm, threads

IDLE_SECONDS = 20.0
IDLE_CORES_MAX = 0.01
PYTHON_THREAD_NAMES = re.compile(r"^(VLLM|python|pt_|gloo|ZMQ)", re.IGNORECASE)


def worker_of(side: Messenger) -> int:
    (worker,) = [pid for pid in descendants(side.server.pid) if maps_a_jvm(pid)]
    return worker


def java_threads(worker: int) -> dict[int, ThreadCost]:
    """Threads that the JVM made: they carry names of its own, the engine's carry the process's."""
    return {t.thread_id: t for t in threads(worker) if t.thread_id != worker and not PYTHON_THREAD_NAMES.match(t.name)}


@pytest.mark.parametrize("role", ["prefiller", "decoder"])
def test_idle_messenger_uses_under_one_percent_of_a_core(bed: Bed, role: str) -> None:
    side: Messenger = getattr(bed, role)
    side.wait_at_rest()
    worker = worker_of(side)
    before, begun = java_threads(worker), time.monotonic()
    time.sleep(IDLE_SECONDS)  # the length of the measurement, not a wait for something
    after, lasted = java_threads(worker), time.monotonic() - begun
    spent = {t.name: t.cpu_seconds - before[i].cpu_seconds for i, t in after.items() if i in before}
    assert any("kv" in name for name in spent), f"no thread of the messenger among {sorted(spent)}"
    cores = sum(spent.values()) / lasted
    print(f"{role}: {cores:.2%} of a core while idle, by {len(spent)} threads: {spent}")
    assert cores < IDLE_CORES_MAX
