"""``python -m kv_connector.cli.probe``: opens a messenger on a few pages in this process and prints the result.

The options are JSON on standard input. The last line of standard output is a JSON object: ``error`` or facts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kv_connector.cli.host_pages import HostPages
from kv_connector.configuration.options import Options
from kv_connector.exceptions import KvConnectorError
from kv_connector.runtime.facade import Log, Messenger
from kv_connector.runtime.function_table import Function
from kv_connector.runtime.jvm import boot

PAGE_BYTES = 4096
PAGE_COUNT = 4
PAGE_TOKENS = 16
TRANSFER_THREAD = "kvm-transfer"


def main() -> None:
    """Prints the answer; the exit status is 0 even if it is an error."""
    fields: dict[str, Any] = json.load(sys.stdin)
    fields.update({name: tuple(value) for name, value in fields.items() if isinstance(value, list)})
    options = Options(**fields)
    try:
        answer = opened(options)
    except KvConnectorError as fault:
        answer = {"error": str(fault)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


def opened(options: Options) -> dict[str, Any]:
    """Opens and closes a messenger; returns facts about it."""
    described = json.loads(boot(options).wait(Function.DESCRIBE, 0, b""))
    pages = HostPages("doctor", PAGE_BYTES, PAGE_COUNT)
    messenger = Messenger.open(options, pages.geometry(PAGE_TOKENS))
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
    """The kernel's names of this process's threads."""
    return [comm.read_text(encoding="utf-8").strip() for comm in Path("/proc/self/task").glob("*/comm")]


if __name__ == "__main__":
    main()
