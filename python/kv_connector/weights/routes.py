"""The HTTP routes of each engine's servers by which weights are announced and loaded."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kv_connector.exceptions import WeightsError

BACKEND = "kv_messenger"
CONTINUE = "continue"
"""Requests under way get the rest of their answers by the new weights, of KV that is computed anew."""
FINISH = "finish"
"""Requests under way are answered by the old weights, and new ones wait meanwhile: no answer is of two versions."""
STATUS_METHOD = "kv_messenger_weights"
"""By which ``/collective_rpc`` asks vLLM for the status of weights."""
SGLANG_LOADER = "kv_connector.sglang.weights.load_landed"
"""What ``--custom-weight-loader`` names on SGLang's servers that take weights."""
BUSY = "requests are still computed"
"""The beginning of an SGLang server's answer if requests whose clients have left are not over yet."""
ANNOUNCED = "announced"
STATUS = "status"
_BUSY_POLL_SECONDS = 0.2
_VLLM_MISSING = 'start it with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config \'{"backend":"kv_messenger"}\''

Ask = Callable[[str, str, Mapping[str, object] | None], Mapping[str, Any]]
"""Asks a server by method, path and body; raises WeightsError unless it answers 200."""


class Routes(Protocol):
    """What differs between engines. Each method raises WeightsError."""

    missing: str
    """What a server needs that has not the routes."""

    def check(self) -> None:
        """Raises unless the server takes weights."""

    def announce(self, init_info: Mapping[str, object]) -> None:
        """Gives the server a sender's address and tensors."""

    def load(self, update_id: int, version: int, under_way: str) -> None:
        """Has the engine load what has landed."""

    def version(self) -> str:
        """That of the weights which the server serves."""

    def status(self) -> Mapping[str, Any]:
        """What the server's messenger of weights knows."""


class VllmRoutes:
    """Those of vLLM 0.32 and 0.33."""

    missing = _VLLM_MISSING

    def __init__(self, url: str, ask: Ask) -> None:
        self._url = url
        self._ask = ask

    def check(self) -> None:
        """Raises if another backend takes the weights, or none."""
        backend = self._backend()
        if backend != BACKEND:
            raise WeightsError(
                f"{self._url} has the weight transfer backend {backend!r}, expected {BACKEND!r}: {self.missing}"
            )

    def announce(self, init_info: Mapping[str, object]) -> None:
        """One call of all workers."""
        self._ask("POST", "/init_weight_transfer_engine", {"init_info": init_info})

    def load(self, update_id: int, _version: int, under_way: str) -> None:
        """A server that loads ends the update and names its weights itself; one that refuses has nothing to end.

        Both are answered alike, so a version named here might be that of weights which the server has lost.
        """
        self._ask("POST", "/start_weight_update", None)
        info = {"update_id": update_id, "under_way": under_way or CONTINUE}
        self._ask("POST", "/update_weights", {"update_info": info})

    def version(self) -> str:
        """As the last sender named it."""
        return str(self._ask("GET", "/weight_info", None).get("weight_version") or "")

    def status(self) -> Mapping[str, Any]:
        """Empty with another backend.

        Its workers would raise at a method that they do not have, which shifts later answers of a server with several
        ranks, so they are not asked.
        """
        if self._backend() != BACKEND:
            return {}
        results = self._ask("POST", "/collective_rpc", {"method": STATUS_METHOD}).get("results")
        return results[0] if isinstance(results, list) and results and isinstance(results[0], dict) else {}

    def _backend(self) -> object:
        """What takes its weights; None where nothing does."""
        config = self._ask("GET", "/server_info?config_format=json", None).get("vllm_config")
        transfer = config.get("weight_transfer_config") if isinstance(config, dict) else None
        return transfer.get("backend") if isinstance(transfer, dict) else None


class SglangRoutes:
    """Those of SGLang 0.5.22 and 0.5.23, of which the plug-in answers two where this backend is named.

    A sender is announced by a route that waits for no request. The route that loads waits, before it reaches the
    scheduler, until all requests under way are over, while new ones wait for it: each answer is of one version.
    """

    missing = f"start it with --custom-weight-loader {SGLANG_LOADER}, and this package installed"

    def __init__(self, ask: Ask, limit_seconds: float) -> None:
        self._ask = ask
        self._limit_seconds = limit_seconds

    def check(self) -> None:
        """Raises if the server was started without the loader, or has not loaded the plug-in."""
        self.status()

    def announce(self, init_info: Mapping[str, object]) -> None:
        """The tensors and the sender's address are in the name of a group that SGLang does not make."""
        self._group({ANNOUNCED: init_info})

    def load(self, update_id: int, version: int, under_way: str) -> None:
        """One call, which leaves no session of SGLang's open, whatever becomes of the sender."""
        if under_way == CONTINUE:
            raise WeightsError(
                f"requests under way are to {CONTINUE}, expected {FINISH} with SGLang, which loads weights between"
                " requests: leave it out"
            )
        update = base64.b64encode(json.dumps({"update_id": update_id}).encode()).decode()
        body = {"serialized_named_tensors": [update], "load_format": SGLANG_LOADER, "weight_version": str(version)}
        deadline = time.monotonic() + self._limit_seconds
        while True:
            try:
                self._ask("POST", "/update_weights_from_tensor", body)
                return
            except WeightsError as refused:
                if BUSY not in str(refused) or time.monotonic() > deadline:
                    raise
            time.sleep(_BUSY_POLL_SECONDS)

    def version(self) -> str:
        """As the last sender named it."""
        return str(self._ask("GET", "/model_info", None).get("weight_version") or "")

    def status(self) -> Mapping[str, Any]:
        """The plug-in answers in the message of the route."""
        seen = json.loads(str(self._group({STATUS: True}).get("message") or "{}"))
        return seen if isinstance(seen, dict) else {}

    def _group(self, question: Mapping[str, object]) -> Mapping[str, Any]:
        """Without a place to meet, SGLang itself refuses the group at once where the plug-in does not answer."""
        group = {"master_address": "", "master_port": 0, "rank_offset": 0, "world_size": 1}
        return self._ask(
            "POST",
            "/init_weights_update_group",
            {**group, "backend": BACKEND, "group_name": json.dumps(question)},
        )
