"""The part of vLLM's HTTP API by which an engine's own messenger asks it what its prefix cache holds."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "question-"
"""What the ids of its requests begin with."""
CLOSE_CHECK_SECONDS = 0.002


class QuestionApi:
    """Takes questions on threads of its own, puts each as a command, and answers it when its request has ended."""

    def __init__(self, commands: queue.Queue[dict[str, Any]]) -> None:
        self._commands = commands
        self._numbers = itertools.count()
        self._open: dict[str, threading.Event] = {}
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name, ended = api.put(asked)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the messenger has been closed
                    if _is_left(self.connection, ended):
                        api.leave(name)
                        self.close_connection = True
                        return
                    self.send_response(200)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(self, asked: dict[str, Any]) -> tuple[str, threading.Event]:
        """(the request's id, set when it has ended)."""
        name, ended = f"{NAME}{next(self._numbers)}", threading.Event()
        self._open[name] = ended
        request = {"request": name, "prompt": asked["prompt"], "answer": asked["max_tokens"]}
        self._commands.put({"do": "add", **request, "kv": asked["kv_transfer_params"]})
        return name, ended

    def leave(self, name: str) -> None:
        """The request's client has gone: vLLM's server aborts it."""
        self._commands.put({"do": "abort", "request": name})

    def on_ended(self, name: str) -> bool:
        """False if the request is none of these."""
        if (ended := self._open.pop(name, None)) is None:
            return False
        ended.set()
        return True


def _is_left(connection: socket.socket, ended: threading.Event) -> bool:
    """Waits for the request's end; True if its client closes the connection before."""
    while not ended.wait(CLOSE_CHECK_SECONDS):
        readable, _, _ = select.select([connection], [], [], 0)
        if readable and not connection.recv(1, socket.MSG_PEEK):
            return True
    return False
