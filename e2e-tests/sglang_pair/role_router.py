"""SGLang's own router, in front of servers whose roles change, too: it learns each change over its API.

Its small load balancer has its servers from its command line and cannot be told. Used by one thread, but for requests.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from server_process import LOOPBACK, Server, free_port, wait_until

LIMIT_SECONDS: Final = 60.0
UNREPEATED: Final = ("--disable-retries", "--disable-circuit-breaker", "--disable-health-check")


@dataclass(frozen=True)
class Behind:
    """A server that the router sends requests to."""

    server: Server
    bootstrap_port: int


@dataclass(frozen=True)
class RoleRouter:
    server: Server

    def forget(self) -> None:
        """It sends nothing to any server any more; the requests that it has sent go on."""
        for worker in self._workers():
            path = f"{self.server.url}/workers/{worker['id']}"
            urllib.request.urlopen(urllib.request.Request(path, method="DELETE"), timeout=LIMIT_SECONDS).close()
        wait_until(lambda: not self._workers(), LIMIT_SECONDS, "the router has no server")

    def know(self, prefiller: Behind, decoder: Behind) -> None:
        """Returns when it sends requests to both."""
        prefills = {"worker_type": "prefill", "bootstrap_port": prefiller.bootstrap_port}
        for server, role in ((prefiller.server, prefills), (decoder.server, {"worker_type": "decode"})):
            answer = self.server.post("/workers", {"url": server.url, "disable_health_check": True, **role})
            assert answer.get("status") == "accepted", answer
        self.wait_knowing([(prefiller.server.url, "prefill"), (decoder.server.url, "decode")])

    def wait_knowing(self, wanted: Sequence[tuple[str, str]]) -> None:
        def known() -> bool:
            ready = [(worker["url"], worker["worker_type"]) for worker in self._workers() if worker["is_healthy"]]
            return sorted(ready) == sorted(wanted)

        wait_until(known, LIMIT_SECONDS, f"the router knows {wanted}")

    def _workers(self) -> list[dict[str, Any]]:
        return list(json.loads(self.server.get("/workers"))["workers"])


def router(
    name: str, prefiller: Behind, decoders: Sequence[Behind], folder: Path, arguments: Sequence[str] = UNREPEATED
) -> RoleRouter:
    """One that is made, not started; without `arguments`, it repeats no request, so that each failure is seen."""
    port = free_port()
    decodes = [argument for decoder in decoders for argument in ("--decode", decoder.server.url)]
    command = [
        *(sys.executable, "-m", "sglang_router.launch_router", "--pd-disaggregation", "--policy", "random"),
        *("--prefill", prefiller.server.url, str(prefiller.bootstrap_port), *decodes),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--prometheus-host", LOOPBACK, "--prometheus-port", str(free_port())),
        *("--worker-startup-check-interval", "1", "--shutdown-grace-period-secs", "1", *arguments),
    ]
    return RoleRouter(Server(name, command, port, folder, {"HF_HUB_OFFLINE": "1"}))
