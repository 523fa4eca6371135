"""Memory in which weights land, or from which they leave: shared, sealed, and there from the start."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref

from kv_connector.memory.memfd import new_memfd, seal_and_map

MADV_POPULATE_WRITE = 23
"""Linux 5.14 has it, and Python no name for it."""


class SharedMemory:
    """A memfd that is mapped here. Its pages exist and are mapped: the kernel does neither in the first update.

    Its descriptor is closed with the object, and the pages go when nothing looks at its bytes either.
    """

    def __init__(self, length_bytes: int, memfd: int | None = None) -> None:
        """Raises OSError if the machine has not as much memory.

        ``memfd`` is memory that has been written to, whose descriptor belongs to this object from now on.
        """
        self.memfd = new_memfd() if memfd is None else memfd
        closing = weakref.finalize(self, os.close, self.memfd)
        closing.atexit = False  # a messenger may still use it
        try:
            os.posix_fallocate(self.memfd, 0, length_bytes)
            self._mapping = seal_and_map(self.memfd, length_bytes)
        except BaseException:
            closing()
            raise
        with contextlib.suppress(OSError):  # an older kernel maps each page when it is first written to
            self._mapping.madvise(MADV_POPULATE_WRITE)
        self._bytes = (ctypes.c_char * length_bytes).from_buffer(self._mapping)
        self.address = ctypes.addressof(self._bytes)
        self.view = memoryview(self._bytes).cast("B")
        """All of its bytes."""

    @property
    def length_bytes(self) -> int:
        """Its length."""
        return len(self.view)

    def described(self) -> dict[str, int]:
        """Its part of the request to open a messenger."""
        return {"address": self.address, "lengthBytes": self.length_bytes, "memfd": self.memfd}


def map_of_process(pid: int, memfd: int, length_bytes: int) -> memoryview:
    """Another process's memory. What is written to the returned view changes only a copy of its page.

    Such a page stays the copy until :func:`give_up_written`. Raises OSError.
    """
    path = f"/proc/{pid}/fd/{memfd}"
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(descriptor, length_bytes, flags=mmap.MAP_PRIVATE))
    finally:
        os.close(descriptor)


def give_up_written(mapped: memoryview) -> None:
    """Has a view of :func:`map_of_process` be that memory again, where the view was written to. Raises OSError.

    The kernel then has no page of the mapping but those of the file, which are mapped when they are next looked at.
    """
    mapping = mapped.obj
    assert isinstance(mapping, mmap.mmap)
    mapping.madvise(mmap.MADV_DONTNEED)
