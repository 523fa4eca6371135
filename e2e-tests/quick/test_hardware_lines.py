"""What make gpu-check prints for docs/hardware.md: each row of its GPU column, by what a run has shown and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_check.catalogue import catalogue
from gpu_check.hardware_lines import ROWS, Machine, checks_of, driver_release, lines, table
from gpu_check.report import FAILED, IN_PART, NOT_SHOWN, PASSED, SKIPPED, Outcome
from gpu_check.sglang_on_torch.catalogue import catalogue as catalogue_of_sglang
from gpu_check.surroundings import OF_HOST

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "hardware.md").read_text("utf-8")
MACHINE = Machine("2 January 2027", "NVIDIA H200", "580.95.05", "2.13.0+cu130")
RUN_ON = "2 January 2027: NVIDIA H200, driver 580.95.05, torch 2.13.0+cu130"
SHOWN_BY_NONE = 6
SMALL = """
| path | where |
|---|---|
| `tcp` | loopback |

| path | stand-in | GPU |
|---|---|---|
| device memory staged from a device over `shm` | yes | no |
| vLLM connector (`gpu: unproven`) | yes | [an H100](results/x.md) |
| `verbs` by dma-buf | yes | no NIC |

| another | table | here |
|---|---|---|
"""
STAGED = "gpu: pair, KV in device memory, staged shm to a decoder on the CPU"


def outcome(kind: str, detail: str = "") -> Outcome:
    return Outcome(kind, detail, 1.0)


def of_small(outcomes: dict[str, Outcome]) -> list[str]:
    return [line.strip("| ").rpartition("| ")[2] for line in lines(SMALL, outcomes, MACHINE)]


def test_row_that_a_run_has_nothing_for_stays_as_it_is() -> None:
    unmade = {STAGED: outcome(NOT_SHOWN, "no GPU"), "gpu: vLLM alone": outcome(SKIPPED), "cpu: vLLM": outcome(PASSED)}
    assert of_small({}) == of_small(unmade) == ["no", "[an H100](results/x.md)", "no NIC"]
    assert set(lines(PAGE, {}, MACHINE)) <= set(PAGE.splitlines())


def test_row_says_when_where_and_with_which_releases_its_checks_passed() -> None:
    alone = outcome(PASSED, "vLLM 0.32.0, torch 2.13.0+cu130, Triton 3.6: 15 answers equal those of vLLM alone")
    passed = {STAGED: outcome(PASSED), "gpu: vLLM alone": alone, "gpu: vLLM pair": outcome(PASSED, "vLLM alone")}
    assert of_small(passed) == [
        f"{RUN_ON}: 1 of 1 checks passed",
        f"{RUN_ON}, vLLM 0.32.0: 2 of 2 checks passed",
        "no NIC",
    ]


def test_row_names_what_failed_before_what_passed_and_what_was_not_shown() -> None:
    mixed = {f"gpu: vLLM pair {at}": outcome(FAILED) for at in range(4)}
    mixed |= {"gpu: vLLM a": outcome(PASSED), "gpu: vLLM b": outcome(NOT_SHOWN), "gpu: vLLM c": outcome(SKIPPED)}
    assert of_small(mixed)[1] == (
        f"{RUN_ON}: **failed**: *vLLM pair 0*, *vLLM pair 1*, *vLLM pair 2* and 1 more; 1 of 7 checks passed;"
        " not shown: *vLLM b*, *vLLM c*"
    )


def test_check_that_passed_in_part_is_not_counted_as_passed_and_is_named() -> None:
    halves = {"gpu: vLLM a": outcome(PASSED), "gpu: vLLM b": outcome(IN_PART)}
    assert of_small(halves)[1] == f"{RUN_ON}: 1 of 2 checks passed; not shown: *vLLM b*"


def test_each_row_of_the_page_is_known_and_its_checks_are_in_a_catalogue(tmp_path: Path) -> None:
    rows = [cells[0] for cells in table(PAGE)]
    assert len(rows) == len(ROWS)
    checks = [*catalogue(tmp_path, "", 0, large_model=False), *catalogue_of_sglang(tmp_path, "cuda")]
    outcomes = {check.name: outcome(PASSED) for check in checks}
    assert len([row for row in rows if not checks_of(row, outcomes)]) == SHOWN_BY_NONE


def test_each_check_of_a_gpu_counts_for_a_row_of_its_own_or_measures_a_rate(tmp_path: Path) -> None:
    *rows, _ = [cells[0] for cells in table(PAGE)]
    for check in catalogue(tmp_path, "", 0, large_model=False):
        in_rows = [row for row in rows if checks_of(row, {check.name: outcome(PASSED)})]
        is_fact = any(word in check.name for word in ("rate", "driver", "in one call", "context"))
        assert in_rows or is_fact or not check.needs_gpu, check.name


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\n"
            "GCC version:  gcc version 12.3.0\n",
            "580.95.05",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54  Thu Feb 22\n", "550.54"),
        ("GCC version:  gcc version 12.3.0\n", "unknown"),
        (None, "unknown"),
    ],
)
def test_release_of_the_driver_is_that_of_its_kernel_module(tmp_path: Path, text: str | None, release: str) -> None:
    file = tmp_path / "version"
    if text is not None:
        file.write_text(text, "utf-8")
    assert driver_release(file) == release


def test_stand_in_device_is_known_by_its_name() -> None:
    """Nothing that ran on it is a row's."""
    assert f'.name = "{OF_HOST}"' in (ROOT / "e2e-tests" / "uncomputed" / "cudart.c").read_text("utf-8")
