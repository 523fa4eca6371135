"""Which ranks of an engine share a messenger. Pure: the scheduler's and all workers' processes get equal results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of one messenger; they are tensor-parallel ranks of one pipeline stage, on one node."""

    index: int
    """The index of the messenger among those of the engine."""
    pp_rank: int
    tp_ranks: range

    @property
    def lead(self) -> tuple[int, int]:
        """(pipeline rank, tensor-parallel rank) of the rank whose process hosts the messenger."""
        return self.pp_rank, self.tp_ranks.start

    @property
    def followers(self) -> list[tuple[int, int]]:
        """The other ranks, which hand their KV memory to the lead."""
        return [(self.pp_rank, tp_rank) for tp_rank in self.tp_ranks[1:]]


@dataclass(frozen=True, slots=True)
class RankGroups:
    """All messengers of an engine.

    Ranks of different pipeline stages never share one: only the worker that computes a layer knows that it is complete,
    and it does not learn when another stage's forward pass ends.
    """

    tp_size: int
    pp_size: int
    tp_ranks_per_messenger: int

    @property
    def messenger_count(self) -> int:
        """The number of the engine's messengers; each one reports the end of each request."""
        return self.pp_size * -(-self.tp_size // self.tp_ranks_per_messenger)

    def of(self, tp_rank: int, pp_rank: int) -> RankGroup:
        """The group that a rank belongs to."""
        share = self.tp_ranks_per_messenger
        in_stage = tp_rank // share
        return RankGroup(
            index=pp_rank * -(-self.tp_size // share) + in_stage,
            pp_rank=pp_rank,
            tp_ranks=range(in_stage * share, min((in_stage + 1) * share, self.tp_size)),
        )
