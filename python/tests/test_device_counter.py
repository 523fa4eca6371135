"""The layer counter on a device, against the stand-in for NVIDIA's driver: nothing here has run on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

import pytest
from cuda_stand_in import HOST_FUNCTION, Device, library_or_skip

from kv_connector import LayerCounter
from kv_connector.memory.cuda_driver import CudaDriver, CudaError
from kv_connector.memory.device_word import DeviceWord, check_counting
from kv_connector.memory.layer_counter import GraphLayers

NAMES = ["a", "b", "c"]
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def library() -> str:
    return library_or_skip()


@pytest.fixture(scope="module")
def device(library: str) -> Device:
    return Device(library)


@pytest.fixture
def word() -> ctypes.c_uint64:
    return ctypes.c_uint64(0)


@pytest.fixture
def counter(device: Device, word: ctypes.c_uint64) -> Iterator[LayerCounter]:
    queued = DeviceWord.aimed(device.driver, ctypes.addressof(word), device.stream)
    yield LayerCounter(ctypes.addressof(word), NAMES, queued)
    device.finish()
    queued.close()
    assert device.stand_in.standInHeld() == 0


def run_pass(counter: LayerCounter) -> None:
    for name in NAMES:
        counter.layer_complete(name)


def test_should_count_a_layer_only_when_the_device_has_written_it(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    seen: list[tuple[str, int]] = []
    opened = device.hold()
    counter.begin_step()
    for name in NAMES:
        device.queue(lambda name=name: seen.append((name, word.value)))  # type: ignore[misc]
        assert counter.layer_complete(name)
    end = counter.end_step()
    assert (word.value, seen) == (0, [])

    opened.set()
    device.finish()
    assert seen == [("a", 0), ("b", 1), ("c", 2)]
    assert word.value == end == 4


def test_should_report_positions_of_what_is_queued_while_the_word_is_behind(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    opened = device.hold()
    counts = []
    for _ in range(3):
        counts.append(counter.begin_step())
        run_pass(counter)
        counts.append(counter.end_step())
    assert counts == [0, 4, 4, 8, 8, 12]
    assert word.value == 0

    opened.set()
    device.finish()
    assert word.value == 12


def test_should_release_layers_without_a_hook_behind_all_that_the_step_queued(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    counter.begin_step()
    counter.layer_complete("a")
    counter.layer_complete("c")
    opened = device.hold()  # kernels of the layers that were not counted
    end = counter.end_step()
    assert word.value < end
    opened.set()
    device.finish()
    assert word.value == end


def test_should_count_the_replays_of_a_graph_within_steps_only(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    launch = device.capture(lambda: run_pass(counter))
    for _ in range(10):  # warm-up
        launch()
    device.finish()
    assert word.value == counter.position == 0

    for step in range(1000):
        seen: list[int] = []
        assert counter.begin_step() == step * 4
        launch()
        if step % 100 == 0:
            device.queue(lambda seen=seen: seen.append(word.value))  # type: ignore[misc]
        counter.end_step()
        launch()  # a dummy batch
        device.finish()
        assert seen in ([], [step * 4 + 3])
    assert word.value == counter.position == 4000


def test_should_count_layers_one_by_one_within_a_replay(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    seen: list[int] = []

    def queue_pass() -> None:
        for name in NAMES:
            device.queue(lambda: seen.append(word.value))
            counter.layer_complete(name)

    launch = device.capture(queue_pass)
    for _ in range(2):
        counter.begin_step()
        launch()
        counter.end_step()
    device.finish()
    assert seen == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize(("fired", "counted"), [(("a", "c", "b"), 1), (("a", "a", "b"), 1), (("b", "c"), 0)])
def test_should_count_in_a_graph_what_is_complete_in_the_registered_order(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64, fired: tuple[str, ...], counted: int
) -> None:
    launch = device.capture(lambda: [counter.layer_complete(name) for name in fired] and None)
    counter.begin_step()
    launch()
    device.finish()
    assert word.value == counted
    assert counter.end_step() == 4


def test_should_capture_each_graph_from_its_first_layer(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    device.capture(lambda: counter.layer_complete("a") and None)
    launch = device.capture(lambda: run_pass(counter))
    counter.begin_step()
    launch()
    device.finish()
    assert word.value == 3


def test_should_go_on_in_the_next_graph_of_a_pass_that_is_captured_in_parts(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    """As where attention runs between graphs: each of them is a capture of its own."""
    first = device.capture(lambda: counter.layer_complete("a") and None)
    second = device.capture(lambda: [counter.layer_complete(name) for name in "bc"] and None)
    for _ in range(2):
        start = counter.begin_step()
        first()
        device.finish()
        assert word.value == start + 1
        second()
        device.finish()
        assert word.value == start + 3
        counter.end_step()


def test_should_count_nothing_more_of_a_pass_in_parts_that_was_out_of_order(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    launches = [device.capture(lambda name=name: counter.layer_complete(name) and None) for name in "acb"]  # type: ignore[misc]
    counter.begin_step()
    for launch in launches:
        launch()
    device.finish()
    assert word.value == 1


def test_should_count_by_a_graph_that_was_captured_before_there_was_a_word(device: Device) -> None:
    queued = DeviceWord(device.driver, device.stream)
    graph_layers = GraphLayers(queued, NAMES)
    launch = device.capture(lambda: [graph_layers.layer_complete(name) for name in NAMES] and None)
    assert not graph_layers.layer_complete("a"), "no capture"
    launch()
    device.finish()
    for word in (ctypes.c_uint64(0), ctypes.c_uint64(70)):
        start = word.value
        queued.aim(ctypes.addressof(word))
        counter = LayerCounter(ctypes.addressof(word), NAMES, queued)
        counter.begin_step()
        launch()
        counter.end_step()
        queued.let_go()
        assert word.value == start + 4
        word.value = 0
        launch()
        device.finish()
        assert word.value == 0, "its memory may be gone"
    queued.close()
    assert device.stand_in.standInHeld() == 0


@contextlib.contextmanager
def held_until(device: Device, stream: int, call: bytes) -> Iterator[None]:
    """The stream stands still until this function of the driver is called, or the block ends."""
    opened, left = threading.Event(), threading.Event()
    before = device.stand_in.standInCallCount(call)

    def open_when_called() -> None:
        while device.stand_in.standInCallCount(call) == before and not left.wait(0.001):
            pass
        opened.set()

    function = HOST_FUNCTION(lambda _: opened.wait() and None)
    device.driver.call("cuLaunchHostFunc", ctypes.c_void_p(stream), function, None)
    watching = threading.Thread(target=open_when_called)
    watching.start()
    try:
        yield
    finally:
        left.set()
        watching.join()
        device.driver.synchronize(stream)


@pytest.fixture
def other_stream(device: Device) -> Iterator[int]:
    made = ctypes.c_void_p()
    device.driver.call("cuStreamCreate", ctypes.byref(made), 1)
    yield made.value or 0
    device.driver.call("cuStreamDestroy_v2", made)


def test_should_let_go_of_a_word_when_no_stream_writes_to_it_any_more(
    device: Device, word: ctypes.c_uint64, other_stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's thread has another current stream when a messenger is closed than its passes are queued on."""
    streams, seen = [device.stream()], []
    unregister = device.driver.unregister_host_memory
    monkeypatch.setattr(
        device.driver, "unregister_host_memory", lambda address: (seen.append(word.value), unregister(address))
    )
    queued = DeviceWord.aimed(device.driver, ctypes.addressof(word), lambda: streams[-1])
    with held_until(device, other_stream, b"cuCtxSynchronize"):
        streams.append(other_stream)
        queued.place(9, 9)
        streams.pop()
        queued.let_go()
    assert seen == [9]
    queued.close()
    assert device.stand_in.standInHeld() == 0


def test_should_be_aimed_before_another_stream_counts(device: Device, word: ctypes.c_uint64) -> None:
    queued, reached = DeviceWord(device.driver, device.stream), []
    with held_until(device, device.stream(), b"cuStreamSynchronize"):
        device.queue(lambda: reached.append("all that was queued before"))
        queued.aim(ctypes.addressof(word))
        assert reached
    queued.close()
    assert device.stand_in.standInHeld() == 0


def test_should_let_go_of_a_word_behind_a_step_whose_end_the_driver_refused(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    launch = device.capture(lambda: run_pass(counter))
    counter.begin_step()
    device.stand_in.standInFail(b"cuLaunchKernel", ctypes.c_long(1), OUT_OF_MEMORY)
    with pytest.raises(CudaError):
        counter.end_step()
    queued = counter._queued_word
    assert isinstance(queued, DeviceWord)
    queued.let_go()
    launch()
    device.finish()
    assert word.value == 0, "its memory may be gone"


@pytest.mark.parametrize("call", ["cuCtxSynchronize", "cuMemcpyHtoDAsync_v2"])
def test_should_unregister_a_word_also_where_the_driver_refuses_the_rest(
    device: Device, word: ctypes.c_uint64, call: str
) -> None:
    queued = DeviceWord.aimed(device.driver, ctypes.addressof(word), device.stream)
    before = device.stand_in.standInCallCount(b"cuMemHostUnregister")
    device.stand_in.standInFail(call.encode(), ctypes.c_long(1), OUT_OF_MEMORY)
    with pytest.raises(CudaError, match=f"{call} failed"):
        queued.let_go()
    assert device.stand_in.standInCallCount(b"cuMemHostUnregister") == before + 1
    queued.close()
    assert device.stand_in.standInHeld() == 0


def test_should_never_count_beyond_the_layers_of_a_step(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    launch = device.capture(lambda: run_pass(counter))
    counter.begin_step()
    launch()
    launch()
    device.finish()
    assert word.value == 3


def test_should_go_beyond_the_layers_of_a_pass_that_failed(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    counter.begin_step()
    counter.layer_complete("a")
    counter.fail_step()
    device.finish()
    assert word.value == counter.position == 4


def test_should_not_count_what_the_driver_refuses(device: Device, counter: LayerCounter, word: ctypes.c_uint64) -> None:
    counter.begin_step()
    device.stand_in.standInFail(b"cuLaunchKernel", ctypes.c_long(1), OUT_OF_MEMORY)
    with pytest.raises(CudaError, match="cuLaunchKernel failed with CUDA_ERROR_OUT_OF_MEMORY"):
        counter.layer_complete("a")
    assert not counter.layer_complete("b")
    device.finish()
    assert word.value == 0
    assert counter.end_step() == 4
    device.finish()
    assert word.value == 4


def test_should_begin_behind_a_step_whose_end_the_driver_refused(
    device: Device, counter: LayerCounter, word: ctypes.c_uint64
) -> None:
    counter.begin_step()
    run_pass(counter)
    device.stand_in.standInFail(b"cuLaunchKernel", ctypes.c_long(1), OUT_OF_MEMORY)
    with pytest.raises(CudaError):
        counter.end_step()
    device.finish()
    assert word.value == 3
    assert counter.begin_step() == 4
    device.finish()
    assert word.value == 4


@pytest.mark.parametrize(
    "call",
    [
        *("cuModuleLoadData", "cuModuleGetFunction", "cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2"),
        *("cuMemAlloc_v2", "cuLaunchKernel"),
    ],
)
def test_should_leave_nothing_behind_when_it_cannot_begin(device: Device, word: ctypes.c_uint64, call: str) -> None:
    before = [device.stand_in.standInCallCount(name) for name in (b"cuModuleLoadData", b"cuModuleUnload")]
    device.stand_in.standInFail(call.encode(), ctypes.c_long(1), OUT_OF_MEMORY)
    with pytest.raises(CudaError, match=f"{call} failed"):
        DeviceWord.aimed(device.driver, ctypes.addressof(word), device.stream)
    after = [device.stand_in.standInCallCount(name) for name in (b"cuModuleLoadData", b"cuModuleUnload")]
    unloaded = 0 if call == "cuModuleLoadData" else 1
    assert [then - now for now, then in zip(before, after, strict=True)] == [1, unloaded]
    assert device.stand_in.standInHeld() == 0


def test_should_check_that_the_device_counts(device: Device) -> None:
    check_counting(device.driver, device.stream)
    assert device.stand_in.standInHeld() == 0


def test_should_say_that_a_device_counts_otherwise(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceWord, "bump", lambda _: None)
    with pytest.raises(CudaError, match=r"counted to 2, expected 3; .* KV leaves later: report this"):
        check_counting(device.driver, device.stream)
    assert device.stand_in.standInHeld() == 0


def test_should_say_that_there_is_no_driver() -> None:
    with pytest.raises(CudaError, match=r"NVIDIA's driver cannot be loaded .* install it, or compute on the CPU"):
        CudaDriver("libcuda-that-is-not-there.so.1")
