"""What the doctor says of GPUs, against the stand-in for NVIDIA's driver, and where there is none."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from conftest import PROCESS_LIMIT_SECONDS
from cuda_stand_in import library_or_skip

from kv_connector.cli import gpus as looked_at
from kv_connector.cli.findings import Finding
from kv_connector.cli.gpus import NEEDED, gpus
from kv_connector.configuration.options import Options, check_options
from kv_connector.memory.cuda_driver import CudaDriver

NOT_INITIALISED = 3
NO_DEVICE = 100


class AskedDriver(CudaDriver):
    """The stand-in's, with answers that a test puts in their place."""

    def __init__(
        self, attributes: Mapping[int, int], version: int = 13000, apart: Collection[tuple[int, int]] = ()
    ) -> None:
        super().__init__(library_or_skip())
        self._attributes = {124: 1, **attributes}
        self._version = version
        self._apart = apart

    def version(self) -> int:
        return min(super().version(), self._version)

    def attribute(self, ordinal: int, attribute: int) -> int:
        return self._attributes.get(attribute, super().attribute(ordinal, attribute))

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        return super().can_access_peer(ordinal, peer) and (ordinal, peer) not in self._apart


def options(**more: object) -> Options:
    return check_options({"listen_port": 0, "transports": ["tcp"], **more})


def seen(
    attributes: Mapping[int, int] | None = None, given: Options | None = None, **more: object
) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in gpus(given, lambda: AskedDriver(attributes or {}, **more)):  # type: ignore[arg-type]
        found.setdefault(finding.what, []).append(finding)
    return found


def test_should_say_what_the_driver_and_each_gpu_have() -> None:
    found = seen()
    assert [str(each) for each in found["GPU driver"]] == ["ok    GPU driver      for CUDA 13.0"]
    for ordinal in range(2):
        (each,) = found[f"GPU {ordinal}"]
        assert (each.level, each.remedy) == ("ok", "")
        assert each.value == (
            f"stand-in {ordinal} at 0000:{0x10 + ordinal:02x}:00, compute capability 9.0, with unified addressing,"
            " kernels that reach host memory, virtual memory management, memory as file descriptors, dma-buf"
        )
    (peers,) = found["GPU peers"]
    assert str(peers) == "ok    GPU peers       all 2 reach each other's memory"


@pytest.mark.parametrize("needed", NEEDED, ids=lambda needed: needed.name)
@pytest.mark.parametrize("gpu", ["off", "unproven"])
def test_should_name_what_a_gpu_lacks_with_its_remedy(needed: looked_at._Needed, gpu: str) -> None:
    wrong = [each for each in seen({needed.attribute: 0}, options(gpu=gpu))["GPU 1"] if each.level != "ok"]
    (each,) = wrong
    assert (each.value, each.remedy) == (f"without {needed.name}", needed.remedy)
    assert each.level == ("fail" if needed.is_a_must and gpu != "off" else "warn")


def test_should_refuse_gpus_and_drivers_that_are_too_old_to_count_on() -> None:
    (old,) = seen(version=11020)["GPU driver"]
    assert str(old) == (
        "warn  GPU driver      for CUDA 11.2  install one for CUDA 11.3 or newer: layers cannot be counted"
    )
    (middle,) = seen(version=12080)["GPU driver"]
    assert (middle.level, middle.value) == ("ok", "for CUDA 12.8 (pages are copied in batches from 13.0 on)")
    (pascal,) = seen({75: 6, 76: 1}, options(gpu="unproven"))["GPU 0"]
    assert (pascal.level, pascal.remedy) == ("fail", "take one of 7.0 or newer: layers cannot be counted")


def test_should_name_gpus_that_do_not_reach_each_other() -> None:
    (peers,) = seen(apart=[(1, 0)])["GPU peers"]
    assert str(peers) == ("warn  GPU peers       no access from 1 to 0  name tcp or shm beside cuda in transports")


def test_should_look_at_what_may_be_locked_where_nics_are_staged_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    assert "GPU staging" not in seen(given=options())
    (short,) = seen(given=options(transports=["verbs", "tcp"]))["GPU staging"]
    assert short.value.startswith("8192 KiB may be locked (ulimit -l), and each transfer thread registers 64 MiB")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert "GPU staging" not in seen(given=options(transports=["verbs", "tcp"]))


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDeviceCanAccessPeer"])
def test_should_say_what_the_driver_refuses(call: str) -> None:
    import ctypes

    ctypes.CDLL(library_or_skip()).standInFail(call.encode(), 1, NO_DEVICE)
    (wrong,) = [each for findings in seen().values() for each in findings if each.level != "ok"]
    assert wrong.level == "warn"
    assert f"{call} failed with" in wrong.value
    assert wrong.remedy


def test_should_say_that_the_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_DEVICES", "0")
    (_, none) = seen()["GPU driver"]
    assert (none.level, none.value) == ("warn", "it has no GPU")


def gpu_lines(environment: Mapping[str, str], gpu: str = "off") -> list[str]:
    """Of the command as a user runs it."""
    config = {
        "kv_connector": "KvMessengerConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"listen_port": 0, "metrics_port": -1, "transports": ["tcp"], "gpu": gpu},
    }
    done = subprocess.run(
        [sys.executable, "-m", "kv_connector", "doctor", "--kv-transfer-config", json.dumps(config)],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=PROCESS_LIMIT_SECONDS,
        check=False,
    )
    *checks, _summary = done.stdout.splitlines()
    return [" ".join(line.split()) for line in checks if " GPU" in line]


def has_driver() -> bool:
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has a GPU driver")
def test_should_say_in_one_line_that_there_is_no_driver(environment: dict[str, str], tmp_path: Path) -> None:
    assert gpu_lines(environment) == ["ok GPU driver no GPU driver"]
    (wanted,) = gpu_lines(environment, "unproven")
    assert wanted.startswith("fail GPU driver NVIDIA's driver cannot be loaded (libcuda.so.1: ")
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    (broken,) = gpu_lines({**environment, "LD_LIBRARY_PATH": str(tmp_path)})
    assert broken.startswith("warn GPU driver NVIDIA's driver cannot be loaded (")


def test_should_find_the_driver_as_the_loader_does(environment: dict[str, str]) -> None:
    library = Path(library_or_skip())
    lines = gpu_lines({**environment, "LD_LIBRARY_PATH": str(library.parent)}, "unproven")
    assert lines[0] == "ok GPU driver for CUDA 13.0"
    assert [line.split()[:3] for line in lines[1:] if line.startswith("ok")] == [
        ["ok", "GPU", "0"],
        ["ok", "GPU", "1"],
        ["ok", "GPU", "peers"],
    ]
