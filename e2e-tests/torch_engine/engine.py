"""One engine: scheduler, runner and the two objects of the connector, in one process."""

from __future__ import annotations

import importlib
from typing import Any

from torch_engine import vllm_names
from torch_engine.plan import EnginePlan, kv_cache_config, vllm_config
from torch_engine.runner import Runner
from torch_engine.scheduler import Request, Scheduler
from torch_engine.stand_in import StandInStream


class Engine:
    """Driven from outside, a step at a time, by one thread."""

    def __init__(self, plan: EnginePlan) -> None:
        self.plan = plan
        self.messengers: list[Any] = []
        self._worker: Any = None
        self._both: Any = None
        if plan.kv_role != "none":
            self._worker = self._connector(vllm_names.Role.WORKER)
            self._worker.open_messenger = self._open
        stream = self._count_on_stand_in() if plan.stand_in else None
        self.runner = Runner(plan, self._worker)
        address = None
        if self._worker is not None:
            self._worker.register_kv_caches(self.runner.pages.named)
            address = self._worker.get_handshake_metadata()
        self.runner.capture(stream)
        if self._worker is not None:
            self._both = self._connector(vllm_names.Role.SCHEDULER)
        self.scheduler = Scheduler(plan, self._both)
        if self._both is not None:
            self._both.set_xfer_handshake_metadata_pp_aware({(0, 0): address})
        self.address = (address.address.host, address.address.port) if address is not None else ("", 0)
        if plan.held and plan.device == "cpu" and self.messengers:
            self.runner.layers_sent = lambda: self.figure("kv_messenger_layers_sent")

    def _connector(self, role: vllm_names.Role) -> Any:
        vllm_names.install(self.plan.reported_device)
        connector = importlib.import_module("kv_connector.vllm.connector")
        return connector.KvMessengerConnector(vllm_config(self.plan), role, kv_cache_config(self.plan))

    def _open(self, *arguments: Any, **more: Any) -> Any:
        messenger = importlib.import_module("kv_connector").Messenger.open(*arguments, **more)
        self.messengers.append(messenger)
        return messenger

    def _count_on_stand_in(self) -> StandInStream:
        stream = StandInStream(self.plan.stand_in)
        counting = importlib.import_module("kv_connector.memory.device_counter").DeviceCounting
        self._worker._starting().device_counting = lambda: counting.on(stream.driver, stream.handle)
        return stream

    def add(self, request: Request) -> None:
        self.scheduler.add(request)

    def step(self) -> None:
        planned = self.scheduler.plan_step()
        sampled, reports = self.runner.execute(planned, self.scheduler.requests)
        self.scheduler.update(planned, sampled, reports)
        if self.plan.captures_between_steps:
            self.runner.capture_once_more()

    def figure(self, name: str) -> float:
        """One of the messenger's counters."""
        return float(self.messengers[0].stats().counters.get(name, 0.0))

    def fetch_seconds(self) -> float:
        """How long all fetches together took, from the engine's wish to the last immediate."""
        found = [each.stats().histograms.get("kv_messenger_fetch_seconds") for each in self.messengers]
        return sum(float(histogram["sum"]) for histogram in found if histogram is not None)

    def held(self) -> dict[str, int]:
        """What is not given back although nothing runs: the engine's, and the messenger's."""
        missing = len(self.scheduler.pool.blocks) - 1 - self.scheduler.pool.free_count
        held = {"blocks": missing} if missing else {}
        for messenger in self.messengers:
            held |= {name: count for name, count in messenger.leak_check().held.items() if count}
        return held

    def close(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()
