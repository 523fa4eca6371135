"""What a messenger that was closed before its engine's end leaves to the next one. A value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_connector.runtime.commands import Decline, Reject
from kv_connector.vllm.metadata import WorkerNews
from kv_connector.vllm.reports import Reports


@dataclass
class LeftOver:
    """The news and reports that the engine has not taken yet, and what is still to be sent to peers."""

    reports: Reports = field(default_factory=Reports)
    news: WorkerNews = field(default_factory=WorkerNews)
    names: Mapping[str, str] = field(default_factory=dict)
    """What the engine calls the requests, by number."""
    declines: list[Decline] = field(default_factory=list)
    rejections: list[Reject] = field(default_factory=list)
    every_rank_votes: bool = False
    """Whether the engine waits for all ranks until they report that a request is over."""
