"""Folders as ``/sys`` and ``/dev`` are on some kinds of machine, as far as the topology of RDMA devices looks there."""

from __future__ import annotations

from pathlib import Path

LINK_LOCAL = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
NVIDIA = "0x10de"
MELLANOX = "0x15b3"
CLASS_3D = "0x030200"
CLASS_ETHERNET = "0x020000"


class Tree:
    """Makes one below a folder."""

    def __init__(self, root: Path, first_uverbs: int = 0) -> None:
        self.root = root
        self._uverbs = first_uverbs

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: Path) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def pci(self, path: str, vendor: str, kind: str, node: int, cores: str) -> Path:
        """A function at the end of a path of bridges; returns its folder."""
        where = f"sys/devices/{path}"
        self.write(f"{where}/vendor", vendor)
        self.write(f"{where}/class", kind)
        self.write(f"{where}/numa_node", str(node))
        self.write(f"{where}/local_cpulist", cores)
        folder = self.root / where
        self.link(f"sys/bus/pci/devices/{folder.name}", folder)
        return folder

    def gpu(self, path: str, node: int, cores: str) -> None:
        self.pci(path, NVIDIA, CLASS_3D, node, cores)

    def nic(
        self,
        path: str,
        name: str,
        node: int,
        cores: str,
        *,
        rate: str = "400 Gb/sec (4X NDR)",
        state: str = "4: ACTIVE",
        layer: str = "InfiniBand",
        address: str = LINK_LOCAL,
        node_in_dev: bool = True,
    ) -> None:
        folder = self.pci(path, MELLANOX, CLASS_ETHERNET, node, cores)
        self.infiniband(name, folder, rate, state, layer, address, node_in_dev)

    def infiniband(
        self, name: str, device: Path | None, rate: str, state: str, layer: str, address: str, node_in_dev: bool
    ) -> None:
        base = device or self.root / "sys/devices/virtual"
        where = (base / "infiniband" / name).relative_to(self.root)
        for file, text in {
            "state": state,
            "rate": rate,
            "link_layer": layer,
            "gids/0": LINK_LOCAL,
            "gids/1": address,
            "gid_attrs/types/0": "RoCE v2",
            "gid_attrs/types/1": "RoCE v2",
        }.items():
            self.write(f"{where}/ports/1/{file}", text)
        if device is not None:
            self.link(f"{where}/device", device)
        self.link(f"sys/class/infiniband/{name}", self.root / where)
        self.write(f"sys/class/infiniband_verbs/uverbs{self._uverbs}/ibdev", name)
        if node_in_dev:
            self.write(f"dev/infiniband/uverbs{self._uverbs}", "")
        self._uverbs += 1


def mapped(address: str) -> str:
    """The GID of an address of IPv4."""
    a, b, c, d = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def dgx(root: Path) -> Path:
    """Two sockets; a GPU and a NIC of InfiniBand behind each of eight PCI switches, and two slower NICs for storage."""
    tree = Tree(root)
    for i in range(8):
        node = i // 4
        cores = "0-55,112-167" if node == 0 else "56-111,168-223"
        bus = 0x10 + 0x10 * i
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        tree.gpu(f"{switch}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0", node, cores)
        tree.nic(
            f"{switch}/0000:{bus + 2:02x}:01.0/0000:{bus + 4:02x}:00.0", f"mlx5_{i if i < 4 else i + 1}", node, cores
        )
    tree.nic("pci0000:a0/0000:a0:05.0/0000:a1:00.0", "mlx5_4", 0, "0-55,112-167", rate="100 Gb/sec (4X EDR)")
    tree.nic("pci0000:b0/0000:b0:05.0/0000:b1:00.0", "mlx5_9", 1, "56-111,168-223", rate="100 Gb/sec (4X EDR)")
    return root


def two_sockets(root: Path) -> Path:
    """Two sockets with a RoCE NIC each; the first also has a port without a cable."""
    tree = Tree(root)
    roce = {"rate": "100 Gb/sec (4X EDR)", "layer": "Ethernet"}
    tree.nic("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "mlx5_0", 0, "0-15,32-47", address=mapped("10.1.0.5"), **roce)
    tree.nic("pci0000:3a/0000:3a:00.0/0000:3b:00.1", "mlx5_1", 0, "0-15,32-47", state="1: DOWN", **roce)
    tree.nic("pci0000:ae/0000:ae:00.0/0000:af:00.0", "mlx5_2", 1, "16-31,48-63", address=mapped("10.2.0.5"), **roce)
    return root


def cloud_vm(root: Path) -> Path:
    """A virtual machine that says nothing of NUMA; a GPU and a virtual function of a NIC on one flat bus."""
    tree = Tree(root)
    tree.gpu("pci0000:00/0000:00:05.0", -1, "0-7")
    tree.nic(
        "pci0000:00/0000:00:06.0",
        "mlx5_0",
        -1,
        "0-7",
        rate="50 Gb/sec (1X NDR)",
        layer="Ethernet",
        address=mapped("10.0.0.4"),
    )
    return root


def software_only(root: Path) -> Path:
    """Soft-RoCE over an ordinary network card."""
    tree = Tree(root)
    tree.infiniband("rxe0", None, "2.5 Gb/sec (1X SDR)", "4: ACTIVE", "Ethernet", mapped("10.0.0.7"), node_in_dev=True)
    return root
