"""The writing end of the layer counter on CPU: tells the messenger how many layers of a forward pass are complete."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

_COUNTER_MASK = (1 << 64) - 1


class LayerCounter:
    """Counts layers up, in the registered order, in a 64-bit word that Java watches.

    The engine's worker thread only. It counts what it has queued, and tells positions of that: where bumps are queued
    on a device the word follows later. Every bump of the word is queued here, also those of passes that are not told. A
    hook that fires out of order stops the counting until the step ends: the messenger would take any other count for
    layers that are not complete. Layers not counted are released by the step's end, which this class does not tell.
    """

    def __init__(self, address: int, layer_names: Sequence[str]) -> None:
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
        """The hook of one layer: its KV is written. True if it was counted. Outside a step it does nothing."""
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
        self._next += 1
        self._move_to(self._position + 1)
        return True

    def end_step(self) -> int:
        """Ends the forward pass; returns the position to tell as ``counterEnd``, which releases layers not counted."""
        if self._in_step and set(self._fired) == set(self._names):
            self.observed_order = tuple(self._fired)
        self._in_step = False
        return self._position

    def fail_step(self) -> None:
        """Ends a forward pass that has failed. A later pass counts beyond its layers, and is never taken for it."""
        if self._in_step:
            self._in_step = False
            self._move_to(self._step_start + len(self._names) + 1)

    def _move_to(self, position: int) -> None:
        self._position = position & _COUNTER_MASK
        self._store(self._position)

    def _store(self, count: int) -> None:
        # A plain store is not ordered after the KV it announces on every machine. Releasing a lock and taking it again
        # puts a full barrier between the two.
        with self._fence:
            pass
        with self._fence:
            self._word.value = count
