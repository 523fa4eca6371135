"""Host memory that other processes of this host can map."""

from __future__ import annotations

import fcntl
import mmap
import os

#: Without seals any process could shrink the memory, and the others would die of SIGBUS; Java refuses such memory.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def map_memfd(length_bytes: int) -> tuple[int, mmap.mmap]:
    """(descriptor, mapping) of ``length_bytes`` zeros; the caller closes both. Raises OSError."""
    memfd = new_memfd()
    try:
        return memfd, seal_and_map(memfd, length_bytes)
    except OSError:
        os.close(memfd)
        raise


def new_memfd() -> int:
    """The descriptor of empty memory, which the caller closes. Raises OSError."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this Python knows no memfd_create")
    return os.memfd_create("kv-messenger-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal_and_map(memfd: int, length_bytes: int) -> mmap.mmap:
    """Gives the memory its length for good, and maps it. Raises OSError."""
    os.ftruncate(memfd, length_bytes)
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, SEALS)
    return mmap.mmap(memfd, length_bytes)
