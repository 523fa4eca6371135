"""HTTP to this engine's own parts and its peers: never by way of a proxy, and nothing of the user's environment counts.

``urllib`` and ``requests`` obey ``http_proxy`` and its like, and ``requests`` reads ``.netrc`` too. Pods behind a
corporate proxy have those variables set, and a proxy knows no pod. Of a name every address is tried. The limit is that
of the whole answer, the look-up of the name included: a server that sends a byte a second has no longer than one that
sends none.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from kv_connector.configuration.host_addresses import port_of
from kv_connector.runtime.name_service import addresses_of

ANSWER_BYTES_MAX = 64 << 20
"""More than any page of a messenger or a bootstrap server has."""
REASON_LENGTH_MAX = 300
_PORTS = {"http": 80, "https": 443}


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
    addresses: Sequence[str] = (),
) -> Answer:
    """One request on a connection of its own, without redirects. Raises OSError or ValueError with a reason.

    ``addresses`` are dialled in place of those that the URL's name has.
    """
    parts = urlsplit(url)
    host, _, text = parts.netloc.rpartition(":")
    port = port_of(text)
    if parts.scheme not in _CONNECTIONS or not host or port is None:
        raise ValueError("expected HOST:PORT")
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    name = host.removeprefix("[").removesuffix("]")
    try:
        connection = _CONNECTIONS[parts.scheme](name, port, timeout=limit_seconds)
    except http.client.InvalidURL as wrong:  # a space in the name; no ValueError
        raise ValueError("expected HOST:PORT") from wrong
    connection.addresses = addresses
    try:
        connection.request(method, target, body, dict(headers or {}))
        answer = connection.getresponse()
        text = answer.read(ANSWER_BYTES_MAX).decode(errors="replace")
        if answer.length:  # a short read is no error to http.client
            raise OSError(f"the answer is not whole: {answer.length} bytes of it are missing")
        return Answer(answer.status, text)
    except TimeoutError as late:
        raise OSError(f"no whole answer within {limit_seconds:g} s") from late
    except http.client.HTTPException as broken:
        raise OSError(f"no HTTP answer: {type(broken).__name__}") from broken
    finally:
        connection.close()


def with_port(url: str) -> str:
    """The URL with the port that its scheme stands for, if it names none; raises ValueError if it is no server's."""
    parts = urlsplit(url)
    port = parts.port  # raises ValueError for what is no port
    if parts.scheme not in _PORTS or not parts.hostname or port == 0 or "@" in parts.netloc:
        raise ValueError("expected a URL such as http://127.0.0.1:8000")
    if port is not None:
        return url
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.removesuffix(':')}:{_PORTS[parts.scheme]}"))


def shortened(text: str) -> str:
    """A server's own words for an error message: not too long, and nothing that a terminal obeys."""
    shown = "".join(each if each.isprintable() else " " for each in text[: 2 * REASON_LENGTH_MAX].strip())
    return f"{shown[:REASON_LENGTH_MAX]}…" if len(text.strip()) > REASON_LENGTH_MAX else shown


def connect(host: str, port: int, limit_seconds: float, addresses: Sequence[str] = ()) -> socket.socket:
    """Tries every address of the name within the limit; raises OSError that names each address with its reason.

    ``addresses`` are tried in place of the name's.
    """
    deadline = time.monotonic() + limit_seconds
    refusals = []
    tried = [each for name in addresses or (host,) for each in addresses_of(name, port, limit_seconds)]
    for family, kind, protocol, _, address in tried:
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
    addresses: Sequence[str] = ()

    def connect(self) -> None:
        self.sock = _Timed(*_connected(self))


class _TlsConnection(http.client.HTTPSConnection):
    addresses: Sequence[str] = ()

    def connect(self) -> None:
        end, deadline = _connected(self)
        end.settimeout(_left(deadline))
        self.sock = _Timed(ssl.create_default_context().wrap_socket(end, server_hostname=self.host), deadline)


class _Timed:
    """The part of a socket that http.client uses, with one deadline for all that it does."""

    def __init__(self, end: socket.socket, deadline: float) -> None:
        self._end = end
        self._deadline = deadline

    def sendall(self, sent: bytes) -> None:
        self._end.settimeout(_left(self._deadline))
        self._end.sendall(sent)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_Reader(self._end, self._deadline))

    def close(self) -> None:
        self._end.close()


class _Reader(io.RawIOBase):
    """What the server sends. It keeps the socket open until it is closed itself, as a file of a socket does."""

    def __init__(self, end: socket.socket, deadline: float) -> None:
        self._end = end
        self._deadline = deadline
        self._file = end.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._end.settimeout(_left(self._deadline))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connected(connection: _Connection | _TlsConnection) -> tuple[socket.socket, float]:
    limit_seconds = connection.timeout
    assert isinstance(limit_seconds, float | int)
    deadline = time.monotonic() + limit_seconds
    return connect(connection.host, connection.port, limit_seconds, connection.addresses), deadline


_CONNECTIONS: dict[str, type[_Connection | _TlsConnection]] = {"http": _Connection, "https": _TlsConnection}
