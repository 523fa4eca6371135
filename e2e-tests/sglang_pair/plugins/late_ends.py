"""A plug-in of SGLang with which a prefiller's scheduler does not learn that requests have been sent.

It learns nothing while the file exists that KV_MESSENGER_LATE_ENDS names, as when it is paused, or busy with a long
pass: its clients' requests stay open.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

VARIABLE = "KV_MESSENGER_LATE_ENDS"


def register() -> None:
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    file = Path(os.environ[VARIABLE])

    def poll(original: Any, sender: Any) -> Any:
        state = original(sender)
        return KVPoll.Transferring if state == KVPoll.Success and file.exists() else state

    HookRegistry.register("kv_connector.sglang.sender.Sender.poll", poll, HookType.AROUND)
