"""What SGLang keeps of a prompt beside its pages of full attention, in a pool of its own. Pure.

SGLang gives a list of that pool's pages with the decoder's request, and another with the prefiller's last chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from kv_connector.sglang.page_list import Pages

_NO_SLOT = 0
"""SGLang's slot for what is padded; no request has it."""


class BesidePages(Protocol):
    """Of one prompt."""

    @property
    def has_group(self) -> bool:
        """Whether it is a group of its own; if not, it goes with the pages of full attention."""

    @property
    def prompt_tokens(self) -> int:
        """As both sides count them."""

    def misfit(self, full: Pages, given: Sequence[int]) -> str:
        """Why these pages of full attention, and these of the other pool, are not the prompt's; "" if they are."""

    def readable_end(self, end_page: int) -> int:
        """Which of the full layers' pages may be told before the last chunk, if those before ``end_page`` are there."""

    def beside(self, of_full: Pages, given: Sequence[int]) -> Pages:
        """What is told of the other pool with these pages of full attention; it is given with the last chunk only."""


@dataclass(frozen=True, slots=True)
class StateSlot:
    """Of a model whose layers keep one state of all tokens: a request has one slot of it.

    SGLang computes every token of a prompt on the prefiller, and its decoder goes on with the token behind them, which
    comes with the metadata. So the state is that of all tokens, and no token is computed twice.
    """

    prompt_tokens: int
    has_group: ClassVar[bool] = True

    def misfit(self, full: Pages, given: Sequence[int]) -> str:  # noqa: ARG002 - a state has no pages of tokens
        """A request has one slot."""
        if len(given) == 1 and given[0] != _NO_SLOT:
            return ""
        return (
            f"SGLang gives slots {list(given)} of state, expected one, and not {_NO_SLOT}:"
            " please report this with SGLang's arguments"
        )

    def readable_end(self, end_page: int) -> int:
        """All: none of them depends on the state."""
        return end_page

    def beside(self, of_full: Pages, given: Sequence[int]) -> Pages:  # noqa: ARG002 - wherever they are
        """The slot, once it is given."""
        return Pages(0, list(given))


@dataclass(frozen=True, slots=True)
class IndexPages:
    """Of a model with an indexer (DeepSeek sparse attention): its keys lie in pages of the same numbers as the KV."""

    prompt_tokens: int
    has_group: ClassVar[bool] = False

    def misfit(self, full: Pages, given: Sequence[int]) -> str:
        """They are the same pages."""
        if list(given) == full.pages:
            return ""
        return (
            f"SGLang gives {len(given)} pages of its indexer, expected those {len(full.pages)} that hold the KV:"
            " please report this with SGLang's arguments"
        )

    def readable_end(self, end_page: int) -> int:
        """All: they are told with the KV."""
        return end_page

    def beside(self, of_full: Pages, given: Sequence[int]) -> Pages:  # noqa: ARG002 - the same
        """What holds the KV holds the indexer's keys."""
        return of_full
