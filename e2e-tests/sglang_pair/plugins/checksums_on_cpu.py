"""A plug-in of SGLang with which its checksums of KV are computed on a CPU, where it has no kernel for them.

What goes into them is SGLang's: all bytes of a prompt's pages, and of what is beside them. A line a checksum is written
down, in a file for each process in the folder that `KV_MESSENGER_RECORDING` names.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from pathlib import Path
from typing import Any

SUFFIX = ".checksums"
COMPUTER = "sglang.srt.disaggregation.checksum.KvChecksumComputer.compute"


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(COMPUTER, compute, HookType.REPLACE)


def compute(computer: Any, pages: Any, states: Any = None) -> int:
    found = 1
    parts = [(computer._kv_data_ptrs, computer._kv_item_lens, pages)]
    if computer._state_data_ptrs:
        parts.append((computer._state_data_ptrs, computer._state_item_lens, states))
    for addresses, lengths, indices in parts:
        for address, length in zip(addresses, lengths, strict=True):
            for index in indices.tolist():
                found = zlib.adler32(ctypes.string_at(address + index * length, length), found)
    path = Path(os.environ["KV_MESSENGER_RECORDING"]) / f"{os.getpid()}{SUFFIX}"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{found}\n")
    return found
