from __future__ import annotations

import fcntl
import logging
import mmap
import os
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch comes with the engine: see the suite that has vLLM")

from kv_connector.vllm.shareable_memory import ShareableAllocation  # noqa: E402

LENGTH_BYTES = 1 << 16


@pytest.fixture
def allocation() -> ShareableAllocation:
    return ShareableAllocation(torch, logging.getLogger("test"))


def test_should_put_the_backing_buffer_where_others_can_map_it(allocation: ShareableAllocation) -> None:
    with allocation:
        buffer = torch.zeros(LENGTH_BYTES, dtype=torch.int8, device=torch.device("cpu"))
    assert int(buffer.abs().sum()) == 0
    memfd = allocation.memfd_of(buffer.untyped_storage().data_ptr(), buffer.untyped_storage().nbytes())
    assert memfd >= 0
    assert not os.get_inheritable(memfd)
    buffer.view(torch.float32)[3] = 1.5
    with mmap.mmap(memfd, LENGTH_BYTES) as other:
        assert other[12:16] == b"\x00\x00\xc0\x3f"


def test_should_seal_the_memory_against_every_change_of_its_length(allocation: ShareableAllocation) -> None:
    with allocation:
        torch.zeros(LENGTH_BYTES, dtype=torch.int8)
    for length_bytes in (0, LENGTH_BYTES - 1, LENGTH_BYTES + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(allocation.memfd, length_bytes)
    assert fcntl.fcntl(allocation.memfd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL


def test_should_leave_every_other_allocation_alone(allocation: ShareableAllocation) -> None:
    with allocation:
        others = [
            torch.zeros(4, 4, dtype=torch.int8),
            torch.zeros((8,), dtype=torch.int8),
            torch.zeros(8, dtype=torch.float32),
            torch.zeros(8),
            torch.ones(8, dtype=torch.int8),
        ]
        assert allocation.memfd == -1
        first = torch.zeros(LENGTH_BYTES, dtype=torch.int8)
        second = torch.zeros(LENGTH_BYTES, dtype=torch.int8)
    assert allocation.memfd_of(first.data_ptr(), LENGTH_BYTES) >= 0
    assert allocation.memfd_of(second.data_ptr(), LENGTH_BYTES) == -1
    assert [int(other.sum()) for other in others] == [0, 0, 0, 0, 8]


def test_should_not_vouch_for_memory_that_is_not_its_own(allocation: ShareableAllocation) -> None:
    assert allocation.memfd_of(0, 10) == -1
    with allocation:
        buffer = torch.zeros(LENGTH_BYTES, dtype=torch.int8)
    assert allocation.memfd_of(buffer.data_ptr(), LENGTH_BYTES + 1) == -1
    assert allocation.memfd_of(buffer.data_ptr() + 64, 10) == -1


def test_should_fall_back_to_ordinary_memory(
    allocation: ShareableAllocation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no memfd here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with allocation:
        buffer = torch.zeros(LENGTH_BYTES, dtype=torch.int8)
    assert buffer.numel() == LENGTH_BYTES
    assert allocation.memfd_of(buffer.data_ptr(), LENGTH_BYTES) == -1
    assert "no memfd here" in caplog.text
