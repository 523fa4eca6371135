"""Keeps the JVM's signal handlers for memory faults installed: the JVM uses such faults in normal operation.

If one were replaced, as ``faulthandler.enable()`` does, the process would die at the next null check.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import logging
import os
import signal
import sys
import threading

logger = logging.getLogger("kv_connector")

CHECK_PERIOD_SECONDS = 1.0

_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_SIGACTION_LENGTH_BYTES = 256  # more than any C library's struct sigaction
_POINTER_LENGTH_BYTES = ctypes.sizeof(ctypes.c_void_p)

_libc = ctypes.CDLL(None, use_errno=True)


def enable_python_dumps_first() -> None:
    """Enables faulthandler before the JVM starts: enabling it again later then keeps the JVM's handlers."""
    if not faulthandler.is_enabled():
        with contextlib.suppress(ValueError, OSError, AttributeError, io.UnsupportedOperation):
            faulthandler.enable(sys.__stderr__ or sys.stderr)


class FaultHandlers:
    """The handlers that the JVM installed; a slow timer on a thread of its own checks and restores them."""

    def __init__(self) -> None:
        self._saved = {fault: _read(fault) for fault in _FAULTS}
        self._pid = os.getpid()
        self._logged: set[int] = set()

    def watch(self) -> None:
        """Starts the timer; it ends with the process."""
        threading.Thread(target=self._run, name="kv-messenger-fault-handlers", daemon=True).start()

    def restore(self) -> list[int]:
        """Restores replaced handlers; returns their signal numbers."""
        replaced = [fault for fault in _FAULTS if _handler(_read(fault)) != _handler(self._saved[fault])]
        for fault in replaced:
            _libc.sigaction(int(fault), self._saved[fault], None)
        return [int(fault) for fault in replaced]

    def _run(self) -> None:
        timer = threading.Event()
        while os.getpid() == self._pid:
            timer.wait(CHECK_PERIOD_SECONDS)
            for fault in self.restore():
                if fault not in self._logged:
                    self._logged.add(fault)
                    logger.warning(
                        "the handler of %s was replaced after the JVM had started, and is the JVM's again: enable"
                        " faulthandler, or load what replaced it, before the KV connector",
                        signal.Signals(fault).name,
                    )


def _read(fault: int) -> ctypes.Array[ctypes.c_char]:
    action = ctypes.create_string_buffer(_SIGACTION_LENGTH_BYTES)
    if _libc.sigaction(int(fault), None, action) != 0:
        raise OSError(ctypes.get_errno(), "sigaction")
    return action


def _handler(action: ctypes.Array[ctypes.c_char]) -> bytes:
    return action.raw[:_POINTER_LENGTH_BYTES]
