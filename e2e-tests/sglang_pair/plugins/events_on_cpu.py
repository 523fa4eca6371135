"""A plug-in of SGLang that lets a prefiller overlap its passes without a GPU; found through PYTHONPATH.

Before it sends cached pages while a pass may still run, SGLang records a `torch.cuda.Event`, which no CPU has. A pass
on a CPU is over when its call returns, so the one recorded here is over too. It says so when it is asked for the second
time: a transfer that does not ask again is seen.
"""

from __future__ import annotations


class PassedEvent:
    def __init__(self) -> None:
        self._asked = False

    def record(self, stream: object = None) -> None:
        """All that was computed before is there."""

    def query(self) -> bool:
        asked, self._asked = self._asked, True
        return asked

    def synchronize(self) -> None:
        """There is nothing to wait for."""


def register() -> None:
    import torch

    torch.cuda.Event = PassedEvent
