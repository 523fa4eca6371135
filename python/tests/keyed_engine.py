"""An HTTP server that wants API keys as vLLM's and SGLang's do."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kv_connector.weights.routes import STATUS

ADMIN_PATHS = ("/init_weights_update_group", "/update_weights_from_tensor")
_LOGPROBS = {"tokens": ["a"] * 8, "token_logprobs": [-0.5] * 8, "top_logprobs": [{"a": -0.5, "b": -9.0}] * 8}
_PAGES: dict[str, dict[str, Any]] = {
    "/v1/models": {"data": [{"id": "m", "max_model_len": 64}]},
    "/model_info": {"weight_version": "7"},
}


class Engine:
    """An HTTP server with SGLang's rules for keys, or with vLLM's, of which only ``/v1`` is guarded."""

    def __init__(self, kind: str, api_key: str, admin_key: str) -> None:
        self.kind, self.api_key, self.admin_key = kind, api_key, admin_key
        self.taken: list[str] = []
        """Paths of requests that were answered with 200."""
        self.seen: list[tuple[str, str]] = []
        """Path and header of each request."""
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                asked = json.loads(self.rfile.read(length) or b"{}")
                status, body = engine.answer(self.path, self.headers.get("Authorization", ""), asked)
                sent = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def wanted(self, path: str) -> str:
        if self.kind == "vllm":
            return self.api_key if path.startswith("/v1") else ""
        if path.startswith(("/health", "/metrics")):
            return ""
        return self.admin_key or self.api_key if path in ADMIN_PATHS else self.api_key

    def answer(self, path: str, shown: str, asked: dict[str, Any]) -> tuple[int, object]:
        self.seen.append((path, shown))
        wanted = self.wanted(path)
        if wanted and shown != f"Bearer {wanted}":
            return 401, {"error": "Unauthorized"}
        if path == "/version" and self.kind == "sglang":
            return 404, {}
        self.taken.append(path)
        if path == "/v1/completions":
            return 200, {"choices": [{"logprobs": _LOGPROBS}]}
        return 200, {**_PAGES.get(path, {}), **({"message": "{}"} if STATUS in str(asked) else {})}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
