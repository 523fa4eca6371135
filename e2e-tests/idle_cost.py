"""What the messengers of idle engines use: CPU time, and how often their threads are woken."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from bed import Messenger
from processes import ThreadCost, descendants, maps_a_jvm, threads

WAKE_UPS_A_SECOND_MAX = 50.0
"""A messenger's thread looks around every 100 ms, and some deadlines of its own come on top."""
SPINNING_CORES = 0.05
"""Far more than an idle JVM uses, on a slow machine too, and far less than a thread that spins."""
COMPILER_THREAD_NAMES = re.compile(r"^C[12] Compiler")
"""They work on what ran before the measurement, and end."""
PYTHON_THREAD_NAMES = re.compile(r"^(VLLM|python|pt_|gloo|ZMQ)", re.IGNORECASE)


@dataclass(frozen=True)
class Spent:
    """What one thread of a JVM used while the engines were idle."""

    name: str
    cores: float
    wake_ups_a_second: float


def spent(sides: Mapping[str, Messenger], seconds: float) -> dict[str, list[Spent]]:
    """Of all sides in the same time, in which nothing is asked of them; by the sides' names."""
    for side in sides.values():
        side.wait_at_rest()
    workers = {role: worker_of(side) for role, side in sides.items()}
    before = {role: java_threads(worker) for role, worker in workers.items()}
    begun = time.monotonic()
    time.sleep(seconds)  # the length of the measurement, not a wait for something
    after = {role: java_threads(worker) for role, worker in workers.items()}
    lasted = time.monotonic() - begun
    return {
        role: [used(before[role][i], t, lasted) for i, t in after[role].items() if i in before[role]] for role in sides
    }


def assert_sleeps(role: str, by_thread: list[Spent]) -> None:
    """No thread of the messenger spins, and none is woken without need."""
    assert any("kv" in thread.name for thread in by_thread), f"no thread of the messenger among {by_thread}"
    cores = sum(thread.cores for thread in by_thread)
    print(f"{role}: {cores:.2%} of a core while idle: {by_thread}")
    assert cores < SPINNING_CORES
    assert not [thread for thread in by_thread if thread.wake_ups_a_second > WAKE_UPS_A_SECOND_MAX]


def worker_of(side: Messenger) -> int:
    (worker,) = [pid for pid in descendants(side.server.pid) if maps_a_jvm(pid)]
    return worker


def java_threads(worker: int) -> dict[int, ThreadCost]:
    """Threads that the JVM made, but for its compilers: they carry names of its own, the engine's the process's."""
    return {
        thread.thread_id: thread
        for thread in threads(worker)
        if thread.thread_id != worker
        and not PYTHON_THREAD_NAMES.match(thread.name)
        and not COMPILER_THREAD_NAMES.match(thread.name)
    }


def used(before: ThreadCost, after: ThreadCost, lasted_seconds: float) -> Spent:
    return Spent(
        after.name,
        (after.cpu_seconds - before.cpu_seconds) / lasted_seconds,
        (after.wake_up_count - before.wake_up_count) / lasted_seconds,
    )
