"""When the passes that a scheduler has queued on its device are over. Used by the scheduler's thread only."""

from __future__ import annotations

from typing import Any


class PassesSoFar:
    """All work that was queued when this was made, on the stream of passes and on the scheduler's own."""

    def __init__(self, scheduler: Any) -> None:
        """On a CPU a pass is over when it returns, and there is nothing to wait for."""
        self._events: list[Any] = []
        if scheduler.device == "cpu":
            return
        streams = [scheduler.device_module.current_stream()]
        if scheduler.enable_overlap:
            streams.append(scheduler.forward_stream)
        for stream in streams:
            event = scheduler.device_module.Event()
            event.record(stream)
            self._events.append(event)

    def are_over(self) -> bool:
        """Whether all of it has run."""
        return all(event.query() for event in self._events)
