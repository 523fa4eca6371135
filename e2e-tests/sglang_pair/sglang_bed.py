"""A pair of real SGLang servers on CPU under test, with SGLang's own small load balancer in front."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from bed import HELD_GAUGES
from faults import LEAVE_FIRST, STEP_LIMIT_SECONDS, Gate, Outcome, attempt
from server_process import LOOPBACK, Server, complete, free_port, greedy_completion, metric_sum, start_all, wait_until
from sglang_servers import PAGE_TOKENS, EngineOptions, Role, engine, load_balancer
from warm_sglang import WarmSglang

REST_LIMIT_SECONDS = 600.0
UNHEARD_LIMIT_SECONDS = 120.0
"""A server here may get no core for longer than a prompt that never comes is waited for elsewhere."""
ROOM_MAX = 2**63 - 1
COMPLETIONS = "/v1/completions"
ENGINE_FIGURES = (
    "kv_messenger_fetches_arrived_total",
    "kv_messenger_fetches_failed_total",
    "kv_messenger_prefills_sent_total",
    "kv_messenger_prefills_open",
    "kv_messenger_fetch_seconds_count",
    "kv_messenger_prefill_tail_seconds_count",
)
PLUGINS = Path(__file__).resolve().parent / "plugins"


@dataclass(eq=False)
class Side:
    """One server, and where the messengers in its ranks have their metrics pages; a stock backend has none."""

    server: Server
    metrics_ports: Sequence[int] = ()
    metrics_host: str = LOOPBACK

    def metrics_pages(self) -> list[str]:
        """Those of all ranks."""
        pages = []
        for port in self.metrics_ports:
            page = f"http://{self.metrics_host}:{port}/metrics"
            with urllib.request.urlopen(page, timeout=REST_LIMIT_SECONDS) as answer:
                pages.append(str(answer.read().decode()))
        return pages

    def metric_by_rank(self, name: str) -> list[float]:
        """A figure of each messenger's."""
        return [metric_sum(page, name, {}) for page in self.metrics_pages()]

    def metric(self, name: str) -> float:
        """A figure of the messengers', added up."""
        return sum(self.metric_by_rank(name))

    def wait_reported(self) -> None:
        """SGLang's own page says what the messengers' pages say, added up over ranks, with reasons and times."""

        def reported() -> bool:
            page = self.server.get("/metrics")
            return all(metric_sum(page, f"sglang:{name}", {}) == self.metric(name) for name in ENGINE_FIGURES)

        wait_until(reported, REST_LIMIT_SECONDS, f"{self.server.name}'s page says what its messengers' do")
        assert 'reason="time_limit"' in self.server.get("/metrics"), "a reason without a count is a series, too"

    def catch_up(self) -> None:
        """Returns when the scheduler has taken whatever was asked of the server before.

        This question goes through the scheduler's queue; "/v1/loads" is answered from a snapshot, which may be older.
        """
        self.server.get("/server_info")

    def running(self) -> int:
        """How many requests are being computed."""
        (load,) = json.loads(self.server.get("/v1/loads"))["loads"]
        return int(load["num_running_reqs"])

    def queued(self, *queues: str) -> int:
        """How many requests are in these queues of SGLang's disaggregation."""
        (load,) = json.loads(self.server.get("/v1/loads"))["loads"]
        return sum(int(load["disaggregation"][queue]) for queue in queues)

    def held(self) -> dict[str, float]:
        """Whatever is held for requests: in SGLang's queues, in its pool beyond what its cache may evict, by us."""
        (load,) = json.loads(self.server.get("/v1/loads"))["loads"]
        figures = {name: load[name] for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")}
        figures |= {name: value for name, value in load["disaggregation"].items() if name.endswith("_reqs")}
        if self.metrics_ports:
            text = "\n".join(self.metrics_pages())
            assert all(name in text for name in HELD_GAUGES), "the messenger's page lacks a gauge"
            figures |= {name: metric_sum(text, name, {}) for name in HELD_GAUGES}
        return {name: value for name, value in figures.items() if value}

    def wait_at_rest(self) -> None:
        """Idle, with nothing held. SGLang itself counts its pages whenever it is idle, and ends when one is missing."""
        try:
            wait_until(lambda: not self.held(), REST_LIMIT_SECONDS, f"{self.server.name} is at rest")
        except TimeoutError as leaked:
            raise AssertionError(f"{leaked}, held: {self.held()}") from leaked
        assert self.server.healthy(), f"{self.server.name} is ill; the end of its log:\n{self.server.log_tail()}"


def give_up(request: str, sides: Sequence[Side]) -> None:
    """Aborts it at these sides; returns when their schedulers have seen that."""
    for side in sides:
        side.server.post("/abort_request", {"rid": request})
    for side in sides:
        side.catch_up()


@dataclass
class Pair:
    """One prefiller and one decoder. A side that was killed comes back at its address by `start`."""

    prefiller: Side
    decoder: Side
    front: Server
    bootstrap_port: int
    gate: Gate
    """Holds the prefiller's writes back."""

    def ask(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        return complete(self.front, prompt, max_tokens)

    def body(self, prompt: str, max_tokens: int, request: str, room: int | None = None) -> dict[str, Any]:
        """What the load balancer sends to both sides, under a name by which the request can be aborted."""
        return {
            **greedy_completion(prompt, max_tokens),
            "rid": request,
            "bootstrap_host": LOOPBACK,
            "bootstrap_port": self.bootstrap_port,
            "bootstrap_room": room or random.randint(1, ROOM_MAX),
        }

    def attempt_both_sides(self, prompt: str, max_tokens: int, request: str, room: int | None = None) -> Outcome:
        """Both legs, each on its own: the load balancer would end one as soon as the other has failed."""
        body = self.body(prompt, max_tokens, request, room)
        with ThreadPoolExecutor(1) as other:
            other.submit(attempt, self.prefiller.server.post, COMPLETIONS, body)
            return attempt(self.decoder.server.post, COMPLETIONS, body)

    def attempt_at_decoder(self, prompt: str, max_tokens: int, request: str) -> Outcome:
        """Both legs, and the answer of one: a prefiller's leg ends when its writes, held back or not, have left."""
        body = self.body(prompt, max_tokens, request)
        Thread(target=attempt, args=(self.prefiller.server.post, COMPLETIONS, body), daemon=True).start()
        return attempt(self.decoder.server.post, COMPLETIONS, body)

    @contextmanager
    def halfway(self) -> Iterator[Callable[[], None]]:
        """Writes stop after the next few; gives what waits until a transfer has begun, which then cannot end."""
        before = self.prefiller.metric("kv_messenger_layers_sent_total")

        def begun() -> bool:
            sent = self.prefiller.metric("kv_messenger_layers_sent_total") - before
            return sent >= LEAVE_FIRST and self.prefiller.metric("kv_messenger_writes_in_flight") > 0

        with self.gate.closed():
            yield lambda: wait_until(begun, STEP_LIMIT_SECONDS, f"{LEAVE_FIRST} layers have left")

    def wait_all_there(self, count: int, *, granted: bool = False) -> None:
        """Both sides have so many requests, and all that were granted pages are computed; writes are held back.

        `granted`: all of them were, so that each waits for its KV alone.
        """
        queues = {
            self.prefiller: ("prefill_inflight_queue_reqs", "prefill_bootstrap_queue_reqs"),
            self.decoder: ("decode_transfer_queue_reqs", "decode_prealloc_queue_reqs"),
        }
        for side, (halfway, before) in queues.items():
            counted = (halfway,) if granted else (halfway, before)
            wait_until(
                lambda side=side, counted=counted: side.queued(*counted) == count,  # type: ignore[misc]
                STEP_LIMIT_SECONDS,
                f"{side.server.name} has {count} requests whose KV is to come",
            )

    def wait_at_rest(self) -> None:
        for side in (self.prefiller, self.decoder):
            side.wait_at_rest()


@dataclass(frozen=True)
class Kind:
    """What the servers of a pair are started with."""

    backend: str = "kv_messenger"
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """KV Messenger's own."""
    tp_size: int = 1
    pp_size: int = 1
    tokenizer_workers: int = 1
    page_tokens: int = PAGE_TOKENS
    overlap: bool = False
    """The prefiller's passes overlap with its scheduling."""
    recorded: bool = False
    """What SGLang asks of the backend is written down, see plugins/recorder.py, and rows of drafts are compared."""
    uncompared: bool = False
    """Settings and weights are not compared, see plugins/uncompared_settings.py."""
    other_weights: bool = False
    """Computes with others than its files have, see plugins/other_weights.py."""
    arguments: tuple[str, ...] = ()
    """Further arguments of the server."""
    plugins: tuple[str, ...] = ()
    """Further plug-ins of the folder `plugins`."""
    warm_up: bool = False
    switches: bool = False
    """Both sides may change their roles."""
    holdable: bool = False
    """The prefiller's writes can be held back, by a KV Messenger that looks at a file before each."""
    started_by: type[Server] = WarmSglang
    """Forked from a process that has imported SGLang; a plain `Server` is started as users start it."""


KV_MESSENGER = Kind(holdable=True, warm_up=True)


@dataclass(frozen=True)
class Ground:
    """Where servers are made: with what model, and the folder of their logs."""

    model: Path
    folder: Path

    @property
    def gate(self) -> Gate:
        return Gate(self.folder / "held-writes")

    def side(self, role: Role, kind: Kind, bootstrap_port: int = 0, *, name: str, port: int = 0) -> Side:
        """A server that is made, not started. Its ports are fixed, so that it can come back at them."""
        environment = {**kind.environment, **self.plugged(kind)}
        metrics_ports: Sequence[int] = ()
        if kind.backend == "kv_messenger":
            rank_count = kind.tp_size * kind.pp_size
            first = free_port(rank_count)
            metrics_ports = range(first, first + rank_count)
            faults = {"jvm_options": self.gate.jvm_options}
            holdable = faults if kind.holdable and (role == "prefill" or kind.switches) else {}
            waits = {"unheard_limit_seconds": UNHEARD_LIMIT_SECONDS}
            messenger_options = {"metrics_port": first, "timelines": "full", **waits, **holdable, **kind.options}
            environment["KV_MESSENGER_OPTIONS"] = json.dumps(messenger_options)
        options = EngineOptions(
            self.model,
            role=role,
            backend=kind.backend,
            bootstrap_port=bootstrap_port,
            core=0 if role == "prefill" else 1,
            tp_size=kind.tp_size,
            pp_size=kind.pp_size,
            tokenizer_workers=kind.tokenizer_workers,
            page_tokens=kind.page_tokens,
            overlap=kind.overlap,
            environment=environment,
            warm_up=kind.warm_up,
            switches=kind.switches,
            arguments=kind.arguments,
        )
        server = engine(name, options, self.folder, port, kind.started_by)
        return Side(server, metrics_ports)

    def plugged(self, kind: Kind) -> dict[str, str]:
        """The plug-ins of this folder that SGLang is to load beside ours."""
        chosen = [
            *(["events_on_cpu"] if kind.overlap else []),
            *(["recorder", "draft_rows"] if kind.recorded else []),
            *(["uncompared_settings"] if kind.uncompared else []),
            *(["other_weights"] if kind.other_weights else []),
            *kind.plugins,
        ]
        if not chosen:
            return {}
        self.recording.mkdir(parents=True, exist_ok=True)
        return {
            "PYTHONPATH": str(PLUGINS),
            "SGLANG_PLUGINS": ",".join(["kv_messenger", *chosen]),
            "KV_MESSENGER_RECORDING": str(self.recording),
        }

    @property
    def recording(self) -> Path:
        return self.folder / "recording"

    def started_pair(self, stack: ExitStack, kind: Kind, name: str = "kv_messenger") -> Pair:
        """Both sides, side by side, then the load balancer; all end with `stack`."""
        return self.started_sides(stack, kind, kind, name)

    def started_sides(self, stack: ExitStack, prefill: Kind, decode: Kind, name: str) -> Pair:
        """Sides that are started in different ways."""
        port = free_port()
        prefiller = self.side("prefill", prefill, port, name=f"{name}-prefill")
        decoder = self.side("decode", decode, name=f"{name}-decode")
        start(stack, [prefiller.server, decoder.server])
        return self.fronted(stack, prefiller, decoder, port, decode.started_by)

    def fronted(
        self, stack: ExitStack, prefiller: Side, decoder: Side, bootstrap_port: int, started_by: type[Server]
    ) -> Pair:
        name = f"{prefiller.server.name}-front"
        front = load_balancer(name, prefiller.server, bootstrap_port, decoder.server, started_by)
        start(stack, [front])
        return Pair(prefiller, decoder, front, bootstrap_port, self.gate)


def start(stack: ExitStack, servers: list[Server]) -> None:
    for server in servers:
        stack.callback(server.stop)
    start_all(servers, lambda line: print(line, flush=True))
