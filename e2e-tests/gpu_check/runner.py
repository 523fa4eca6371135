"""What `python -m gpu_check` and its like do: each check of a catalogue in a process of its own, a line for each.

A line says passed, failed, skipped (what it is about is not there), not shown (it cannot be made here) or in part (what
could be made passed; the line names the rest); before the line of a check that failed stands what its process printed.
Behind them comes what there is to paste into docs/hardware.md. The status is 0 when no check failed; with --need-gpu
also nothing may be left unshown, in whole or in part.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_check import surroundings
from gpu_check.check import Check
from gpu_check.hardware_lines import PAGE, Machine, driver_release, lines
from gpu_check.lanes import InProcesses, Run, by_host, run_all, without_gpu
from gpu_check.report import Outcome, Report, outcome_of
from gpu_check.surroundings import OF_HOST

CALLED_IN = "GPU_CHECK_CALLED_IN"
NO_GPU = "none"


@dataclass(frozen=True)
class Runner:
    """Runs the checks of a module that is started by `python -m MODULE`, and again for each check. One thread."""

    module: str
    catalogue: Callable[[argparse.Namespace], list[Check]]
    """By the options that were given; `logs` is a folder that there is."""
    lanes: int
    """Checks at a time, unless another number is asked for."""
    begin: Callable[[Path, Sequence[Check]], None] = lambda *_: None
    """Called before the first check, with the folder of logs and the checks that will run."""

    def main(self, arguments: argparse.ArgumentParser) -> int:
        """The exit status. `arguments` has the options of this catalogue alone."""
        arguments.add_argument("--need-gpu", action="store_true")
        arguments.add_argument("--only", default="", help="a regular expression: only the checks whose name it finds")
        arguments.add_argument(
            "--lanes", type=int, default=self.lanes, help=f"how many checks run at a time (default: {self.lanes})"
        )
        arguments.add_argument("--longer", type=int, default=1, help="so many times as long may each check take")
        arguments.add_argument("--logs", type=Path, help="a folder that keeps the logs (default: they are removed)")
        arguments.add_argument(
            "--in-this-process", metavar="NAME", help="this check alone; its outcome is the last line"
        )
        parsed = arguments.parse_args()
        if parsed.in_this_process:
            return self._run_here(parsed)
        with TemporaryDirectory(prefix="gpu-check-") as removed:
            parsed.logs = kept(parsed.logs) if parsed.logs else Path(removed)
            return self._run_each(parsed)

    def _run_here(self, parsed: argparse.Namespace) -> int:
        import torch

        torch.set_num_threads(1)
        (check,) = [each for each in self._checks(parsed) if each.name == parsed.in_this_process]
        print(f"\n{outcome_of(check.run, check.limit_seconds).as_line()}", flush=True)
        return 0

    def _run_each(self, parsed: argparse.Namespace) -> int:
        begun = time.monotonic()
        import torch

        has_gpu = torch.cuda.is_available()
        device = torch.cuda.get_device_name(0) if has_gpu else NO_GPU
        print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, GPU {device}", flush=True)
        surroundings.leave(device, parsed.longer)
        only = re.compile(parsed.only)
        checks = [each for each in self._checks(parsed) if only.search(each.name)]
        self.begin(parsed.logs, [each for each in checks if has_gpu or not each.needs_gpu])
        report = Report(partial(print, flush=True))
        again = [sys.executable, "-m", self.module, *sys.argv[1:], "--logs", str(parsed.logs), "--in-this-process"]
        with InProcesses(again) as run:
            for check, outcome in run_all(checks, on_device(run, device), parsed.lanes):
                report.add(check.name, outcome)
        to_paste(device, str(torch.__version__), report.outcomes)
        print(f"{time.monotonic() - begun:.0f} s")
        return report.end(needs_gpu=parsed.need_gpu)

    def _checks(self, parsed: argparse.Namespace) -> list[Check]:
        return [replace(each, limit_seconds=parsed.longer * each.limit_seconds) for each in self.catalogue(parsed)]


def on_device(run: Run, device: str) -> Run:
    """What the device cannot show is not shown."""
    kinds = {NO_GPU: without_gpu, OF_HOST: by_host}
    return kinds[device](run) if device in kinds else run


def to_paste(device: str, torch: str, outcomes: Mapping[str, Outcome]) -> None:
    """Prints the rows of docs/hardware.md, if this machine has something to say there."""
    if device in (NO_GPU, OF_HOST):
        print(f"nothing for the GPU column of docs/hardware.md: the GPU is {device}")
        return
    today = date.today()
    machine = Machine(f"{today.day} {today:%B %Y}", device, driver_release(), torch)
    page = PAGE if PAGE.exists() else PAGE.parent.parent / "docs" / PAGE.name
    print("\n".join(["for docs/hardware.md:", *lines(page.read_text("utf-8"), outcomes, machine)]))


def kept(logs: Path) -> Path:
    """The packed file's script runs the checks in a folder that it removes, and says from where it was called."""
    folder = Path(os.environ.get(CALLED_IN, "."), logs).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
