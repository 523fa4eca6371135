"""What a trainer's tensors are copied into before they leave: shared memory that the first pass over them sizes.

A trainer gathers one tensor after the other, and may need all its ranks for each. So nothing waits for a server within
a pass, and a pass that fails is drained to its end: the other ranks are in it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from typing import Any

from kv_connector.exceptions import WeightsError
from kv_connector.memory.memfd import new_memfd
from kv_connector.weights.landing import SharedMemory
from kv_connector.weights.manifest import Manifest, Place, aligned


class Staging:
    """The tensors of one model, copied from any device. For one thread; it keeps no tensor.

    A tensor is what has torch's ``dtype``, ``shape``, ``detach``, ``cpu``, ``contiguous``, ``data_ptr`` and ``nbytes``,
    and, for :meth:`not_finite`, ``is_floating_point``, ``element_size``, ``float``, ``sum`` and ``isfinite``; torch
    itself is not imported.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._held: tuple[Manifest, SharedMemory] | None = None

    def take(self, tensors: Iterable[tuple[str, Any]]) -> tuple[Manifest, SharedMemory]:
        """Copies all tensors, and returns where they are; later passes must have those of the first.

        Raises WeightsError for tensors that cannot be sent, OSError if they do not fit into memory, both after
        ``tensors`` has been drained; and whatever ``tensors`` raises.
        """
        self._counts = {}
        passing = self._counted(tensors)
        try:
            if self._held is None:
                self._held = _first_pass(passing)
            else:
                _later_pass(passing, *self._held)
        except (WeightsError, OSError):
            for _ in passing:
                pass
            raise
        return self._held

    def not_finite(self) -> str:
        """How many elements of the last pass are NaN or infinite, in a sentence; "" if none is."""
        if not self._counts:
            return ""
        first, count = next(iter(self._counts.items()))
        return (
            f"{sum(self._counts.values())} elements of {len(self._counts)} tensors are NaN or infinite, the first"
            f" {count} of them in {first}: servers load them as they are, and may answer with any token"
        )

    def _counted(self, tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in tensors:
            count = _not_finite_count(tensor)
            if count:
                self._counts[name] = count
            yield name, tensor


def _not_finite_count(tensor: Any) -> int:
    """One sum tells, unless it overflows, that there is none; only then each element is looked at."""
    if not tensor.is_floating_point():
        return 0
    try:
        wide = tensor.detach()
        wide = wide.float() if wide.element_size() == 1 else wide
        return 0 if wide.sum().isfinite() else int((~wide.isfinite()).sum())
    except (NotImplementedError, RuntimeError):
        return 0  # no tensor that can be copied, which is said where it is


def _first_pass(tensors: Iterator[tuple[str, Any]]) -> tuple[Manifest, SharedMemory]:
    memfd = new_memfd()
    try:
        manifest = Manifest.of(_appended(memfd, tensors))
    except BaseException:
        os.close(memfd)
        raise
    return manifest, SharedMemory(manifest.length_bytes, memfd)


def _appended(memfd: int, tensors: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Describes each tensor, and writes it behind the last one when the description has been accepted."""
    at = 0
    for name, tensor in tensors:
        held, dtype, shape = _on_host(name, tensor)
        yield name, dtype, shape
        length_bytes = _checked_length(Place(name, dtype, shape, at), held)
        if length_bytes:
            _write(memfd, at, held)
        at += aligned(length_bytes)


def _later_pass(tensors: Iterator[tuple[str, Any]], manifest: Manifest, memory: SharedMemory) -> None:
    count = 0
    for name, tensor in tensors:
        held, dtype, shape = _on_host(name, tensor)
        place = manifest.places[count] if count < len(manifest.places) else None
        if place is None or (place.name, place.dtype, place.shape) != (name, dtype, shape):
            raise WeightsError(
                f"tensor {count} is {_shown(name, dtype, shape)}, and was {_expected(place)} in the first update: send"
                " the same tensors with each update"
            )
        length_bytes = _checked_length(place, held)
        if length_bytes:
            ctypes.memmove(memory.address + place.offset_bytes, held.data_ptr(), length_bytes)
        count += 1
    if count < len(manifest.places):
        raise WeightsError(
            f"there are {count} tensors, and were {len(manifest.places)} in the first update"
            f" ({_expected(manifest.places[count])} is missing): send the same tensors with each update"
        )


def _on_host(name: str, tensor: Any) -> tuple[Any, str, tuple[int, ...]]:
    """The tensor in this host's memory, contiguous, with its type's and its shape's names."""
    if hasattr(tensor, "full_tensor"):
        raise WeightsError(f"tensor {name} is one rank's part, expected a whole tensor: call its full_tensor()")
    try:
        held = tensor.detach().cpu().contiguous()
    except (NotImplementedError, RuntimeError) as elsewhere:
        raise WeightsError(f"tensor {name} cannot be copied to this host's memory: {elsewhere}") from elsewhere
    return held, str(tensor.dtype).removeprefix("torch."), tuple(int(extent) for extent in tensor.shape)


def _checked_length(place: Place, held: Any) -> int:
    if held.nbytes != place.length_bytes:
        raise WeightsError(
            f"tensor {place.name} has {held.nbytes} bytes, expected the {place.length_bytes} of"
            f" {_shown(place.name, place.dtype, place.shape)}: send it in a dense form"
        )
    return place.length_bytes


def _write(memfd: int, offset_bytes: int, held: Any) -> None:
    content = memoryview((ctypes.c_char * held.nbytes).from_address(held.data_ptr())).cast("B")
    done = 0
    while done < len(content):
        done += os.pwrite(memfd, content[done:], offset_bytes + done)


def _expected(place: Place | None) -> str:
    return "not there" if place is None else _shown(place.name, place.dtype, place.shape)


def _shown(name: str, dtype: str, shape: tuple[int, ...]) -> str:
    return f"{name} ({dtype} {list(shape)})"
