"""Two ranks of an engine on GPUs under one messenger, against the stand-in for the driver: no GPU has run it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_stand_in import Device
from release import Release
from simulated_engine import HEADS, LAYERS, caches, config, tensors
from test_device_memory import bytes_at
from test_gpu import DIGEST, PatientMessenger, the_device

LIMIT_SECONDS = 60.0
BLOCKS = 8


class Ranks:
    """The workers of one engine; each is a rank's process, with memory of its own, on a thread of the pool."""

    def __init__(self, release: Release, monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
        self.release, self.device = release, device
        self.opened: list[tuple[int, PatientMessenger, int]] = []
        self._current = threading.local()
        self._pool = ThreadPoolExecutor(2)
        extra = {"transports": ["tcp"], "gpu": "unproven"}
        said = config(
            "kv_producer",
            extra=extra,
            tensor_parallel_size=2,
            local_world_size=2,
            distributed_executor_backend="mp",
        )
        said.device_config.device_type = "cuda"
        said.kv_transfer_config.engine_id = str(uuid.uuid4())
        monkeypatch.setattr(release.rank_start, "own_ranks", lambda: (self._current.tp_rank, 0))
        cls, role = release.connector.KvMessengerConnector, release.base.KVConnectorRole
        self.scheduler = cls(said, role.SCHEDULER, caches())
        self.workers = [cls(said, role.WORKER, caches()) for _ in range(2)]
        counting = release.rank_start.DeviceCounting.on
        self.allocations = []
        for worker in self.workers:
            worker.open_messenger = self._open
            worker._starting().device_counting = lambda: counting(device.driver, device.stream)
            worker._starting().cuda_driver = lambda: device.driver
            self.allocations.append(worker.get_mem_pool_context())

    def _open(self, options: Any, geometry: Any, *, layer_counter_lag: int) -> PatientMessenger:
        messenger = PatientMessenger(options, geometry)
        self.opened.append((self._current.tp_rank, messenger, layer_counter_lag))
        return messenger

    def register(self, tp_rank: int, *, shareable: bool = True) -> Future[Any]:
        length_bytes = tensors(BLOCKS, heads=HEADS // 2)[LAYERS[0]].storage.nbytes()
        place = self.allocations[tp_rank].memories.allocate(length_bytes, 0).address
        kv = tensors(BLOCKS, heads=HEADS // 2, storage_address=place if shareable else place + 4096)
        for tensor in kv.values():
            tensor.device = SimpleNamespace(type="cuda", index=tp_rank)

        def as_rank() -> int:
            self._current.tp_rank = tp_rank
            self.device.use()
            self.workers[tp_rank].register_kv_caches(kv)
            return place

        return self._pool.submit(as_rank)

    def close(self) -> None:
        self.device.finish()
        for _, _messenger, _ in self.opened:
            self.workers[0]._worker._counter._queued_word.close()
        for worker in self.workers:
            worker.shutdown()
        self._pool.shutdown()
        for allocation in self.allocations:
            allocation.memories.close()


@pytest.fixture
def ranks(vllm_release: Release, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    made = Ranks(vllm_release, monkeypatch, the_device())
    yield made
    made.close()
    assert the_device().stand_in.standInHeld() == 0


def test_should_open_one_messenger_over_the_memory_of_two_devices(ranks: Ranks) -> None:
    held = [started.result(LIMIT_SECONDS) for started in [ranks.register(1), ranks.register(0)]][::-1]
    ((tp_rank, messenger, lag),) = ranks.opened
    assert (tp_rank, lag) == (0, 1)
    own, other = (rank["memories"][0] for rank in messenger.geometry["ranks"])
    assert (own["kind"], own["device"], own["address"], own["handleKind"]) == ("cuda", 0, held[0], "posixFd")
    assert (other["kind"], other["device"], other["handleKind"]) == ("cuda", 0, "posixFd")
    assert other["address"] not in held
    bytes_at(ranks.device, held[1], 8)[:8] = b"rank one"
    assert bytes_at(ranks.device, other["address"], 8)[:8] == b"rank one"
    assert ranks.scheduler.get_finished_count() == 1


def test_should_count_layers_on_the_lead_alone(ranks: Ranks) -> None:
    """With a bump behind the last layer, so that each layer has one behind it, by which all ranks have it."""
    for started in [ranks.register(1), ranks.register(0)]:
        started.result(LIMIT_SECONDS)
    made = ranks.release.metadata
    meta = made.StepMetadata(step=1, computes=True)
    meta.announces.append(made.Announce("r", "r", DIGEST))
    meta.chunks.append(made.Chunk("r", "r", 100, 0, 0, 100, [made.PlacedBlocks(0, [1])], DIGEST))
    launches = ranks.device.stand_in.standInCallCount
    for worker in ranks.workers:
        worker.bind_connector_metadata(meta)
    lead, follower = ranks.workers
    before = launches(b"cuLaunchKernel")
    for name in LAYERS:
        if follower.has_connector_metadata():
            follower.save_kv_layer(name, None, None)
    assert launches(b"cuLaunchKernel") == before
    for name in LAYERS:
        lead.save_kv_layer(name, None, None)
    for worker in ranks.workers:
        worker.wait_for_save()
    ranks.device.finish()
    (_, messenger, _) = ranks.opened[0]
    ((begun,), (ended,)) = messenger.of_kind("step"), messenger.of_kind("stepEnded")
    assert messenger.count == ended["counterEnd"] == begun["counterStart"] + len(LAYERS) + 1


def test_should_name_the_option_where_a_rank_cannot_hand_its_memory_over(ranks: Ranks) -> None:
    for started in [ranks.register(1, shareable=False), ranks.register(0)]:
        with pytest.raises(Exception, match="cannot be shared; set messenger_per to 'rank'"):
            started.result(LIMIT_SECONDS)
    assert not ranks.opened
