"""Which RDMA devices are chosen on machines of several kinds, and which cores are near them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sys_trees import Tree, cloud_vm, dgx, mapped, software_only, two_sockets

from kv_connector.configuration.options import check_options
from kv_connector.memory.cuda_driver import CudaError
from kv_connector.runtime import rdma_topology
from kv_connector.runtime.rdma_topology import Distance, choose, cores_near, for_options, read_machine

FIRST_SOCKET = frozenset(range(56)) | frozenset(range(112, 168))
ALL_OF_DGX = frozenset(range(224))


def test_should_find_the_nic_behind_the_gpus_own_switch(tmp_path: Path) -> None:
    machine = read_machine(dgx(tmp_path))
    assert [gpu.address for gpu in machine.accelerators] == sorted(gpu.address for gpu in machine.accelerators)
    assert len(machine.accelerators) == 8
    for i, gpu in enumerate(machine.accelerators):
        choice = choose(machine, ALL_OF_DGX, [gpu])
        assert choice.names == (f"mlx5_{i if i < 4 else i + 1}",)
        assert choice.why == "400 Gb/s, behind one PCI switch with the GPU"


def test_should_take_the_nics_of_all_gpus_of_an_engine(tmp_path: Path) -> None:
    machine = read_machine(dgx(tmp_path))
    assert choose(machine, ALL_OF_DGX, machine.accelerators[4:6]).names == ("mlx5_5", "mlx5_6")


def test_should_leave_storage_nics_alone_without_a_gpu_to_be_near(tmp_path: Path) -> None:
    machine = read_machine(dgx(tmp_path))
    assert choose(machine, ALL_OF_DGX).names == tuple(f"mlx5_{i}" for i in (0, 1, 2, 3, 5, 6, 7, 8))
    assert choose(machine, FIRST_SOCKET).names == ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")


def test_should_know_how_far_devices_are_from_each_other(tmp_path: Path) -> None:
    machine = read_machine(dgx(tmp_path))
    gpu = machine.accelerators[0]
    by_name = {device.name: gpu.place.to(device.place) for device in machine.devices}
    assert by_name["mlx5_0"] is Distance.SWITCH
    assert by_name["mlx5_1"] is Distance.NODE
    assert by_name["mlx5_5"] is Distance.SYSTEM


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (range(64), ("mlx5_0", "mlx5_2")),
        (range(16), ("mlx5_0",)),
        (range(48, 64), ("mlx5_2",)),
        ((0, 16), ("mlx5_0", "mlx5_2")),
    ],
)
def test_should_take_the_nic_of_the_socket_that_the_process_is_bound_to(
    tmp_path: Path, allowed: range, names: tuple[str, ...]
) -> None:
    assert choose(read_machine(two_sockets(tmp_path)), frozenset(allowed)).names == names


def test_should_do_without_numa_information(tmp_path: Path) -> None:
    machine = read_machine(cloud_vm(tmp_path))
    allowed = frozenset(range(8))
    choice = choose(machine, allowed)
    assert choice.names == ("mlx5_0",)
    assert choice.why == "50 Gb/s, the only one"
    assert choose(machine, allowed, machine.accelerators).why == "50 Gb/s, at one host bridge with the GPU"
    assert cores_near(choice.devices, allowed) == allowed


def test_should_take_a_device_of_software_where_there_is_no_other(tmp_path: Path) -> None:
    tree = Tree(software_only(tmp_path), first_uverbs=1)
    assert choose(read_machine(tmp_path), frozenset({0})).names == ("rxe0",)
    tree.nic("pci0000:00/0000:00:06.0", "mlx5_0", -1, "0", rate="1 Gb/sec")
    assert choose(read_machine(tmp_path), frozenset({0})).names == ("mlx5_0",)


def test_should_say_of_each_device_why_it_cannot_be_used(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.nic("pci0000:00/0000:00:06.0", "down", 0, "0", state="1: DOWN")
    tree.nic("pci0000:00/0000:00:07.0", "unrouted", 0, "0", layer="Ethernet")
    tree.nic("pci0000:00/0000:00:08.0", "hidden", 0, "0", node_in_dev=False)
    assert choose(read_machine(tmp_path), frozenset({0})) == rdma_topology.Choice(
        (),
        "down has no active port; hidden has no /dev/infiniband/uverbs of its own here;"
        " unrouted has no address for RoCE v2 that can be routed",
    )
    assert choose(read_machine(tmp_path / "nothing"), frozenset({0})).why == "there is no RDMA device"


def test_should_put_threads_near_devices_where_their_node_has_cores_enough(tmp_path: Path) -> None:
    devices = read_machine(two_sockets(tmp_path)).devices
    allowed = frozenset(range(64))
    assert cores_near(devices[:1], allowed) == frozenset(range(16)) | frozenset(range(32, 48))
    assert cores_near(devices, allowed) == allowed, "of two nodes"
    assert cores_near(devices[:1], frozenset(range(15))) == frozenset(range(15)), "too few"
    assert cores_near((), allowed) == allowed


def test_should_take_no_more_than_a_peer_has_networks(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for i in range(12):
        tree.nic(f"pci0000:00/0000:00:{i:02x}.0", f"mlx5_{i}", 0, "0", layer="Ethernet", address=mapped(f"10.0.{i}.1"))
    assert choose(read_machine(tmp_path), frozenset({0})).names == tuple(f"mlx5_{i}" for i in range(8))


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, None),
        ({"transports": ["verbs", "tcp"]}, ("mlx5_0", "mlx5_2")),
        ({"transports": ["verbs"], "verbs_devices": ["mlx5_2"]}, ("mlx5_2",)),
        ({"transports": ["verbs"], "verbs_devices": ["not_there"]}, ()),
    ],
)
def test_should_choose_for_options_that_leave_the_devices_open(
    tmp_path: Path, given: dict[str, object], names: tuple[str, ...] | None
) -> None:
    options = check_options(given)
    choice = for_options(options, frozenset(range(64)), two_sockets(tmp_path))
    assert (None if choice is None else choice.names) == names


class Gpus:
    """A driver that knows where each of its devices is on the bus."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    def pci_address(self, ordinal: int) -> str:
        return self._addresses[ordinal]


@pytest.mark.parametrize(
    ("given", "gpus", "names"),
    [
        ({}, [5], ("mlx5_6",)),
        ({}, [2, 3, 3], ("mlx5_2", "mlx5_3")),
        ({"verbs_devices": ["mlx5_0"]}, [5], ("mlx5_0",)),
    ],
)
def test_should_take_the_nics_near_the_gpus_that_hold_the_kv(
    tmp_path: Path, given: dict[str, object], gpus: list[int], names: tuple[str, ...]
) -> None:
    driver: Any = Gpus([gpu.address for gpu in read_machine(dgx(tmp_path)).accelerators])
    options = check_options({"transports": ["verbs", "tcp"], **given})
    choice = for_options(options, ALL_OF_DGX, tmp_path, gpus, lambda: driver)
    assert choice is not None
    assert choice.names == names


def test_should_choose_by_cores_where_no_driver_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def no_driver() -> Any:
        raise CudaError("there is no driver")

    options, root = check_options({"transports": ["verbs"]}), dgx(tmp_path)
    on_host = for_options(options, FIRST_SOCKET, root, [], no_driver)
    assert not caplog.text, "no driver is asked about host memory"
    assert for_options(options, FIRST_SOCKET, root, [0], no_driver) == on_host
    assert "there is no driver" in caplog.text
