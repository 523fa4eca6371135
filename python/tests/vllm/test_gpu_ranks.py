"""Two ranks of an engine on GPUs under one messenger, against the stand-in for the driver: no GPU has run it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_stand_in import Device
from gpu_prefiller import DIGEST, PatientMessenger, the_device
from release import Release
from simulated_engine import HEADS, LAYERS, STORAGE_ADDRESS, caches, config, tensors
from test_device_memory import bytes_at

LIMIT_SECONDS = 900.0
BLOCKS = 8


class Ranks:
    """The workers of one engine; each is a rank's process, with memory of its own, on a thread of the pool."""

    PER = "node"

    def __init__(self, release: Release, monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
        self.release, self.device = release, device
        self.opened: list[tuple[int, PatientMessenger, int]] = []
        self._current = threading.local()
        self._pool = ThreadPoolExecutor(2)
        extra = {"transports": ["tcp"], "gpu": "unproven", "messenger_per": self.PER}
        settings = config(
            "kv_producer",
            extra=extra,
            tensor_parallel_size=2,
            local_world_size=2,
            distributed_executor_backend="mp",
        )
        settings.device_config.device_type = "cuda"
        settings.kv_transfer_config.engine_id = str(uuid.uuid4())
        monkeypatch.setattr(release.engine_facts, "lack_of_peer_access", lambda: "")
        monkeypatch.setattr(release.rank_start, "own_ranks", lambda: (self._current.tp_rank, 0))
        cls, role = release.connector.KvMessengerConnector, release.base.KVConnectorRole
        self.scheduler = cls(settings, role.SCHEDULER, caches())
        self.workers = [cls(settings, role.WORKER, caches()) for _ in range(2)]
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
        place = self._place(tp_rank, length_bytes)
        kv = tensors(BLOCKS, heads=HEADS // 2, storage_address=place if shareable else place + 4096)
        for tensor in kv.values():
            tensor.device = SimpleNamespace(type="cuda", index=tp_rank)

        def as_rank() -> int:
            self._current.tp_rank = tp_rank
            self.device.use()
            self.workers[tp_rank].register_kv_caches(kv)
            return place

        return self._pool.submit(as_rank)

    def _place(self, tp_rank: int, length_bytes: int) -> int:
        return int(self.allocations[tp_rank].memories.allocate(length_bytes, 0).address)

    def close(self) -> None:
        self.device.finish()
        for tp_rank, _messenger, _ in self.opened:
            self.workers[tp_rank]._worker._steps._counter._queued_word.close()
        for worker in self.workers:
            worker.shutdown()
        self._pool.shutdown()
        for allocation in filter(None, self.allocations):
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
    assert lead.build_connector_worker_meta().counted_right == ranks.scheduler._half._side.messenger_count == 1
    assert follower.build_connector_worker_meta() is None


def test_should_name_the_option_where_a_rank_cannot_hand_its_memory_over(ranks: Ranks) -> None:
    for started in [ranks.register(1, shareable=False), ranks.register(0)]:
        with pytest.raises(Exception, match="cannot be shared; set messenger_per to 'rank'"):
            started.result(LIMIT_SECONDS)
    assert not ranks.opened


class OwnMessengers(Ranks):
    """Each rank has one, and counts by itself."""

    PER = "rank"

    def _place(self, tp_rank: int, length_bytes: int) -> int:  # noqa: ARG002
        """Memory that torch allocated: no other process maps it."""
        return STORAGE_ADDRESS

    def step(self, step: int, layers_of_rank: Sequence[Sequence[str]]) -> list[list[str]]:
        """What each messenger has heard when the pass is queued; the scheduler's half then hears the workers' news."""
        made = self.release.metadata
        chunk = made.Chunk(f"r{step}", f"r{step}", 100, 0, 0, 100, [made.PlacedBlocks(0, [step])], DIGEST)
        planned = SimpleNamespace(
            num_scheduled_tokens={},
            total_num_scheduled_tokens=0,
            scheduled_spec_decode_tokens={},
            preempted_req_ids=None,
            scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[]),
        )
        meta = self.scheduler.build_connector_meta(planned)
        meta.chunks.append(chunk)
        meta.announces.append(made.Announce(chunk.request, chunk.transfer, DIGEST))
        heard = []
        for worker, layers in zip(self.workers, layers_of_rank, strict=True):
            worker.bind_connector_metadata(meta)
            heard.append(
                [command["do"] for command in worker._worker._messenger.commands if command["do"].startswith("step")]
            )
            for name in layers:
                if worker.has_connector_metadata():
                    worker.save_kv_layer(name, None, None)
            worker.wait_for_save()
        news = [each for worker in self.workers if (each := worker.build_connector_worker_meta()) is not None]
        self.scheduler.update_connector_output(
            SimpleNamespace(
                finished_sending=None,
                finished_recving=None,
                kv_connector_worker_meta=news[0].aggregate(news[1]) if len(news) > 1 else next(iter(news), None),
            )
        )
        return heard


@pytest.fixture
def own_messengers(vllm_release: Release, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnMessengers]:
    made = OwnMessengers(vllm_release, monkeypatch, the_device())
    for tp_rank in range(2):
        made.register(tp_rank).result(LIMIT_SECONDS)
    yield made
    made.close()
    assert the_device().stand_in.standInHeld() == 0


AFTER = ["step", "stepEnded"]


def test_should_report_passes_early_when_each_rank_has_counted_one(own_messengers: OwnMessengers) -> None:
    assert own_messengers.step(1, [LAYERS, LAYERS]) == [[], []]
    assert own_messengers.step(2, [LAYERS, LAYERS]) == [[*AFTER, "step"]] * 2


@pytest.mark.parametrize("wrong_rank", [0, 1])
def test_should_report_no_pass_early_when_one_rank_has_counted_wrong(
    own_messengers: OwnMessengers, wrong_rank: int
) -> None:
    """Both still send all, when their passes are over."""
    layers = [LAYERS if rank != wrong_rank else LAYERS[:3] for rank in range(2)]
    assert own_messengers.step(1, layers) == [[], []]
    for step in (2, 3, 4):
        assert own_messengers.step(step, [LAYERS, LAYERS]) == [AFTER * (step - 1)] * 2
    for worker in own_messengers.workers:
        assert len(worker._worker._messenger.of_kind("stepEnded")) == 4
