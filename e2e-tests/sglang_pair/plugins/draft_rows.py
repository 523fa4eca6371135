"""A plug-in of SGLang that writes rows where a draft's would be, and compares them at the decoder.

On this CPU SGLang makes no drafts, but its metadata has their rows all the same, and a backend moves them: hidden
states, and probabilities and ids of guesses. Any bits are written, drawn from the request's room, when SGLang writes
the rest of its metadata. They are compared when SGLang reads them: the backend has said then that the request is ready.
A line a request, in a file for each process in the folder that `KV_MESSENGER_RECORDING` names: its room, and what was
seen.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

EQUAL = "equal"
SUFFIX = ".rows"


def register() -> None:
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    path = Path(os.environ["KV_MESSENGER_RECORDING"]) / f"{os.getpid()}{SUFFIX}"

    def rows(buffers: Any, index: int) -> list[Any]:
        of_a_draft = (buffers.output_hidden_states, buffers.output_topk_p, buffers.output_topk_index)
        return [row[index].view(torch.uint8) for row in of_a_draft]

    def drawn(room: int, like: list[Any]) -> list[Any]:
        generator = torch.Generator().manual_seed(room)
        return [torch.empty_like(row).random_(generator=generator) for row in like]

    def after_write(result: Any, buffers: Any, request: Any) -> None:
        written = rows(buffers, request.metadata_buffer_index)
        for row, bits in zip(written, drawn(request.bootstrap_room or 0, written), strict=True):
            row.copy_(bits)

    def after_read(result: Any, buffers: Any, index: int) -> None:
        room = int(buffers.bootstrap_room[index, 0])
        if not room:  # a health check of SGLang's: nothing was transferred
            return
        seen = rows(buffers, index)
        equal = all(torch.equal(*both) for both in zip(seen, drawn(room, seen), strict=True))
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{room} {EQUAL if equal else 'differs'}\n")

    buffers_class = "sglang.srt.disaggregation.utils.MetadataBuffers"
    HookRegistry.register(f"{buffers_class}.set_buf", after_write, HookType.AFTER)
    HookRegistry.register(f"{buffers_class}.get_buf", after_read, HookType.AFTER)
