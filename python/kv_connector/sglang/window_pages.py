"""The pages of a prompt that SGLang keeps for layers with a sliding window, by position. Pure.

Such layers have a separate pool. Its page list comes with the last chunk and has only the pages that overlap the
prompt's last window; earlier pages have been freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kv_connector.sglang.page_list import Pages

_ANY_PAGE = 0
"""A placeholder for a page before the window, which is not sent."""


@dataclass(frozen=True, slots=True)
class WindowPages:
    """The windowed pages of one prompt; positions count from its first page."""

    prompt_tokens: int
    first_token: int
    """The decoder has the tokens before this one."""
    window_tokens: int
    page_tokens: int
    leaves_early: ClassVar[bool] = False

    @property
    def first_page(self) -> int:
        """The first position that is sent."""
        return max(self.first_token, self.prompt_tokens - self.window_tokens) // self.page_tokens

    @property
    def end_page(self) -> int:
        """The position after the last page."""
        return -(-self.prompt_tokens // self.page_tokens)

    def misfit(self, full: Pages, given: Sequence[int]) -> str:
        """Why these pages of full attention, and these of windowed layers, are not the prompt's; "" if they are."""
        in_window = self.end_page - self.first_page
        if full.end_page == self.end_page and len(given) == in_window:
            return ""
        return (
            f"SGLang gives {full.end_page} pages and {len(given)} of the layers with a window of"
            f" {self.window_tokens} tokens, expected {self.end_page} and {in_window} for {self.prompt_tokens} tokens:"
            " please report this with SGLang's arguments"
        )

    def named(self, first_page: int, end_page: int, windowed_pages: Sequence[int]) -> list[int]:
        """A page for each position in ``[first_page, end_page)``; ``windowed_pages`` begin at ``self.first_page``."""
        before = [_ANY_PAGE] * max(0, min(end_page, self.first_page) - first_page)
        return before + list(windowed_pages[max(0, first_page - self.first_page) : max(0, end_page - self.first_page)])

    def readable_end(self, end_page: int) -> int:
        """Pages from the window's first position on wait for the last chunk, which names the windowed pages."""
        return min(end_page, self.first_page)

    def beside(self, of_full: Pages, given: Sequence[int] | None) -> Pages:
        """A page for each position of ``of_full``; ``given`` is None before the last chunk."""
        return Pages(of_full.first_page, self.named(of_full.first_page, of_full.end_page, given or ()))

    def granted(self, full: Pages, given: Sequence[int]) -> list[int]:  # noqa: ARG002 - pages of the window alone
        """The pages from the window's first position on."""
        return list(given)
