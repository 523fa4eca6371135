"""The writer of the layer counter, which tells the messenger how many layers of a forward pass are complete."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Protocol

_COUNTER_MASK = (1 << 64) - 1


class QueuedWord(Protocol):
    """The counter's word, written by a device in the order of a stream."""

    def bump(self) -> None:
        """Queues an increment, which has no effect once the word is at its bound."""

    def place(self, count: int, bound: int) -> None:
        """Queues setting the word to ``count`` and the limit of increments to ``bound``."""

    def capture(self) -> int:
        """The id of the stream's current capture, whose graph repeats what is queued now; 0 for none."""

    def wait(self) -> None:
        """Returns when all that is queued now has reached the word."""


class GraphLayers:
    """Adds the increments of a pass's layers to captured graphs, in the registered order.

    Used by the engine's worker thread only. A pass may be captured as several graphs that are launched in sequence, for
    example with attention between them: a capture that begins with the first layer starts a new pass, any other one
    continues the previous capture. A hook that fires out of order stops the counting until the next pass; the end of
    the step releases the layers that were not counted.
    """

    def __init__(self, queued_word: QueuedWord, layer_names: Sequence[str]) -> None:
        self._queued_word = queued_word
        self.names = tuple(layer_names)
        self._capture = 0
        self._captured = 0
        """The number of layers that the pass has counted; that of all layers after one has fired out of order."""

    @property
    def is_capturing(self) -> bool:
        """Whether hooks fire for a graph now."""
        return self._queued_word.capture() != 0

    def layer_complete(self, name: str) -> bool:
        """Called by the hook of a layer; True if it fired in a capture and is counted. Otherwise nothing is queued."""
        capture = self._queued_word.capture()
        return capture != 0 and self.captured(capture, name)

    def captured(self, capture: int, name: str) -> bool:
        """Called by the hook of a layer within this capture; True if it is counted."""
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
    """Counts complete layers, in the registered order, in a 64-bit word that Java polls.

    Used by the engine's worker thread only. Its positions count what is queued: on a device the word follows later. A
    hook that fires out of order stops the counting until the step ends, because a higher count would mean layers that
    are not complete. The end of the step releases layers that were not counted; the caller reports that end.

    On a device a step sets the word's bound when it begins, and raises the word beyond its layers when it ends, both in
    the order of the stream. So a pass that runs as a captured graph, and fires no hook, is counted by the increments
    in the graph; those of passes outside of a step (warm-up, dummy batches, decodes) have no effect. At most one graph
    with all layers of the pass may run in a step: the increments of the first of two would count for the second.
    """

    def __init__(self, address: int, layer_names: Sequence[str], queued_word: QueuedWord | None = None) -> None:
        """``address``: a multiple of 8; ``queued_word``: written by a device, None = by this thread in the hook."""
        if address == 0 or address % 8:
            raise ValueError(f"the layer counter's address is {address:#x}, expected a multiple of 8 above 0")
        if not layer_names or len(set(layer_names)) < len(layer_names):
            raise ValueError(f"layer names are {list(layer_names)!r}, expected one or more, each once")
        self._word = ctypes.c_uint64.from_address(address)
        self._position = int(self._word.value)
        self._step_start = self._position
        self._names = tuple(layer_names)
        self._bound = len(self._names)
        """The largest count of the step, relative to its start."""
        self._fence = threading.Lock()
        self._next = len(self._names)
        self._fired: list[str] = []
        self._in_order = False
        self._in_step = False
        self._queued_word = queued_word
        self._graph_layers = GraphLayers(queued_word, self._names) if queued_word is not None else None
        self.steps_out_of_order = 0
        self.observed_order: tuple[str, ...] = self._names
        """The order of the last step in which all hooks fired; not the registered one if counting stops early."""

    @property
    def position(self) -> int:
        """The counter's value once all that is queued is complete; on a CPU, its value now."""
        return self._position

    @property
    def is_capturing(self) -> bool:
        """Whether hooks fire for a graph now."""
        return self._graph_layers is not None and self._graph_layers.is_capturing

    def begin_step(self) -> int:
        """Begins a forward pass; returns the position to report as ``counterStart``."""
        return self._begin(len(self._names))

    def begin_check(self) -> None:
        """Begins a pass that is checked, not reported; its bound is higher, so that layers counted twice show."""
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
        """Called by the hook of a layer whose KV is written, or queued to be; True if it was counted.

        Does nothing outside of a step and of a capture.
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
        """Ends the forward pass; returns the position to report as ``counterEnd``, which releases uncounted layers.

        On a device it is one beyond the layers, and is queued, because layers without a hook follow the last increment.
        """
        if self._in_step and set(self._fired) == set(self._names):
            self.observed_order = tuple(self._fired)
        if self._in_step and self._queued_word is not None:
            self._leave(self._queued_word)
        self._in_step = False
        return self._position

    def end_check(self) -> int:
        """Ends a checked pass when the device has run it; returns the number of layers counted."""
        counted = 0
        try:
            if self._queued_word is not None:
                self._queued_word.wait()
            counted = (int(self._word.value) - self._step_start) & _COUNTER_MASK
        finally:
            self.end_step()
        return counted

    def fail_step(self) -> None:
        """Ends a forward pass that has failed. Later passes count beyond its layers and cannot be confused with it."""
        if not self._in_step:
            return
        self._in_step = False
        if self._queued_word is not None:
            self._leave(self._queued_word)
        else:
            self._position = self._beyond(len(self._names) + 1)
            self._store(self._position)

    def _leave(self, queued_word: QueuedWord) -> None:
        """Advances the position even if the driver refuses: the next step must begin after all counts of this one."""
        self._position = self._beyond(self._bound + 1)
        queued_word.place(self._position, self._position)

    def _beyond(self, layers: int) -> int:
        return (self._step_start + layers) & _COUNTER_MASK

    def _store(self, count: int) -> None:
        # Not every machine orders a plain store after the stores of the KV that it announces. Releasing and acquiring a
        # lock puts a full barrier between them.
        with self._fence:
            pass
        with self._fence:
            self._word.value = count
