"""The workers' half of weights, ranks in threads: all of them load what has landed, or none does; no call raises."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kv_connector.weights import landed_tensors
from kv_connector.weights.decision import Decision
from kv_connector.weights.landed_name import landed_name
from kv_connector.weights.landed_tensors import MappedLandings
from kv_connector.weights.landing import SharedMemory, map_of_process
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.served import ServedCheckpoint
from kv_connector.weights.shares import Share
from kv_connector.weights.shares_host import SharesHost

RANKS = 2
LIMIT_SECONDS = 600.0
UPDATE = 7
VERSION = 70
DIGEST = "ab" * 32
NOT_LOADED = (0, 0, "")
MANIFEST = Manifest.of([("a", "int8", [64])])
SHARE = Share.of(MANIFEST, (False,), 0, 1)
GIVEN = {"update_id": UPDATE, "at_rest": True, "refusal": ""}
LOST = RuntimeError("Connection closed by peer")


class EndedError(Exception):
    """In place of a process's end."""


class Ranks:
    """What the ranks of a group exchange. A rank in ``deaf`` is lost to the collective of that number."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(RANKS)
        self._given: dict[int, Any] = {}
        self._local = threading.local()
        self.deaf: dict[int, int] = {}

    def enter(self, rank: int) -> None:
        self._local.group = SimpleNamespace(
            rank_in_group=rank, world_size=RANKS, broadcast_object=lambda own, src: self.exchanged(own)[src]
        )
        self._local.count = 0

    def group(self) -> Any:
        return self._local.group

    def exchanged(self, own: Any) -> list[Any]:
        """What each rank says, by rank; raises where a rank is lost, at every rank."""
        rank = self._local.group.rank_in_group
        self._local.count += 1
        if self.deaf.get(rank) == self._local.count:
            self._barrier.abort()
            raise LOST
        self._given[rank] = own
        try:
            self._barrier.wait(LIMIT_SECONDS)
            given_by_all = [self._given[each] for each in range(RANKS)]
            self._barrier.wait(LIMIT_SECONDS)
        except threading.BrokenBarrierError as broken:
            raise LOST from broken
        return given_by_all


class Host:
    """In place of the messenger of weights."""

    def __init__(self) -> None:
        self.reason = ""
        self.landing: Any = SimpleNamespace(memfd=3)
        self.reports: list[tuple[object, str]] = []
        self.closed: list[str] = []

    def decide(self, update_id: object) -> str:  # noqa: ARG002
        return self.reason

    def version_of(self, update_id: object) -> int:  # noqa: ARG002
        return VERSION

    def digest_of(self, update_id: object) -> str:  # noqa: ARG002
        return DIGEST

    def applied(self, update_id: object, failure: str = "") -> None:
        self.reports.append((update_id, failure))

    def close(self, why: str) -> None:
        self.closed.append(why)


class World:
    """The ranks of one server, with what each of them is to fail at."""

    def __init__(self, module: Any, ranks: Ranks) -> None:
        self._module = module
        self._ranks = ranks
        self.host = Host()
        self.faults: dict[int, str] = {}
        """What a rank's load ends with."""
        self.unmapped: dict[int, Exception] = {}
        self.loads: list[int] = []
        self.memory = SharedMemory(MANIFEST.length_bytes)
        self.given: list[bytes] = []
        """What each load was given."""
        self.engines = [self._engine(rank) for rank in range(RANKS)]

    def _engine(self, rank: int) -> Any:
        engine = object.__new__(self._module.KvMessengerWeightEngine)
        engine._host = object.__new__(SharesHost)
        engine._host._hosts = [self.host if rank == 0 else Host()]
        engine._host._share = SHARE
        engine._served = ServedCheckpoint()
        engine._landings = MappedLandings()
        engine.loaded = NOT_LOADED
        engine._load = lambda decision: self._loaded(rank, decision)
        return engine

    def _loaded(self, rank: int, decision: Decision) -> str:
        assert decision.manifest is MANIFEST
        self.loads.append(rank)
        (view,) = self.engines[rank]._landings._views
        self.given.append(bytes(view))
        view[:] = bytes(len(view))
        return self.faults.get(rank, "")

    def map_of_process(self, *key: int) -> memoryview:
        assert key[1:] == (3, MANIFEST.length_bytes)
        rank = self._ranks.group().rank_in_group
        if rank in self.unmapped:
            raise self.unmapped[rank]
        return map_of_process(os.getpid(), self.memory.memfd, self.memory.length_bytes)

    def update(self, given: Any = GIVEN) -> list[BaseException | None]:
        """How each rank's call ended: None where it returned."""

        def call(rank: int) -> BaseException | None:
            self._ranks.enter(rank)
            try:
                self.engines[rank].update_weights(given)
            except EndedError as ended:
                return ended
            return None

        with ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(call, range(RANKS), timeout=LIMIT_SECONDS))


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, ranks: Ranks) -> Iterator[Any]:
    """The worker half, above classes that stand for vLLM's."""
    api = ModuleType("kv_connector.vllm.weights_api")
    transfer = ("WeightTransferEngine", "WeightTransferInitInfo", "WeightTransferUpdateInfo")
    for name in (*transfer, "UnquantizedEmbeddingMethod"):
        setattr(api, name, type(name, (), {}))
    for name in ("initialize_layerwise_reload", "finalize_layerwise_reload", "get_layerwise_info"):
        setattr(api, name, None)
    api.get_world_group = ranks.group  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, api.__name__, api)
    monkeypatch.delitem(sys.modules, "kv_connector.vllm.weights", raising=False)
    found = importlib.import_module("kv_connector.vllm.weights")
    monkeypatch.setattr(found, "_gathered", lambda _group, own: ranks.exchanged(own))

    def end(status: int) -> None:
        raise EndedError(status)

    monkeypatch.setattr(found.os, "_exit", end)
    yield found
    sys.modules.pop("kv_connector.vllm.weights", None)


@pytest.fixture
def world(module: Any, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(module, ranks)
    monkeypatch.setattr(landed_tensors, "map_of_process", made.map_of_process)
    return made


def statuses(ends: list[BaseException | None]) -> list[object]:
    return [end.args[0] if end else None for end in ends]


def test_should_load_on_all_ranks(world: World) -> None:
    assert world.update() == [None, None]
    assert sorted(world.loads) == [0, 1]
    assert world.host.reports == [(UPDATE, "")]
    assert [engine.loaded for engine in world.engines] == [(UPDATE, VERSION, landed_name(SHARE, [DIGEST]))] * RANKS


def test_should_load_what_has_landed_where_the_load_before_wrote_into_it(world: World) -> None:
    for version in range(1, 4):
        world.memory.view[:] = bytes([version]) * MANIFEST.length_bytes
        assert world.update() == [None, None]
        assert world.given == [bytes(world.memory.view)] * RANKS
        world.given.clear()


@pytest.mark.parametrize("tied", [True, False])
def test_should_load_on_none_a_head_that_a_tied_model_leaves_out(
    world: World, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    """Only the first rank has compared a sender, and knows."""
    monkeypatch.setattr(MappedLandings, "_other_head", lambda *_: "the head differs")
    world.engines[0]._served.tied = tied
    assert world.update() == [None, None]
    assert sorted(world.loads) == ([] if tied else [0, 1])
    assert world.host.reports == [(UPDATE, "the head differs" if tied else "")]


@pytest.mark.parametrize("given", [GIVEN, GIVEN | {"update_id": UPDATE + 1}, GIVEN | {"refusal": "KV is held"}])
def test_should_not_call_an_update_loaded_that_was_refused_when_it_was_asked_for_again(
    world: World, given: dict[str, Any]
) -> None:
    """Other weights may have been loaded since, of which only the engine core knows."""
    world.update()
    world.host.reason = "" if given["refusal"] else "it is loaded"
    assert world.update(given) == [None, None]
    assert [engine.loaded for engine in world.engines] == [NOT_LOADED] * RANKS


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("fault", [PermissionError("Permission denied"), ValueError("mmap length is greater")])
def test_should_load_on_none_when_one_cannot_map_the_landing(world: World, rank: int, fault: Exception) -> None:
    world.unmapped[rank] = fault
    assert world.update() == [None, None]
    assert world.loads == []
    ((update_id, reason),) = world.host.reports
    assert update_id == UPDATE
    assert reason.startswith(f"rank {rank} cannot map the landing of process")
    assert [engine.loaded for engine in world.engines] == [NOT_LOADED] * RANKS
    world.unmapped.clear()
    assert world.update() == [None, None]
    assert sorted(world.loads) == [0, 1]


@pytest.mark.parametrize(
    ("reason", "given", "words"),
    [
        ("it has not landed", GIVEN, "it has not landed"),
        ("", GIVEN | {"refusal": "KV is held"}, "KV is held"),
        ("", {"update_id": UPDATE}, "engine core does not rest"),
    ],
)
def test_should_load_on_none_when_the_first_rank_finds_a_reason(
    world: World, reason: str, given: dict[str, Any], words: str
) -> None:
    world.host.reason = reason
    assert world.update(given) == [None, None]
    assert world.loads == []
    ((_, reason_given),) = world.host.reports
    assert words in reason_given


@pytest.mark.parametrize("given", [None, 5, [], {"update_id": "x"}, {"other": 1}, {"update_id": [1], "at_rest": True}])
def test_should_not_raise_at_a_body_of_another_form(world: World, given: object) -> None:
    world.host.reason = "it has not landed"
    assert world.update(given) == [None, None]
    assert world.loads == []


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1}])
def test_should_end_all_ranks_when_one_has_loaded_half(world: World, failing: set[int]) -> None:
    world.faults = dict.fromkeys(failing, "KeyError: 'layers.1'")
    assert statuses(world.update()) == [70, 70]
    assert world.host.reports == []
    assert "KeyError: 'layers.1'" in world.host.closed[0]


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("collective", [1, 2, 3])
def test_should_end_and_not_raise_when_a_rank_is_lost(world: World, ranks: Ranks, rank: int, collective: int) -> None:
    """1: the decision, 2: whether all have mapped the landing, 3: whether all have loaded it."""
    ranks.deaf[rank] = collective
    assert statuses(world.update()) == [70, 70]
    assert world.host.reports == []
    assert "does not hear the others: RuntimeError: Connection closed by peer" in world.host.closed[0]


def test_should_end_although_its_messenger_cannot_be_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(why: str) -> None:
        raise RuntimeError(why)

    monkeypatch.setattr(world.host, "close", fail)
    world.faults[1] = "MemoryError: "
    assert statuses(world.update()) == [70, 70]


def test_should_not_raise_at_the_first_body_of_another_form(module: Any, ranks: Ranks) -> None:
    world = World(module, ranks)
    ranks.enter(0)
    engine = world.engines[0]
    dialled: list[Callable[[], None]] = []
    engine._host.dial = lambda *given: dialled.append(given)
    for body in ({"other": 1}, {"names": ["a"], "dtype_names": [], "shapes": []}):
        engine.init_transfer_engine(engine.parse_init_info(body))
    assert dialled == []


def stored(folder: Path, *names: str) -> None:
    """A checkpoint of tensors of eight bytes each."""
    header = {name: {"dtype": "I8", "shape": [8], "data_offsets": [8 * n, 8 * n + 8]} for n, name in enumerate(names)}
    encoded = json.dumps(header).encode()
    content = len(encoded).to_bytes(8, "little") + encoded + bytes(8 * len(names))
    (folder / "model.safetensors").write_bytes(content)


def refusal(module: Any, model: str, *names: str) -> str:
    """What a server of this model says of weights with these names."""
    engine = object.__new__(module.KvMessengerWeightEngine)
    engine.device, engine.model, engine._served = SimpleNamespace(type="cuda"), None, ServedCheckpoint()
    engine.vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_size=1), load_config=SimpleNamespace(download_dir=None)
    )
    engine.model_config = SimpleNamespace(
        model=model,
        revision=None,
        hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]),
        hf_text_config=SimpleNamespace(tie_word_embeddings=False),
    )
    whole = Manifest.of([(name, "int8", [8]) for name in names])
    return str(engine._unfit(Share.of(whole, (False,) * len(names), 0, 1)))


ALL = ("embed", "layers.0", "layers.1", "norm")


@pytest.mark.parametrize("left_out", [each for n in (1, 2, 3) for each in itertools.combinations(ALL, n)])
def test_should_refuse_weights_of_a_part_of_the_model(module: Any, tmp_path: Path, left_out: tuple[str, ...]) -> None:
    stored(tmp_path, *ALL)
    sent = [name for name in ALL if name not in left_out]
    assert f"tensor {min(left_out)} is missing" in refusal(module, str(tmp_path), *sent)
    assert refusal(module, str(tmp_path), *ALL) == ""


@pytest.mark.parametrize("file", [None, "pytorch_model.bin", "config.json", "model.safetensors", "model.gguf"])
def test_should_refuse_weights_where_its_own_tensors_are_not_known(
    module: Any, tmp_path: Path, file: str | None
) -> None:
    """vLLM keeps what is left out, so that the weights would be of two versions."""
    if file is not None:
        (tmp_path / file).write_bytes(b"not a header")
    assert "the tensors of this server's checkpoint are not known" in refusal(module, str(tmp_path), *ALL)
    assert "start the server from a folder with" in refusal(module, str(tmp_path / "gone"), *ALL)
