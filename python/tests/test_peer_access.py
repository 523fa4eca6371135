"""Whether devices reach each other, as a process of its own finds out from the stand-in for NVIDIA's driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_stand_in import library_or_skip

from kv_connector.memory import peer_access
from kv_connector.memory.cuda_driver import LIBRARY
from kv_connector.memory.peer_access import lack_of_peer_access


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in under the driver's name, for child processes."""
    (tmp_path / LIBRARY).symlink_to(library_or_skip())
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("STAND_IN_DEVICES", "3")


@pytest.mark.usefixtures("driver")
def test_should_find_nothing_where_all_devices_reach_each_other() -> None:
    assert lack_of_peer_access() == ""


@pytest.mark.usefixtures("driver")
def test_should_find_the_package_where_only_this_process_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kv_connector").mkdir()
    (tmp_path / "kv_connector" / "__init__.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert lack_of_peer_access() == ""


@pytest.mark.usefixtures("driver")
def test_should_name_devices_that_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_APART", "1")
    assert lack_of_peer_access() == "device 0 does not reach the memory of device 1"


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("attribute", ["102", "103"])
def test_should_name_a_device_that_cannot_share_memory(monkeypatch: pytest.MonkeyPatch, attribute: str) -> None:
    monkeypatch.setenv("STAND_IN_LACKS", attribute)
    assert lack_of_peer_access().startswith("device 0 lacks ")


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("devices", ["0", "1"])
def test_should_find_nothing_where_no_two_devices_are(monkeypatch: pytest.MonkeyPatch, devices: str) -> None:
    monkeypatch.setenv("STAND_IN_APART", "1")
    monkeypatch.setenv("STAND_IN_DEVICES", devices)
    assert lack_of_peer_access() == ""


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceCanAccessPeer"])
def test_should_count_a_question_that_the_driver_refuses_as_a_lack(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setenv("STAND_IN_FAIL", f"{call}:1:100")
    found = lack_of_peer_access()
    assert found.startswith(f"the driver does not say whether devices reach each other's memory ({call} failed")


def test_should_count_a_machine_without_a_driver_or_a_child_as_a_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / LIBRARY).write_bytes(b"no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "NVIDIA's driver cannot be loaded" in lack_of_peer_access()
    monkeypatch.setattr(peer_access.sys, "executable", str(tmp_path / "gone"))
    assert lack_of_peer_access().startswith("the driver cannot be asked")
