"""``python -m kv_connector.cli.probe``: opens a messenger on a few pages, in its own process; says what came of it.

Options come as JSON on standard input. The last line of standard output is a JSON object: ``error`` or facts.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any

from kv_connector._facade import Geometry, Log, Messenger
from kv_connector._jvm import boot
from kv_connector._table import Function
from kv_connector.exceptions import KvConnectorError
from kv_connector.options import Options

PAGE_BYTES = 4096
PAGE_COUNT = 4
TRANSFER_THREAD = "kvm-transfer"


def main() -> None:
    """Prints the answer; exits with status 0 also when it is an error."""
    said: dict[str, Any] = json.load(sys.stdin)
    said.update({name: tuple(value) for name, value in said.items() if isinstance(value, list)})
    options = Options(**said)
    try:
        answer = opened(options)
    except KvConnectorError as fault:
        answer = {"error": str(fault)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


def opened(options: Options) -> dict[str, Any]:
    """Opens and closes; what there was to see in between."""
    described = json.loads(boot(options).wait(Function.DESCRIBE, 0, b""))
    messenger = Messenger.open(options, geometry())
    try:
        return {
            "build": described["buildId"],
            "version": described["version"],
            "java": described["java"],
            "listens": str(messenger.opened),
            "warnings": [event.message for event in messenger.poll() if isinstance(event, Log)],
            "transferThreads": sum(name.startswith(TRANSFER_THREAD) for name in threads()),
        }
    finally:
        messenger.close()


def threads() -> list[str]:
    """The names of this process's threads, as the kernel knows them."""
    return [comm.read_text(encoding="utf-8").strip() for comm in Path("/proc/self/task").glob("*/comm")]


def geometry() -> Geometry:
    """One layer of a few pages, in memory that another process could map."""
    memfd = os.memfd_create("kv-messenger-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memfd, PAGE_COUNT * PAGE_BYTES)
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    memory = (ctypes.c_char * (PAGE_COUNT * PAGE_BYTES)).from_buffer(mmap.mmap(memfd, PAGE_COUNT * PAGE_BYTES))
    return {
        "model": "doctor",
        "tpSize": 1,
        "ppSize": 1,
        "groups": [
            {
                "kind": "full",
                "windowTokens": 0,
                "dtype": "float32",
                "elementBytes": 4,
                "pageTokens": 16,
                "layout": "HND",
                "kvHeadCount": 1,
                "pageCount": PAGE_COUNT,
            }
        ],
        "ranks": [
            {
                "tpRank": 0,
                "ppRank": 0,
                "memories": [
                    {
                        "kind": "host",
                        "address": ctypes.addressof(memory),
                        "lengthBytes": PAGE_COUNT * PAGE_BYTES,
                        "memfd": memfd,
                    }
                ],
                "layers": [
                    {
                        "name": "layer 0",
                        "groupIndex": 0,
                        "memoryIndex": 0,
                        "offsetBytes": 0,
                        "pageStrideBytes": PAGE_BYTES,
                        "pageBytes": PAGE_BYTES,
                    }
                ],
            }
        ],
    }


if __name__ == "__main__":
    main()
