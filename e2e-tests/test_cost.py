"""What the messenger costs a worker that has nothing to do: nearly nothing. (Its boot: test_wheel.py.)"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Spent:
    """What the threads of one side's JVM used of a core while the engines were idle."""

    cores: float
    cpu_seconds: dict[str, float]
    """By the thread's name."""


@pytest.fixture(scope="module")
def spent(bed: Bed) -> dict[str, Spent]:
    """Both sides in the same time."""
    sides = {"prefiller": bed.prefiller, "decoder": bed.decoder}
    for side in sides.values():
        side.wait_at_rest()
    workers = {role: worker_of(side) for role, side in sides.items()}
    before = {role: java_threads(worker) for role, worker in workers.items()}
    begun = time.monotonic()
    time.sleep(IDLE_SECONDS)  # the length of the measurement, not a wait for something
    after = {role: java_threads(worker) for role, worker in workers.items()}
    lasted = time.monotonic() - begun
    found = {}
    for role in sides:
        known = before[role]
        seconds = {t.name: t.cpu_seconds - known[i].cpu_seconds for i, t in after[role].items() if i in known}
        found[role] = Spent(sum(seconds.values()) / lasted, seconds)
    return found


@pytest.mark.parametrize("role", ["prefiller", "decoder"])
def test_idle_messenger_uses_under_one_percent_of_a_core(spent: dict[str, Spent], role: str) -> None:
    cores, by_thread = spent[role].cores, spent[role].cpu_seconds
    assert any("kv" in name for name in by_thread), f"no thread of the messenger among {sorted(by_thread)}"
    print(f"{role}: {cores:.2%} of a core while idle, by {len(by_thread)} threads: {by_thread}")
    assert cores < IDLE_CORES_MAX
