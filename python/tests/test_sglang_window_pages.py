"""Which pages of a windowed pool are sent, held against what SGLang gives; no SGLang."""

from __future__ import annotations

import pytest

from kv_connector.sglang.page_list import Pages
from kv_connector.sglang.window_pages import WindowPages

PAGE_TOKENS = 4


def given_by_sglang(prompt_tokens: int, first_token: int, window_tokens: int) -> list[int]:
    """The positions of the pages that both of SGLang's queues list as its state of windowed layers."""
    start = max(first_token, prompt_tokens - window_tokens) // PAGE_TOKENS * PAGE_TOKENS
    return sorted({token // PAGE_TOKENS for token in range(start, prompt_tokens)})


@pytest.mark.parametrize("window_tokens", range(1, 14))
def test_should_count_the_pages_that_sglang_gives(window_tokens: int) -> None:
    for prompt_tokens in range(1, 40):
        for first_token in range(0, prompt_tokens, PAGE_TOKENS):
            positions = given_by_sglang(prompt_tokens, first_token, window_tokens)
            window = WindowPages(prompt_tokens, first_token, window_tokens, PAGE_TOKENS)
            assert list(range(window.first_page, window.end_page)) == positions
            full = Pages(first_token // PAGE_TOKENS, [0] * (window.end_page - first_token // PAGE_TOKENS))
            assert window.misfit(full, positions) == ""
            assert f"expected {window.end_page} and {len(positions)}" in window.misfit(full, positions[1:])
            assert "please report" in window.misfit(Pages(full.first_page, [*full.pages, 0]), positions)


def test_should_name_a_page_for_every_position_however_the_prompt_is_cut() -> None:
    window = WindowPages(prompt_tokens=30, first_token=4, window_tokens=9, page_tokens=PAGE_TOKENS)
    pages = [105, 106, 107]
    assert (window.first_page, window.end_page) == (5, 8)
    whole = window.named(1, 8, pages)
    assert whole[4:] == pages
    for cut in range(1, 9):
        assert window.named(1, cut, pages) + window.named(cut, 8, pages) == whole
    assert len(window.named(1, 5, ())) == 4, "before the window none is known, and none is sent"


def test_should_let_pages_leave_up_to_the_window_and_name_the_others_with_the_last_chunk() -> None:
    window = WindowPages(prompt_tokens=30, first_token=4, window_tokens=9, page_tokens=PAGE_TOKENS)
    assert [window.readable_end(end) for end in (1, 4, 5, 6, 8)] == [1, 4, 5, 5, 5]
    assert window.beside(Pages(1, [7, 8, 9]), None) == Pages(1, [0, 0, 0])
    assert window.beside(Pages(4, [7, 8, 9, 10]), [105, 106, 107]) == Pages(4, [0, 105, 106, 107])
