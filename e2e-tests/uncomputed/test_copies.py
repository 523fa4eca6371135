"""Copies on a CUDA that computes nothing: when memory is the caller's again, and when a device's may be given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from uncomputed.pair import LIMIT_SECONDS, environment, stand_ins

STORY = """
import ctypes
import json
import threading

import torch

COUNT = 64 << 20
gate = threading.Event()
wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait() and None)
wait_a_while = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(1.0) and None)
driver, stream = ctypes.CDLL("libcuda.so.1"), torch.cuda.Stream()
handle = ctypes.c_void_p(stream.cuda_stream)
with torch.cuda.stream(stream):
    taken = [torch.empty(COUNT, dtype=torch.uint8, device="cuda") for _ in range(2)]
    pageable = torch.full((COUNT,), 7, dtype=torch.uint8)
    locked = torch.full((COUNT,), 7, dtype=torch.uint8).pin_memory()
    stream.synchronize()
    assert driver.cuLaunchHostFunc(handle, wait, None) == 0
    for device, host in zip(taken, (pageable, locked)):
        device.copy_(host, non_blocking=True)
        host.fill_(9)
    gate.set()
    given = torch.zeros(COUNT, dtype=torch.uint8)
    given.copy_(taken[0], non_blocking=True)
    found = {"read": given.unique().tolist(), "locked": taken[1].cpu().unique().tolist()}

    gate.clear()
    runtime = ctypes.CDLL("libcudart.so.13")
    address = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(COUNT)) == 0
    assert driver.cuLaunchHostFunc(handle, wait_a_while, None) == 0
    source, length = ctypes.c_void_p(taken[0].data_ptr()), ctypes.c_size_t(COUNT)
    assert runtime.cudaMemcpyAsync(address, source, length, 3, handle) == 0
    found["freed"] = runtime.cudaFree(address)
    found["left to do"] = driver.cuStreamQuery(handle)
    gate.set()
print(json.dumps(found))
"""
"""The stream is held up until the host has written what is to be copied, or has given back where it is to go."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-c", STORY],
        env={**os.environ, **environment(stand_ins()), "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def test_pageable_memory_is_the_callers_again_when_a_copy_returns(found: dict[str, Any]) -> None:
    assert found["read"] == [7]
    assert found["locked"] == [9], "page-locked memory is read when the stream comes to it"


def test_memory_is_given_back_behind_what_the_device_has_to_do(found: dict[str, Any]) -> None:
    assert (found["freed"], found["left to do"]) == (0, 0)
