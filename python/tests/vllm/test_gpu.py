"""The connector of an engine on a GPU, against the stand-in for NVIDIA's driver: nothing here has run on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_stand_in import Device, library_or_skip
from release import Release
from simulated_engine import LAYERS, caches, config, tensors
from simulated_messenger import SimulatedMessenger

from kv_connector.cuda_driver import CudaError

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


class Prefiller:
    """A worker on a device, with its connector and a simulated messenger."""

    def __init__(self, release: Release, device: Device, kv_role: str = "kv_producer", transport: str = "tcp") -> None:
        self.release, self.device = release, device
        said = config(kv_role, extra={"transports": [transport], "gpu": "unproven"})
        said.device_config.device_type = "cuda"
        counting = release.rank_start.DeviceCounting
        self.connector = release.connector.KvMessengerConnector(said, release.base.KVConnectorRole.WORKER, caches())
        self.connector.open_messenger = self._open
        self.connector._starting().device_counting = lambda: counting.on(device.driver, device.stream)
        self.connector._starting().cuda_driver = lambda: device.driver
        self.allocation = self.connector.get_mem_pool_context()
        kv = tensors(8)
        if self.allocation is not None:  # as torch's pool asks it
            place = self.allocation.memories.allocate(kv[LAYERS[0]].storage.nbytes(), 0).address
            kv = tensors(8, storage_address=place)
        for tensor in kv.values():
            tensor.device = SimpleNamespace(type="cuda", index=1)
        self.connector.register_kv_caches(kv)
        self.step = 0

    def _open(self, options: Any, geometry: Any, *, layer_counter_lag: int) -> PatientMessenger:  # noqa: ARG002
        self.messenger = PatientMessenger(options, geometry)
        return self.messenger

    def begin(self) -> None:
        """A step with a chunk of a request of its own."""
        self.step += 1
        made = self.release.metadata
        request = f"r{self.step}"
        placed = [made.PlacedBlocks(0, [self.step % 8])]
        chunk = made.Chunk(request, request, 100, 0, 0, 100, placed, DIGEST)
        meta = made.StepMetadata(step=self.step, computes=True, chunks=[chunk])
        meta.announces.append(made.Announce(request, request, DIGEST))
        self.connector.bind_connector_metadata(meta)

    def run_pass(self, *names: str) -> None:
        """As vLLM's wrapper of attention does."""
        for name in names or LAYERS:
            if self.connector.has_connector_metadata():
                self.connector.save_kv_layer(name, None, None)

    def end(self) -> None:
        self.connector.wait_for_save()
        self.device.finish()

    def close(self) -> None:
        self.device.finish()
        self.connector._worker._counter._queued_word.close()
        if self.allocation is not None:
            self.allocation.memories.close()


@pytest.fixture
def prefiller(vllm_release: Release) -> Iterator[Prefiller]:
    made = Prefiller(vllm_release, the_device())
    yield made
    made.close()
    assert the_device().stand_in.standInHeld() == 0


def counts_of(prefiller: Prefiller) -> list[tuple[int, int]]:
    steps, ends = prefiller.messenger.of_kind("step"), prefiller.messenger.of_kind("stepEnded")
    return [(begun["counterStart"], ended["counterEnd"]) for begun, ended in zip(steps, ends, strict=True)]


def test_should_tell_the_messenger_that_kv_is_on_a_device(prefiller: Prefiller) -> None:
    (memory,) = prefiller.messenger.geometry["ranks"][0]["memories"]
    assert (memory["kind"], memory["device"], memory["handleKind"]) == ("cuda", 1, "none")
    assert "memfd" not in memory


@pytest.mark.parametrize("transport", ["cuda", "shm"])
def test_should_say_that_kv_can_be_passed_on_where_peers_map_it(vllm_release: Release, transport: str) -> None:
    prefiller = Prefiller(vllm_release, the_device(), transport=transport)
    (memory,) = prefiller.messenger.geometry["ranks"][0]["memories"]
    assert (memory["kind"], memory["handleKind"]) == ("cuda", "posixFd")
    prefiller.close()
    assert the_device().stand_in.standInHeld() == 0


def test_should_count_eager_layers_behind_the_stream(prefiller: Prefiller) -> None:
    start = prefiller.messenger.count
    for _ in range(2):
        prefiller.begin()
        prefiller.run_pass()
        prefiller.end()
    assert prefiller.messenger.count == start + 2 * (len(LAYERS) + 1)
    assert counts_of(prefiller) == [(start, start + 5), (start + 5, start + 10)]


def test_should_count_what_a_whole_graph_repeats_in_steps_only(prefiller: Prefiller) -> None:
    start = prefiller.messenger.count
    launch = prefiller.device.capture(prefiller.run_pass)
    prefiller.connector.reset_capture_state()
    launch()
    prefiller.device.finish()
    assert prefiller.messenger.count == start
    for step in range(3):
        prefiller.begin()
        launch()
        prefiller.device.finish()
        assert prefiller.messenger.count == start + 5 * step + 4
        prefiller.end()
        launch()
    assert counts_of(prefiller) == [(start + 5 * step, start + 5 * step + 5) for step in range(3)]


def test_should_release_a_pass_without_hooks_by_its_end(prefiller: Prefiller) -> None:
    start = prefiller.messenger.count
    prefiller.begin()
    prefiller.device.finish()
    assert prefiller.messenger.count == start
    prefiller.end()
    assert prefiller.messenger.count == start + 5


def test_should_say_once_that_hooks_fire_out_of_order(prefiller: Prefiller, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        prefiller.begin()
        prefiller.run_pass(*reversed(LAYERS))
        prefiller.end()
    assert caplog.text.count("layers do not finish in their order") == 1


def test_should_send_nothing_of_a_step_that_cannot_begin_on_the_device(prefiller: Prefiller) -> None:
    prefiller.device.stand_in.standInFail(b"cuLaunchKernel", 1, OUT_OF_MEMORY)
    prefiller.begin()
    assert not prefiller.connector.has_connector_metadata()
    prefiller.end()
    assert prefiller.messenger.of_kind("step") == []
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == ["failed"]


def test_should_send_nothing_of_a_step_that_cannot_end_on_the_device(prefiller: Prefiller) -> None:
    prefiller.begin()
    prefiller.run_pass()
    prefiller.device.finish()
    prefiller.device.stand_in.standInFail(b"cuLaunchKernel", 1, OUT_OF_MEMORY)
    prefiller.end()
    assert [told["step"] for told in prefiller.messenger.of_kind("stepFailed")] == [1]
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == ["failed"]


def test_should_say_that_nothing_of_it_has_run_on_a_gpu(
    vllm_release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    Prefiller(vllm_release, the_device()).close()
    assert "gpu is 'unproven'" in caplog.text
    assert "on no GPU" in caplog.text


def test_should_put_no_bump_into_the_graphs_of_a_decoder(vllm_release: Release) -> None:
    decoder = Prefiller(vllm_release, the_device(), "kv_consumer")
    asked: list[bool] = []
    decoder.device.capture(lambda: asked.append(decoder.connector.has_connector_metadata()))
    assert asked == [False]
    assert the_device().stand_in.standInHeld() == 0


def test_should_not_start_on_a_device_that_does_not_count(
    vllm_release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    the_device().stand_in.standInFail(b"cuModuleLoadData", 1, OUT_OF_MEMORY)
    with pytest.raises(CudaError, match="cuModuleLoadData failed"):
        Prefiller(vllm_release, the_device())
    assert "KV Messenger cannot start: cuModuleLoadData failed" in caplog.text


@pytest.mark.parametrize(
    ("device", "gpu", "sentence"),
    [
        ("cuda", "off", "computes on device 'cuda', expected 'cpu'.* or set gpu to 'unproven'"),
        ("xpu", "unproven", "computes on device 'xpu', expected 'cpu'"),
        ("cuda", "on", "option 'gpu' is 'on', expected one of off, unproven"),
    ],
)
def test_should_refuse_what_it_cannot_do(vllm_release: Release, device: str, gpu: str, sentence: str) -> None:
    said = config("kv_producer", extra={"gpu": gpu})
    said.device_config.device_type = device
    with pytest.raises(Exception, match=sentence):
        vllm_release.connector.KvMessengerConnector.get_required_kvcache_layout(said)


def test_should_refuse_two_micro_batches_in_a_pass(vllm_release: Release) -> None:
    with pytest.raises(Exception, match="enable_dbo is True, expected False"):
        vllm_release.engine_facts.read_facts(config("kv_producer", enable_dbo=True), caches())
