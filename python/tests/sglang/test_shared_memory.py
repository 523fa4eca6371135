"""SGLang's own pools in memory that both sides of a host map: KV and metadata go by ``shm``."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", params=[False, True], ids=["heads", "latent"])
def pair(
    request: pytest.FixtureRequest, sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        import torch
        from one_process import Pair, Shape

        from kv_connector.sglang.shared_memory import SharedZeros

        @dataclass(frozen=True)
        class SharedShape(Shape):
            def pool_of(self, mode: str, pp_rank: int) -> Any:
                with SharedZeros(torch):
                    return super().pool_of(mode, pp_rank)

        opened = Pair(tmp_path_factory.mktemp("shared"), SharedShape(latent=request.param))
    yield opened
    opened.close()


def test_should_move_pages_and_metadata_by_shared_memory(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    caplog.set_level(logging.INFO, "sglang.srt.kv_messenger")
    pair.prefiller.scribble(1)
    pair.decoder.scribble(2)
    room = pair.next_room()
    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.send_metadata(pages(9, 2, 11), 4)
    wait_for(sender, KVPoll.WaitingForInput)
    sender.init(3, 2)
    pair.write_metadata(2, room, 123)
    sender.send(pages(3, 5, 6), [])
    for end in (sender, receiver):
        wait_for(end, KVPoll.Success)
        end.clear()
    pair.assert_equal_pages([3, 5, 6], [9, 2, 11])
    assert pair.decoder.metadata.output_ids[4, 0] == 123
    pair.assert_nothing_held()
    assert '"transport":"shm"' in caplog.text


def test_should_make_memory_that_others_can_map_of_what_torch_is_asked_for() -> None:
    import torch

    from kv_connector.sglang.allocations import ALLOCATIONS
    from kv_connector.sglang.shared_memory import SharedZeros

    gc.collect()  # else memory of other tests may go below
    before = len(ALLOCATIONS)
    with SharedZeros(torch):
        made = [
            torch.zeros((3, 4), dtype=torch.bfloat16, device="cpu"),
            torch.zeros(5),
            torch.zeros(2, 3, dtype=torch.int64),
            torch.zeros(size=[7], dtype=torch.uint8, device=torch.device("cpu")),
        ]
        elsewhere = [torch.zeros((2, 2), device="meta"), torch.zeros(()), torch.zeros(0), torch.zeros(2, out=made[1])]
    assert [tuple(tensor.shape) for tensor in made] == [(3, 4), (2,), (2, 3), (7,)]
    assert [tensor.dtype for tensor in made] == [torch.bfloat16, torch.float32, torch.int64, torch.uint8]
    assert not any(tensor.any() for tensor in made)
    shared = ALLOCATIONS[before:]
    assert [each.length_bytes for each in shared] == [24, 20, 48, 7]
    assert len(elsewhere) == 4
    made[3][6] = 9
    assert os.pread(shared[3].memfd, 7, 0) == bytes(6) + b"\x09"
    assert shared[3].holds(made[3].data_ptr(), 7)
    assert not shared[3].holds(made[3].data_ptr(), 8)
    del made, elsewhere
    gc.collect()
    assert len(ALLOCATIONS) == before, "another's memory may come to their addresses"


def test_should_leave_allocations_to_torch_where_nothing_can_be_mapped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    from kv_connector.sglang import shared_memory
    from kv_connector.sglang.allocations import ALLOCATIONS

    def refused(length_bytes: int) -> Any:
        raise OSError(1, f"no {length_bytes} bytes")

    monkeypatch.setattr(shared_memory, "map_memfd", refused)
    before = len(ALLOCATIONS)
    with shared_memory.SharedZeros(torch):
        made = [torch.zeros(4), torch.zeros(4)]
    assert [tensor.tolist() for tensor in made] == [[0.0] * 4] * 2
    assert len(ALLOCATIONS) == before
    assert caplog.text.count("KV memory cannot be shared with other processes") == 1
