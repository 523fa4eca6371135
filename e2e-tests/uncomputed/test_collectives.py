"""NCCL's stand-in: two ranks in two processes get what torch's collectives are to give, also from within a graph."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from uncomputed.pair import environment, stand_ins

LIMIT_SECONDS = 600.0

STORY = """
import ctypes, json, sys

import torch
import torch.distributed as ranks

rank, store = int(sys.argv[1]), sys.argv[2]
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
ranks.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{store}", world_size=2, rank=rank, device_id=device)
alone = ranks.split_group(split_ranks=[[0], [1]], backend="cuda:nccl")


def on_device(values, dtype=torch.float32):
    made = torch.zeros(len(values), dtype=dtype, device="cuda")
    made.copy_(torch.tensor(values, dtype=dtype))
    return made


def shown(tensor):
    seen = torch.zeros(tensor.shape, dtype=tensor.dtype)
    seen.copy_(tensor)
    return seen.tolist()


found = {}
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    given = on_device([1 + rank, 10 + rank], dtype)
    ranks.all_reduce(given)
    found[str(dtype)] = shown(given)
both = torch.zeros(4, device="cuda")
ranks.all_gather_into_tensor(both, on_device([rank, 5 + rank]))
found["gathered"] = shown(both)
part = torch.zeros(1, device="cuda")
ranks.reduce_scatter_tensor(part, on_device([1 + rank, 7 + rank]))
found["scattered"] = shown(part)
given = on_device([3 + rank])
ranks.broadcast(given, 1)
found["broadcast"] = shown(given)
given = on_device([30 + rank, 40 + rank])
ranks.send(given, 1) if rank == 0 else ranks.recv(given, 0)
found["sent"] = shown(given)
given = on_device([rank])
ranks.all_reduce(given, group=alone)
found["alone"] = shown(given)
many = on_device([rank + 1] * 600_000)
ranks.all_reduce(many)
found["many"] = sorted(set(shown(many)))


class Id(ctypes.Structure):
    _fields_ = [("name", ctypes.c_ubyte * 128)]


nccl, name, communicator = ctypes.CDLL("libnccl.so.2"), Id(), ctypes.c_void_p()
assert nccl.ncclGetUniqueId(ctypes.byref(name)) == 0
names = [bytes(name.name)]
ranks.broadcast_object_list(names, 0, device=torch.device("cpu"))
assert nccl.ncclCommInitRank(ctypes.byref(communicator), 2, Id.from_buffer_copy(names[0]), rank) == 0
assert nccl.ncclCommSuspend(communicator, 0) == 5
graph = torch.cuda.CUDAGraph()
given = on_device([1 + rank])
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    place, stream = (ctypes.c_void_p(each) for each in (given.data_ptr(), torch.cuda.current_stream().cuda_stream))
    assert nccl.ncclAllReduce(place, place, ctypes.c_size_t(1), 7, 0, communicator, stream) == 0
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
found["replayed"] = shown(given)
print(json.dumps(found))
ranks.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    store = tmp_path_factory.mktemp("ranks") / "store"
    folder = str(Path(__file__).resolve().parent.parent)
    given = {**os.environ, **environment(stand_ins()), "PYTHONPATH": folder}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", STORY, str(rank), str(store)],
            env=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [each.communicate(timeout=LIMIT_SECONDS) for each in started]
    assert [each.returncode for each in started] == [0, 0], outputs
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16", "torch.int64"])
def test_sums_are_those_of_all_ranks(found: list[dict[str, Any]], dtype: str) -> None:
    assert [each[dtype] for each in found] == [[3, 21]] * 2


def test_bytes_come_from_where_they_are(found: list[dict[str, Any]]) -> None:
    assert [each["gathered"] for each in found] == [[0, 5, 1, 6]] * 2
    assert [each["scattered"] for each in found] == [[3], [15]]
    assert [each["broadcast"] for each in found] == [[4]] * 2
    assert [each["sent"] for each in found] == [[30, 40]] * 2


def test_a_group_that_is_split_off_is_its_own(found: list[dict[str, Any]]) -> None:
    assert [each["alone"] for each in found] == [[0], [1]]


def test_more_than_a_slot_holds_comes_in_parts(found: list[dict[str, Any]]) -> None:
    assert [each["many"] for each in found] == [[3]] * 2


def test_each_replay_of_a_graph_is_a_collective(found: list[dict[str, Any]]) -> None:
    assert [each["replayed"] for each in found] == [[12]] * 2
