"""The plan of a forward pass whose page numbers are still on the device when the pass is queued.

Used by the scheduler's thread only. It is made when the numbers are on the host, not before: until then a request may
have ended, been sent or found a twin in SGLang's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kv_connector.sglang.device_reads import NumberCopies
from kv_connector.sglang.exchange import PlannedChunk

if TYPE_CHECKING:
    from kv_connector.sglang.sender import Sender


@dataclass(frozen=True, slots=True)
class Draft:
    """One request's part of a forward pass."""

    sender: Sender
    end_token: int
    """The pass computes the prompt up to here."""
    prompt_tokens: int
    first_page: int
    """The position in the prompt of the first of ``numbers``."""
    numbers: Any
    """The pages from there on, in a tensor on the host, once they are copied."""

    def chunk(self) -> PlannedChunk | None:
        """The chunk, if it is to be sent layer by layer; the numbers must be copied."""
        return self.sender.plan(self.end_token, self.prompt_tokens, self._pages_of)

    def _pages_of(self, first_page: int, end_page: int) -> list[int]:
        return list(self.numbers[first_page - self.first_page : end_page - self.first_page].tolist())


@dataclass(frozen=True, slots=True)
class LatePlan:
    """The drafts of a pass, with the copies of their page numbers under way."""

    drafts: Sequence[Draft]
    copies: NumberCopies

    def is_read(self) -> bool:
        """Whether the page numbers are on the host."""
        return self.copies.are_over()

    def chunks(self) -> list[PlannedChunk]:
        """What is to be sent layer by layer, as things are now."""
        chunks = (draft.chunk() for draft in self.drafts)
        return [chunk for chunk in chunks if chunk is not None]
