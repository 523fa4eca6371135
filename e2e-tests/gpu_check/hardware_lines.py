"""The table of docs/hardware.md with what a run has shown in its GPU column, to be pasted there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from gpu_check.report import FAILED, IN_PART, NOT_SHOWN, PASSED, SKIPPED, Outcome

PAGE = Path(__file__).resolve().parent.parent / "hardware.md"
"""Beside this package in the packed file; in a working tree it lies in docs."""
COLUMN = "GPU"
DRIVER_FILE = Path("/proc/driver/nvidia/version")
NAMED_MAX = 3
ROWS = {
    "`cuda`: device memory copied": r"(memory|traffic|prefillers), cuda|killed writer|8 allocations",
    "`verbs` by dma-buf": "",
    "device memory staged over `tcp`": r"(memory|traffic|prefillers), (staged )?tcp",
    "device memory staged from a device over `shm`": r"staged shm",
    "device memory staged over `libfabric`": "",
    "device memory staged from a device over `verbs`": "",
    "many small runs copied by a kernel": r"by the kernel and by the copy engine",
    "layer counter, in captured graphs": r"counter's kernels|1,000 replays|cost of a|is complete, 10,000 times",
    "vLLM connector": r"vLLM",
    "vLLM's tensor-parallel ranks": "",
    "vLLM's pipeline stages": "",
    "SGLang backend": r"SGLang",
    "device memory of torch's pools": r"KV in device memory",
    "what `kv-messenger doctor` says of GPUs": "",
    "the checks of `make gpu-check`": r"^gpu: (?!SGLang)",
}
"""By how a row of the page begins, the checks that show it; empty: none of a machine with one GPU and no NIC does."""


@dataclass(frozen=True)
class Machine:
    """Where the checks ran, and when."""

    date: str
    device: str
    driver: str
    torch: str

    def __str__(self) -> str:
        return f"{self.date}: {self.device}, driver {self.driver}, torch {self.torch}"


def driver_release(file: Path = DRIVER_FILE) -> str:
    """Of NVIDIA's kernel module."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return found[1] if found else "unknown"


def lines(page: str, outcomes: Mapping[str, Outcome], machine: Machine) -> Iterator[str]:
    """Each row. `page`: the text of docs/hardware.md; outcomes by the names of their checks.

    A row of which no check passed or failed is as it is on the page.
    """
    for cells in table(page):
        checks = checks_of(cells[0], outcomes)
        has_news = any(outcome.kind in (PASSED, FAILED) for outcome in checks.values())
        last = cell(cells[0], checks, machine) if has_news else cells[-1]
        yield f"| {' | '.join([*cells[:-1], last])} |"


def table(page: str) -> Iterator[list[str]]:
    """The rows of the page's one table whose last column is the GPU's, without its head."""
    text = page.splitlines()
    (head,) = [at for at, line in enumerate(text) if line.startswith("|") and cells_of(line)[-1] == COLUMN]
    for line in takewhile(lambda line: line.startswith("|"), text[head + 2 :]):
        yield cells_of(line)


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def checks_of(path: str, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    (pattern,) = [pattern for begin, pattern in ROWS.items() if path.startswith(begin)]
    return {
        name: outcome
        for name, outcome in outcomes.items()
        if pattern and name.startswith("gpu: ") and re.search(pattern, name)
    }


def cell(path: str, checks: Mapping[str, Outcome], machine: Machine) -> str:
    """What ran on the machine, and what did not go well there; a check that failed comes first."""
    by_kind = {
        kind: [name.removeprefix("gpu: ") for name, outcome in checks.items() if outcome.kind == kind]
        for kind in (FAILED, PASSED, IN_PART, NOT_SHOWN, SKIPPED)
    }
    failed, passed = by_kind[FAILED], by_kind[PASSED]
    left_out = by_kind[IN_PART] + by_kind[NOT_SHOWN] + by_kind[SKIPPED]
    engine = path.split(maxsplit=1)[0] if path.startswith(("vLLM", "SGLang")) else ""
    releases = {
        found[0] for outcome in checks.values() for found in re.finditer(rf"\b{engine} \d[\w.]*\d", outcome.detail)
    }
    where = ", ".join([str(machine), *(sorted(releases) if engine else [])])
    parts = [f"**failed**: {named(failed)}"] if failed else []
    parts += [f"{len(passed)} of {len(checks)} checks passed"]
    parts += [f"not shown: {named(left_out)}"] if left_out else []
    return f"{where}: {'; '.join(parts)}"


def named(checks: list[str]) -> str:
    more = f" and {len(checks) - NAMED_MAX} more" if len(checks) > NAMED_MAX else ""
    return ", ".join(f"*{check}*" for check in checks[:NAMED_MAX]) + more
