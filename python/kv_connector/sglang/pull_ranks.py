"""How the ranks of one engine change their prefix caches alike: the same change, in the same round, in the same order.

Each of SGLang's ranks decides by its own cache what to compute, and all exchange data in every layer of it. So one rank
whose cache has another page than the others' would end them all. What depends on clocks, on messengers or on peers is
therefore a *decision* of the first rank, or agreed upon by a *vote* of all.

Used by the scheduler's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from kv_connector.sglang.pair_check import reduced
from kv_connector.sglang.rank_decisions import DECISIONS, RankDecisions

Decision = TypeVar("Decision")


class PullRanks:
    """All ranks of an engine, as one of them sees them. This one is alone: what it decides is done at once."""

    is_alone: ClassVar[bool] = True
    is_first = True
    """Whether this is the rank that decides; peers' questions come to it, and it asks them."""

    def __init__(self) -> None:
        self._handlers: dict[type, Callable[[Any], None]] = {}

    def on(self, kind: type[Decision], handler: Callable[[Decision], None]) -> None:
        """Decisions of this kind go to ``handler``."""
        self._handlers[kind] = handler

    def decide(self, decision: object) -> None:
        """The first rank's: every rank does it, this one too, at the same place of the same round."""
        self._do(decision)

    def carry_out(self) -> None:
        """Does what was decided; called by all ranks at the same place of each round."""

    def awaits(self) -> bool:
        """Whether something is decided that no rank has received yet."""
        return False

    def all_have(self, votes: Sequence[bool]) -> list[bool]:
        """For each vote whether it is every rank's; waits for all ranks, which must give as many."""
        return list(votes)

    def any_has(self, votes: Sequence[bool]) -> list[bool]:
        """For each vote whether it is at least one rank's."""
        return [not each for each in self.all_have([not vote for vote in votes])]

    def _do(self, decision: object) -> None:
        self._handlers[type(decision)](decision)


class SglangRanks(PullRanks):
    """The tensor-parallel ranks of SGLang's scheduler; votes go over the group in which these agree on its queues."""

    is_alone = False

    def __init__(self, scheduler: Any, decisions: RankDecisions) -> None:
        """What was decided before is forgotten, by all ranks in the same round."""
        from sglang.srt.runtime_context import get_parallel

        super().__init__()
        self.is_first = int(get_parallel().attn_tp_rank) == 0
        self._scheduler = scheduler
        self._decisions = decisions
        decisions.forget()

    def decide(self, decision: object) -> None:
        """See ``PullRanks``."""
        self._decisions.decide(decision)

    def carry_out(self) -> None:
        """See ``PullRanks``."""
        for decision in self._decisions.take_received():
            self._do(decision)

    def awaits(self) -> bool:
        """See ``PullRanks``."""
        return self._decisions.are_pending

    def all_have(self, votes: Sequence[bool]) -> list[bool]:
        """See ``PullRanks``."""
        import torch.distributed as dist

        group = self._scheduler.attn_tp_cpu_group
        return [bool(each) for each in reduced([int(vote) for vote in votes], group, dist.ReduceOp.MIN)]


def ranks_of(scheduler: Any) -> PullRanks:
    """The ranks of this scheduler's engine."""
    from sglang.srt.runtime_context import get_parallel

    return PullRanks() if int(get_parallel().attn_tp_size) == 1 else SglangRanks(scheduler, DECISIONS)
