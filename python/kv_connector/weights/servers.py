"""The HTTP routes of vLLM's servers by which weights are announced and loaded."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from kv_connector.exceptions import WeightsError
from kv_connector.runtime import plain_http

BACKEND = "kv_messenger"
CONTINUE = "continue"
"""Requests under way get the rest of their answers by the new weights, of KV that is computed anew."""
FINISH = "finish"
"""Requests under way are answered by the old weights, and new ones wait meanwhile: no answer is of two versions."""
STATUS_METHOD = "kv_messenger_weights"
"""By which ``/collective_rpc`` asks for the status of weights."""
READY_POLL_SECONDS = 1.0
_NO_VERSION = "default"
"""vLLM's version of weights to which none was given."""
_MISSING = 'start it with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config \'{"backend":"kv_messenger"}\''


class Server:
    """One server. Each method blocks until it has answered, and raises WeightsError."""

    def __init__(self, url: str, limit_seconds: float) -> None:
        """``url`` is such as http://127.0.0.1:8000; ``limit_seconds`` is for each answer."""
        self.url = url.rstrip("/")
        self._limit_seconds = limit_seconds

    def await_ready(self, limit_seconds: float) -> None:
        """Returns when it is up and takes weights of this package; raises WeightsError if it does not, or is late."""
        deadline = time.monotonic() + limit_seconds
        while True:
            try:
                self._ask("GET", "/version", None)
                break
            except WeightsError as down:
                if time.monotonic() > deadline:
                    raise WeightsError(f"{down}, and was waited for {limit_seconds:g} s: start it") from down
            time.sleep(READY_POLL_SECONDS)
        backend = self._backend()
        if backend != BACKEND:
            raise WeightsError(
                f"{self.url} has the weight transfer backend {backend!r}, expected {BACKEND!r}: {_MISSING}"
            )

    def announce(self, init_info: Mapping[str, object]) -> None:
        """Gives it the sender's address and the tensors; the server dials the sender."""
        self._post("/init_weight_transfer_engine", {"init_info": init_info})

    def load(self, update_id: int, under_way: str) -> None:
        """Lets its engine load what has landed, between two steps. What came of it, the server's messenger says.

        vLLM counts every end of an update as a change of its weights, but one that has a version's name.
        """
        self._post("/start_weight_update", None)
        self._post("/update_weights", {"update_info": {"update_id": update_id, "under_way": under_way}})
        served = self.version()
        self._post("/finish_weight_update", {} if served == _NO_VERSION else {"weight_version": served})

    def version(self) -> str:
        """The version of the weights that it serves, as the last sender named it."""
        return str(self._ask("GET", "/weight_info", None).get("weight_version", ""))

    def status(self) -> Mapping[str, Any]:
        """What its messenger of weights knows: ``landing``, ``ended`` by reason, ``loaded``, ``refused``.

        Empty with another backend. Its workers would raise at a method that they do not have, which shifts later
        answers of a server with several ranks, so they are not asked.
        """
        if self._backend() != BACKEND:
            return {}
        results = self._post("/collective_rpc", {"method": STATUS_METHOD}).get("results")
        return results[0] if isinstance(results, list) and results and isinstance(results[0], dict) else {}

    def _backend(self) -> object:
        """What takes its weights; None where nothing does."""
        config = self._ask("GET", "/server_info?config_format=json", None).get("vllm_config")
        transfer = config.get("weight_transfer_config") if isinstance(config, dict) else None
        return transfer.get("backend") if isinstance(transfer, dict) else None

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
                raise WeightsError(f"{self.url} has no route {path.partition('?')[0]}: {_MISSING}")
            if answer.status != HTTPStatus.OK:
                raise WeightsError(
                    f"{self.url}{path} answered {answer.status}, expected 200: {plain_http.shortened(answer.text)}"
                )
            answered = json.loads(answer.text)
        except (OSError, ValueError) as failure:
            raise WeightsError(f"{self.url}{path} did not answer: {failure}") from failure
        return answered if isinstance(answered, dict) else {}
