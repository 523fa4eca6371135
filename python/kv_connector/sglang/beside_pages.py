"""What a second pool holds of a prompt, besides the pages of full attention. Pure.

SGLang gives the page list of that pool with the decoder's request, and with the prefiller's last chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from kv_connector.sglang.page_list import Pages

_NO_SLOT = 0
"""SGLang's slot for padding, which no request has."""


class BesidePages(Protocol):
    """The part of one prompt that is in the second pool."""

    @property
    def has_group(self) -> bool:
        """Whether the pool is a group of its own; if not, its pages go with those of full attention."""

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length as both sides count it."""

    def misfit(self, full: Pages, given: Sequence[int]) -> str:
        """Why these pages of full attention, and these of the other pool, are not the prompt's; "" if they are."""

    def readable_end(self, end_page: int) -> int:
        """How many pages of full attention can be sent before the last chunk, of those before ``end_page``."""

    def beside(self, of_full: Pages, given: Sequence[int]) -> Pages:
        """The pages of the second pool that go with ``of_full``; ``given`` is empty before the last chunk."""


@dataclass(frozen=True, slots=True)
class StateSlot:
    """The slot of a request in a model whose layers keep one state for all tokens.

    SGLang's prefiller computes all tokens of a prompt, and its decoder continues with the next token, which comes with
    the metadata. So the state is that after all tokens, and no token is computed twice.
    """

    prompt_tokens: int
    has_group: ClassVar[bool] = True

    def misfit(self, full: Pages, given: Sequence[int]) -> str:  # noqa: ARG002 - a state has no pages of tokens
        """An error unless exactly one slot is given."""
        if len(given) == 1 and given[0] != _NO_SLOT:
            return ""
        return (
            f"SGLang gives slots {list(given)} of state, expected one, and not {_NO_SLOT}:"
            " please report this with SGLang's arguments"
        )

    def readable_end(self, end_page: int) -> int:
        """Every page may be sent at once: KV pages do not depend on the state slot."""
        return end_page

    def beside(self, of_full: Pages, given: Sequence[int]) -> Pages:  # noqa: ARG002 - wherever they are
        """The slot, if it is given."""
        return Pages(0, list(given))


@dataclass(frozen=True, slots=True)
class IndexPages:
    """The keys of an indexer (DeepSeek sparse attention), which are in pages with the same numbers as the KV."""

    prompt_tokens: int
    has_group: ClassVar[bool] = False

    def misfit(self, full: Pages, given: Sequence[int]) -> str:
        """An error unless the pages are those of the KV."""
        if list(given) == full.pages:
            return ""
        return (
            f"SGLang gives {len(given)} pages of its indexer, expected those {len(full.pages)} that hold the KV:"
            " please report this with SGLang's arguments"
        )

    def readable_end(self, end_page: int) -> int:
        """All of them: the keys go with the KV."""
        return end_page

    def beside(self, of_full: Pages, given: Sequence[int]) -> Pages:  # noqa: ARG002 - the same
        """The same pages: they hold the KV and the keys."""
        return of_full
