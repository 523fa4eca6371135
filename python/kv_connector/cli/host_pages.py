"""KV memory without an engine: the pages of one layer, for commands that open a messenger of their own."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

from kv_connector.memory.geometry import Geometry


class HostPages:
    """``page_count`` pages of ``page_bytes`` bytes each, in memory that another process can map if it may."""

    def __init__(self, name: str, page_bytes: int, page_count: int) -> None:
        self.page_bytes = page_bytes
        self.page_count = page_count
        self._name = name
        length = page_bytes * page_count
        self._memfd, mapping = _shareable(f"kv-messenger-{name}", length)
        self._bytes = (ctypes.c_char * length).from_buffer(mapping)
        self.view = memoryview(self._bytes).cast("B")

    def geometry(self, page_tokens: int) -> Geometry:
        """The geometry of these pages. Two messengers match if names and page sizes are the same."""
        return {
            "model": self._name,
            "tpSize": 1,
            "ppSize": 1,
            "groups": [
                {
                    "kind": "full",
                    "windowTokens": 0,
                    "dtype": "float32",
                    "elementBytes": 4,
                    "pageTokens": page_tokens,
                    "layout": "HND",
                    "kvHeadCount": 1,
                    "pageCount": self.page_count,
                }
            ],
            "ranks": [
                {
                    "tpRank": 0,
                    "ppRank": 0,
                    "memories": [
                        {
                            "kind": "host",
                            "address": ctypes.addressof(self._bytes),
                            "lengthBytes": self.page_bytes * self.page_count,
                            "memfd": self._memfd,
                        }
                    ],
                    "layers": [
                        {
                            "name": "layer 0",
                            "groupIndex": 0,
                            "memoryIndex": 0,
                            "offsetBytes": 0,
                            "pageStrideBytes": self.page_bytes,
                            "pageBytes": self.page_bytes,
                        }
                    ],
                }
            ],
        }


def _shareable(name: str, length_bytes: int) -> tuple[int, mmap.mmap]:
    """(descriptor, memory); (-1, memory of this process alone) where memfds are denied, as engines do."""
    descriptor = -1
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, length_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return descriptor, mmap.mmap(descriptor, length_bytes)
    except (OSError, AttributeError):  # denied, or unknown to this Python
        if descriptor >= 0:
            os.close(descriptor)
        return -1, mmap.mmap(-1, length_bytes)
