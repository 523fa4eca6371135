"""Whether what a killed process had queued is still written when its end can be seen by others."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

KILLS = 20
GRANULE = 2 << 20
AREA_BYTES = 256 << 20
QUEUED = 4000
"""Fills of the whole area, each with another byte: about half a second of an H100 at the time of the kill."""
SETTLED_SECONDS = 1.5
READY_LIMIT_SECONDS = 60.0


def late_writes() -> str:
    """For each kill: whether bytes changed after the writer's socket had ended, and after the process had.

    Transport `cuda` gives pages back at the end of the process (`DeathWatch`), so a change after it is a failure. The
    end of the socket comes first, and a change after it shows what that rule is for.
    """
    kills = [_one_kill() for _ in range(KILLS)]
    after_process = sum(changed for _, changed in kills)
    after_socket = [seconds for seconds, _ in kills if seconds]
    seen = (
        f"{KILLS} writers killed with writes queued: bytes changed after the end of the process {after_process} times"
    )
    if after_process:
        raise AssertionError(seen)
    if after_socket:
        seen += f", after the end of its socket {len(after_socket)} times, up to {max(after_socket) * 1000:.0f} ms"
        seen += f" (median {statistics.median(after_socket) * 1000:.0f} ms)"
    return seen


def _one_kill() -> tuple[float, bool]:
    """(seconds after the socket's end in which bytes still changed, whether they did after the process's end)."""
    import torch
    from kv_connector.memory.device_memory import DeviceMemories

    from gpu_check.counter_checks import the_device
    from gpu_check.page_checks import as_tensor

    driver, _ = the_device()
    memories = DeviceMemories(driver)
    area = memories.allocate(AREA_BYTES, 0)
    seen = as_tensor(area.address, area.length_bytes)
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "gpu_check.killed_writer_checks", str(theirs.fileno()), str(area.length_bytes)]
    writer = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    watched = os.pidfd_open(writer.pid)
    theirs.close()
    descriptor = memories.export(area.address)
    try:
        socket.send_fds(own, [b"area"], [descriptor])
        own.settimeout(READY_LIMIT_SECONDS)
        if own.recv(16) != b"queued":
            raise AssertionError("the writer has queued nothing")
        writer.kill()
        while own.recv(16):
            pass
        ended = time.monotonic()
        last, changed_at = seen[::4096].clone(), 0.0
        torch.cuda.synchronize()
        select.select([watched], [], [])
        at_process_end = seen[::4096].clone()
        torch.cuda.synchronize()
        while time.monotonic() < ended + SETTLED_SECONDS:
            now = seen[::4096].clone()
            if not bool((now == last).all()):
                changed_at = time.monotonic() - ended
            last = now
        return changed_at, not bool((last == at_process_end).all())
    finally:
        writer.kill()
        writer.wait()
        own.close()
        os.close(watched)
        os.close(descriptor)
        memories.close()


def write(place: socket.socket, length_bytes: int) -> None:
    """The other process: queues more than it will live for, and else lives until the first one has gone."""
    from kv_connector.memory.cuda_driver import CudaDriver
    from kv_connector.memory.device_memory import DeviceMemories

    driver: Any = CudaDriver()
    driver.initialise()
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    driver.call("cuCtxSetCurrent", context)
    driver.call("cuStreamCreate", ctypes.byref(stream), 1)
    _, descriptors, _, _ = socket.recv_fds(place, 16, 1)
    area = DeviceMemories(driver).take_in(descriptors[0], length_bytes, 0)
    address, count = ctypes.c_uint64(area.address), ctypes.c_size_t(length_bytes)
    for number in range(QUEUED):
        driver.call("cuMemsetD8Async", address, ctypes.c_ubyte(number % 251), count, stream)
        if number == QUEUED // 10:
            place.send(b"queued")
    driver.synchronize(stream.value or 0)
    place.send(b"over")
    place.recv(1)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as at:
        write(at, int(sys.argv[2]))
