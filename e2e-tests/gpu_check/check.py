"""A check, as the catalogues list it and the lanes run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_check.report import LIMIT_SECONDS, InPart


@dataclass(frozen=True)
class Check:
    """A check; `run` is called in a process of its own."""

    name: str
    run: Callable[[], str | InPart]
    limit_seconds: int = LIMIT_SECONDS
    measures: bool = False
    """Its figures are worth something only while nothing else runs."""
    after: str = ""
    """The check whose answers it reads."""
    not_by_host: str = ""
    """Why a device whose numbers the host computes cannot show it; empty: it can."""

    @property
    def needs_gpu(self) -> bool:
        return self.name.startswith("gpu: ")
