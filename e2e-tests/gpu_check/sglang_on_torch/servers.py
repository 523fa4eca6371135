"""SGLang's own servers on one GPU, with the packed SGLang: started, asked over HTTP, looked at when at rest."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from server_process import LOOPBACK, Server, free_port, metric_sum

from gpu_check.sglang_on_torch.plan import ALONE, DECODER, PREFILLER, SGLANG, SglangPlan

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = ROOT / SGLANG
START_LIMIT_SECONDS = 150.0
REST_SECONDS = 15.0
"""How long what is held after the last answer may take to be given back."""
END_LIMIT_SECONDS = 40.0
POLL_SECONDS = 0.1
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
    "SGLANG_HOST_IP": LOOPBACK,
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
FIGURES = ("layers_sent", "layers_sent_early", "pages_sent", "pages_received", "fetches_failed", "fetches_refuted")
COMPARED = "kv_messenger_last_tokens_compared_total"
HELD = (
    "kv_messenger_fetches_open",
    "kv_messenger_prefills_open",
    "kv_messenger_grants_waiting",
    "kv_messenger_writes_in_flight",
    "kv_messenger_windows_open",
    "kv_messenger_pages_quarantined",
)
DIED = (
    "Fatal Python error",
    "SIGSEGV (0x",
    "Segmentation fault",
    "Scheduler hit an exception",
    "invalid memory access",
)
"""What a log has when a process of a server has died, whatever status the server then ends with."""


def environment_of(device: str) -> dict[str, str]:
    """Of each process that runs the packed SGLang."""
    path = os.pathsep.join([str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return ENVIRONMENT | {"PYTHONPATH": path} | ({"SGLANG_USE_CPU_ENGINE": "1"} if device == "cpu" else {})


class SglangServer:
    """One server, with the metrics pages of its ranks' messengers. Any thread may ask it."""

    start_limit_seconds = START_LIMIT_SECONDS
    rest_seconds = REST_SECONDS

    def __init__(self, plan: SglangPlan, folder: Path, bootstrap_port: int = 0) -> None:
        self.plan = plan
        first = free_port(plan.ranks) if plan.role else 0
        self._metrics_ports = range(first, first + plan.ranks) if plan.role else ()
        port = free_port()
        environment = self.environment()
        if plan.role:
            environment["KV_MESSENGER_OPTIONS"] = json.dumps({**plan.options, "metrics_port": first})
        command = [sys.executable, "-m", "sglang.launch_server"]
        command += plan.arguments(port, free_port(), bootstrap_port)
        self.server = self.kind()(plan.name, command, port, folder, environment)

    def environment(self) -> dict[str, str]:
        return environment_of(self.plan.device)

    def kind(self) -> type[Server]:
        return Server

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *fault: object) -> None:
        """How its processes end counts too; not where something else is wrong already."""
        try:
            if fault[0] is None:
                self.end()
        finally:
            self.server.stop()

    def end(self) -> None:
        """By SIGTERM; raises where a process died of anything else."""
        os.kill(self.server.pid, signal.SIGTERM)
        status = self.server.wait_ended(END_LIMIT_SECONDS)
        found = [mark for mark in DIED if mark in self.server.log()]
        if status not in (0, -signal.SIGTERM) or found:
            raise AssertionError(f"{self.plan.name} ended with status {status}, and its log has {found or 'no fault'}")

    def ready(self) -> None:
        """Raises with the log's first fault and its end where the server does not start."""
        self.server.wait_healthy(self.start_limit_seconds)

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.server.post("/generate", body)
        if "output_ids" not in answer:
            raise AssertionError(f"{self.plan.name} answered {str(answer)[:600]}")
        meta = answer["meta_info"]
        return {
            "tokens": answer["output_ids"],
            "cached": meta.get("cached_tokens") or 0,
            "how": (meta.get("finish_reason") or {}).get("type", ""),
            "margins": [_margin(choices) for choices in meta.get("output_top_logprobs") or []],
        }

    def page(self) -> str:
        """Those of all ranks, one behind the other."""
        pages = []
        for port in self._metrics_ports:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=self.rest_seconds) as answer:
                pages.append(str(answer.read().decode()))
        return "\n".join(pages)

    def figures(self) -> dict[str, Any]:
        page = self.page()
        named = {name: metric_sum(page, f"kv_messenger_{name}_total", {}) for name in FIGURES}
        kinds = ("equal", "different", "unjudged")
        return named | {"compared": {kind: metric_sum(page, COMPARED, {"reason": kind}) for kind in kinds}}

    def held(self) -> dict[str, float]:
        """Whatever is held for requests: in SGLang's queues, in its pool beyond what its cache may evict, by us."""
        (load,) = json.loads(self.server.get("/v1/loads"))["loads"]
        seen = {name: load[name] for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")}
        seen |= {name: value for name, value in load["disaggregation"].items() if name.endswith("_reqs")}
        page = self.page()
        seen |= {name: metric_sum(page, name, {}) for name in HELD}
        return {name: value for name, value in seen.items() if value}

    def rest(self) -> dict[str, Any]:
        """What is held when nothing runs any more, and the messenger's figures."""
        deadline = time.monotonic() + self.rest_seconds
        while (held := self.held()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return {"held": held, "figures": self.figures()}


def _margin(choices: Sequence[Sequence[Any]]) -> float:
    """By how much the likeliest token's log-probability is above the next one's."""
    first, second = sorted((float(each[0]) for each in choices), reverse=True)[:2]
    return first - second


class SglangPair:
    """A prefiller and a decoder; sends both legs of a request at once, as SGLang's load balancer does."""

    def __init__(self, prefiller: SglangServer, decoder: SglangServer, bootstrap_port: int) -> None:
        self.prefiller = prefiller
        self.decoder = decoder
        self._bootstrap = {"bootstrap_host": LOOPBACK, "bootstrap_port": bootstrap_port}
        self._pool = ThreadPoolExecutor(32)
        self._room = 1

    def ask(self, body: dict[str, Any]) -> tuple[Future[dict[str, Any]], Future[dict[str, Any]]]:
        self._room += 1
        both = {**body, **self._bootstrap, "bootstrap_room": self._room}
        return self._pool.submit(self.prefiller.ask, both), self._pool.submit(self.decoder.ask, both)


@contextmanager
def started(
    plan: SglangPlan,
    logs: Path,
    kind: Callable[[SglangPlan, Path, int], SglangServer] = SglangServer,
    prefiller: SglangPlan | None = None,
) -> Any:
    """A pair by one plan, whose name and role are filled in, or its prefiller by another."""
    bootstrap_port = free_port()
    with ExitStack() as entered:
        sides = [
            entered.enter_context(kind(replace(each, name=f"{plan.name}-{side}", role=role), logs, bootstrap_port))
            for side, role, each in (("prefiller", PREFILLER, prefiller or plan), ("decoder", DECODER, plan))
        ]
        for side in sides:
            side.ready()
        yield SglangPair(sides[0], sides[1], bootstrap_port)


@contextmanager
def alone(plan: SglangPlan, logs: Path) -> Any:
    with SglangServer(replace(plan, role=ALONE), logs) as server:
        server.ready()
        yield server
