"""A worker's part while its engine sleeps: no messenger, no KV memory, and a few steps without a forward pass.

vLLM sleeps when no transfer is under way. Requests may wait in its queue all the time, come, or be aborted. For these
the engine makes steps, and waits until workers report each prefill that they were told of. Used by the worker's main
thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kv_connector.runtime.facade import Opened
from kv_connector.runtime.sleep import WHY_CLOSED, StandIn
from kv_connector.vllm.left_over import LeftOver
from kv_connector.vllm.metadata import StepMetadata, Transfer, WorkerNews
from kv_connector.vllm.own_part import OwnPart
from kv_connector.vllm.reports import Reports


@dataclass
class SleepingPart(OwnPart):
    """Answers for a messenger that is closed, and keeps what the next one has to know.

    What is queued is announced again by the scheduler's half when the next one is open.
    """

    left: LeftOver = field(default_factory=LeftOver)
    stand_in: StandIn | None = None
    """At the ports of this rank's messenger; None if another rank hosted it."""
    _reports: Reports = field(default_factory=Reports)
    """Of the steps of the sleep."""
    _closed_incarnation: str = ""
    """Of the messenger whose gauges are to be taken off the engine's page."""
    _logger: logging.Logger = field(default_factory=lambda: logging.getLogger(__name__))

    @classmethod
    def after(cls, part: OwnPart, make_stand_in: Callable[[Opened], StandIn], logger: logging.Logger) -> Self:
        """Ends a part; raises MessengerError if the memory may still be accessed."""
        asleep = cls(every_rank_votes=part.every_rank_votes, _logger=logger)
        if part.worker is not None:
            opened = part.worker.opened
            asleep.left = part.worker.retire(WHY_CLOSED)
            asleep._closed_incarnation = opened.incarnation
            if part.lead is not None:
                part.lead.close()
                part.lead.unmap()
            asleep.stand_in = make_stand_in(opened)
        else:
            asleep.left = LeftOver(names=part.names.all())
            part.close()
        asleep.left.every_rank_votes = part.every_rank_votes
        asleep.names.learn(asleep.left.names)
        return asleep

    @property
    def is_asleep(self) -> bool:
        """True."""
        return True

    def begin(self, meta: StepMetadata) -> None:
        """Answers what a messenger would have been told."""
        self.names.learn(meta.names)
        self._reports.sent.update(end.request for end in meta.prefill_ends)  # nothing reads their pages
        self._reports.sent.difference_update(meta.unreported)
        self.left.news.released += meta.unreported
        self.names.take(meta.unreported)
        self.left.news.computed += [Transfer(each.transfer, each.prompt_digest) for each in meta.expects.values()]
        self.left.declines += meta.declines
        self.left.rejections += meta.rejections
        for fetch in meta.fetches:
            shown = self.names.shown(fetch.request)
            self._logger.error("the KV of request %s is not fetched: this engine sleeps", shown)
            if fetch.shadow:
                self.left.news.shadows_failed.append(fetch.request)
            else:
                self._fail(fetch.request, fetch.blocks)
        for refusal in meta.refusals:
            self._fail(refusal.request, refusal.blocks)

    def _fail(self, request: str, blocks: Sequence[int]) -> None:
        self._reports.received.add(request)
        self._reports.failed[request] = blocks

    def collect(self) -> Reports:
        """The reports since the last call, on a rank from which the engine expects any."""
        reports, self._reports = self._reports, Reports()
        named = reports.named(self.names)
        self.left.names = self.names.all()
        return named if self.stand_in is not None or self.every_rank_votes else Reports()

    def take_news(self) -> WorkerNews | None:
        """Takes the news of the closed messenger, and those since."""
        news, self.left.news = self.left.news, WorkerNews()
        return news if self.stand_in is not None and news != WorkerNews() else None

    def figures(self) -> dict[str, dict[str, Any]] | None:
        """Takes the gauges of the closed messenger off the engine's page, once."""
        incarnation, self._closed_incarnation = self._closed_incarnation, ""
        return {"gauges": {incarnation: {}}} if incarnation else None

    def fence(self, meta: StepMetadata) -> None:
        """Returns at once: nothing reads any block."""

    def close(self) -> None:
        """Leaves the ports."""
        if self.stand_in is not None:
            self.stand_in.close()
