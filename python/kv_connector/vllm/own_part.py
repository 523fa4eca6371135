"""A worker's part in a messenger: it hosts one, alone or as lead of other ranks, or has handed its memory to a lead.

Used by the worker's main thread only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from kv_connector.memory.handover import Follower, Lead
from kv_connector.memory.votes import Votes
from kv_connector.vllm.empty_steps import EmptySteps
from kv_connector.vllm.last_token_proof import StepProofs
from kv_connector.vllm.left_over import LeftOver
from kv_connector.vllm.metadata import StepMetadata, WorkerNews
from kv_connector.vllm.reports import Reports
from kv_connector.vllm.request_numbers import RequestNames
from kv_connector.vllm.worker_half import WorkerHalf


@dataclass
class OwnPart:
    """A worker's part in a messenger after its start: it hosts one, alone or as lead of other ranks, or is a follower.

    Used by the worker's main thread only.
    """

    worker: WorkerHalf | None = None
    lead: Lead | None = None
    follower: Follower | None = None
    proofs: StepProofs = field(default_factory=StepProofs)
    every_rank_votes: bool = False
    """Whether the engine waits for followers too until they report that a request is over."""
    names: RequestNames = field(default_factory=RequestNames)
    """Used by a follower, as are the empty steps; ``WorkerHalf`` has its own."""
    _empty_steps: EmptySteps = field(default_factory=EmptySteps)
    _step_computes: bool = False

    @property
    def is_asleep(self) -> bool:
        """Whether there is no messenger because the engine sleeps."""
        return False

    @property
    def lost_because(self) -> str:
        """Why the messenger in this process was given up; "" while it works, or if another process hosts it."""
        return self.worker.lost_because if self.worker is not None else ""

    def begin(self, meta: StepMetadata) -> None:
        """Passes on the step's metadata, before the forward pass."""
        self.proofs.begin(meta.proofs, meta.shadow_proofs)
        if self.worker is not None:
            self.worker.count(meta.tallies)
            self.worker.begin(meta)
            return
        if self.every_rank_votes:
            self.names.learn(meta.names)
            self.names.take(meta.unreported)
        self._step_computes = meta.computes
        if meta.computes or meta.fetches or meta.prefill_ends:
            self._empty_steps.interrupted()

    def collect(self) -> Reports:
        """The reports since the last call. A follower waits in empty steps as its lead does, and reports the same."""
        if self.worker is not None:
            reports = self.worker.collect()
            if self.every_rank_votes and self.lead is not None:
                self.lead.send_votes(Votes(reports.sent, reports.received))
            return reports.named(self.worker.names)
        if self.follower is None:
            return Reports()
        if not self._step_computes:
            self._wait(self.follower)
        if not self.every_rank_votes:
            return Reports()
        votes = self.follower.take_votes()
        reports = Reports(sent=votes.sent, received=votes.received)  # the lead has reported those that failed
        return reports.named(self.names)

    def _wait(self, follower: Follower) -> None:
        if self.every_rank_votes:
            self._empty_steps.wait(follower.has_heard, follower.pause)
        else:
            self._empty_steps.wait(lambda: False, time.sleep)

    def take_news(self) -> WorkerNews | None:
        """Takes the news for the scheduler's half, which go with the last reports; None if there are none."""
        return self.worker.take_news() if self.worker is not None else None

    def figures(self) -> dict[str, dict[str, Any]] | None:
        """What the engine's metrics page learns since the last call; None if that is nothing."""
        return self.worker.figures() if self.worker is not None else None

    def take_over(self, left: LeftOver) -> None:
        """Answers for what an earlier part of this rank has left; called before the first step."""
        self.every_rank_votes = left.every_rank_votes
        self.names.learn(left.names)
        if self.worker is not None:
            self.worker.take_over(left)

    def fence(self, meta: StepMetadata) -> None:
        """Waits until blocks of preempted requests may be overwritten, on this and all other ranks of the messenger."""
        if self.worker is not None:
            self.worker.fence(meta)
        if meta.preempted and self.lead is not None:
            self.lead.notify_fenced(meta.step)
        if meta.preempted and self.follower is not None:
            self.follower.wait_fenced(meta.step)

    def close(self) -> None:
        """Closes all parts; the messenger first, because it accesses the other ranks' memory."""
        for part in (self.worker, self.lead, self.follower):
            if part is not None:
                part.close()
