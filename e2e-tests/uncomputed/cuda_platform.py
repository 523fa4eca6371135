"""A CUDA platform as on H100s, and vLLM's. No device is asked, so that a process has no context before it is a rank.

Where NVML says what there is, as on machines with GPUs, torch asks the driver for nothing before a rank selects its
device either. A process that had asked could not be forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

import torch

CAPABILITY = "UNCOMPUTED_CAPABILITY"
"""The variable with the compute capability that vLLM sees; without it an H100's."""
MEMORY_BYTES = 80 << 30


def capability() -> tuple[int, int]:
    major, minor = os.environ.get(CAPABILITY, "9.0").split(".")
    return int(major), int(minor)


def stand_in_for_nvml() -> None:
    """Before anything asks torch for devices, with PYTORCH_NVML_BASED_CUDA_CHECK in the environment."""
    torch.cuda._device_count_nvml = lambda: int(os.environ["STAND_IN_DEVICES"])


def stand_in() -> None:
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Uncomputed(NonNvmlCudaPlatform):  # type: ignore[misc, unused-ignore]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*capability())

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "a device that computes nothing"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return MEMORY_BYTES

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

    vllm.platforms.vllm_version_matches_substr = lambda substr: False
    vllm.platforms._current_platform = Uncomputed()


def contexts() -> list[int]:
    """The devices on which this process has one."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return [device for device in range(count.value) if driver.standInRetained(device) > 0]


def used_bytes() -> int:
    """Of memory that this process has made on all devices."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.standInUsedBytes.restype = ctypes.c_size_t
    return sum(driver.standInUsedBytes(device) for device in range(int(os.environ["STAND_IN_DEVICES"])))


def rdma() -> list[int]:
    """Dma-bufs that this process has registered, and writes that its RDMA devices read from and wrote to a device."""
    figures = [ctypes.c_int64() for _ in range(3)]
    with contextlib.suppress(OSError, AttributeError):  # not there, or that of the machine
        ctypes.CDLL("libibverbs.so.1").uncomputedRdmaFigures(*map(ctypes.byref, figures))
    return [figure.value for figure in figures]
