"""The topology of RDMA devices, GPUs and cores, read from Linux's ``/sys`` below a given root folder."""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from kv_connector.configuration.options import Options
from kv_connector.memory.cuda_driver import CudaDriver, CudaError

logger = logging.getLogger("kv_connector")

ROOT = Path("/")
DEVICES_MAX = 8
"""The largest number of networks between two peers."""
PINNED_CORES_MIN = 16
"""If a NUMA node has fewer cores, threads are not restricted to it."""
ACTIVE = "4:"
ETHERNET = "Ethernet"
ROCE_V2 = "RoCE v2"
UNROUTABLE_GIDS = ("fe80:", "0000:0000:0000:0000:0000:0000:0000:0000")
ACCELERATOR_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes: display and 3D controllers, and processing accelerators."""
ACCELERATOR_VENDORS = ("0x10de", "0x1002")
NODE_UNKNOWN = -1


class Distance(enum.IntEnum):
    """The distance of two PCI devices, in ascending order."""

    SWITCH = 0
    HOST_BRIDGE = 1
    NODE = 2
    SYSTEM = 3

    @property
    def words(self) -> str:
        """The distance in words."""
        return ("behind one PCI switch", "at one host bridge", "at one NUMA node", "across the machine")[self]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The place of a device in the machine."""

    pci: tuple[str, ...]
    """PCI addresses from the root complex to the device; empty for a software device."""
    node: int
    """The NUMA node; ``NODE_UNKNOWN`` if Linux does not report it."""

    def to(self, other: Place) -> Distance:
        """The distance to another place."""
        common = 0
        for own, others in zip(self.pci, other.pci, strict=False):
            if own != others:
                break
            common += 1
        if common > 1:
            return Distance.SWITCH
        if common == 1:
            return Distance.HOST_BRIDGE
        return Distance.NODE if self.node == other.node != NODE_UNKNOWN else Distance.SYSTEM


@dataclasses.dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device known to libibverbs."""

    name: str
    place: Place
    cores: frozenset[int]
    rate_gbps: float
    """The rate of its fastest active port."""
    ethernet: bool
    unusable: str
    """Why it cannot be used; empty if it can."""


@dataclasses.dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU, identified by its PCI address."""

    address: str
    place: Place


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """The devices of a machine, sorted by name and address."""

    devices: tuple[RdmaDevice, ...]
    accelerators: tuple[Accelerator, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The selected devices, and the reason."""

    devices: tuple[RdmaDevice, ...]
    why: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the devices, as in ``verbs_devices``."""
        return tuple(device.name for device in self.devices)


def read_machine(root: Path = ROOT) -> Machine:
    """Reads the topology from ``/sys`` and ``/dev`` below a folder."""
    infiniband = sorted((root / "sys/class/infiniband").glob("*"), key=lambda path: natural(path.name))
    pci = sorted((root / "sys/bus/pci/devices").glob("*"))
    return Machine(
        devices=tuple(rdma_device(root, path) for path in infiniband),
        accelerators=tuple(Accelerator(path.name, place(path)) for path in pci if is_accelerator(path)),
    )


def natural(name: str) -> tuple[str, int]:
    """A sort key by which ``mlx5_10`` comes after ``mlx5_2``."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0)


def rdma_device(root: Path, path: Path) -> RdmaDevice:
    """Reads one entry of ``/sys/class/infiniband``."""
    ports = [port for port in sorted((path / "ports").glob("*")) if text_of(port / "state").startswith(ACTIVE)]
    best = max(ports, key=rate_gbps, default=None)
    return RdmaDevice(
        name=path.name,
        place=place(path / "device"),
        cores=frozenset(cores(text_of(path / "device/local_cpulist"))),
        rate_gbps=rate_gbps(best) if best else 0.0,
        ethernet=best is not None and text_of(best / "link_layer") == ETHERNET,
        unusable=why_unusable(root, path, best),
    )


def why_unusable(root: Path, path: Path, port: Path | None) -> str:
    """Why a device cannot be used, in words; empty if it can."""
    if port is None:
        return "has no active port"
    if text_of(port / "link_layer") == ETHERNET and not has_routable_address(port):
        return "has no address for RoCE v2 that can be routed"
    if not any((root / "dev/infiniband" / verbs.name).exists() for verbs in uverbs(root, path)):
        return "has no /dev/infiniband/uverbs of its own here"
    return ""


def uverbs(root: Path, path: Path) -> list[Path]:
    """The uverbs nodes of a device, including a software device, which has no parent in ``/sys``."""
    return [
        node for node in (root / "sys/class/infiniband_verbs").glob("uverbs*") if text_of(node / "ibdev") == path.name
    ]


def has_routable_address(port: Path) -> bool:
    """Whether the port has an address that RoCE v2 can route beyond the local link."""
    return any(
        text_of(port / "gid_attrs/types" / gid.name) == ROCE_V2 and not text_of(gid).startswith(UNROUTABLE_GIDS)
        for gid in (port / "gids").glob("*")
    )


def rate_gbps(port: Path) -> float:
    """The rate of a port, from text like ``400 Gb/sec (4X NDR)``."""
    first = text_of(port / "rate").partition(" ")[0]
    return float(first) if first.replace(".", "", 1).isdigit() else 0.0


def place(path: Path) -> Place:
    """The place of a device, from its path in ``/sys``."""
    if not path.exists():
        return Place((), NODE_UNKNOWN)
    parts = path.resolve().parts
    first = next((i for i, part in enumerate(parts) if part.startswith("pci")), len(parts))
    node = text_of(path / "numa_node")
    return Place(parts[first:], int(node) if node.lstrip("-").isdigit() else NODE_UNKNOWN)


def is_accelerator(path: Path) -> bool:
    """Whether a PCI device is a GPU that engines can use."""
    return text_of(path / "vendor") in ACCELERATOR_VENDORS and text_of(path / "class").startswith(ACCELERATOR_CLASSES)


def cores(text: str) -> Iterable[int]:
    """Parses a list of cores such as ``0-3,8``."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def text_of(path: Path) -> str:
    """A file's text; empty if it is absent or unreadable, such as the unused entries of a GID table."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def choose(machine: Machine, allowed: frozenset[int], near: Sequence[Accelerator] = ()) -> Choice:
    """Selects devices for a process that may use these cores and has its KV at these accelerators or in host memory.

    Of the usable devices it selects the nearest, and of these the fastest: slower ones usually serve other purposes.
    """
    usable = [device for device in machine.devices if not device.unusable]
    if not usable:
        return Choice((), "; ".join(f"{d.name} {d.unusable}" for d in machine.devices) or "there is no RDMA device")
    hardware = [device for device in usable if device.place.pci] or usable
    nearest, reason = nearest_to(hardware, allowed, near)
    rate = max(device.rate_gbps for device in nearest)
    ethernet = next(device.ethernet for device in nearest if device.rate_gbps == rate)
    alike = [device for device in nearest if device.rate_gbps == rate and device.ethernet == ethernet]
    return Choice(tuple(alike[:DEVICES_MAX]), f"{rate:g} Gb/s, {reason}")


def for_options(
    options: Options,
    allowed: frozenset[int],
    root: Path = ROOT,
    gpus: Collection[int] = (),
    open_driver: Callable[[], CudaDriver] = CudaDriver,
) -> Choice | None:
    """The devices that the options name, or else that the topology gives; None without the transport ``verbs``.

    ``gpus``: ordinals of the GPUs that hold the KV; empty where it is in host memory.
    """
    if "verbs" not in options.transports:
        return None
    machine = read_machine(root)
    if not options.verbs_devices:
        addresses = _addresses(gpus, open_driver)
        return choose(machine, allowed, [gpu for gpu in machine.accelerators if gpu.address in addresses])
    known = {device.name: device for device in machine.devices}
    return Choice(tuple(known[name] for name in options.verbs_devices if name in known), "named by verbs_devices")


def _addresses(gpus: Collection[int], open_driver: Callable[[], CudaDriver]) -> list[str]:
    """PCI addresses of GPUs; empty if the driver does not say them, and devices are chosen by the cores then."""
    try:
        driver = open_driver() if gpus else None
        return [driver.pci_address(ordinal) for ordinal in sorted(set(gpus))] if driver else []
    except CudaError as fault:
        logger.warning("RDMA devices are not chosen by their nearness to a GPU: %s", fault)
        return []


def nearest_to(
    devices: Sequence[RdmaDevice], allowed: frozenset[int], near: Sequence[Accelerator]
) -> tuple[list[RdmaDevice], str]:
    """The nearest of the devices, and what they are near to."""
    if near:
        distances = {device: min(device.place.to(gpu.place) for gpu in near) for device in devices}
        least = min(distances.values())
        return [device for device in devices if distances[device] == least], f"{least.words} with the GPU"
    local = [device for device in devices if device.cores and allowed <= device.cores]
    if local and len(local) < len(devices):
        return local, "at the NUMA node of the cores that this process may use"
    return list(devices), "all that have it" if len(devices) > 1 else "the only one"


def cores_near(devices: Sequence[RdmaDevice], allowed: frozenset[int]) -> frozenset[int]:
    """The cores for threads that drive the devices: those of their common NUMA node if it has enough, else all."""
    nodes = {device.place.node for device in devices}
    local = allowed.intersection(*(device.cores for device in devices)) if devices else frozenset()
    one_node = len(nodes) == 1 and NODE_UNKNOWN not in nodes
    return frozenset(local) if one_node and len(local) >= PINNED_CORES_MIN else allowed
