"""The layer counter's word where a GPU does not count: this process writes it behind the GPU's work."""

from __future__ import annotations

import ctypes

import pytest

from kv_connector.memory.cuda_driver import CudaError
from kv_connector.memory.layer_counter import LayerCounter
from kv_connector.memory.waited_word import WaitedWord

NAMES = ["a", "b"]


def test_should_write_the_word_only_behind_the_devices_work() -> None:
    memory = ctypes.c_uint64(5)
    seen_while_waiting: list[int] = []
    word = WaitedWord(ctypes.addressof(memory), lambda: seen_while_waiting.append(memory.value))
    word.place(8, 10)
    assert (seen_while_waiting, memory.value) == ([5], 8)
    word.bump()
    word.wait()
    assert (seen_while_waiting, memory.value, word.capture()) == ([5, 8], 8, 0)


def test_should_release_nothing_of_a_pass_whose_end_cannot_be_waited_for() -> None:
    memory, faults = ctypes.c_uint64(), iter([None, CudaError("the stream failed")])

    def wait() -> None:
        if (fault := next(faults)) is not None:
            raise fault

    counter = LayerCounter(ctypes.addressof(memory), NAMES, WaitedWord(ctypes.addressof(memory), wait))
    assert counter.begin_step() == 0
    assert [counter.layer_complete(name) for name in NAMES] == [True, True]
    with pytest.raises(CudaError, match="the stream failed"):
        counter.end_step()
    assert memory.value == 0
