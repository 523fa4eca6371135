"""Which requests a messenger has ended, as messages from the lead rank to the ranks that share it."""

from __future__ import annotations

import json
from typing import NamedTuple

VOTES_LENGTH_MAX_BYTES = 16 << 10
"""The size of a message that names requests, by their numbers; several fit into a socket's buffer."""
VOTES = b"V"
"""The first byte of such a message."""


class Votes(NamedTuple):
    """Requests that a messenger has ended, so that nothing reads (sent) or writes (received) their pages any more.

    They are named by the engine's own numbers: a message with a client's text in it could be of any length.
    """

    sent: set[str]
    received: set[str]

    def messages(self) -> list[bytes]:
        """Encodes the requests as messages to a follower."""
        parts: list[list[tuple[str, str]]] = [[]]
        length_bytes = 0
        for kind, requests in (("sent", self.sent), ("received", self.received)):
            for request in requests:
                length_bytes += len(request) + len(kind) + 8
                if parts[-1] and length_bytes > VOTES_LENGTH_MAX_BYTES:
                    parts.append([])
                    length_bytes = len(request)
                parts[-1].append((kind, request))
        return [VOTES + json.dumps(part).encode() for part in parts if part]

    def hear(self, message: bytes) -> None:
        """Adds the requests that a message names."""
        for kind, request in json.loads(message[len(VOTES) :]):
            (self.sent if kind == "sent" else self.received).add(request)
