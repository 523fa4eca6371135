"""Reads the KV memory of running engines: the memfds in which their workers keep it."""

from __future__ import annotations

import contextlib
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

from processes import GONE, descendants, entries
from server_process import Server

OPEN_LINE = re.compile(r"KV Messenger is open: .* (\d+) pages of (\d+) tokens in (\d+) layers, LATENT")
MEMORY_NAME = "/memfd:kv-messenger-kv (deleted)"


@dataclass(frozen=True)
class LatentPages:
    """The KV memory of one rank of a model with latent KV: layer by layer, page by page, token by token."""

    memory: mmap.mmap
    page_count: int
    page_tokens: int
    layer_count: int
    token_bytes: int

    def tokens(self, layer: int, page: int, count: int) -> bytes:
        """The first `count` tokens of a page."""
        begin = (layer * self.page_count + page) * self.page_tokens * self.token_bytes
        return self.memory[begin : begin + count * self.token_bytes]

    def written(self) -> list[int]:
        """Pages with a first token."""
        nothing = bytes(self.token_bytes)
        return [page for page in range(self.page_count) if self.tokens(0, page, 1) != nothing]

    def beginning(self, page: int, token_count: int) -> bytes:
        """The first tokens of a page in all layers. Rotary embedding makes the KV of a token its position's own."""
        return b"".join(self.tokens(layer, page, token_count) for layer in range(self.layer_count))


def latent_pages(server: Server, token_bytes: int) -> list[LatentPages]:
    """Those of all ranks of an engine."""
    line = OPEN_LINE.search(server.log())
    assert line, f"{server.name} does not say what its pages are"
    page_count, page_tokens, layer_count = map(int, line.groups())
    memories: dict[int, Path] = {}
    for process in descendants(server.pid):
        for descriptor in entries(Path(f"/proc/{process}/fd")):
            with contextlib.suppress(*GONE):  # a descriptor that was closed meanwhile
                if str(descriptor.readlink()) == MEMORY_NAME:
                    memories[descriptor.stat().st_ino] = descriptor
    found = []
    for path in memories.values():
        with open(path, "rb") as opened:
            memory = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        found.append(LatentPages(memory, page_count, page_tokens, layer_count, token_bytes))
    return found
