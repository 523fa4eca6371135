"""The ranks of one server take weights alike: what one of them refuses no other one waits for."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("sglang_plugins")

LIMIT_SECONDS = 60.0
RANKS = 2
WRONG_OPTIONS = (
    {"weights_secret_file": "/missing/secret"},
    {"weights_secret": "a" * 32, "weights_secret_file": "/missing/secret"},
    {"weights_secret": 7},
    {"weights_metrics_port": 70000},
    {"no_such_option": 1},
)
UPDATES = (json.dumps({"update_id": 1}), "no update", json.dumps({}))


class Ranks:
    """Those of one server, each in a thread; what one of them asks of all needs all of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._own = threading.local()
        self._changed = threading.Condition()
        self._given: list[list[Any]] = [[] for _rank in range(count)]
        self._ended: set[int] = set()

    @property
    def parallel(self) -> Any:
        return SimpleNamespace(tp_rank=self._own.rank)

    def gather(self, into: list[Any], own: Any, group: Any) -> None:
        assert group == "the ranks"
        with self._changed:
            mine = self._given[self._own.rank]
            mine.append(own)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._is_over(len(mine)), LIMIT_SECONDS)
            assert self._is_given(len(mine)), "another rank does not take part"
            into[:] = [given[len(mine) - 1] for given in self._given]

    def _is_given(self, count: int) -> bool:
        return all(len(given) >= count for given in self._given)

    def _is_over(self, count: int) -> bool:
        return self._is_given(count) or any(len(self._given[rank]) < count for rank in self._ended)

    def broadcast(self, given: list[Any], src: int, group: Any) -> None:
        gathered: list[Any] = []
        self.gather(gathered, given[0], group)
        given[0] = gathered[src]

    def run(self, act: Callable[[int], Any]) -> list[Any]:
        """What each rank comes to."""
        self._ended.clear()

        def of_rank(rank: int) -> Any:
            self._own.rank = rank
            try:
                return act(rank)
            finally:
                with self._changed:
                    self._ended.add(rank)
                    self._changed.notify_all()

        with ThreadPoolExecutor(self.count) as threads:
            results = [each.result() for each in [threads.submit(of_rank, rank) for rank in range(self.count)]]
        assert len({len(given) for given in self._given}) == 1, "a rank was asked that did not answer"
        return results


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    import torch
    from sglang.srt import runtime_context

    from kv_connector.sglang import weights
    from kv_connector.weights.routes import SGLANG_LOADER

    made = Ranks(RANKS)
    model = SimpleNamespace(custom_weight_loader=[SGLANG_LOADER])
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: made.parallel)
    monkeypatch.setattr(runtime_context, "get_model", lambda: model)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _group: made.count)
    monkeypatch.setattr(torch.distributed, "get_global_rank", lambda _group, rank: rank)
    monkeypatch.setattr(torch.distributed, "all_gather_object", made.gather)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", made.broadcast)

    def torn(_self: Any, _update_id: int, reason: str) -> None:
        raise AssertionError(f"the engine ends: {reason}")

    monkeypatch.setattr(weights.LandedWeights, "_end_torn", torn)
    return made


def loaded(ranks: Ranks, update: str, idle: Sequence[bool], *, announced: bool) -> list[tuple[bool, str]]:
    """What each rank answers to the load."""
    from kv_connector.sglang.weight_hooks import SchedulersWeights
    from kv_connector.weights.routes import BACKEND, SGLANG_LOADER, STATUS

    def act(rank: int) -> tuple[bool, str]:
        hook = SchedulersWeights()
        updater = SimpleNamespace(
            tp_cpu_group="the ranks",
            scheduler=SimpleNamespace(),
            is_fully_idle=lambda ignore_waiting: idle[rank] and not ignore_waiting,
            flush_cache=lambda empty_cache: bool(empty_cache),
        )
        question = SimpleNamespace(backend=BACKEND, group_name=json.dumps({STATUS: 1}))
        if announced:
            hook.answer(lambda *_: None, updater, question)
        asked = SimpleNamespace(
            load_format=SGLANG_LOADER, serialized_named_tensors=[update], weight_version="1", flush_cache=False
        )
        answer = hook.load(lambda *_: None, updater, asked)
        return answer.success, answer.message

    return ranks.run(act)


@pytest.mark.parametrize("options", [{}, *WRONG_OPTIONS], ids=lambda given: ",".join(given) or "right options")
@pytest.mark.parametrize("update", UPDATES)
def test_should_answer_alike_on_all_ranks(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], update: str
) -> None:
    """Only the first rank has a messenger, and so options that may be wrong."""
    monkeypatch.setenv("KV_MESSENGER_OPTIONS", json.dumps(options))
    for idle in itertools.product([True, False], repeat=RANKS):
        first, *others = loaded(ranks, update, idle, announced=True)
        assert others == [first] * (RANKS - 1)
        assert not first[0]
        if options and update == UPDATES[0]:
            assert any(name in first[1] for name in options), first


def test_should_load_nothing_on_any_rank_before_a_sender_is_announced(ranks: Ranks) -> None:
    assert loaded(ranks, UPDATES[0], [True] * RANKS, announced=False) == [(False, "no sender is connected")] * RANKS


@pytest.mark.parametrize("tied", [True, False])
def test_should_load_what_has_landed_and_no_head_that_a_tied_model_leaves_out(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    """Each load writes into what it is given, and only the first rank knows whether the model is tied."""
    from kv_connector.sglang.weights import LandedWeights
    from kv_connector.weights.decision import Decision
    from kv_connector.weights.landed_tensors import MappedLandings
    from kv_connector.weights.landing import SharedMemory
    from kv_connector.weights.manifest import Manifest
    from kv_connector.weights.served import ServedCheckpoint
    from kv_connector.weights.shares import Share

    whole = Manifest.of([("a", "int8", [64])])
    memory = SharedMemory(whole.length_bytes)
    decision = Decision("", 70, os.getpid(), (memory.memfd,), Share.of(whole, (False,), 0, 1), whole)
    monkeypatch.setattr(MappedLandings, "_other_head", lambda *_: "the head differs")
    given: list[bytes] = []

    def load(engine: Any, _decision: Decision) -> str:
        (view,) = engine._landings._views
        given.append(bytes(view))
        view[:] = bytes(len(view))
        return ""

    monkeypatch.setattr(LandedWeights, "_load", load)
    monkeypatch.setattr(LandedWeights, "_decided", lambda *_: decision)
    engines = [object.__new__(LandedWeights) for _rank in range(RANKS)]
    for rank, engine in enumerate(engines):
        engine._updater = SimpleNamespace(tp_cpu_group="the ranks", flush_cache=lambda empty_cache: not empty_cache)
        engine._rank, engine._served, engine._landings = rank, ServedCheckpoint(), MappedLandings()
    engines[0]._served.tied = tied
    for version in range(1, 4):
        memory.view[:] = bytes([version]) * whole.length_bytes
        results = ranks.run(lambda rank: engines[rank]._load_together(1, "70"))
        assert results == [(decision, "the head differs" if tied else "")] * RANKS
        assert given == ([] if tied else [bytes(memory.view)] * RANKS)
        given.clear()
