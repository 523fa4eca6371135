"""How many cores' time the control groups of this process allow, as a container's CPU limit sets it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
_UNIFIED_ROOTS = (".", "unified")
_CPU_ROOTS = ("cpu", "cpu,cpuacct")


def cpu_limit(groups: Path = GROUPS, root: Path = ROOT) -> float | None:
    """In cores; None if there is no limit, or none can be read.

    A group may not use more than the groups around it, so the least counts. In a container the group's own path may not
    be visible; its limit is then that of the outermost folder.
    """
    limits = []
    for line in groups.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += [_unified(folder) for name in _UNIFIED_ROOTS for folder in _around(root / name, path)]
        elif "cpu" in controllers.split(","):
            limits += [_of_version_1(folder) for name in _CPU_ROOTS for folder in _around(root / name, path)]
    return min((limit for limit in limits if limit is not None), default=None)


def _around(root: Path, path: str) -> Iterator[Path]:
    """The group's folder and those around it."""
    folder = root / path.strip("/")
    yield from (each for each in (folder, *folder.parents) if each == root or root in each.parents)


def _unified(folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _of_version_1(folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return quota / period if quota > 0 else None
    return None
