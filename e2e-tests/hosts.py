"""A second host on this machine: a network namespace with two links, one to be cut and one to be asked by."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SUBNET = "10.211"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def lack_of_privilege() -> str | None:
    """Why no host can be made here; None when it can."""
    name = f"kvm-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except FileNotFoundError:
        return "network namespaces need the program ip (Debian: iproute2)"
    except subprocess.CalledProcessError as refused:
        return f"network namespaces need root with CAP_SYS_ADMIN and CAP_NET_ADMIN: {refused.stderr.strip()}"
    return None


@dataclass(frozen=True)
class Link:
    """A pair of interfaces; `near` is this host's end."""

    interface: str
    near: str
    far: str

    @contextmanager
    def down(self) -> Iterator[None]:
        ip("link", "set", self.interface, "down")
        try:
            yield
        finally:
            ip("link", "set", self.interface, "up")


@dataclass(frozen=True)
class Host:
    """Commands with `prefix` in front of them run there."""

    name: str
    data: Link
    management: Link

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)


@contextmanager
def second_host() -> Iterator[Host]:
    number = os.getpid() % 250
    name = f"kvm-host-{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        links = [join(name, f"kvm{kind}{number}", f"{SUBNET}.{number}.{4 * index}") for index, kind in enumerate("dm")]
        yield Host(name, *links)
    finally:
        ip("netns", "delete", name)  # its ends of the links go with it, and ours with them


def join(host: str, interface: str, network: str) -> Link:
    prefix, _, last = network.rpartition(".")
    near, far = (f"{prefix}.{int(last) + end}" for end in (1, 2))
    ip("link", "add", interface, "type", "veth", "peer", "name", "peer", "netns", host)
    ip("-n", host, "link", "set", "peer", "name", f"{interface}-far")
    ip("addr", "add", f"{near}/30", "dev", interface)
    ip("link", "set", interface, "up")
    ip("-n", host, "addr", "add", f"{far}/30", "dev", f"{interface}-far")
    ip("-n", host, "link", "set", f"{interface}-far", "up")
    return Link(interface, near, far)
