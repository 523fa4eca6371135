"""The writing end of the layer counter: tells the messenger how many layers of a forward pass are complete."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Protocol

_COUNTER_MASK = (1 << 64) - 1


class QueuedWord(Protocol):
    """The counter's word where a device writes to it, in the order of a stream."""

    def bump(self) -> None:
        """Queues an addition of one behind what is queued; it adds nothing once the word is at its bound."""

    def place(self, count: int, bound: int) -> None:
        """Queues what the word is from there on, and how far bumps take it."""

    def capture(self) -> int:
        """Which capture the stream is in, whose graph repeats what is queued now; 0 for none."""

    def wait(self) -> None:
        """Returns when the word says all that is queued now."""


class GraphLayers:
    """Puts the bumps of a pass's layers into the graphs that are captured, in the registered order.

    The engine's worker thread only. A pass may be captured as several graphs that are launched one after the other, as
    where attention runs between them: a capture goes on where the one before has got to, and begins again with the
    first layer. What fires out of order ends the counting until then: it is released by the end of the step.
    """

    def __init__(self, queued_word: QueuedWord, layer_names: Sequence[str]) -> None:
        self._queued_word = queued_word
        self.names = tuple(layer_names)
        self._capture = 0
        self._captured = 0
        """How many layers the pass has counted; as many as there are once one has fired out of order."""

    @property
    def is_capturing(self) -> bool:
        """Whether hooks fire for a graph now."""
        return self._queued_word.capture() != 0

    def layer_complete(self, name: str) -> bool:
        """The hook of one layer; True if it fired in a capture and is counted. Otherwise nothing is queued."""
        capture = self._queued_word.capture()
        return capture != 0 and self.captured(capture, name)

    def captured(self, capture: int, name: str) -> bool:
        """The hook of one layer within this capture; True if it is counted."""
        if capture != self._capture:
            self._capture = capture
            if name == self.names[0]:
                self._captured = 0
        if self._captured == len(self.names) or self.names[self._captured] != name:
            self._captured = len(self.names)
            return False
        self._queued_word.bump()
        self._captured += 1
        return True


class LayerCounter:
    """Counts layers up, in the registered order, in a 64-bit word that Java watches.

    The engine's worker thread only. It counts what it has queued, and tells positions of that: where bumps are queued
    on a device the word follows later. A hook that fires out of order stops the counting until the step ends: the
    messenger would take any other count for layers that are not complete. Layers not counted are released by the step's
    end, which this class does not tell.

    On a device a step sets the word's bound when it begins and raises the word beyond its layers when it ends, both in
    the order of the stream. So a pass that runs as a captured graph, and fires no hook, counts by the bumps that its
    capture queued; those of passes outside of a step (warm-up, dummy batches, decodes) add nothing. At most one graph
    with all of the pass's layers runs in a step: of two, the first one's bumps would stand for the second one's layers.
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
        self._bound = len(self._names)
        """How far beyond its start the step may count."""
        self._fence = threading.Lock()
        self._next = len(self._names)
        self._fired: list[str] = []
        self._in_order = False
        self._in_step = False
        self._queued_word = queued_word
        self._graph_layers = GraphLayers(queued_word, self._names) if queued_word is not None else None
        self.steps_out_of_order = 0
        self.observed_order: tuple[str, ...] = self._names
        """The order of the last step in which all layers fired; differs from the registered one if steps stop early."""

    @property
    def position(self) -> int:
        """Where the counter stands when all that is queued is complete. On CPU it stands there now."""
        return self._position

    @property
    def is_capturing(self) -> bool:
        """Whether hooks fire for a graph now."""
        return self._graph_layers is not None and self._graph_layers.is_capturing

    def begin_step(self) -> int:
        """Starts a forward pass; returns the position to tell as ``counterStart``."""
        return self._begin(len(self._names))

    def begin_check(self) -> None:
        """Starts a forward pass that is not told: a device may count its layers more than once, which then shows."""
        self._begin(2 * len(self._names))

    def _begin(self, bound: int) -> int:
        self._step_start = self._position
        self._bound = bound
        self._next = 0
        self._fired.clear()
        self._in_order = True
        if self._queued_word is not None:
            self._queued_word.place(self._position, self._beyond(bound))
        self._in_step = True
        return self._position

    def layer_complete(self, name: str) -> bool:
        """The hook of one layer: its KV is written, or queued to be. True if it was counted.

        Outside a step and outside a capture it does nothing.
        """
        if self._graph_layers is not None and self._queued_word is not None:
            capture = self._queued_word.capture()
            if capture:
                return self._graph_layers.captured(capture, name)
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
        if self._queued_word is not None:
            self._queued_word.bump()
        else:
            self._store(self._beyond(self._next + 1))
            self._position = self._beyond(self._next + 1)
        self._next += 1
        return True

    def end_step(self) -> int:
        """Ends the forward pass; returns the position to tell as ``counterEnd``, which releases layers not counted.

        On a device that is one beyond the layers, and queued: the last bump comes before layers without a hook.
        """
        if self._in_step and set(self._fired) == set(self._names):
            self.observed_order = tuple(self._fired)
        if self._in_step and self._queued_word is not None:
            self._leave(self._queued_word)
        self._in_step = False
        return self._position

    def end_check(self) -> int:
        """Ends such a pass when the device has run it; returns how many layers it has counted."""
        counted = 0
        try:
            if self._queued_word is not None:
                self._queued_word.wait()
            counted = (int(self._word.value) - self._step_start) & _COUNTER_MASK
        finally:
            self.end_step()
        return counted

    def fail_step(self) -> None:
        """Ends a forward pass that has failed. A later pass counts beyond its layers, and is never taken for it."""
        if not self._in_step:
            return
        self._in_step = False
        if self._queued_word is not None:
            self._leave(self._queued_word)
        else:
            self._position = self._beyond(len(self._names) + 1)
            self._store(self._position)

    def _leave(self, queued_word: QueuedWord) -> None:
        """The position moves also where the driver refuses: the next step begins behind all that this one may count."""
        self._position = self._beyond(self._bound + 1)
        queued_word.place(self._position, self._position)

    def _beyond(self, layers: int) -> int:
        return (self._step_start + layers) & _COUNTER_MASK

    def _store(self, count: int) -> None:
        # A plain store is not ordered after the KV it announces on every machine. Releasing a lock and taking it again
        # puts a full barrier between the two.
        with self._fence:
            pass
        with self._fence:
            self._word.value = count
