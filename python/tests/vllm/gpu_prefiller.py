"""A worker of vLLM on the stand-in for NVIDIA's driver, with its connector and a simulated messenger."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from cuda_stand_in import Device, library_or_skip
from release import Release
from simulated_engine import LAYERS, caches, config, tensors
from simulated_messenger import SimulatedMessenger

OUT_OF_MEMORY = 2
DIGEST = "0" * 32


@functools.cache
def the_device() -> Device:
    return Device(library_or_skip())


class PatientMessenger(SimulatedMessenger):
    """Looks at the counter when the device has done what is queued; the messenger in Java need not."""

    def submit(self, commands: Any) -> None:
        the_device().finish()
        super().submit(commands)

    def _on_stepEnded(self, command: dict[str, Any]) -> None:  # noqa: N802
        """On a device the end of a step is one beyond its layers."""
        assert command["counterEnd"] == self.count == self._step_start + len(LAYERS) + 1
        self._step_open = False


class GpuPrefiller:
    """A worker on a device, with its connector and a simulated messenger."""

    def __init__(self, release: Release, device: Device, kv_role: str = "kv_producer", transport: str = "tcp") -> None:
        self.release, self.device = release, device
        settings = config(kv_role, extra={"transports": [transport], "gpu": "unproven"})
        settings.device_config.device_type = "cuda"
        counting = release.rank_start.DeviceCounting
        self.connector = release.connector.KvMessengerConnector(settings, release.base.KVConnectorRole.WORKER, caches())
        self.connector.open_messenger = self._open
        self.connector._starting().device_counting = lambda: counting.on(device.driver, device.stream)
        self.connector._starting().cuda_driver = lambda: device.driver
        self.connector._starting().wait_for_device = self._wait
        self.reported_at_waits: list[int] = []
        self.allocation = self.connector.get_mem_pool_context()
        kv = tensors(8)
        if self.allocation is not None:  # as torch's pool asks it
            place = self.allocation.memories.allocate(kv[LAYERS[0]].storage.nbytes(), 0).address
            kv = tensors(8, storage_address=place)
        for tensor in kv.values():
            tensor.device = SimpleNamespace(type="cuda", index=1)
        self.connector.register_kv_caches(kv)
        self.step = 0
        self.counted_right = 0

    def _open(self, options: Any, geometry: Any, *, layer_counter_lag: int) -> PatientMessenger:  # noqa: ARG002
        self.messenger = PatientMessenger(options, geometry)
        return self.messenger

    def _wait(self) -> None:
        self.device.finish()
        self.reported_at_waits.append(len(self.step_commands()))

    def begin(self, *chunks: Any, **more: Any) -> None:
        """A step with these chunks, or with one of a request of its own."""
        self.step += 1
        self._begin(*(chunks or [self.chunk(f"r{self.step}")]), **more)

    def _begin(self, *chunks: Any, **more: Any) -> None:
        made = self.release.metadata
        names = {each.request: each.request for each in chunks}
        meta = made.StepMetadata(step=self.step, computes=True, names=names, chunks=list(chunks), **more)
        meta.layers_are_right = self.counted_right == 1  # as the scheduler's half says it
        meta.announces.extend(
            made.Announce(each.request, each.transfer, DIGEST) for each in chunks if not each.first_token
        )
        self.connector.bind_connector_metadata(meta)

    def chunk(self, request: str, first_token: int = 0, end_token: int = 100, prompt_tokens: int = 100) -> Any:
        made = self.release.metadata
        placed = [made.PlacedBlocks(first_token // 128, [(self.step + first_token // 128) % 8])]
        return made.Chunk(request, request, prompt_tokens, 0, first_token, end_token, placed, DIGEST)

    def run_pass(self, *names: str) -> None:
        """As vLLM's wrapper of attention does."""
        for name in names or LAYERS:
            if self.connector.has_connector_metadata():
                self.connector.save_kv_layer(name, None, None)

    def end(self) -> None:
        self.connector.wait_for_save()
        self.device.finish()
        news = self.connector.build_connector_worker_meta()
        self.counted_right += news.counted_right if news is not None else 0

    def count_first_pass(self) -> int:
        """What lets later passes be told when they begin; where the counter stands then."""
        self.begin()
        self.run_pass()
        self.end()
        return self.messenger.count

    def step_commands(self) -> list[str]:
        """What the messenger heard of steps."""
        return [command["do"] for command in self.messenger.commands if command["do"].startswith("step")]

    def close(self) -> None:
        self.device.finish()
        word = self.connector._worker._steps._counter._queued_word
        if hasattr(word, "close"):  # only a word on the device has memory there
            word.close()
        if self.allocation is not None:
            self.allocation.memories.close()
