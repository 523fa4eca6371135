"""Which ranks share a messenger, and what ranks with and without one do; two real ranks are two threads here."""

from __future__ import annotations

import importlib
import mmap
import os
import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from release import Release
from simulated_engine import HEADS, LAYERS, caches, config, tensors
from simulated_messenger import SimulatedMessenger

from kv_connector.configuration.messenger_addresses import Address
from kv_connector.memory import handover
from kv_connector.vllm.rank_groups import RankGroups

BLOCKS = 3
LIMIT_SECONDS = 900.0
TWO_RANKS = {"tensor_parallel_size": 2, "local_world_size": 2, "distributed_executor_backend": "mp"}


@pytest.mark.parametrize(
    ("groups", "leads", "followers"),
    [
        (RankGroups(1, 1, 1), [(0, 0)], []),
        (RankGroups(4, 1, 4), [(0, 0)], [(0, 1), (0, 2), (0, 3)]),
        (RankGroups(4, 1, 1), [(0, 0), (0, 1), (0, 2), (0, 3)], []),
        (RankGroups(4, 1, 2), [(0, 0), (0, 2)], [(0, 1), (0, 3)]),
        (RankGroups(2, 2, 2), [(0, 0), (1, 0)], [(0, 1), (1, 1)]),
        (RankGroups(1, 3, 1), [(0, 0), (1, 0), (2, 0)], []),
    ],
)
def test_should_group_ranks(groups: RankGroups, leads: list[tuple[int, int]], followers: list[tuple[int, int]]) -> None:
    found = {groups.of(tp, pp) for pp in range(groups.pp_size) for tp in range(groups.tp_size)}
    ordered = sorted(found, key=lambda group: group.index)
    assert [group.index for group in ordered] == list(range(groups.messenger_count))
    assert [group.lead for group in ordered] == leads
    assert [rank for group in ordered for rank in group.followers] == followers


@pytest.mark.parametrize(
    ("more", "sharing", "because"),
    [
        ({}, 1, ""),
        (TWO_RANKS, 2, ""),
        ({**TWO_RANKS, "extra": {"messenger_per": "rank"}}, 1, ""),
        ({**TWO_RANKS, "extra": {"gpu": "unproven"}}, 1, ""),
        ({**TWO_RANKS, "distributed_executor_backend": "ray"}, 1, "with executor 'ray' ranks may be on any node"),
        ({"tensor_parallel_size": 8, "local_world_size": 4, "distributed_executor_backend": "mp"}, 4, ""),
        ({"tensor_parallel_size": 4, "local_world_size": 6, "distributed_executor_backend": "mp"}, 2, ""),
    ],
)
def test_should_say_how_many_ranks_share(
    vllm_release: Release, more: dict[str, Any], sharing: int, because: str
) -> None:
    facts = vllm_release.engine_facts.read_facts(config("kv_producer", **more), caches())
    assert (facts.groups.tp_ranks_per_messenger, facts.not_shared_because) == (sharing, because)


@pytest.mark.parametrize(("messenger_per", "messenger_count"), [("node", 1), ("rank", 2)])
def test_should_share_memory_of_devices(
    vllm_release: Release, monkeypatch: pytest.MonkeyPatch, messenger_per: str, messenger_count: int
) -> None:
    """Whether memfds can be made says nothing of it."""
    monkeypatch.setattr(vllm_release.engine_facts, "why_memory_cannot_be_shared", lambda: "no memfd")
    monkeypatch.setattr(vllm_release.engine_facts, "lack_of_peer_access", lambda: "")
    on_device = config("kv_producer", **TWO_RANKS, extra={"gpu": "unproven", "messenger_per": messenger_per})
    on_device.device_config.device_type = "cuda"
    facts = vllm_release.engine_facts.read_facts(on_device, caches())
    assert (facts.groups.messenger_count, facts.not_shared_because) == (messenger_count, "")


@pytest.mark.parametrize("messenger_per", ["node", "rank"])
def test_should_give_each_rank_a_messenger_where_devices_do_not_reach_each_other(
    vllm_release: Release, monkeypatch: pytest.MonkeyPatch, messenger_per: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(vllm_release.engine_facts, "lack_of_peer_access", lambda: asked.append("") or "they are apart")
    on_device = config("kv_producer", **TWO_RANKS, extra={"gpu": "unproven", "messenger_per": messenger_per})
    on_device.device_config.device_type = "cuda"
    facts = vllm_release.engine_facts.read_facts(on_device, caches())
    assert (facts.groups.messenger_count, facts.groups.tp_ranks_per_messenger) == (2, 1)
    assert facts.not_shared_because == ("they are apart" if messenger_per == "node" else "")
    assert len(asked) == (messenger_per == "node"), "the driver is asked only where it matters"


def test_should_fall_back_where_memory_cannot_be_shared(
    vllm_release: Release, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("not on this machine")

    monkeypatch.setattr(os, "memfd_create", refuse)
    role = vllm_release.base.KVConnectorRole.SCHEDULER
    with caplog.at_level("INFO"):
        scheduler = vllm_release.connector.KvMessengerConnector(config("kv_producer", **TWO_RANKS), role, caches())
    assert scheduler.get_finished_count() == 2
    lines = [record.message for record in caplog.records if "messenger of its own" in record.message]
    assert lines == [
        "each rank has a messenger of its own: memory for other processes cannot be made (not on this machine)"
    ]


class Ranks:
    """The workers of one engine; each thread of the pool is one rank's process."""

    def __init__(
        self, release: Release, monkeypatch: pytest.MonkeyPatch, kv_role: str = "kv_producer", **more: Any
    ) -> None:
        self.release = release
        self.opened: list[tuple[int, SimulatedMessenger, int]] = []
        self._current = threading.local()
        self._pool = ThreadPoolExecutor(2)
        self._config = config(kv_role, **{**TWO_RANKS, **more})
        self._config.kv_transfer_config.engine_id = str(uuid.uuid4())
        monkeypatch.setattr(release.rank_start, "own_ranks", lambda: (self._current.tp_rank, 0))
        cls, role = release.connector.KvMessengerConnector, release.base.KVConnectorRole
        self.scheduler = cls(self._config, role.SCHEDULER, caches())
        self.workers = [cls(self._config, role.WORKER, caches()) for _ in range(2)]
        for worker in self.workers:
            worker.open_messenger = self._open

    def _open(self, options: Any, geometry: Any, *, layer_counter_lag: int) -> SimulatedMessenger:
        messenger = SimulatedMessenger(options, geometry)
        self.opened.append((self._current.tp_rank, messenger, layer_counter_lag))
        return messenger

    def on(self, tp_rank: int, call: Any, *arguments: Any) -> Future[Any]:
        def as_rank() -> Any:
            self._current.tp_rank = tp_rank
            return call(*arguments)

        return self._pool.submit(as_rank)

    def register(self, tp_rank: int, *, shareable: bool = True) -> Future[Any]:
        worker = self.workers[tp_rank]
        memory = Memory(shareable)
        worker._starting().allocation = memory
        kv_caches = tensors(BLOCKS, heads=HEADS // 2, storage_address=memory.address)
        return self.on(tp_rank, worker.register_kv_caches, kv_caches)

    def start(self) -> None:
        for started in [self.register(1), self.register(0)]:
            started.result(LIMIT_SECONDS)
        metadata = {(0, rank): worker.get_handshake_metadata() for rank, worker in enumerate(self.workers)}
        self.scheduler.set_xfer_handshake_metadata_pp_aware({k: address for k, address in metadata.items() if address})

    def end(self) -> None:
        for worker in self.workers:
            worker.shutdown()
        self._pool.shutdown()


class Memory:
    """A rank's KV memory, as ShareableAllocation makes it."""

    def __init__(self, shareable: bool) -> None:
        self._length_bytes = sum(layer_bytes(tensor) for tensor in tensors(BLOCKS, heads=HEADS // 2).values())
        self._memfd = os.memfd_create("test-kv")
        os.ftruncate(self._memfd, self._length_bytes)
        self._shareable = shareable
        self.address = 1 << 33

    def memfd_of(self, address: int, length_bytes: int) -> int:
        assert (address, length_bytes) == (self.address, self._length_bytes)
        return self._memfd if self._shareable else -1


def layer_bytes(tensor: Any) -> int:
    return int(tensor.shape[0] * tensor.stride()[0] * tensor.element_size())


@pytest.fixture
def ranks(vllm_release: Release, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Ranks(vllm_release, monkeypatch)
    yield made
    made.end()


def test_should_open_one_messenger_over_the_memory_of_both(ranks: Ranks) -> None:
    ranks.start()
    ((tp_rank, messenger, lag),) = ranks.opened
    assert (tp_rank, lag) == (0, 1)
    assert [rank["tpRank"] for rank in messenger.geometry["ranks"]] == [0, 1]
    own, other = (rank["memories"][0] for rank in messenger.geometry["ranks"])
    assert own["address"] == 1 << 33
    assert other["address"] != 1 << 33
    assert other["address"] % mmap.PAGESIZE == 0
    assert messenger.geometry["tpSize"] == 2
    assert ranks.scheduler.get_finished_count() == 1


class Outer:
    """What vLLM calls in a worker, in place of ours; it says how many votes its connectors want together."""

    def __init__(self, finished_count: int | None) -> None:
        self._finished_count = finished_count
        self._vllm_config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy="fail"))

    def get_finished_count(self) -> int | None:
        return self._finished_count

    def has_connector_metadata(self) -> bool:
        return False

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...


def inside(monkeypatch: pytest.MonkeyPatch, finished_count: int | None) -> None:
    state = importlib.import_module("vllm.distributed.kv_transfer.kv_transfer_state")
    monkeypatch.setattr(state, "has_kv_transfer_group", lambda: True)
    monkeypatch.setattr(state, "get_kv_transfer_group", lambda: Outer(finished_count))


REPORTED = ("sent", "received", "failed")


def reported_by(ranks: Ranks) -> list[dict[str, set[str]]]:
    """What each rank says of requests that end, arrive and fail in one step, the lead first."""
    (_, messenger, _) = ranks.opened[0]
    found: list[dict[str, set[str]]] = [{kind: set() for kind in REPORTED} for _ in ranks.workers]
    report_each_end(ranks, messenger)
    for _ in range(2):
        for worker, votes in zip(ranks.workers, found, strict=True):
            results = worker.get_transfer_results(set())
            for kind, names in zip(
                REPORTED, (results.finished_sending, results.finished_recving, results.failed_recving), strict=True
            ):
                votes[kind] = votes[kind] | names
    return found


def report_each_end(ranks: Ranks, messenger: SimulatedMessenger) -> None:
    metadata = ranks.release.metadata
    fetches = [fetch(ranks.release, name) for name in ("arrives", "fails")]
    names = {"arrives": "arrives", "fails": "fails"}
    ends = metadata.StepMetadata(
        step=2, names=names, prefill_ends=[metadata.PrefillEnded("r", "finished")], fetches=fetches
    )
    for meta in (step(ranks.release), ends):
        for worker in ranks.workers:
            worker.bind_connector_metadata(meta)
            worker.wait_for_save()
    messenger.release("r")
    messenger.arrive("arrives")
    messenger.fail("fails")


def fetch(release: Release, name: str) -> Any:
    return release.metadata.Fetch(
        request=name,
        transfer=name,
        messengers=(Address("127.0.0.1", 14579),),
        prefiller_engine_id="",
        prompt_tokens=20,
        first_token=0,
        groups=[[0]],
        prompt_token_ids=None,
        other_prefillers=(),
        prompt_digest="00" * 16,
    )


@pytest.fixture
def both(vllm_release: Release, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Ranks(vllm_release, monkeypatch, kv_role="kv_both")
    yield made
    made.end()


def test_should_let_each_rank_vote_where_a_connector_beside_it_wants_all(
    both: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MultiConnector waits for all ranks when one of its children does not say how many vote."""
    inside(monkeypatch, None)
    both.start()
    lead, follower = reported_by(both)
    assert lead == {"sent": {"r"}, "received": {"arrives", "fails"}, "failed": {"fails"}}
    assert follower == {**lead, "failed": set()}


def test_should_not_have_its_failure_policy_passed_over(both: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    inside(monkeypatch, None)
    both._config.kv_transfer_config.kv_load_failure_policy = "recompute"
    with pytest.raises(Exception, match=r"is 'recompute' at KvMessengerConnector and 'fail' around .* at MultiConn"):
        both.register(0).result(LIMIT_SECONDS)


def test_should_leave_votes_to_the_lead_where_the_connectors_beside_it_want_as_few(
    both: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside(monkeypatch, both.scheduler.get_finished_count())
    both.start()
    lead, follower = reported_by(both)
    assert lead["sent"] == {"r"}
    assert follower == {kind: set() for kind in REPORTED}


def test_should_leave_hooks_and_votes_to_the_lead(ranks: Ranks) -> None:
    ranks.start()
    lead, follower = ranks.workers
    meta = step(ranks.release)
    for worker in ranks.workers:
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
    assert (lead.has_connector_metadata(), follower.has_connector_metadata()) == (True, False)
    follower.save_kv_layer(LAYERS[0], None, None)
    lead.save_kv_layer(LAYERS[0], None, None)
    for worker in ranks.workers:
        worker.wait_for_save()
    (_, messenger, _) = ranks.opened[0]
    assert [command["do"] for command in messenger.commands] == ["announce", "step", "stepEnded"]
    results = follower.get_transfer_results(set())
    assert results == ranks.release.base.KVConnectorTransferResults()
    assert follower.get_kv_connector_stats() is None
    assert lead.get_kv_connector_stats() is not None


def step(release: Release, number: int = 1, preempted: tuple[str, ...] = ()) -> Any:
    placed = [release.metadata.PlacedBlocks(0, [0])]
    chunks = [] if preempted else [release.metadata.Chunk("r", "t", 20, 0, 0, 20, placed, "00" * 16)]
    announces = [release.metadata.Announce("r", "t", "00" * 16)]
    fields = {"step": number, "names": {"r": "r"}, "preempted": list(preempted)}
    return release.metadata.StepMetadata(**fields, announces=announces, chunks=chunks)


def test_should_not_overwrite_pages_on_any_rank_before_the_lead_has_fenced(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.start()
    lead, follower = ranks.workers
    (_, messenger, _) = ranks.opened[0]
    for worker in ranks.workers:
        worker.bind_connector_metadata(step(ranks.release))
        worker.wait_for_save()
    order: list[str] = []
    fence = messenger.fence

    def slow_fence(requests: Any, limit_seconds: float) -> list[str]:
        assert not overwriting.done()
        order.append("fenced")
        return fence(requests, limit_seconds)

    monkeypatch.setattr(messenger, "fence", slow_fence)
    preempting = step(ranks.release, 2, ("r",))

    def overwrite() -> None:
        follower.handle_preemptions(preempting)
        order.append("overwritten")

    overwriting = ranks.on(1, overwrite)
    ranks.on(0, lead.handle_preemptions, preempting).result(LIMIT_SECONDS)
    overwriting.result(LIMIT_SECONDS)
    assert order == ["fenced", "overwritten"]
    assert messenger.fenced == [["r"]]


def test_should_name_the_option_when_memory_turns_out_not_to_be_shareable(ranks: Ranks) -> None:
    for started in [ranks.register(1, shareable=False), ranks.register(0)]:
        with pytest.raises(Exception, match="cannot be shared; set messenger_per to 'rank'"):
            started.result(LIMIT_SECONDS)
    assert not ranks.opened


def test_should_end_the_start_when_a_rank_does_not_come(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover.Lead.gather, "__defaults__", (0.1,))
    with pytest.raises(Exception, match="tensor-parallel rank 1 handed over no KV memory within"):
        ranks.register(0).result(LIMIT_SECONDS)
    assert not ranks.opened


def test_should_open_a_messenger_on_each_rank_when_asked(
    vllm_release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Ranks(vllm_release, monkeypatch, extra={"messenger_per": "rank", "listen_port": 5000})
    made.start()
    opened = sorted((tp_rank, messenger.options.listen_port, lag) for tp_rank, messenger, lag in made.opened)
    assert opened == [(0, 5000, 0), (1, 5001, 0)]
    assert [len(messenger.geometry["ranks"]) for _, messenger, _ in made.opened] == [1, 1]
    assert made.scheduler.get_finished_count() == 2
    half = made.scheduler._half
    answer = half._open.answer("t", "r", 7, half._side, half._logger)
    assert (answer["remote_host"], answer["remote_port"]) == ("127.0.0.1:5000,127.0.0.1:5001", 5000)
    made.end()


def test_should_count_ports_on_from_the_data_parallel_engines_before_it(
    vllm_release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = {"data_parallel_index": 2, "extra": {"messenger_per": "rank", "listen_port": 5000}}
    made = Ranks(vllm_release, monkeypatch, **third)
    made.start()
    assert sorted(messenger.options.listen_port for _, messenger, _ in made.opened) == [5004, 5005]
    made.end()


def test_should_not_start_with_fewer_messengers_than_votes(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="0 workers host a messenger, expected 1"):
        ranks.scheduler.set_xfer_handshake_metadata_pp_aware({})
