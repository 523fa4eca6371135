"""The connector of an engine on a GPU, against the stand-in for NVIDIA's driver: nothing here has run on a GPU."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_stand_in import Device, library_or_skip
from release import Release
from simulated_engine import LAYERS, caches, config, tensors
from simulated_messenger import SimulatedMessenger

from kv_connector.memory.cuda_driver import CudaError
from kv_connector.runtime.commands import name_of
from kv_connector.vllm.kv_groups import KvGroup

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
        settings = config(kv_role, extra={"transports": [transport], "gpu": "unproven"})
        settings.device_config.device_type = "cuda"
        counting = release.rank_start.DeviceCounting
        self.connector = release.connector.KvMessengerConnector(settings, release.base.KVConnectorRole.WORKER, caches())
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
        self.counted_right = 0

    def _open(self, options: Any, geometry: Any, *, layer_counter_lag: int) -> PatientMessenger:  # noqa: ARG002
        self.messenger = PatientMessenger(options, geometry)
        return self.messenger

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
        self.connector._worker._steps._counter._queued_word.close()
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


@pytest.mark.parametrize(("transport", "handle"), [("cuda", "posixFd"), ("shm", "none")])
def test_should_say_that_kv_can_be_passed_on_where_peers_map_it(
    vllm_release: Release, transport: str, handle: str
) -> None:
    """Over shm an engine copies from its device itself, so torch's own memory will do."""
    prefiller = Prefiller(vllm_release, the_device(), transport=transport)
    (memory,) = prefiller.messenger.geometry["ranks"][0]["memories"]
    assert (memory["kind"], memory["handleKind"]) == ("cuda", handle)
    prefiller.close()
    assert the_device().stand_in.standInHeld() == 0


@pytest.mark.parametrize(
    ("attribute", "lack"), [(102, "virtual memory management"), (103, "memory handles as file descriptors")]
)
def test_should_leave_kv_to_torch_where_the_device_cannot_share_it(
    vllm_release: Release, caplog: pytest.LogCaptureFixture, attribute: int, lack: str
) -> None:
    stand_in = the_device().stand_in
    stand_in.standInAttribute(attribute, 0)
    try:
        prefiller = Prefiller(vllm_release, the_device(), transport="cuda")
        (memory,) = prefiller.messenger.geometry["ranks"][0]["memories"]
        assert memory["handleKind"] == "none"
        assert f"device 0 lacks {lack}" in caplog.text
        prefiller.close()
        assert stand_in.standInHeld() == 0
    finally:
        stand_in.standInAttribute(attribute, 1)


def test_should_count_eager_layers_behind_the_stream(prefiller: Prefiller) -> None:
    start = prefiller.count_first_pass()
    for _ in range(2):
        prefiller.begin()
        prefiller.run_pass()
        prefiller.end()
    assert prefiller.messenger.count == start + 2 * (len(LAYERS) + 1)
    assert counts_of(prefiller)[1:] == [(start, start + 5), (start + 5, start + 10)]


def test_should_count_what_a_whole_graph_repeats_in_steps_only(prefiller: Prefiller) -> None:
    start = prefiller.messenger.count
    launch = prefiller.device.capture(prefiller.run_pass)
    prefiller.connector.reset_capture_state()
    launch()
    prefiller.device.finish()
    assert prefiller.messenger.count == start
    prefiller.begin()
    launch()
    prefiller.end()
    start = prefiller.messenger.count
    for step in range(3):
        prefiller.begin()
        launch()
        prefiller.device.finish()
        assert prefiller.messenger.count == start + 5 * step + 4
        prefiller.end()
        launch()
    assert counts_of(prefiller)[1:] == [(start + 5 * step, start + 5 * step + 5) for step in range(3)]


def test_should_release_a_pass_without_hooks_by_its_end(prefiller: Prefiller) -> None:
    start = prefiller.count_first_pass()
    prefiller.begin()
    prefiller.device.finish()
    assert prefiller.messenger.count == start
    prefiller.end()
    assert prefiller.messenger.count == start + 5


def test_should_say_once_that_hooks_fire_out_of_order(prefiller: Prefiller, caplog: pytest.LogCaptureFixture) -> None:
    prefiller.count_first_pass()
    for _ in range(2):
        prefiller.begin()
        prefiller.run_pass(*reversed(LAYERS))
        prefiller.end()
    assert caplog.text.count("layers do not finish in their order") == 1


def test_should_send_nothing_of_a_step_that_cannot_begin_on_the_device(prefiller: Prefiller) -> None:
    prefiller.count_first_pass()
    prefiller.device.stand_in.standInFail(b"cuLaunchKernel", 1, OUT_OF_MEMORY)
    prefiller.begin()
    assert not prefiller.connector.has_connector_metadata()
    prefiller.end()
    assert prefiller.step_commands() == ["step", "stepEnded"]
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == ["failed"]


def test_should_send_nothing_of_a_step_that_cannot_end_on_the_device(prefiller: Prefiller) -> None:
    prefiller.count_first_pass()
    prefiller.begin()
    prefiller.run_pass()
    prefiller.device.finish()
    prefiller.device.stand_in.standInFail(b"cuLaunchKernel", 1, OUT_OF_MEMORY)
    prefiller.end()
    assert [failed["step"] for failed in prefiller.messenger.of_kind("stepFailed")] == [2]
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == ["failed"]


def test_should_say_what_of_it_has_not_run_on_a_gpu(vllm_release: Release, caplog: pytest.LogCaptureFixture) -> None:
    Prefiller(vllm_release, the_device()).close()
    assert "gpu is 'unproven'" in caplog.text
    assert "not with several GPUs" in caplog.text


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
    settings = config("kv_producer", extra={"gpu": gpu})
    settings.device_config.device_type = device
    with pytest.raises(Exception, match=sentence):
        vllm_release.connector.KvMessengerConnector.get_required_kvcache_layout(settings)


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"enable_dbo": True}, "enable_dbo is True, expected False.*start without --enable-dbo"),
        ({"ubatch_size": 2}, "ubatch_size is 2, expected at most 1.*start without --ubatch-size"),
        ({"enable_dbo": True, "ubatch_size": 2}, "enable_dbo is True, expected False"),
    ],
)
def test_should_refuse_two_micro_batches_in_a_pass(
    vllm_release: Release, chosen: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Exception, match=sentence):
        vllm_release.engine_facts.read_facts(config("kv_producer", **chosen), caches())


def test_should_refuse_a_gpu_also_where_vllm_asks_for_neither_layout_nor_graphs(vllm_release: Release) -> None:
    wanted = config("kv_producer", ubatch_size=0)
    wanted.device_config.device_type = "cuda"
    with pytest.raises(Exception, match="computes on device 'cuda'"):
        vllm_release.engine_facts.read_facts(wanted, caches())


def test_should_tell_the_first_pass_when_it_is_over_and_later_ones_before(
    prefiller: Prefiller, caplog: pytest.LogCaptureFixture
) -> None:
    prefiller.begin()
    prefiller.run_pass()
    prefiller.device.finish()
    assert prefiller.step_commands() == []
    with caplog.at_level(logging.INFO):
        prefiller.end()
    assert prefiller.step_commands() == ["step", "stepEnded"]
    assert prefiller.messenger.chunks_of("r1")[0]["endToken"] == 100
    assert "the first forward pass was counted correctly" in caplog.text
    prefiller.begin()
    assert prefiller.step_commands() == ["step", "stepEnded", "step"]


def captured(*passes: tuple[str, ...]) -> Callable[[Prefiller], Callable[[], None]]:
    """A pass as graphs of these layers, launched one after the other."""

    def capture(prefiller: Prefiller) -> Callable[[], None]:
        launches = [prefiller.device.capture(lambda names=names: prefiller.run_pass(*names)) for names in passes]
        return lambda: [launch() for launch in launches] and None

    return capture


def eager(*names: str) -> Callable[[Prefiller], Callable[[], None]]:
    return lambda prefiller: lambda: prefiller.run_pass(*names)


def twice(way: Callable[[Prefiller], Callable[[], None]]) -> Callable[[Prefiller], Callable[[], None]]:
    def both(prefiller: Prefiller) -> Callable[[], None]:
        launches = [way(prefiller)] * 2
        return lambda: [launch() for launch in launches] and None

    return both


@pytest.mark.parametrize(
    "way",
    [eager(*LAYERS), captured(LAYERS), captured(LAYERS[:1], LAYERS[1:3], LAYERS[3:])],
    ids=["eager", "whole graph", "graphs between which attention runs"],
)
def test_should_take_a_first_pass_that_counts_each_layer_once(
    prefiller: Prefiller, way: Callable[[Prefiller], Callable[[], None]]
) -> None:
    forward = way(prefiller)
    for _ in range(2):
        prefiller.begin()
        forward()
        prefiller.end()
    assert prefiller.counted_right == 1
    prefiller.begin()
    assert prefiller.step_commands()[-1] == "step"


@pytest.mark.parametrize(
    ("sentence", "way"),
    [
        ("counted 2 layers, expected 4", captured(LAYERS[:2])),
        ("counted 0 layers, expected 4", lambda _: lambda: None),
        ("counted 8 layers, expected 4", twice(captured(LAYERS))),
        ("counted 4 layers before one that was out of order, expected 4", eager(*LAYERS, LAYERS[0])),
        ("counted 1 layers before one that was out of order, expected 4", eager(*[LAYERS[at] for at in (0, 2, 1, 3)])),
    ],
)
def test_should_send_whole_passes_when_the_first_was_counted_otherwise(
    prefiller: Prefiller,
    caplog: pytest.LogCaptureFixture,
    sentence: str,
    way: Callable[[Prefiller], Callable[[], None]],
) -> None:
    forward = way(prefiller)
    prefiller.begin()
    forward()
    prefiller.end()
    assert f"the first pass on this GPU {sentence}, each once and in order" in caplog.text
    for step in (2, 3):
        start = prefiller.messenger.count
        prefiller.begin()
        assert not prefiller.connector.has_connector_metadata(), "no layer is counted any more"
        forward()
        prefiller.device.finish()
        assert prefiller.messenger.count == start
        assert prefiller.step_commands() == ["step", "stepEnded"] * (step - 1)
        prefiller.end()
        assert prefiller.step_commands() == ["step", "stepEnded"] * step
    assert [prefiller.messenger.chunks_of(f"r{step}")[0]["endToken"] for step in (1, 2, 3)] == [100] * 3
    assert prefiller.counted_right == 0


def test_should_release_what_is_told_late_behind_what_the_device_has_queued(prefiller: Prefiller) -> None:
    """The host has queued the pass, and is far ahead of it."""
    prefiller.begin()
    prefiller.end()
    assert prefiller.counted_right == 0
    submitted: list[Any] = []
    submit, prefiller.messenger.submit = prefiller.messenger.submit, submitted.extend
    start = prefiller.messenger.count
    prefiller.begin()
    opened = prefiller.device.hold()
    prefiller.connector.wait_for_save()
    assert [name_of(command) for command in submitted] == ["announce", "step", "stepEnded"]
    assert (submitted[1].counter_start, submitted[2].counter_end) == (start, start + 5)
    assert prefiller.messenger.count == start, "its pages are written when the word says so"
    opened.set()
    prefiller.device.finish()
    assert prefiller.messenger.count == start + 5
    prefiller.messenger.submit = submit


def test_should_send_all_requests_of_the_first_pass(prefiller: Prefiller) -> None:
    prefiller.begin(prefiller.chunk("a"), prefiller.chunk("b", 0, 60))
    prefiller.run_pass()
    prefiller.end()
    (step,) = prefiller.messenger.of_kind("step")
    assert [(chunk["request"], chunk["endToken"]) for chunk in step["chunks"]] == [("a", 100), ("b", 60)]
    assert set(prefiller.connector._worker._prefills._sending) == {"a", "b"}


def test_should_send_a_prompt_whose_first_chunk_is_the_first_pass(prefiller: Prefiller) -> None:
    chunks = [prefiller.chunk("a", first, first + 128, 384) for first in (0, 128, 256)]
    seen = []
    for chunk in chunks:
        prefiller.begin(chunk)
        seen.append(len(prefiller.messenger.chunks_of("a")))
        prefiller.run_pass()
        prefiller.end()
    assert seen == [0, 2, 3]
    assert [chunk["firstToken"] for chunk in prefiller.messenger.chunks_of("a")] == [0, 128, 256]


def test_should_check_the_next_pass_when_the_first_has_failed(prefiller: Prefiller) -> None:
    prefiller.begin()
    prefiller.run_pass(*LAYERS[:2])
    try:
        raise RuntimeError("no memory")
    except RuntimeError:
        prefiller.connector.wait_for_save()
    assert prefiller.step_commands() == []
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == ["failed"]
    prefiller.count_first_pass()
    assert prefiller.counted_right == 1
    assert prefiller.messenger.chunks_of("r1") == []
    prefiller.begin()
    assert prefiller.step_commands() == ["step", "stepEnded", "step"]


def test_should_end_a_request_that_is_cancelled_while_the_first_pass_runs(prefiller: Prefiller) -> None:
    """The engine's word comes with the next step; the pages are held until the messenger lets them go."""
    prefiller.count_first_pass()
    end = prefiller.release.metadata.PrefillEnded("r1", "aborted")
    prefiller.begin(prefiller.chunk("b"), prefill_ends=[end])
    named_commands = [
        (each["do"], each.get("request")) for each in prefiller.messenger.commands if each["do"] != "stepEnded"
    ]
    ended = named_commands.index(("prefillEnded", "r1"))
    assert named_commands.index(("step", None)) < ended < len(named_commands) - 1
    assert prefiller.connector.get_transfer_results(set()).finished_sending == set()
    prefiller.messenger.release("r1")
    assert prefiller.connector.get_transfer_results(set()).finished_sending == {"r1"}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("cuLaunchKernel", "the first pass cannot be counted"),
        ("cuStreamSynchronize", "the end of the first forward pass"),
    ],
)
def test_should_send_whole_passes_when_the_driver_refuses_to_count_the_first(
    prefiller: Prefiller, caplog: pytest.LogCaptureFixture, call: str, sentence: str
) -> None:
    refuses = prefiller.device.stand_in.standInFail
    if call == "cuLaunchKernel":
        refuses(call.encode(), 1, OUT_OF_MEMORY)
    prefiller.begin(prefiller.chunk("a"))
    prefiller.run_pass()
    if call == "cuStreamSynchronize":
        refuses(call.encode(), 1, OUT_OF_MEMORY)
    prefiller.end()
    assert sentence in caplog.text
    prefiller.begin(prefiller.chunk("b"))
    assert prefiller.step_commands() == ["step", "stepEnded"]
    prefiller.end()
    assert prefiller.step_commands() == ["step", "stepEnded"] * 2
    assert prefiller.counted_right == 0


@pytest.mark.parametrize("says_over", ["finish_forward", "get_transfer_results"])
def test_should_check_the_model_s_layers_alone_where_a_drafter_runs(prefiller: Prefiller, says_over: str) -> None:
    """Its graphs were captured with bumps of its layers, or of any: they run before the step is ended."""
    model, draft = (prefiller.device.capture(prefiller.run_pass) for _ in range(2))
    prefiller.begin()
    model()
    getattr(prefiller.connector, says_over)(*([set()] if says_over == "get_transfer_results" else []))
    assert prefiller.step_commands() == [], "no pages may leave that a drafter has not written"
    draft()
    prefiller.end()
    assert prefiller.counted_right == 1


def test_should_tell_no_pass_early_before_all_messengers_have_counted_one(prefiller: Prefiller) -> None:
    prefiller.count_first_pass()
    assert prefiller.counted_right == 1
    prefiller.counted_right = 0  # another has not
    prefiller.begin()
    assert not prefiller.connector.has_connector_metadata()
    prefiller.end()
    assert prefiller.step_commands() == ["step", "stepEnded"] * 2


def test_should_expect_no_count_of_layers_without_a_hook(vllm_release: Release) -> None:
    """Nor of a draft's, which runs when the check is over."""
    groups = [KvGroup(("a", "b", "draft"), 16), KvGroup(("state",), 16, state=True)]
    draft = SimpleNamespace(get_total_num_hidden_layers=lambda: 1)
    for speculative, expected in ((None, 3), (SimpleNamespace(method="eagle", draft_model_config=draft), 2)):
        facts, settings = SimpleNamespace(kv_groups=groups), SimpleNamespace(speculative_config=speculative)
        start = vllm_release.rank_start.RankStart(settings, facts, None, logging.getLogger())
        assert start._counted_layers(["a", "b", "draft", "state"]) == expected
