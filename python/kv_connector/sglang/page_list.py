"""The pages of one prompt, by their positions: what SGLang has given, and what the messenger knows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


class PagesMovedError(Exception):
    """SGLang gives another page for a position whose page the messenger already reads."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of a prompt from a position on."""

    first_page: int
    pages: list[int]

    @property
    def end_page(self) -> int:
        """The position behind the last one."""
        return self.first_page + len(self.pages)


class PageList:
    """Position k of the prompt is page k, whichever call says it first: an early plan, or the pages SGLang gives.

    The first positions are those of pages that the decoder has: they are counted, and no page is ever named for them.
    """

    def __init__(self, decoders_count: int, count: int) -> None:
        self.total = decoders_count + count
        """Pages of the whole prompt."""
        self.given = decoders_count
        """SGLang has given the pages before this position; it gives each once, in their order."""
        self.told = decoders_count
        """The messenger knows the pages before this position; more than are given where a plan ran ahead."""
        self._first = decoders_count
        self._pages: list[int] = []

    @property
    def known_pages(self) -> Pages:
        """All that a call has said."""
        return Pages(self._first, list(self._pages))

    @property
    def complete(self) -> bool:
        """Whether SGLang has given all."""
        return self.given == self.total

    def give(self, pages: Sequence[int]) -> None:
        """SGLang's next pages. Raises PagesMovedError if one differs from what a plan has told of its position."""
        end = self.given + len(pages)
        if end > self.total:
            raise AssertionError(f"{len(pages)} pages from position {self.given} of a prompt of {self.total}")
        planned = self._from(self.given, end)
        if planned != list(pages[: len(planned)]):
            moved = next(k for k, page in enumerate(planned) if page != pages[k])
            raise PagesMovedError(
                f"page {pages[moved]} holds position {self.given + moved}, which was computed in page {planned[moved]}"
            )
        self._pages.extend(pages[len(planned) :])
        self.given = end

    def unreported(self, end_page: int) -> Pages:
        """What the messenger does not know yet of the positions before ``end_page``, all of which are here."""
        if end_page > self._known:
            raise AssertionError(f"position {end_page} of {self._known} known")
        return Pages(self.told, self._from(self.told, end_page))

    def plan(self, end_page: int, pages_of: Callable[[int, int], list[int]]) -> Pages | None:
        """What to tell so that the messenger knows the positions before ``end_page``; None if it does.

        Changes nothing: that is ``on_told``'s. ``pages_of`` gives the pages between two positions.
        """
        known = self._known
        if end_page <= known:
            return None
        ahead = pages_of(known, end_page)
        if len(ahead) != end_page - known:
            raise AssertionError(f"{len(ahead)} pages for positions {known} to {end_page}")
        return Pages(self.told, self._from(self.told, known) + ahead)

    def on_told(self, told: Pages) -> None:
        """The messenger has taken these."""
        if told.first_page > self.told:
            raise AssertionError(f"told from position {told.first_page} on, known are {self.told}")
        self._pages[told.first_page - self._first : told.end_page - self._first] = told.pages
        self.told = max(self.told, told.end_page)

    @property
    def _known(self) -> int:
        return self._first + len(self._pages)

    def _from(self, first_page: int, end_page: int) -> list[int]:
        return self._pages[first_page - self._first : end_page - self._first]
