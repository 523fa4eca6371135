"""The HTTP routes of vLLM's servers by which weights are announced and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from kv_connector.exceptions import WeightsError
from kv_connector.runtime import plain_http

_MISSING = 'start it with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config \'{"backend":"kv_messenger"}\''


class Server:
    """One server. Each method blocks until it has answered, and raises WeightsError."""

    def __init__(self, url: str, limit_seconds: float) -> None:
        """``url`` is such as http://127.0.0.1:8000; ``limit_seconds`` is for each answer."""
        self.url = url.rstrip("/")
        self._limit_seconds = limit_seconds

    def announce(self, init_info: Mapping[str, object]) -> None:
        """Gives it the sender's address and the tensors; the server dials the sender."""
        self._post("/init_weight_transfer_engine", {"init_info": init_info})

    def load(self, update_id: int) -> None:
        """Lets its engine load what has landed, between two steps. What came of it, the server's messenger says.

        A sender that died behind its ``start`` has left an update open, which is closed first.
        """
        try:
            self._post("/start_weight_update", None)
        except WeightsError:
            self._post("/finish_weight_update", {})
            self._post("/start_weight_update", None)
        self._post("/update_weights", {"update_info": {"update_id": update_id}})

    def finish(self, version: int | None) -> None:
        """Ends the update; None where the server has changed nothing. Then its cache has no KV of older weights."""
        self._post("/finish_weight_update", {} if version is None else {"weight_version": str(version)})
        if version is not None and not self._post("/reset_prefix_cache", None).get("success"):
            self._post("/reset_prefix_cache?reset_running_requests=true", None)

    def version(self) -> str:
        """The version of the weights that it serves, as the last sender named it."""
        return str(self._ask("GET", "/weight_info", None).get("weight_version", ""))

    def _post(self, path: str, body: Mapping[str, object] | None) -> Mapping[str, Any]:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None) -> Mapping[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        try:
            answer = plain_http.ask(
                method, self.url + path, limit_seconds=self._limit_seconds, body=data, headers=headers
            )
            if answer.status == HTTPStatus.NOT_FOUND:
                raise WeightsError(f"{self.url} has no route {path}: {_MISSING}")
            if answer.status != HTTPStatus.OK:
                raise WeightsError(
                    f"{self.url}{path} answered {answer.status}, expected 200: {plain_http.shortened(answer.text)}"
                )
            answered = json.loads(answer.text)
        except (OSError, ValueError) as failure:
            raise WeightsError(f"{self.url}{path} did not answer: {failure}") from failure
        return answered if isinstance(answered, dict) else {}
