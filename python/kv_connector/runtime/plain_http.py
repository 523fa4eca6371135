"""HTTP to this engine's own parts and its peers: never by way of a proxy, and nothing of the user's environment counts.

``urllib`` and ``requests`` obey ``http_proxy`` and its like, and ``requests`` reads ``.netrc`` too. Pods behind a
corporate proxy have those variables set, and a proxy knows no pod. Of a name every address is tried.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

ANSWER_BYTES_MAX = 64 << 20
"""More than any page of a messenger or a bootstrap server has."""
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    text: str


def ask(
    method: str,
    url: str,
    *,
    limit_seconds: float,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One request on a connection of its own, without redirects. Raises OSError or ValueError with a reason."""
    parts = urlsplit(url)
    host, _, port = parts.netloc.rpartition(":")
    if parts.scheme not in _CONNECTIONS or not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise ValueError("expected HOST:PORT")
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    name = host.removeprefix("[").removesuffix("]")
    try:
        connection = _CONNECTIONS[parts.scheme](name, int(port), timeout=limit_seconds)
    except http.client.InvalidURL as wrong:  # a space in the name; no ValueError
        raise ValueError("expected HOST:PORT") from wrong
    try:
        connection.request(method, target, body, dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(ANSWER_BYTES_MAX).decode(errors="replace"))
    except http.client.HTTPException as broken:
        raise OSError(f"no HTTP answer: {type(broken).__name__}") from broken
    finally:
        connection.close()


def connect(host: str, port: int, limit_seconds: float) -> socket.socket:
    """Tries every address of the name within the limit; raises OSError that names each address with its reason."""
    deadline = time.monotonic() + limit_seconds
    refusals = []
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left = deadline - time.monotonic()
        if left <= 0:
            refusals.append(f"{address[0]}: not tried within {limit_seconds:g} s")
            continue
        end = socket.socket(family, kind, protocol)
        try:
            end.settimeout(left)
            end.connect(address)
        except OSError as refused:
            end.close()
            refusals.append(f"{address[0]}: {refused}")
        else:
            end.settimeout(limit_seconds)
            return end
    raise OSError("; ".join(refusals))


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = _connected(self)


class _TlsConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        self.sock = ssl.create_default_context().wrap_socket(_connected(self), server_hostname=self.host)


def _connected(connection: http.client.HTTPConnection) -> socket.socket:
    limit_seconds = connection.timeout
    assert isinstance(limit_seconds, float | int)
    return connect(connection.host, connection.port, limit_seconds)


_CONNECTIONS: dict[str, type[http.client.HTTPConnection]] = {"http": _Connection, "https": _TlsConnection}
