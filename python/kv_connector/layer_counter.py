"""The writing end of the layer counter: tells the messenger how many layers of a forward pass are complete."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Protocol

_COUNTER_MASK = (1 << 64) - 1


class QueuedWord(Protocol):
    """The counter's word where a device adds to it, in the order of a stream."""

    def add(self, count: int) -> None:
        """Queues an addition behind what is queued; while the stream is captured, into the graph."""


class LayerCounter:
    """Counts layers up, in the registered order, in a 64-bit word that Java watches.

    The engine's worker thread only. It counts what it has queued, and tells positions of that: where bumps are queued
    on a device the word follows later. Every bump of the word is queued here, also those of passes that are not told. A
    hook that fires out of order stops the counting until the step ends: the messenger would take any other count for
    layers that are not complete. Layers not counted are released by the step's end, which this class does not tell.

    A pass that runs as a captured graph fires no hook: what its capture queued is added by :meth:`replayed`.
    """

    def __init__(self, address: int, layer_names: Sequence[str], queued_word: QueuedWord | None = None) -> None:
        """`queued_word`: how a device writes to the word; None = this thread does, when the hook fires."""
        if address == 0 or address % 8:
            raise ValueError(f"the layer counter's address is {address:#x}, expected a multiple of 8 above 0")
        if not layer_names or len(set(layer_names)) < len(layer_names):
            raise ValueError(f"layer names are {list(layer_names)!r}, expected one or more, each once")
        self._word = ctypes.c_uint64.from_address(address)
        self._position = int(self._word.value)
        self._step_start = self._position
        self._names = tuple(layer_names)
        self._fence = threading.Lock()
        self._next = len(self._names)
        self._fired: list[str] = []
        self._in_order = False
        self._in_step = False
        self._queued_word = queued_word
        self._captured: int | None = None
        self.steps_out_of_order = 0
        self.observed_order: tuple[str, ...] = self._names
        """The order of the last step in which all layers fired; differs from the registered one if steps stop early."""

    @property
    def position(self) -> int:
        """Where the counter stands when all that is queued is complete. On CPU it stands there now."""
        return self._position

    def begin_step(self) -> int:
        """Starts a forward pass; returns the position to tell as ``counterStart``."""
        self._step_start = self._position
        self._next = 0
        self._fired.clear()
        self._in_order = True
        self._in_step = True
        return self._position

    def layer_complete(self, name: str) -> bool:
        """The hook of one layer: its KV is written, or queued to be. True if it was counted.

        Outside a step and outside a capture it does nothing.
        """
        if self._captured is not None:
            return self._capture(name)
        if not self._in_step:
            return False
        if len(self._fired) < len(self._names):
            self._fired.append(name)
        if not self._in_order:
            return False
        if self._next == len(self._names) or self._names[self._next] != name:
            self._in_order = False
            self.steps_out_of_order += 1
            return False
        self._move_to(self._position + 1)
        self._next += 1
        return True

    def end_step(self) -> int:
        """Ends the forward pass; returns the position to tell as ``counterEnd``, which releases layers not counted.

        On a device one more addition is queued: the last hook's comes before the layers that have none.
        """
        if self._in_step and set(self._fired) == set(self._names):
            self.observed_order = tuple(self._fired)
        if self._in_step and self._queued_word is not None:
            self._move_to(self._position + 1)
        self._in_step = False
        return self._position

    # ---- passes that are captured as graphs

    def begin_capture(self) -> None:
        """From now on hooks fire for a graph: what they queue runs when the graph does, each time."""
        if self._queued_word is None or self._in_step or self._captured is not None:
            raise AssertionError("a capture begins on a device, between steps, and once")
        self._captured = 0

    def _capture(self, name: str) -> bool:
        captured = self._captured
        if captured is None or captured == len(self._names) or self._names[captured] != name:
            return False
        self._queue(1)
        self._captured = captured + 1
        return True

    def end_capture(self) -> int:
        """How many layers each replay of the graph counts: fewer than there are where hooks fired out of order."""
        if self._captured is None:
            raise AssertionError("no capture has begun")
        captured, self._captured = self._captured, None
        return captured

    def replayed(self, captured: int) -> None:
        """A graph was launched, inside a step or outside, whose capture ended with this many layers."""
        if self._in_step and self._fired:
            raise AssertionError("a graph of the whole pass was launched in a step whose layers fire their own hooks")
        if self._in_step and self._next:
            raise AssertionError("a second graph was launched in one step, expected one a step")
        self._next = captured
        self._position = (self._position + captured) & _COUNTER_MASK

    # ---- the word

    def fail_step(self) -> None:
        """Ends a forward pass that has failed. A later pass counts beyond its layers, and is never taken for it."""
        if self._in_step:
            self._in_step = False
            self._move_to(self._step_start + len(self._names) + 1)

    def _move_to(self, position: int) -> None:
        if self._queued_word is None:
            self._store(position & _COUNTER_MASK)
        else:
            self._queue((position - self._position) & _COUNTER_MASK)
        self._position = position & _COUNTER_MASK

    def _queue(self, count: int) -> None:
        if self._queued_word is not None:
            self._queued_word.add(count)

    def _store(self, count: int) -> None:
        # A plain store is not ordered after the KV it announces on every machine. Releasing a lock and taking it again
        # puts a full barrier between the two.
        with self._fence:
            pass
        with self._fence:
            self._word.value = count
