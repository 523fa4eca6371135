"""vLLM's sleep mode in the loop: vLLM's own pausing, and workers whose KV memory is gone while they sleep."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.v1.engine import core as engine_core

MODES = ("abort", "wait", "keep")
LEVEL = 1
NOT_YET_SUPPORTED = "which is not supported yet"
"""vLLM keeps no request that waits for KV: it refuses to sleep then."""
OF_PROCESS = ("pause_scheduler", "_pause_complete", "has_work", "_notify_idle_state_callbacks")
"""How the core's process pauses; the class itself would start threads and sockets."""


class PausingCore(engine_core.EngineCore):
    """An engine core that pauses as its process does: it steps until nothing is under way."""

    engines_running = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aborted: list[str] = []

    def _send_abort_outputs(self, requests: Sequence[Any]) -> None:
        self.aborted += [request.request_id for request in requests]


for _name in OF_PROCESS:
    if hasattr(engine_core.EngineCoreProc, _name):
        setattr(PausingCore, _name, getattr(engine_core.EngineCoreProc, _name))


class SleepingWorkers:
    """What the executor does in its workers' place when the engine sleeps; for several ranks, one after the other."""

    ranks: list[Any]
    messengers: list[Any]
    last_addresses: Sequence[tuple[str, int]] = ()
    """Of the messengers before a sleep, which routers go on to name."""
    report: Callable[[str, str], None]

    def _sleep(self, level: int) -> None:  # noqa: ARG002
        for rank in self._as_each_rank():
            rank.connector.unregister_kv_caches()
        if self.messengers:
            self.last_addresses = [(m.opened.control_host, m.opened.control_port) for m in self.messengers]
        self.messengers.clear()
        for rank in self.ranks:
            rank.pages.vanish()

    def _wake_up(self, tags: Sequence[str] | None) -> None:
        if tags is not None and "kv_cache" not in tags:
            return
        for rank in self.ranks:
            if not rank.pages.come_back():
                self.report("written while gone", "KV memory was written to while the engine slept")
        for rank in self._as_each_rank():
            rank.connector.restore_kv_caches()

    def _as_each_rank(self) -> Iterator[Any]:
        """The ranks one after the other; vLLM says then that this process is that one."""
        for tp_rank, rank in enumerate(self.ranks):
            parallel_state.get_tensor_model_parallel_rank = lambda tp_rank=tp_rank: tp_rank
            kv_transfer_state._KV_CONNECTOR_AGENT = rank.connector
            yield rank

    def _synchronize_device(self) -> None:
        """Nothing runs here between two steps."""

    def _reset_mm_cache(self) -> None:
        """There is none."""

    def _reset_encoder_cache(self) -> None:
        """There is none."""


@dataclass
class _Night:
    """One sleep of an engine."""

    mode: str
    falling: Future[Any] | None
    """Until it is done the engine still steps."""
    rounds: int
    in_two_steps: bool
    """It gets its weights first, as after an update of them."""


class Sleeper:
    """Puts engines to sleep at any moment between two steps, one or both, and wakes them."""

    def __init__(self, draw: random.Random, engines: Mapping[str, Any], report: Callable[[str, str], None]) -> None:
        self._draw = draw
        self._engines = engines
        self._report = report
        self._nights: dict[str, _Night] = {}
        self.slept = dict.fromkeys((*MODES, "refused", "twice", "awake"), 0)

    def round(self, share: float) -> None:
        """A round of the loop: each engine that is awake falls asleep with a probability of ``share``."""
        for side, engine in self._engines.items():
            if engine.core._idle_state_callbacks and not engine.has_work:
                engine.core._notify_idle_state_callbacks()
            night = self._nights.get(side)
            if night is None:
                if self._draw.random() < share:
                    self._begin(side, engine)
            elif night.falling is None or night.falling.done():
                self._go_on(side, engine, night)

    @property
    def anything(self) -> bool:
        """Whether an engine sleeps or is about to."""
        return bool(self._nights)

    def _begin(self, side: str, engine: Any) -> None:
        if self._draw.random() < 0.1:
            engine.core.wake_up()
            self.slept["awake"] += 1
        # Two engines that each finish what waits for the other's stopped queue would wait for a fetch's limit.
        mode = "abort" if self._nights else self._draw.choice(MODES)
        night = _Night(mode, None, self._draw.choice([1, 20, 200]), self._draw.random() < 0.3)
        try:
            night.falling = engine.core.sleep(LEVEL, mode)
        except RuntimeError as fault:
            self._refused(engine, mode, fault)
            return
        self._nights[side] = night

    def _refused(self, engine: Any, mode: str, fault: BaseException) -> None:
        if mode != "keep" or NOT_YET_SUPPORTED not in str(fault):
            self._report("cannot sleep", f"{engine.plan.name}, mode {mode}: {fault!r}")
        self.slept["refused"] += 1
        engine.core.wake_up()

    def _go_on(self, side: str, engine: Any, night: _Night) -> None:
        if night.falling is not None:
            fault = night.falling.exception()
            night.falling = None
            if fault is not None:
                del self._nights[side]
                self._refused(engine, night.mode, fault)
                return
        if night.rounds > 0:
            night.rounds -= 1
            if self._draw.random() < 0.01:
                self.slept["twice"] += 1
                engine.core.model_executor.sleep(LEVEL)
            return
        self._wake(side, engine, night)

    def _wake(self, side: str, engine: Any, night: _Night) -> None:
        del self._nights[side]
        self.slept[night.mode] += 1
        if night.in_two_steps:
            engine.core.wake_up(["weights"])
            engine.core.wake_up(["kv_cache"])
        else:
            engine.core.wake_up()
