"""What goes beside a prompt's pages of full attention, held against what SGLang gives; no SGLang."""

from __future__ import annotations

import pytest

from kv_connector.sglang.beside_pages import IndexPages, StateSlot
from kv_connector.sglang.page_list import Pages


def test_should_let_all_pages_leave_before_the_state_and_name_its_slot_when_it_is_given() -> None:
    slot = StateSlot(prompt_tokens=48)
    assert [slot.readable_end(end) for end in range(4)] == [0, 1, 2, 3]
    assert slot.beside(Pages(0, [7, 8]), ()) == Pages(0, [])
    assert slot.beside(Pages(2, [9]), [5]) == Pages(0, [5])


@pytest.mark.parametrize("given", [[], [1, 2], [0]])
def test_should_say_when_sglang_gives_no_slot_that_is_the_requests(given: list[int]) -> None:
    assert StateSlot(48).misfit(Pages(0, [7, 8, 9]), [5]) == ""
    assert StateSlot(48).misfit(Pages(0, [7, 8, 9]), given) == (
        f"SGLang gives slots {given} of state, expected one, and not 0: please report this with SGLang's arguments"
    )


def test_should_hold_an_indexers_pages_against_those_of_the_kv() -> None:
    keys = IndexPages(48)
    assert not keys.has_group
    assert keys.beside(Pages(1, [7, 8]), ()) == Pages(1, [7, 8])
    assert [keys.readable_end(end) for end in range(3)] == [0, 1, 2]
    assert keys.misfit(Pages(1, [7, 8]), [7, 8]) == ""
    assert keys.misfit(Pages(1, [7, 8]), [7, 9]) == (
        "SGLang gives 2 pages of its indexer, expected those 2 that hold the KV: please report this with SGLang's"
        " arguments"
    )
