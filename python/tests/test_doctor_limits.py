"""What the doctor says of a container's limits of processor time and of threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from kv_connector.cli import doctor, machine
from kv_connector.cli.cpu_limit import cpu_limit
from kv_connector.runtime.jvm import boot_remedy

VERSION_2, VERSION_1 = "0::/pod/engine\n", "4:memory:/pod\n2:cpu,cpuacct:/pod/engine\n0::/\n"


def limit_of(tmp_path: Path, groups: str, files: dict[str, str]) -> float | None:
    (tmp_path / "cgroup").write_text(groups)
    for name, value in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value)
    return cpu_limit(tmp_path / "cgroup", tmp_path / "root")


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        (VERSION_2, {"pod/engine/cpu.max": "150000 100000\n"}, 1.5),
        (VERSION_2, {"pod/engine/cpu.max": "max 100000\n", "pod/cpu.max": "400000 100000\n"}, 4.0),
        (VERSION_2, {"pod/engine/cpu.max": "400000 100000\n", "pod/cpu.max": "50000 100000\n"}, 0.5),
        (VERSION_2, {"cpu.max": "300000 100000\n"}, 3.0),
        (VERSION_2, {"pod/engine/cpu.max": "max 100000\n"}, None),
        (VERSION_2, {"pod/engine/cpu.max": "broken"}, None),
        (VERSION_1, {"cpu/pod/engine/cpu.cfs_quota_us": "20000", "cpu/pod/engine/cpu.cfs_period_us": "100000"}, 0.2),
        (VERSION_1, {"cpu,cpuacct/cpu.cfs_quota_us": "250000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 2.5),
        (VERSION_1, {"cpu/pod/engine/cpu.cfs_quota_us": "-1", "cpu/pod/engine/cpu.cfs_period_us": "100000"}, None),
        (VERSION_1, {"unified/cpu.max": "100000 100000"}, 1.0),
        (VERSION_2, {}, None),
        ("4:memory:/pod\n", {"cpu.max": "100000 100000"}, None),
    ],
)
def test_should_find_the_least_limit_of_the_groups_around(
    tmp_path: Path, groups: str, files: dict[str, str], limit: float | None
) -> None:
    assert limit_of(tmp_path, groups, files) == limit


@pytest.mark.parametrize(("limit", "level"), [(None, "ok"), (2.0, "ok"), (1.5, "warn"), (0.2, "warn")])
def test_should_warn_of_less_than_two_cores_time(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, level: str
) -> None:
    monkeypatch.setattr(machine, "cpu_limit", lambda: limit)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(4)))
    found = machine.cores()
    assert found.level == level
    assert ("the time of" in found.value) == (limit is not None)


@pytest.mark.parametrize(
    ("thrown", "remedy"),
    [
        ("java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or limits", "pids.max)"),
        ("java.lang.NoClassDefFoundError: no/such/Boot", "report this line"),
        ("", "report this line"),
    ],
)
def test_should_say_at_a_start_what_limits_threads(thrown: str, remedy: str) -> None:
    assert boot_remedy(thrown).endswith(remedy)
    assert doctor.limit_remedy(thrown).endswith("pids.max)") == (remedy == "pids.max)")
