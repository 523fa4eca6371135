"""The doctor's checks of GPUs: the driver, and the features of devices that KV Messenger needs.

They create no context, which would take device memory.
"""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kv_connector.cli.findings import Finding, fail, ok, warn
from kv_connector.configuration.options import Options
from kv_connector.memory.cuda_driver import CudaDriver, CudaError, no_driver

DRIVER_MIN = 11030
"""CUDA 11.3, for ``cuStreamGetCaptureInfo_v2``, which tells the capture that a layer's increment belongs to."""
BATCHES_FROM = 13000
"""CUDA 13.0, for ``cuMemcpyBatchAsync_v2``, which copies many pages in one call."""
COMPUTE_MIN = (7, 0)
"""Volta, for which the layer counter's kernels are written."""
STAGED_BYTES = 2 * (32 << 20)
"""Page-locked by each transfer thread when it first stages, for both directions together (docs/decisions, 0025)."""

_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76


@dataclass(frozen=True, slots=True)
class _Needed:
    """An attribute that KV Messenger needs of a device."""

    attribute: int
    name: str
    remedy: str
    is_a_must: bool
    """Whether an engine on the device cannot move KV without it."""


NEEDED = (
    _Needed(
        41, "unified addressing", "use a GPU, and a driver, of a 64-bit Linux system without a vGPU in between", True
    ),
    _Needed(19, "kernels that reach host memory", "take another GPU: layers cannot be counted on this one", True),
    _Needed(
        102,
        "virtual memory management",
        "keep cuda and shm out of transports, or take a GPU and a driver that have it: peers cannot map KV here",
        False,
    ),
    _Needed(
        103,
        "memory as file descriptors",
        "keep cuda and shm out of transports and set messenger_per to 'rank': KV cannot be handed to another process",
        False,
    ),
    _Needed(
        124,
        "dma-buf",
        "load the open kernel modules of the driver, on Linux 5.12 or newer; until then NICs are staged for",
        False,
    ),
)


def gpus(options: Options | None, open_driver: Callable[[], CudaDriver] = CudaDriver) -> Iterator[Finding]:
    """Checks the driver, devices, pairs of devices, and the limit of page-locked memory; one line without a driver."""
    wrong = fail if options is not None and options.gpu != "off" else warn
    try:
        driver = open_driver()
    except CudaError as fault:
        if wrong is warn and no_driver(fault):
            yield ok("GPU driver", "no GPU driver")
        else:
            yield wrong("GPU driver", str(fault))
        return
    try:
        yield _driver(driver, wrong)
        driver.initialise()
        count = driver.device_count()
    except CudaError as fault:
        yield wrong("GPU driver", str(fault), "see what nvidia-smi says, and give a container its GPUs (--gpus all)")
        return
    if not count:
        yield wrong("GPU driver", "it has no GPU", "give the container its GPUs (--gpus all), see CUDA_VISIBLE_DEVICES")
        return
    for ordinal in range(count):
        try:
            yield from _device(driver, ordinal, wrong)
        except CudaError as fault:
            yield wrong(f"GPU {ordinal}", str(fault), "see what nvidia-smi says of it")
    if count > 1:
        yield _peers(driver, range(count))
    yield from _staging(options)


def _driver(driver: CudaDriver, wrong: Callable[[str, str, str], Finding]) -> Finding:
    version = driver.version()
    seen = f"for CUDA {_worded(version)}"
    if version < DRIVER_MIN:
        return wrong(
            "GPU driver", seen, f"install one for CUDA {_worded(DRIVER_MIN)} or newer: layers cannot be counted"
        )
    if version < BATCHES_FROM:
        return ok("GPU driver", f"{seen} (pages are copied in batches from {_worded(BATCHES_FROM)} on)")
    return ok("GPU driver", seen)


def _worded(version: int) -> str:
    """Decodes a version in the driver's encoding: 12080 is 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _device(driver: CudaDriver, ordinal: int, wrong: Callable[[str, str, str], Finding]) -> Iterator[Finding]:
    what = f"GPU {ordinal}"
    compute = (driver.attribute(ordinal, _COMPUTE_MAJOR), driver.attribute(ordinal, _COMPUTE_MINOR))
    address = driver.pci_address(ordinal).removesuffix(".0")
    seen = f"{driver.device_name(ordinal)} at {address}, compute capability {_dotted(compute)}"
    if compute < COMPUTE_MIN:
        yield wrong(what, seen, f"take one of {_dotted(COMPUTE_MIN)} or newer: layers cannot be counted")
    has = [needed for needed in NEEDED if driver.attribute(ordinal, needed.attribute)]
    if compute >= COMPUTE_MIN and has:
        yield ok(what, f"{seen}, with {', '.join(needed.name for needed in has)}")
    for needed in NEEDED:
        if needed not in has:
            yield (wrong if needed.is_a_must else warn)(what, f"without {needed.name}", needed.remedy)


def _dotted(compute: tuple[int, int]) -> str:
    return f"{compute[0]}.{compute[1]}"


def _peers(driver: CudaDriver, ordinals: Sequence[int]) -> Finding:
    """Whether each device can access the memory of each other one."""
    try:
        apart = [
            f"{one} to {other}"
            for one, other in itertools.permutations(ordinals, 2)
            if not driver.can_access_peer(one, other)
        ]
    except CudaError as fault:
        return warn("GPU peers", str(fault), "see what nvidia-smi topo -p2p r says")
    if not apart:
        return ok("GPU peers", f"all {len(ordinals)} reach each other's memory")
    named = ", ".join(apart[:4]) + (f" and {len(apart) - 4} more" if len(apart) > 4 else "")
    return warn("GPU peers", f"no access from {named}", "name tcp or shm beside cuda in transports")


def _staging(options: Options | None) -> Iterator[Finding]:
    """Checks ulimit -l: staging memory, which NICs use in place of a GPU's, is page-locked."""
    if options is None or {"verbs", "libfabric"}.isdisjoint(options.transports):
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and soft < STAGED_BYTES:
        yield warn(
            "GPU staging",
            f"{soft // 1024} KiB may be locked (ulimit -l), and each transfer thread registers {STAGED_BYTES >> 20} MiB"
            " with NICs",
            "raise it: ulimit -l unlimited",
        )
