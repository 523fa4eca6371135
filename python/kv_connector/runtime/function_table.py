"""The table of C functions that Java fills, as docs/boundary.md describes it."""

from __future__ import annotations

import ctypes
import enum

from kv_connector.exceptions import BootError, MessengerError


class Function(enum.IntEnum):
    """The indices of functions in the table."""

    DESCRIBE = 0
    OPEN = 1
    SUBMIT = 2
    POLL = 3
    STATS = 4
    FENCE = 5
    LEAK_CHECK = 6
    CLOSE = 7
    AWAIT = 8


TABLE_MAGIC = 0x4B564D53_00000001

_ANSWER_CAPACITY_BYTES = 1 << 20
NO_ANSWER_CAPACITY_BYTES = 1 << 16
"""The size of the buffer for a call that returns nothing but a possible error message."""
_HEADER_LENGTH_BYTES = 16
_SIGNATURE = (ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)


class FunctionTable:
    """The functions that Java offers, which any thread may call. Each returns bytes or an error message."""

    def __init__(self, address: int) -> None:
        magic, count = (ctypes.c_int64 * 2).from_address(address)
        if magic != TABLE_MAGIC or count < len(Function):
            raise BootError(
                f"the jar's function table says {magic:#x} with {count} functions, expected {TABLE_MAGIC:#x} with"
                f" {len(Function)}: install the wheel again, its jar is of another version"
            )
        addresses = (ctypes.c_int64 * count).from_address(address + _HEADER_LENGTH_BYTES)
        self._short = [ctypes.PYFUNCTYPE(*_SIGNATURE)(a) for a in addresses]
        self._waiting = [ctypes.CFUNCTYPE(*_SIGNATURE)(a) for a in addresses]

    def call(self, function: Function, handle: int, request: bytes, out: ctypes.Array[ctypes.c_char]) -> bytes:
        """Calls a short function: keeps the GIL, and copies the answer out of ``out``."""
        return _answer(self._short[function](handle, request, len(request), ctypes.addressof(out), len(out)), out)

    def wait(
        self, function: Function, handle: int, request: bytes, capacity_bytes: int = _ANSWER_CAPACITY_BYTES
    ) -> bytes:
        """Calls a function that may block: releases the GIL."""
        out = ctypes.create_string_buffer(capacity_bytes)
        return _answer(self._waiting[function](handle, request, len(request), ctypes.addressof(out), len(out)), out)


def _answer(result: int, out: ctypes.Array[ctypes.c_char]) -> bytes:
    if result >= 0:
        return ctypes.string_at(out, result)
    raise MessengerError(ctypes.string_at(out, -1 - result).decode(errors="replace"))
