"""The connector of an engine on a GPU, against the stand-in for NVIDIA's driver: nothing here has run on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_prefiller import OUT_OF_MEMORY, GpuPrefiller, the_device
from release import Release
from simulated_engine import LAYERS, caches, config


def counts_of(prefiller: GpuPrefiller) -> list[tuple[int, int]]:
    steps, ends = prefiller.messenger.of_kind("step"), prefiller.messenger.of_kind("stepEnded")
    return [(begun["counterStart"], ended["counterEnd"]) for begun, ended in zip(steps, ends, strict=True)]


def test_should_notify_the_messenger_that_kv_is_on_a_device(prefiller: GpuPrefiller) -> None:
    (memory,) = prefiller.messenger.geometry["ranks"][0]["memories"]
    assert (memory["kind"], memory["device"], memory["handleKind"]) == ("cuda", 1, "none")
    assert "memfd" not in memory


@pytest.mark.parametrize(("transport", "handle"), [("cuda", "posixFd"), ("shm", "none")])
def test_should_say_that_kv_can_be_passed_on_where_peers_map_it(
    vllm_release: Release, transport: str, handle: str
) -> None:
    """Over shm an engine copies from its device itself, so torch's own memory will do."""
    prefiller = GpuPrefiller(vllm_release, the_device(), transport=transport)
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
        prefiller = GpuPrefiller(vllm_release, the_device(), transport="cuda")
        (memory,) = prefiller.messenger.geometry["ranks"][0]["memories"]
        assert memory["handleKind"] == "none"
        assert f"device 0 lacks {lack}" in caplog.text
        prefiller.close()
        assert stand_in.standInHeld() == 0
    finally:
        stand_in.standInAttribute(attribute, 1)


def test_should_count_eager_layers_behind_the_stream(prefiller: GpuPrefiller) -> None:
    start = prefiller.count_first_pass()
    for _ in range(2):
        prefiller.begin()
        prefiller.run_pass()
        prefiller.end()
    assert prefiller.messenger.count == start + 2 * (len(LAYERS) + 1)
    assert counts_of(prefiller)[1:] == [(start, start + 5), (start + 5, start + 10)]


def test_should_count_what_a_whole_graph_repeats_in_steps_only(prefiller: GpuPrefiller) -> None:
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


def test_should_release_a_pass_without_hooks_by_its_end(prefiller: GpuPrefiller) -> None:
    start = prefiller.count_first_pass()
    prefiller.begin()
    prefiller.device.finish()
    assert prefiller.messenger.count == start
    prefiller.end()
    assert prefiller.messenger.count == start + 5


def test_should_say_once_that_hooks_fire_out_of_order(
    prefiller: GpuPrefiller, caplog: pytest.LogCaptureFixture
) -> None:
    prefiller.count_first_pass()
    for _ in range(2):
        prefiller.begin()
        prefiller.run_pass(*reversed(LAYERS))
        prefiller.end()
    assert caplog.text.count("layers do not finish in their order") == 1


def test_should_send_nothing_of_a_step_that_cannot_begin_on_the_device(prefiller: GpuPrefiller) -> None:
    prefiller.count_first_pass()
    prefiller.device.stand_in.standInFail(b"cuLaunchKernel", 1, OUT_OF_MEMORY)
    prefiller.begin()
    assert not prefiller.connector.has_connector_metadata()
    prefiller.end()
    assert prefiller.step_commands() == ["step", "stepEnded"]
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == ["failed"]


def test_should_send_nothing_of_a_step_that_cannot_end_on_the_device(prefiller: GpuPrefiller) -> None:
    prefiller.count_first_pass()
    prefiller.begin()
    prefiller.run_pass()
    prefiller.device.finish()
    prefiller.device.stand_in.standInFail(b"cuLaunchKernel", 1, OUT_OF_MEMORY)
    prefiller.end()
    assert [failed["step"] for failed in prefiller.messenger.of_kind("stepFailed")] == [2]
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == ["failed"]


def test_should_say_what_of_it_has_not_run_on_a_gpu(vllm_release: Release, caplog: pytest.LogCaptureFixture) -> None:
    GpuPrefiller(vllm_release, the_device()).close()
    assert "gpu is 'unproven'" in caplog.text
    assert "not with several GPUs" in caplog.text


def test_should_put_no_bump_into_the_graphs_of_a_decoder(vllm_release: Release) -> None:
    decoder = GpuPrefiller(vllm_release, the_device(), "kv_consumer")
    asked: list[bool] = []
    decoder.device.capture(lambda: asked.append(decoder.connector.has_connector_metadata()))
    assert asked == [False]
    assert the_device().stand_in.standInHeld() == 0


@pytest.mark.parametrize(
    ("call", "nth"),
    [
        ("cuModuleLoadData", 1),
        ("cuModuleGetFunction", 2),
        ("cuMemAlloc_v2", 1),
        ("cuMemHostRegister_v2", 1),
        ("cuLaunchKernel", 2),
        ("cuMemHostRegister_v2", 2),
        ("cuModuleLoadData", 2),
    ],
)
def test_should_send_after_the_pass_on_a_device_that_does_not_count(
    vllm_release: Release, caplog: pytest.LogCaptureFixture, call: str, nth: int
) -> None:
    """Nothing optional may end a start: the first refusals are of the check, the last two of the word itself."""
    the_device().stand_in.standInFail(call.encode(), nth, OUT_OF_MEMORY)
    prefiller = GpuPrefiller(vllm_release, the_device())
    assert caplog.text.count("layers leave when their forward pass is over, because this GPU cannot count") == 1
    assert call.removesuffix("_v2") in caplog.text
    assert "cannot start" not in caplog.text
    _sends_each_pass_when_it_is_over(prefiller)


def test_should_send_after_the_pass_on_a_device_that_counts_wrong(
    vllm_release: Release, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_connector.memory.device_word.DeviceWord.bump", lambda _: None)
    prefiller = GpuPrefiller(vllm_release, the_device())
    assert "this GPU cannot count: the device counted to 2, expected 3" in caplog.text
    _sends_each_pass_when_it_is_over(prefiller)


def _sends_each_pass_when_it_is_over(prefiller: GpuPrefiller) -> None:
    """The device may still compute when the pass is queued: nothing is reported before it was waited for."""
    launches = prefiller.device.stand_in.standInCallCount
    before = launches(b"cuLaunchKernel")
    prefiller.device.capture(prefiller.run_pass)
    for step in range(1, 4):
        start = prefiller.messenger.count
        prefiller.begin()
        prefiller.run_pass()
        assert prefiller.step_commands() == ["step", "stepEnded"] * (step - 1)
        assert prefiller.messenger.count == start
        waits = len(prefiller.reported_at_waits)
        prefiller.end()
        assert prefiller.reported_at_waits[waits] == 2 * (step - 1)
        assert prefiller.step_commands() == ["step", "stepEnded"] * step
        assert prefiller.messenger.count == start + len(LAYERS) + 1
    assert prefiller.counted_right == 0
    assert launches(b"cuLaunchKernel") == before
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == []
    prefiller.close()
    assert the_device().stand_in.standInHeld() == 0


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
