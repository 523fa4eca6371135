"""The check of the first pass on a GPU, against the stand-in for NVIDIA's driver: nothing here has run on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_prefiller import OUT_OF_MEMORY, GpuPrefiller
from release import Release
from simulated_engine import LAYERS

from kv_connector.runtime.commands import name_of
from kv_connector.vllm.kv_groups import KvGroup


def test_should_report_the_first_pass_when_it_is_over_and_later_ones_before(
    prefiller: GpuPrefiller, caplog: pytest.LogCaptureFixture
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


def captured(*passes: tuple[str, ...]) -> Callable[[GpuPrefiller], Callable[[], None]]:
    """A pass as graphs of these layers, launched one after the other."""

    def capture(prefiller: GpuPrefiller) -> Callable[[], None]:
        launches = [prefiller.device.capture(lambda names=names: prefiller.run_pass(*names)) for names in passes]
        return lambda: [launch() for launch in launches] and None

    return capture


def eager(*names: str) -> Callable[[GpuPrefiller], Callable[[], None]]:
    return lambda prefiller: lambda: prefiller.run_pass(*names)


def twice(way: Callable[[GpuPrefiller], Callable[[], None]]) -> Callable[[GpuPrefiller], Callable[[], None]]:
    def both(prefiller: GpuPrefiller) -> Callable[[], None]:
        launches = [way(prefiller)] * 2
        return lambda: [launch() for launch in launches] and None

    return both


@pytest.mark.parametrize(
    "way",
    [eager(*LAYERS), captured(LAYERS), captured(LAYERS[:1], LAYERS[1:3], LAYERS[3:])],
    ids=["eager", "whole graph", "graphs between which attention runs"],
)
def test_should_take_a_first_pass_that_counts_each_layer_once(
    prefiller: GpuPrefiller, way: Callable[[GpuPrefiller], Callable[[], None]]
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
    prefiller: GpuPrefiller,
    caplog: pytest.LogCaptureFixture,
    sentence: str,
    way: Callable[[GpuPrefiller], Callable[[], None]],
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


def test_should_release_what_is_reported_late_behind_what_the_device_has_queued(prefiller: GpuPrefiller) -> None:
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


def test_should_send_all_requests_of_the_first_pass(prefiller: GpuPrefiller) -> None:
    prefiller.begin(prefiller.chunk("a"), prefiller.chunk("b", 0, 60))
    prefiller.run_pass()
    prefiller.end()
    (step,) = prefiller.messenger.of_kind("step")
    assert [(chunk["request"], chunk["endToken"]) for chunk in step["chunks"]] == [("a", 100), ("b", 60)]
    assert set(prefiller.connector._worker._prefills._sending) == {"a", "b"}


def test_should_send_a_prompt_whose_first_chunk_is_the_first_pass(prefiller: GpuPrefiller) -> None:
    chunks = [prefiller.chunk("a", first, first + 128, 384) for first in (0, 128, 256)]
    seen = []
    for chunk in chunks:
        prefiller.begin(chunk)
        seen.append(len(prefiller.messenger.chunks_of("a")))
        prefiller.run_pass()
        prefiller.end()
    assert seen == [0, 2, 3]
    assert [chunk["firstToken"] for chunk in prefiller.messenger.chunks_of("a")] == [0, 128, 256]


def test_should_check_the_next_pass_when_the_first_has_failed(prefiller: GpuPrefiller) -> None:
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


def test_should_end_a_request_that_is_cancelled_while_the_first_pass_runs(prefiller: GpuPrefiller) -> None:
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
    prefiller: GpuPrefiller, caplog: pytest.LogCaptureFixture, call: str, sentence: str
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
def test_should_check_the_model_s_layers_alone_where_a_drafter_runs(prefiller: GpuPrefiller, says_over: str) -> None:
    """Its graphs were captured with bumps of its layers, or of any: they run before the step is ended."""
    model, draft = (prefiller.device.capture(prefiller.run_pass) for _ in range(2))
    prefiller.begin()
    model()
    getattr(prefiller.connector, says_over)(*([set()] if says_over == "get_transfer_results" else []))
    assert prefiller.step_commands() == [], "no pages may leave that a drafter has not written"
    draft()
    prefiller.end()
    assert prefiller.counted_right == 1


def test_should_report_no_pass_early_before_all_messengers_have_counted_one(prefiller: GpuPrefiller) -> None:
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
