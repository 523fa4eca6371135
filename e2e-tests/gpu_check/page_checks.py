"""A page that a captured graph writes, read by another process as soon as the counter has passed it."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
from typing import Any

from gpu_check.counter_checks import expect, graph_of, the_device

PASSES = 10_000
PAGE_BYTES = 64 << 10
GRANULE = 2 << 20
RANKS = 8
READER_LIMIT_SECONDS = 120.0
SHARED_BYTES = mmap.PAGESIZE
"""The counter's word, and behind it the number of the last page that the reader found complete."""
SEEN_AT = 64


def in_host_memory() -> str:
    """The device writes the page over the bus; the reader is a processor."""
    import torch

    driver, _ = the_device()
    descriptor = os.memfd_create("page")
    os.ftruncate(descriptor, PAGE_BYTES)
    memory = mmap.mmap(descriptor, PAGE_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    page = as_tensor(driver.register_host_memory(address, PAGE_BYTES), PAGE_BYTES).view(torch.int32)
    try:
        return write(page, {"kind": "host"}, descriptor)
    finally:
        torch.cuda.synchronize()
        driver.unregister_host_memory(address)
        os.close(descriptor)


def in_device_memory() -> str:
    """The page stays on the device; the reader has imported its allocation, and reads by a stream of its own."""
    import torch
    from kv_connector.memory.device_memory import DeviceMemories

    driver, _ = the_device()
    memories = DeviceMemories(driver)
    held = memories.allocate(GRANULE, 0)
    descriptor = memories.export(held.address)
    page = as_tensor(held.address, PAGE_BYTES).view(torch.int32)
    try:
        return write(page, {"kind": "device", "length": held.length_bytes}, descriptor)
    finally:
        torch.cuda.synchronize()
        os.close(descriptor)
        memories.close()


def write(page: Any, where: dict[str, Any], descriptor: int) -> str:
    """Each pass raises all numbers of the page by one, and waits until the reader has found them."""
    import torch
    from kv_connector import LayerCounter
    from kv_connector.memory.device_word import DeviceWord

    shared_descriptor = os.memfd_create("shared")
    os.ftruncate(shared_descriptor, SHARED_BYTES)
    shared = mmap.mmap(shared_descriptor, SHARED_BYTES)
    word = ctypes.c_uint64.from_buffer(shared)
    seen = ctypes.c_uint64.from_buffer(shared, SEEN_AT)
    driver, stream = the_device()
    queued = DeviceWord.aimed(driver, ctypes.addressof(word), stream)
    counter = LayerCounter(ctypes.addressof(word), ["page"], queued)
    numbers = torch.zeros(1, dtype=torch.int32, device="cuda")

    def queue_pass() -> None:
        numbers.add_(1)
        page.copy_(numbers.expand_as(page))
        counter.layer_complete("page")

    graph = graph_of(queue_pass)
    numbers.zero_()
    page.zero_()
    torch.cuda.synchronize()
    reader = start_reader(where, [descriptor, shared_descriptor])
    try:
        for step in range(1, PASSES + 1):
            counter.begin_step()
            graph.replay()
            counter.end_step()
            while seen.value < step:
                if reader.poll() is not None:
                    raise AssertionError(f"the reader ended at page {step}: {output_of(reader)}")
        expect(reader.wait(READER_LIMIT_SECONDS), 0, "the reader's status")
    finally:
        reader.kill()
        reader.wait()
        torch.cuda.synchronize()
        queued.close()
        os.close(shared_descriptor)
    return f"{PASSES} pages of {PAGE_BYTES >> 10} KiB complete when the counter had passed them"


def start_reader(where: dict[str, Any], descriptors: list[int]) -> subprocess.Popen[str]:
    """Descriptors go as those of messengers' ranks do, by SCM_RIGHTS."""
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader = subprocess.Popen(
        [sys.executable, "-m", "gpu_check.page_checks", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    socket.send_fds(own, [json.dumps(where).encode()], descriptors)
    own.settimeout(READER_LIMIT_SECONDS)
    expect(own.recv(16), b"ready", "what the reader said")
    own.close()
    return reader


def output_of(reader: subprocess.Popen[str]) -> str:
    assert reader.stderr is not None
    return reader.stderr.read()[-600:]


def read(place: socket.socket) -> None:
    """The other process: polls the word, compares the page, says so."""
    import torch

    message, descriptors, _, _ = socket.recv_fds(place, 4096, 8)
    where = json.loads(message)
    shared = mmap.mmap(descriptors[1], SHARED_BYTES)
    word = ctypes.c_uint64.from_buffer(shared)
    seen = ctypes.c_uint64.from_buffer(shared, SEEN_AT)
    memory: Any = None
    if where["kind"] == "host":
        memory = mmap.mmap(descriptors[0], PAGE_BYTES)
        page = torch.frombuffer(memory, dtype=torch.int32)
    else:
        from kv_connector.memory.device_memory import DeviceMemories

        driver, _ = the_device()
        taken = DeviceMemories(driver).take_in(descriptors[0], where["length"], 0)
        page = as_tensor(taken.address, PAGE_BYTES).view(torch.int32)
        bool((page == 0).all())  # kernels are loaded before the first page
    place.send(b"ready")
    for step in range(1, PASSES + 1):
        while word.value < 2 * step - 1:  # a pass is one layer, and one more for its end
            pass
        if not bool((page == step).all()):
            wrong = page[page != step]
            raise SystemExit(f"page {step}: {len(wrong)} of {len(page)} numbers are others, as {int(wrong[0])}")
        seen.value = step


def eight_allocations() -> str:
    """Eight processes hand an allocation of their own over; one maps all and reads what each has written."""
    from kv_connector.memory.device_memory import DeviceMemories

    driver, _ = the_device()
    memories = DeviceMemories(driver)
    ranks = []
    try:
        for rank in range(RANKS):
            own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-m", "gpu_check.page_checks", str(theirs.fileno()), str(rank)]
            ranks.append((own, subprocess.Popen(command, pass_fds=[theirs.fileno()])))
            theirs.close()
        for rank, (own, _) in enumerate(ranks):
            own.settimeout(READER_LIMIT_SECONDS)
            message, descriptors, _, _ = socket.recv_fds(own, 64, 1)
            taken = memories.take_in(descriptors[0], struct.unpack("<Q", message)[0], 0)
            os.close(descriptors[0])
            found = as_tensor(taken.address, taken.length_bytes)
            expect(bool((found == rank + 1).all()), True, f"what rank {rank} wrote")
    finally:
        for own, process in ranks:
            own.close()
            process.wait(READER_LIMIT_SECONDS)
        memories.close()
    return f"{RANKS} allocations of other processes mapped here, each with what its process wrote"


def hand_over(place: socket.socket, rank: int) -> None:
    """One of the eight; lives until its allocation has been looked at."""
    import torch
    from kv_connector.memory.device_memory import DeviceMemories

    driver, _ = the_device()
    memories = DeviceMemories(driver)
    held = memories.allocate(GRANULE, 0)
    as_tensor(held.address, held.length_bytes).fill_(rank + 1)
    torch.cuda.synchronize()
    socket.send_fds(place, [struct.pack("<Q", held.length_bytes)], [memories.export(held.address)])
    place.recv(1)


class _AsDevice:
    """Device memory as torch takes it from other libraries."""

    def __init__(self, address: int, length_bytes: int) -> None:
        interface = {"shape": (length_bytes,), "typestr": "|i1", "data": (address, False), "version": 3}
        self.__cuda_array_interface__ = interface


def as_tensor(address: int, length_bytes: int) -> Any:
    import torch

    seen = torch.as_tensor(_AsDevice(address, length_bytes), device="cuda")
    expect(seen.data_ptr(), address, "the address of what torch took")
    return seen


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as at:
        if len(sys.argv) > 2:
            hand_over(at, int(sys.argv[2]))
        else:
            read(at)
