"""Host memory that other processes of this host can map."""

from __future__ import annotations

import fcntl
import mmap
import os

#: Without seals any process could shrink the memory, and the others would die of SIGBUS; Java refuses such memory.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def map_memfd(length_bytes: int) -> tuple[int, mmap.mmap]:
    """(descriptor, mapping) of ``length_bytes`` zeros; the caller closes both. Raises OSError."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this Python knows no memfd_create")
    memfd = os.memfd_create("kv-messenger-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memfd, length_bytes)
        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, SEALS)
        return memfd, mmap.mmap(memfd, length_bytes)
    except OSError:
        os.close(memfd)
        raise
