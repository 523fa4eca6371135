"""The pages of one prompt by position: those that SGLang has given, and those that the messenger knows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kv_connector.runtime.commands import ChunkPages


class PagesMovedError(Exception):
    """SGLang gave a different page for a position whose page the messenger already reads."""


class Pages(ChunkPages):
    """Consecutive pages of a prompt."""

    __slots__ = ()

    @property
    def end_page(self) -> int:
        """The position after the last page."""
        return self.first_page + len(self.pages)


class PageList:
    """The pages of a prompt by position, from plans before a forward pass and from the pages that SGLang gives.

    The first positions are pages that the decoder already has: they count, but no page is ever named for them.
    """

    def __init__(self, decoders_count: int, count: int) -> None:
        self.total = decoders_count + count
        """The number of pages of the whole prompt."""
        self.given = decoders_count
        """SGLang has given the pages before this position; it gives each page once, in order."""
        self.reported_end = decoders_count
        """The messenger knows the pages before this position; after a plan these may be more than are given."""
        self._first = decoders_count
        self._pages: list[int] = []

    @property
    def known_pages(self) -> Pages:
        """All pages known from plans or from SGLang."""
        return Pages(self._first, list(self._pages))

    @property
    def complete(self) -> bool:
        """Whether SGLang has given all pages."""
        return self.given == self.total

    def give(self, pages: Sequence[int]) -> None:
        """Takes SGLang's next pages. Raises PagesMovedError if one is not the page that a plan had at its position."""
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
        """The pages before ``end_page`` that the messenger does not know yet; all of them must be known here."""
        if end_page > self._known:
            raise AssertionError(f"position {end_page} of {self._known} known")
        return Pages(self.reported_end, self._from(self.reported_end, end_page))

    def unknown(self, end_page: int) -> tuple[int, int] | None:
        """From and to which position pages before ``end_page`` are not known yet; None if all are."""
        return (self._known, end_page) if end_page > self._known else None

    def plan(self, end_page: int, pages_of: Callable[[int, int], list[int]]) -> Pages | None:
        """The pages before ``end_page`` that the messenger does not know yet; None if it knows all.

        Changes no state; ``on_reported`` does. ``pages_of`` gives the pages between two positions.
        """
        known = self._known
        if end_page <= known:
            return None
        ahead = pages_of(known, end_page)
        if len(ahead) != end_page - known:
            raise AssertionError(f"{len(ahead)} pages for positions {known} to {end_page}")
        return Pages(self.reported_end, self._from(self.reported_end, known) + ahead)

    def on_reported(self, reported: Pages) -> None:
        """The messenger has accepted these pages."""
        if reported.first_page > self.reported_end:
            raise AssertionError(f"reported from position {reported.first_page} on, known are {self.reported_end}")
        self._pages[reported.first_page - self._first : reported.end_page - self._first] = reported.pages
        self.reported_end = max(self.reported_end, reported.end_page)

    def forget_reported(self) -> None:
        """The messenger knows the prompt by another name from now on, and none of its pages."""
        self.reported_end = self._first

    @property
    def _known(self) -> int:
        return self._first + len(self._pages)

    def _from(self, first_page: int, end_page: int) -> list[int]:
        return self._pages[first_page - self._first : end_page - self._first]
