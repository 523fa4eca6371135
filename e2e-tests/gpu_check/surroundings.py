"""Where the checks of a run are made: its runner finds out, and leaves it to their processes in variables."""

from __future__ import annotations

import os

OF_HOST = "a device that computes nothing"
"""What the stand-in for CUDA's runtime calls its devices."""
_DEVICE, _TIMES_AS_LONG = "GPU_CHECK_DEVICE", "GPU_CHECK_TIMES_AS_LONG"


def leave(device: str, times_as_long: int) -> None:
    """For all processes that are started from now on; what was in the variables before counts for nothing."""
    os.environ.update({_DEVICE: device, _TIMES_AS_LONG: str(times_as_long)})


def has_kernels() -> bool:
    """False where Triton's kernels compute nothing."""
    return os.environ.get(_DEVICE) != OF_HOST


def limit(seconds: float) -> float:
    """How long something within a check may take that takes so long on a GPU."""
    return seconds * int(os.environ.get(_TIMES_AS_LONG, "1"))
