"""Environments of packages alone: their folder goes on the path of a process that runs in another environment."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parents[1] / "examples" / "setup" / "environment"


@functools.cache
def site_packages(name: str) -> Path | None:
    """Where the packages of this environment are; None where they cannot be had: standard error says why."""
    made = subprocess.run([ENVIRONMENT, "make", name], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        return None
    (found,) = Path(made.stdout.strip()).parents[1].glob("lib/python*/site-packages")
    return found
