from __future__ import annotations

import ctypes

import pytest

from kv_connector import LayerCounter

NAMES = ["a", "b", "c"]


@pytest.fixture
def word() -> ctypes.c_uint64:
    return ctypes.c_uint64(0)


@pytest.fixture
def counter(word: ctypes.c_uint64) -> LayerCounter:
    return LayerCounter(ctypes.addressof(word), NAMES)


def test_should_count_each_layer_of_a_step_once(counter: LayerCounter, word: ctypes.c_uint64) -> None:
    seen = []
    for _ in range(2):
        seen.append(counter.begin_step())
        for name in NAMES:
            assert counter.layer_complete(name)
            seen.append(word.value)
        counter.end_step()
    assert seen == [0, 1, 2, 3, 3, 4, 5, 6]


def test_should_stop_at_a_layer_out_of_order_until_the_step_ends(counter: LayerCounter, word: ctypes.c_uint64) -> None:
    counter.begin_step()
    assert counter.layer_complete("a")
    assert not counter.layer_complete("c")
    assert not counter.layer_complete("b")
    assert word.value == 1
    counter.end_step()
    assert counter.steps_out_of_order == 1

    assert counter.begin_step() == 1
    assert counter.layer_complete("a")
    assert word.value == 2


def test_should_report_the_order_in_which_layers_really_fire(counter: LayerCounter) -> None:
    assert counter.observed_order == ("a", "b", "c")
    counter.begin_step()
    for name in ("b", "a", "c"):
        counter.layer_complete(name)
    counter.end_step()
    assert counter.observed_order == ("b", "a", "c")


def test_should_not_learn_an_order_from_half_a_step(counter: LayerCounter) -> None:
    counter.begin_step()
    counter.layer_complete("b")
    counter.end_step()
    assert counter.observed_order == ("a", "b", "c")


def test_should_not_count_a_layer_twice_or_an_unknown_one(counter: LayerCounter, word: ctypes.c_uint64) -> None:
    counter.begin_step()
    for name in NAMES:
        counter.layer_complete(name)
    assert not counter.layer_complete("a")
    assert not counter.layer_complete("draft")
    assert word.value == 3


def test_should_not_count_outside_a_step(counter: LayerCounter, word: ctypes.c_uint64) -> None:
    assert not counter.layer_complete("a")
    counter.begin_step()
    counter.end_step()
    assert not counter.layer_complete("a")
    assert word.value == 0


def test_should_report_where_each_step_begins_and_ends(counter: LayerCounter, word: ctypes.c_uint64) -> None:
    assert counter.begin_step() == 0
    counter.layer_complete("a")
    counter.layer_complete("c")  # out of order: the others are released by the end
    assert counter.end_step() == 1
    assert counter.begin_step() == 1
    for name in NAMES:
        counter.layer_complete(name)
    assert counter.end_step() == word.value == counter.position == 4


def test_should_leave_a_gap_behind_a_step_that_failed(counter: LayerCounter, word: ctypes.c_uint64) -> None:
    counter.begin_step()
    counter.layer_complete("a")
    counter.fail_step()
    assert word.value == len(NAMES) + 1, "beyond the layers of the step that failed"
    assert not counter.layer_complete("b")
    assert counter.begin_step() == len(NAMES) + 1
    counter.layer_complete("a")
    assert counter.end_step() == len(NAMES) + 2
    counter.fail_step()
    assert word.value == len(NAMES) + 2, "no step is under way"


def test_should_wrap_with_the_word(word: ctypes.c_uint64) -> None:
    word.value = 2**64 - 2
    counter = LayerCounter(ctypes.addressof(word), NAMES)
    assert counter.begin_step() == 2**64 - 2
    for name in NAMES:
        counter.layer_complete(name)
    assert counter.end_step() == word.value == 1


def test_should_begin_a_step_anew_when_the_last_one_was_not_ended(counter: LayerCounter) -> None:
    counter.begin_step()
    counter.layer_complete("a")
    assert counter.begin_step() == 1
    assert counter.layer_complete("a")


@pytest.mark.parametrize("address", [0, 4097])
def test_should_refuse_an_address_that_cannot_be_a_word(address: int) -> None:
    with pytest.raises(ValueError, match="expected a multiple of 8"):
        LayerCounter(address, NAMES)


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_should_refuse_names_that_are_no_order(word: ctypes.c_uint64, names: list[str]) -> None:
    with pytest.raises(ValueError, match="each once"):
        LayerCounter(ctypes.addressof(word), names)
