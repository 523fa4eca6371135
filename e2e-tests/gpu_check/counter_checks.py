"""The layer counter: against the stand-in for NVIDIA's driver, and on a GPU in CUDA graphs of torch's."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpu_check.report import Skipped

LAYERS = 32
WIDTH, NARROW = 512, 64
"""Of a layer; a narrow one has as many kernels, and hardly anything to compute."""
REPLAYS = 1000
BUMP_LIMIT_US = 5.0
GLOBAL_CAPTURE = 0
DRIVER = "libcuda.so.1"


@contextmanager
def counting(driver: Any, stream: Callable[[], int], layers: int = LAYERS) -> Iterator[tuple[Any, Any, list[str]]]:
    """(counter, word, names of layers) over a page of its own."""
    from kv_connector import LayerCounter
    from kv_connector.memory.device_word import DeviceWord

    memory = mmap.mmap(-1, mmap.PAGESIZE)
    word = ctypes.c_uint64.from_buffer(memory)
    names = [f"layer {index}" for index in range(layers)]
    queued = DeviceWord.aimed(driver, ctypes.addressof(word), stream)
    try:
        yield LayerCounter(ctypes.addressof(word), names, queued), word, names
        driver.synchronize(stream())
    finally:
        queued.close()


def expect(seen: object, expected: object, what: str) -> None:
    if seen != expected:
        raise AssertionError(f"{what} is {seen}, expected {expected}")


# ---- without a GPU


def on_stand_in(library: str) -> str:
    """Which is C and no GPU: it shows the order of calls, not the kernels."""
    if not library:
        raise Skipped("no stand-in for the driver is packed: it takes a C compiler where the file is made")
    from kv_connector.memory.cuda_driver import CudaDriver
    from kv_connector.memory.device_word import check_counting

    driver = CudaDriver(library)
    driver.call("cuInit", 0)
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    driver.call("cuCtxSetCurrent", context)
    driver.call("cuStreamCreate", ctypes.byref(stream), 1)
    check_counting(driver, lambda: stream.value or 0)
    with counting(driver, lambda: stream.value or 0, layers=4) as (counter, word, names):
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuStreamBeginCapture_v2", stream, GLOBAL_CAPTURE)
        for name in names:
            counter.layer_complete(name)
        driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))

        def launch() -> None:
            driver.call("cuGraphLaunch", made, stream)

        return replayed(counter, word, launch, lambda: driver.synchronize(stream.value or 0), layers=4)


def replayed(
    counter: Any, word: Any, launch: Callable[[], object], finish: Callable[[], None], layers: int = LAYERS
) -> str:
    """In each step a replay, behind each step one that is not told; steps are queued ten at a time."""
    start = word.value
    for step in range(REPLAYS):
        expect(counter.begin_step(), start + step * (layers + 1), f"the start of step {step}")
        launch()
        counter.end_step()
        launch()
        if step % 10 == 9:
            finish()
            expect(word.value, start + (step + 1) * (layers + 1), f"the count after step {step}")
    counter.begin_step()
    launch()
    finish()
    expect(word.value, start + REPLAYS * (layers + 1) + layers, "the count within the last step")
    counter.end_step()
    return f"{REPLAYS} replays of {layers} layers in steps and as many outside, each count right"


# ---- on a GPU


def under_sanitizer() -> str:
    """The kernels in a captured graph, as without a GPU but by NVIDIA's driver, in a process that memcheck watches."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        raise Skipped("compute-sanitizer is not on the PATH")
    watched = [
        sys.executable,
        "-c",
        f"from gpu_check.counter_checks import on_stand_in; print(on_stand_in({DRIVER!r}))",
    ]
    run = subprocess.run(
        [tool, "--tool", "memcheck", "--error-exitcode", "9", *watched], capture_output=True, text=True, check=False
    )
    expect(
        run.returncode, 0, f"the status of compute-sanitizer, which ends with {run.stdout[-600:]}{run.stderr[-300:]}"
    )
    return run.stdout.splitlines()[-1]


def the_device() -> tuple[Any, Callable[[], int]]:
    """(driver, current stream) of torch's."""
    import torch
    from kv_connector.memory.cuda_driver import CudaDriver

    torch.zeros(1, device="cuda")  # makes the context
    return CudaDriver(), lambda: int(torch.cuda.current_stream().cuda_stream)


def on_device() -> str:
    from kv_connector.memory.device_word import check_counting

    check_counting(*the_device())
    return "compiled, and counted to its bound"


@dataclass
class Graph:
    """A captured pass, and what owns the tensors that it reads."""

    captured: Any
    queue_pass: Callable[[], None]

    def replay(self) -> None:
        self.captured.replay()


def graph_of(queue_pass: Callable[[], None]) -> Graph:
    import torch

    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        queue_pass()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        queue_pass()
    return Graph(graph, queue_pass)


def layered(names: list[str], hook: Callable[[str], object], width: int = WIDTH) -> Callable[[], None]:
    """A pass of as many layers, each a few kernels and its hook."""
    import torch

    states = torch.randn(64, width, device="cuda")
    weights = [torch.randn(width, width, device="cuda") * width**-0.5 for _ in names]

    def queue_pass() -> None:
        seen = states
        for name, weight in zip(names, weights, strict=True):
            seen = torch.nn.functional.silu(seen @ weight) + seen
            hook(name)

    return queue_pass


def replays() -> str:
    import torch

    driver, stream = the_device()
    with counting(driver, stream) as (counter, word, names):
        graph = graph_of(layered(names, counter.layer_complete, NARROW))
        return replayed(counter, word, graph.replay, torch.cuda.synchronize)


def bump_cost() -> str:
    """A graph of nothing but bumps, within their bound, by events."""
    import torch

    driver, stream = the_device()
    bumps = 1000
    with counting(driver, stream, layers=bumps) as (counter, _, names):

        def queue_bumps() -> None:
            for name in names:
                counter.layer_complete(name)

        graph = graph_of(queue_bumps)

        def run() -> None:
            counter.begin_step()
            graph.replay()
            counter.end_step()

        run()
        cost_us = median_us(run, 50) / bumps
    if cost_us >= BUMP_LIMIT_US:
        raise AssertionError(f"a bump takes {cost_us:.2f} us of the GPU's time, expected less than {BUMP_LIMIT_US:g}")
    return f"{cost_us:.2f} us of {torch.cuda.get_device_name(0)}'s time, one behind the other"


def step_cost() -> str:
    """The same graph with hooks that count and hooks that do nothing, in turns."""
    driver, stream = the_device()
    with counting(driver, stream) as (counter, _, names):
        counted = graph_of(layered(names, counter.layer_complete))
        plain = graph_of(layered(names, lambda _: None))

        def step() -> None:
            counter.begin_step()
            counted.replay()
            counter.end_step()

        step()
        plain.replay()
        pairs = [(median_us(step, 50), median_us(plain.replay, 50)) for _ in range(5)]
    with_us, without_us = (statistics.median(each) for each in zip(*pairs, strict=True))
    layer_us = (with_us - without_us) / LAYERS
    return f"{LAYERS} layers: {with_us:.1f} us counted, {without_us:.1f} us not: {layer_us:.2f} us a layer"


def median_us(run: Callable[[], object], times: int, stream: Any = None) -> float:
    """Of the GPU's time, by events on the stream that the work is queued on; None is torch's current one."""
    import torch

    took: list[float] = []
    for _ in range(times):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(stream)
        run()
        last.record(stream)
        last.synchronize()
        took.append(first.elapsed_time(last) * 1000)
    return statistics.median(took)
