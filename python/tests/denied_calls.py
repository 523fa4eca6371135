"""``denied_calls.py NAME[,NAME…] CMD…``: runs a command for which the kernel denies these system calls, with EPERM.

A seccomp filter, as container runtimes and old profiles have them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {"memfd_create": 319, "statx": 332, "eventfd2": 290, "sched_getaffinity": 204, "prlimit64": 302},
    "aarch64": {"memfd_create": 279, "statx": 291, "eventfd2": 19, "sched_getaffinity": 123, "prlimit64": 261},
}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD_NUMBER = struct.pack("HBBI", 0x20, 0, 0, 0)
_ALLOW = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
_DENY = struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | errno.EPERM)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def deny(names: list[str]) -> None:
    """From here on this process and its children are denied the calls."""
    numbers = [NUMBERS[platform.machine()][name] for name in names]
    jumps = [struct.pack("HBBI", 0x15, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    code = b"".join([_LOAD_NUMBER, *jumps, _ALLOW, _DENY])
    held = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(jumps) + 3, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    deny(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
