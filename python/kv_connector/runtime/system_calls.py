"""Whether the kernel, or a container's seccomp profile, denies system calls that a messenger makes."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kv_connector.exceptions import PreflightError

_AT_FDCWD = -100
_STATX_BASIC = 0x7FF
_STATX_LENGTH_BYTES = 256


@dataclass(frozen=True, slots=True)
class Denied:
    """A system call that fails, and what becomes of a messenger without it."""

    name: str
    reason: str
    needed: bool
    effect: str


def _statx() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    facts = ctypes.create_string_buffer(_STATX_LENGTH_BYTES)
    if hasattr(libc, "statx") and libc.statx(_AT_FDCWD, b"/", 0, _STATX_BASIC, facts) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _memfd_create() -> None:
    os.close(os.memfd_create("kv-messenger-probe", os.MFD_CLOEXEC))


def _eventfd2() -> None:
    os.close(os.eventfd(0, os.EFD_CLOEXEC))


def _sched_getaffinity() -> None:
    os.sched_getaffinity(0)


def _prlimit64() -> None:
    resource.getrlimit(resource.RLIMIT_NOFILE)


_JVM_ENDS = "the Java runtime ends the process without it"
"""The C library asks for affinity and limits when the runtime looks for the stack of the thread that starts it."""
_PROBES: dict[str, tuple[Callable[[], None], bool, str]] = {
    "statx": (_statx, True, _JVM_ENDS),
    "eventfd2": (_eventfd2, True, _JVM_ENDS),
    "sched_getaffinity": (_sched_getaffinity, True, _JVM_ENDS),
    "prlimit64": (_prlimit64, True, _JVM_ENDS),
    "memfd_create": (_memfd_create, False, "no shm: KV moves over tcp, and several ranks share no messenger"),
}
"""Each call with a probe of it, whether no messenger runs without it, and what happens without it."""
REMEDY = "allow it in the seccomp profile of the container: the container runtime's own default profile does"


def denied() -> Iterator[Denied]:
    """The calls that fail here."""
    for name, (probe, needed, effect) in _PROBES.items():
        try:
            probe()
        except (OSError, ValueError, AttributeError) as refusal:
            reason = refusal.strerror if isinstance(refusal, OSError) and refusal.strerror else str(refusal)
            yield Denied(name, reason, needed, effect)


def require() -> None:
    """Raises PreflightError if a call is denied without which a Java runtime would end this process.

    Or if the process's working folder is gone, which a Java runtime asks for when it starts.
    """
    try:
        os.getcwd()  # noqa: PTH109 - a path is not needed
    except OSError as gone:
        raise PreflightError(
            f"the working folder of this process cannot be found ({gone.strerror}), and the Java runtime ends the"
            " process without it: start the engine in a folder that exists"
        ) from gone
    for one in denied():
        if one.needed:
            raise PreflightError(f"system call {one.name} is denied here ({one.reason}), and {one.effect}: {REMEDY}")
