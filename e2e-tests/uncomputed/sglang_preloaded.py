"""What a process has from which servers of SGLang are forked: no device is asked before a rank selects its own.

SGLang asks torch for a device's name when it is imported, and a process that has asked could not be forked.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from uncomputed import cuda_platform


def install() -> None:
    cuda_platform.stand_in_for_nvml()
    properties, current = torch.cuda.get_device_properties, torch.cuda.current_device
    major, minor = cuda_platform.capability()
    known = SimpleNamespace(
        name="a device that computes nothing",
        major=major,
        minor=minor,
        total_memory=cuda_platform.MEMORY_BYTES,
        multi_processor_count=132,
    )

    def of_device(device: Any = None) -> Any:
        return properties(device) if torch.cuda.is_initialized() else known

    torch.cuda.get_device_properties = of_device
    torch.cuda.current_device = lambda: current() if torch.cuda.is_initialized() else 0
    from sglang.srt.utils import common

    asked: Any = common
    asked._get_device_sm_via_nvml = lambda: 10 * major + minor
    asked.get_nvgpu_memory_capacity = lambda: cuda_platform.MEMORY_BYTES >> 20


install()
