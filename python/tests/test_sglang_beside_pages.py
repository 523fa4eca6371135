"""What goes beside a prompt's pages of full attention, held against what SGLang gives; no SGLang."""

from __future__ import annotations

import pytest

from kv_connector.sglang.beside_pages import PromptParts, RequestRing, RequestSlot, SamePages, as_lists
from kv_connector.sglang.page_list import Pages
from kv_connector.sglang.window_pages import WindowPages


def test_should_let_all_pages_leave_before_the_state_and_name_its_slot_when_it_is_given() -> None:
    slot = RequestSlot("state")
    assert [slot.readable_end(end) for end in range(4)] == [0, 1, 2, 3]
    assert slot.beside(Pages(0, [7, 8]), None) == Pages(0, [])
    assert slot.beside(Pages(2, [9]), [5]) == Pages(0, [5])
    assert slot.granted(Pages(0, [7, 8]), [5]) == [5]


@pytest.mark.parametrize("given", [[], [1, 2], [0]])
def test_should_say_when_sglang_gives_no_slot_that_is_the_requests(given: list[int]) -> None:
    assert RequestSlot("state").misfit(Pages(0, [7, 8, 9]), [5]) == ""
    assert RequestSlot("state").misfit(Pages(0, [7, 8, 9]), given) == (
        f"SGLang gives slots {given} of state, expected one, and not 0: please report this with SGLang's arguments"
    )


def test_should_receive_a_row_where_no_token_waits_in_the_requests_own() -> None:
    ring = RequestRing(row=3)
    assert ring.granted(Pages(0, [7]), []) == [3]
    assert ring.granted(Pages(0, [7]), [5, 2, 2, 0, 0, 4]) == [5]


def test_should_send_the_row_of_waiting_tokens_or_the_row_for_padding_where_none_waits() -> None:
    ring = RequestRing()
    assert ring.beside(Pages(0, [7]), None) == Pages(0, [])
    assert ring.beside(Pages(0, [7]), [5, 2, 2, 0, 0, 4]) == Pages(0, [5])
    assert ring.beside(Pages(0, [7]), []) == Pages(0, [0])
    assert [ring.misfit(Pages(0, [7]), given) for given in ([], [5, 2, 2, 0, 0, 4])] == ["", ""]
    for wrong in ([5], [0, 2, 2, 0, 0, 4]):
        assert "expected nothing, or a row, not 0, and two runs of tokens in it" in ring.misfit(Pages(0, [7]), wrong)


def test_should_hold_pages_with_the_kvs_numbers_against_those_of_the_kv() -> None:
    keys = SamePages("its indexer", first_page=1)
    assert keys.beside(Pages(1, [7, 8]), None) == Pages(1, [7, 8])
    assert [keys.readable_end(end) for end in range(3)] == [0, 1, 2]
    assert keys.misfit(Pages(1, [7, 8]), [7, 8]) == ""
    assert keys.misfit(Pages(1, [7, 8]), [3, 7, 8]) == "", "the decoder has the first"
    for wrong in ([7, 9], [8], [3, 4, 7, 8], [7, 8, 9]):
        assert keys.misfit(Pages(1, [7, 8]), wrong) == (
            f"SGLang gives {len(wrong)} pages of its indexer, expected those 2 that hold the KV: please report this"
            " with SGLang's arguments"
        )


def test_should_go_over_all_pools_of_a_model() -> None:
    window = WindowPages(prompt_tokens=30, first_token=0, window_tokens=9, page_tokens=4)
    parts = PromptParts(30, [window, SamePages("its scales", 0), RequestSlot("state")], [None, 0, 1, 2])
    full, given = Pages(0, list(range(10, 18))), [[105, 106, 107], list(range(10, 18)), [5]]
    assert parts.misfit(full, given) == ""
    assert parts.granted(full, given) == [full.pages, full.pages, [105, 106, 107], full.pages, [5]]
    assert [parts.readable_end(end) for end in (3, 8)] == [3, 5], "what a window holds back waits in all pools"
    early = Pages(0, [10, 11])
    assert parts.groups(early) == [early, early, Pages(0, [0, 0]), early, Pages(0, [])]
    late = Pages(4, [14, 15, 16, 17])
    assert parts.groups(late, given) == [late, late, Pages(4, [0, 105, 106, 107]), late, Pages(0, [5])]
    assert not parts.leaves_early
    assert PromptParts(30, [SamePages("its scales", 0)], [0]).leaves_early


def test_should_say_which_pools_indices_are_wrong_or_missing() -> None:
    parts = PromptParts(8, [SamePages("its indexer", 0), RequestSlot("state")], [0, 1])
    assert "gives the indices of 1 pools beside the KV, expected 2" in parts.misfit(Pages(0, [7, 8]), [[7, 8]])
    assert "pages of its indexer" in parts.misfit(Pages(0, [7, 8]), [[7, 9], [5]])
    assert "slots [] of state" in parts.misfit(Pages(0, [7, 8]), [[7, 8], []])


def test_should_take_indices_as_sglang_gives_them() -> None:
    assert as_lists(None) == []
    assert as_lists([[1, 2], None, ()]) == [[1, 2], [], []]
