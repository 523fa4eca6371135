"""A pair of endpoints whose KV is on a device, the stand-in's, and the pages that tests move between them.

Pools are SGLang's, made on the CPU, and say that they are elsewhere, because torch has no such memory here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from cuda_stand_in import Device, library_or_skip

if TYPE_CHECKING:
    from one_process import Pair

GPU = 0


@functools.cache
def the_device() -> Device:
    return Device(library_or_skip())


class OnGpu:
    """What SGLang says of the device of an engine that computes on one."""

    def __init__(self, bag: Any) -> None:
        self._bag = bag
        self.device = "cuda"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bag, name)


class Pools:
    """As much of torch as an allocation on a device touches."""

    def __init__(self) -> None:
        self._C = SimpleNamespace(_cuda_customAllocator=lambda *functions: functions)
        self.cuda = SimpleNamespace(MemPool=lambda allocator: allocator, use_mem_pool=self._use)
        self.entered = 0
        self.is_inside = False
        self._own: list[int] = []

    @contextlib.contextmanager
    def _use(self, _pool: Any) -> Iterator[None]:
        self.entered += 1
        self.is_inside = True
        yield
        self.is_inside = False

    def allocate(self, length_bytes: int) -> int:
        """As its own allocator does, by cudaMalloc."""
        self._own.append(the_device().driver.allocate(length_bytes))
        return self._own[-1]

    def free(self) -> None:
        for address in self._own:
            the_device().driver.free(address)


def load(model: Any, pool: Any) -> None:
    """As SGLang does before it captures graphs."""
    from kv_connector.sglang import layerwise

    runner = SimpleNamespace(model=model, is_draft_worker=False, sliding_window_size=None, token_to_kv_pool=pool)
    layerwise.install_hooks(None, runner)
    layerwise.count_into_graphs(None, runner)


def place_on_device(gpu: Any, pool: Any, torch: Any) -> list[int]:
    """The pool's memory as its allocation on a device would have made it; the addresses."""
    from kv_connector.sglang import engine_facts

    _pointers, lengths, items = pool.get_contiguous_buf_infos()
    with gpu.allocating(engine_facts.early_options("prefill"), torch):
        if torch.is_inside:
            addresses = [gpu._allocation.memories.allocate(length, GPU).address for length in lengths]
        else:
            addresses = [torch.allocate(length) for length in lengths]
    pool.get_contiguous_buf_infos = lambda: (list(addresses), list(lengths), list(items))
    return addresses


class GpuPair:
    """A prefiller and a decoder whose KV is on a device; the model of the prefiller counts its layers there."""

    def __init__(self, gpu: Any, folder: Any, model: Any) -> None:
        from one_process import Pair, Shape, publish_arguments

        from kv_connector.sglang import endpoint

        torch = Pools()
        places: dict[str, list[int]] = {}
        self.model, self.torch, self.places = model, torch, places

        class OnDevice(Shape):
            def pool_of(self, mode: str, pp_rank: int) -> Any:
                pool = super().pool_of(mode, pp_rank)
                places[mode] = place_on_device(gpu, pool, torch)
                if mode == "prefill":
                    load(model, pool)
                return pool

        publish_arguments(folder, 1)  # the model is loaded before there is a manager
        opened = endpoint.TransferEndpoint.open_messenger
        self.described: list[Any] = []

        def open_messenger(options: Any, described: Any, rows: Any, **named: Any) -> Any:
            self.described.append(described)
            return opened(options, described, rows, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(endpoint.TransferEndpoint, "open_messenger", staticmethod(open_messenger))
            self.pair: Pair = Pair(folder, OnDevice())

    def memories(self) -> list[Any]:
        """Of both sides, as their messengers were told of them."""
        return [memory for geometry in self.described for memory in geometry["ranks"][0]["memories"]]

    def write_page(self, buffer: int, page: int, content: bytes) -> None:
        device = the_device()
        device.driver.copy_to_device(self.places["prefill"][buffer] + page * len(content), content, device.stream())

    def received_page(self, buffer: int, page: int, length_bytes: int) -> bytes:
        device, content = the_device(), ctypes.create_string_buffer(length_bytes)
        place = ctypes.c_uint64(self.places["decode"][buffer] + page * length_bytes)
        stream = ctypes.c_void_p(device.stream())
        device.driver.call("cuMemcpyDtoHAsync_v2", content, place, ctypes.c_size_t(length_bytes), stream)
        device.finish()
        return content.raw


def content_of(buffer: int, page: int, length_bytes: int) -> bytes:
    return bytes((buffer * 31 + page * 7 + at) % 251 for at in range(length_bytes))


def move_pages(gpu_pair: GpuPair) -> None:
    """Three of each buffer, and a row of metadata; compares what has come."""
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    pair, buffers = gpu_pair.pair, range(len(gpu_pair.places["prefill"]))
    (item,) = set(pair.prefiller.endpoint.kv_args.kv_item_lens)
    for buffer in buffers:
        for page in (3, 5, 6):
            gpu_pair.write_page(buffer, page, content_of(buffer, page, item))
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
    for buffer in buffers:
        for source, target in ((3, 9), (5, 2), (6, 11)):
            assert gpu_pair.received_page(buffer, target, item) == content_of(buffer, source, item)
    assert pair.decoder.metadata.output_ids[4, 0] == 123
    pair.assert_nothing_held()
