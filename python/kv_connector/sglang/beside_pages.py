"""What pools hold of one prompt beside its pages of full attention. Pure.

SGLang names several pools beside that of full attention, in any combination, and gives the indices of each with the
decoder's request and with the prefiller's last chunk. Each kind of pool has a class here, and ``PromptParts`` has one
of them for each pool of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from kv_connector.sglang.page_list import Pages

NO_SLOT = 0
"""SGLang's slot or row for padding, which no request has."""


class BesidePages(Protocol):
    """The part of one prompt that is in one such pool."""

    @property
    def leaves_early(self) -> bool:
        """Whether its pages are known before the last chunk, so that they can leave with those of full attention."""

    def misfit(self, full: Pages, given: Sequence[int]) -> str:
        """Why these pages of full attention, and these indices of the pool, are not the prompt's; "" if they are."""

    def readable_end(self, end_page: int) -> int:
        """How many pages of full attention can be sent before the last chunk, of those before ``end_page``."""

    def beside(self, of_full: Pages, given: Sequence[int] | None) -> Pages:
        """The pool's pages that go with ``of_full``; ``given`` is None before the last chunk."""

    def granted(self, full: Pages, given: Sequence[int]) -> Sequence[int]:
        """The pool's pages into which the prompt is received."""


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """The slot of a request in a pool that keeps one of them for all tokens.

    SGLang's prefiller computes all tokens of a prompt, and its decoder continues with the next token, which comes with
    the metadata. So what leaves is the slot after all tokens, and no token is computed twice.
    """

    holds: str
    """What a slot has, for errors."""
    leaves_early: ClassVar[bool] = False

    def misfit(self, full: Pages, given: Sequence[int]) -> str:  # noqa: ARG002 - a slot has no pages of tokens
        """An error unless exactly one slot is given."""
        if len(given) == 1 and given[0] != NO_SLOT:
            return ""
        return (
            f"SGLang gives slots {list(given)} of {self.holds}, expected one, and not {NO_SLOT}:"
            " please report this with SGLang's arguments"
        )

    def readable_end(self, end_page: int) -> int:
        """Every page may be sent at once: KV pages do not depend on the slot."""
        return end_page

    def beside(self, of_full: Pages, given: Sequence[int] | None) -> Pages:  # noqa: ARG002 - wherever they are
        """The slot, if it is given."""
        return Pages(0, list(given or ()))

    def granted(self, full: Pages, given: Sequence[int]) -> list[int]:  # noqa: ARG002 - wherever they are
        """The slot."""
        return list(given)


@dataclass(frozen=True, slots=True)
class RequestRing:
    """A request's row of tokens that wait to be pooled into an indexer's next key.

    SGLang gives the row with the part of it that is in use, or nothing if no token waits. The whole row goes: a token's
    place in it depends on the token's position alone, which is the same on both sides. Where no token waits, the
    prefiller sends its row for padding, which nothing reads, and the decoder receives it in the request's own row: in
    one row for all, a second prompt's could arrive while the first one's is held against its checksum.
    """

    row: int = NO_SLOT
    """The request's own on the decoder."""
    leaves_early: ClassVar[bool] = False
    _FIELD_COUNT: ClassVar[int] = 6
    """The row, two runs of tokens with begin and length, and the length of the row."""

    def misfit(self, full: Pages, given: Sequence[int]) -> str:  # noqa: ARG002 - a row has no pages of tokens
        """An error unless one row is given, or none."""
        if not given or (len(given) == self._FIELD_COUNT and given[0] != NO_SLOT):
            return ""
        return (
            f"SGLang gives {list(given)} for tokens that wait for an indexer, expected nothing, or a row, not"
            f" {NO_SLOT}, and two runs of tokens in it: please report this with SGLang's arguments"
        )

    def readable_end(self, end_page: int) -> int:
        """Every page may be sent at once."""
        return end_page

    def beside(self, of_full: Pages, given: Sequence[int] | None) -> Pages:
        """The row, with the last chunk."""
        return Pages(0, [] if given is None else self.granted(of_full, given))

    def granted(self, full: Pages, given: Sequence[int]) -> list[int]:  # noqa: ARG002 - wherever they are
        """The row."""
        return [given[0] if given else self.row]


@dataclass(frozen=True, slots=True)
class RequestBlock(RequestRing):
    """A request's block of tokens that are not compressed yet; SGLang gives nothing where none is left over.

    Then what arrives in the block is read by nothing: all of its rows are written again before they are compressed.
    """

    def misfit(self, full: Pages, given: Sequence[int]) -> str:  # noqa: ARG002 - a block has no pages of tokens
        """An error unless one block is given, or none."""
        if not given or (len(given) == 1 and given[0] != NO_SLOT):
            return ""
        return (
            f"SGLang gives {list(given)} for tokens that are not compressed, expected nothing, or one block, and not"
            f" {NO_SLOT}: please report this with SGLang's arguments"
        )


@dataclass(frozen=True, slots=True)
class SamePages:
    """What is kept of each token in pages with the same numbers as the KV: an indexer's keys, scales, a draft's KV."""

    holds: str
    """What the pages have, for errors."""
    first_page: int
    """The decoder has the pages before this position. SGLang lists them for some of these pools, and not for others."""
    leaves_early: bool = True

    def misfit(self, full: Pages, given: Sequence[int]) -> str:
        """An error unless the pages are those of the KV, behind none or all of those that the decoder has."""
        count = len(given) - len(full.pages)
        if count in (0, self.first_page) and list(given[count:]) == full.pages:
            return ""
        return (
            f"SGLang gives {len(given)} pages of {self.holds}, expected those {len(full.pages)} that hold the KV:"
            " please report this with SGLang's arguments"
        )

    def readable_end(self, end_page: int) -> int:
        """All of them: what is in them goes with the KV."""
        return end_page

    def beside(self, of_full: Pages, given: Sequence[int] | None) -> Pages:  # noqa: ARG002 - the same
        """The same pages."""
        return of_full

    def granted(self, full: Pages, given: Sequence[int]) -> Sequence[int]:  # noqa: ARG002 - the same
        """The same pages."""
        return full.pages


@dataclass(frozen=True, slots=True)
class PromptParts:
    """One prompt in all pools of a model."""

    prompt_tokens: int
    """The prompt's length as both sides count it."""
    of_sglang: Sequence[BesidePages] = ()
    """For each pool beside that of full attention, in SGLang's order."""
    groups_of: Sequence[int | None] = ()
    """For each group of the geometry behind the first: its place in ``of_sglang``; None = it has the KV's pages."""

    @property
    def leaves_early(self) -> bool:
        """Whether all pages of a chunk are known before the forward pass that computes it."""
        return all(part.leaves_early for part in self.of_sglang)

    def misfit(self, full: Pages, given: Sequence[Sequence[int]]) -> str:
        """Why these pages of full attention, and these indices of each other pool, are not the prompt's; "" if fine."""
        if len(given) != len(self.of_sglang):
            return (
                f"SGLang gives the indices of {len(given)} pools beside the KV, expected {len(self.of_sglang)}:"
                " please report this with SGLang's arguments"
            )
        found = (part.misfit(full, of_part) for part, of_part in zip(self.of_sglang, given, strict=True))
        return next((sentence for sentence in found if sentence), "")

    def readable_end(self, end_page: int) -> int:
        """How many pages of full attention can be sent before the last chunk, of those before ``end_page``."""
        return min((part.readable_end(end_page) for part in self.of_sglang), default=end_page)

    def groups(self, of_full: Pages, given: Sequence[Sequence[int]] | None = None) -> list[Pages]:
        """For each group of the geometry the pages that go with ``of_full``; ``given`` comes with the last chunk."""
        return [
            of_full,
            *(
                of_full if k is None else self.of_sglang[k].beside(of_full, given[k] if given is not None else None)
                for k in self.groups_of
            ),
        ]

    def granted(self, full: Pages, given: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """For each group of the geometry the pages into which the prompt is received."""
        beside = (full.pages if k is None else self.of_sglang[k].granted(full, given[k]) for k in self.groups_of)
        return [full.pages, *beside]


def as_lists(given: Sequence[Any] | None) -> list[list[int]]:
    """SGLang's indices of each pool as numbers; it gives None before the last chunk, and for an unknown kind."""
    return [[int(index) for index in (() if of_pool is None else of_pool)] for of_pool in given or ()]
