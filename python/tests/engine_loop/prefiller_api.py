"""An engine's HTTP API, as its own messenger uses it: for requests that go to the decoder only, and for questions."""

from __future__ import annotations

import contextlib
import json
import queue
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CLOSE_CHECK_SECONDS = 0.002


@dataclass
class Posted:
    """A completion that was posted; its answer leaves when the engine has ended the request."""

    prompt: list[int]
    max_tokens: int
    transfer_params: dict[str, Any]
    transfer: str
    cache_salt: str = ""
    is_question: bool = False
    """What does the prefix cache hold of the prompt? Its engine computes nothing of it."""
    _status: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def is_left(self, connection: socket.socket) -> bool:
        """Waits for the engine to end the request; True if its client has closed the connection before."""
        while not self._ended.wait(CLOSE_CHECK_SECONDS):
            readable, _, _ = select.select([connection], [], [], 0)
            if readable and not connection.recv(1, socket.MSG_PEEK):
                return True
        return False

    def answer(self, *, served: bool) -> None:
        """The engine has ended the request."""
        self._status = 200 if served else 500
        self._ended.set()

    @property
    def status(self) -> int:
        """The HTTP status, once the engine has ended the request."""
        return self._status


class EngineApi:
    """Takes posts on threads of its own and hands them to the loop."""

    def __init__(self) -> None:
        posts: queue.SimpleQueue[Posted] = queue.SimpleQueue()
        left: queue.SimpleQueue[Posted] = queue.SimpleQueue()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length_bytes = int(self.headers["Content-Length"])
                content = self.rfile.read(length_bytes)
                if len(content) < length_bytes:  # the messenger has been closed
                    self.close_connection = True
                    return
                body = json.loads(content)
                params = body["kv_transfer_params"]
                salt = body.get("cache_salt", "")
                asked = params.get("asked_by_transfer")
                transfer = asked or params["transfer_id"]
                posted = Posted(body["prompt"], body["max_tokens"], params, transfer, salt, is_question=bool(asked))
                posts.put(posted)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the messenger has been closed
                    if posted.is_left(self.connection):
                        left.put(posted)
                        self.close_connection = True
                        return
                    self.send_response(posted.status)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                return

        self._posts, self._left = posts, left
        self._open: list[Posted] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self) -> Iterator[Posted]:
        """What was posted since the last call."""
        while not self._posts.empty():
            posted = self._posts.get()
            self._open.append(posted)
            yield posted

    def take_left(self) -> Iterator[Posted]:
        """Those whose client has left since the last call: an engine's server aborts them."""
        while not self._left.empty():
            yield self._left.get()

    def close(self) -> None:
        """Ends the server; a post that still waits is answered as not served."""
        for posted in [*self._open, *self.take()]:
            posted.answer(served=False)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
