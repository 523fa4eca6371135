"""A prefiller and its decoders under test, and the ways in which a request can reach the two sides."""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prompts import random_prompt
from server_process import LOOPBACK, Server, complete, free_port, metric_sum, start_all, wait_until, words_of
from servers import EngineOptions, engine
from warm_starts import WarmServer

REST_LIMIT_SECONDS = 600.0
GRANT_LIMIT_SECONDS = 600.0
SILENCE_LIMIT_SECONDS = 60.0
"""Servers on two cores wait by `sched_yield`: on some kernels that keeps a messenger from a core for 20 s, twice the
default (docs/testing.md). Tests of silence set their own."""
UNHEARD_LIMIT_SECONDS = 120.0
"""A server here may get no core for longer than a prompt that never comes is waited for elsewhere. Prefillers only: a
decoder that asks for nothing waits as long as its prefiller does, and the larger of two limits would count."""
PROVING_TOKENS: Final = 40
HELD_GAUGES = (
    "kv_messenger_fetches_open",
    "kv_messenger_prefills_open",
    "kv_messenger_pages_offered",
    "kv_messenger_grants_waiting",
    "kv_messenger_writes_in_flight",
    "kv_messenger_windows_open",
    "kv_messenger_pages_quarantined",
)
ENGINE_GAUGES = ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting")


ENGINE_FIGURES = (
    "kv_messenger_fetches_arrived_total",
    "kv_messenger_fetches_failed_total",
    "kv_messenger_prefills_sent_total",
    "kv_messenger_fetch_seconds_count",
    "kv_messenger_prefill_tail_seconds_count",
    "kv_messenger_connect_seconds_count",
)
"""Of the messengers' pages; on the engine's with its name before."""
ROUNDING_SECONDS = 1e-6
"""Sums of times are added up in another order there."""


@dataclass
class Messenger:
    """An engine server together with the addresses of the messengers inside its workers."""

    server: Server
    metrics_ports: Sequence[int]
    control_port: int
    """That of the first messenger; those of more ranks follow it."""
    metrics_host: str = LOOPBACK

    def control_host(self) -> str:
        """How the addresses of its messengers are said as a host: one is its host, several are all of them."""
        ports = range(self.control_port, self.control_port + len(self.metrics_ports))
        return LOOPBACK if len(ports) == 1 else ",".join(f"{LOOPBACK}:{port}" for port in ports)

    def metrics_pages(self) -> str:
        """The pages of all the engine's messengers, one after the other."""
        pages = []
        for port in self.metrics_ports:
            with urllib.request.urlopen(
                f"http://{self.metrics_host}:{port}/metrics", timeout=REST_LIMIT_SECONDS
            ) as answer:
                pages.append(str(answer.read().decode()))
        return "\n".join(pages)

    def metric(self, name: str, **labels: str) -> float:
        """A figure of the messengers' own metrics pages, all added up."""
        return metric_sum(self.metrics_pages(), name, labels)

    def held(self) -> dict[str, float]:
        """Whatever is held for unfinished work: the messengers' leak checks, and the engine's own gauges."""
        of_engine = self.server.get("/metrics")
        assert all(name in of_engine for name in ENGINE_GAUGES), "the engine's page lacks a gauge"
        held = {name: metric_sum(of_engine, name, {}) for name in ENGINE_GAUGES}
        return self.held_by_messengers() | {name: value for name, value in held.items() if value != 0}

    def held_by_messengers(self) -> dict[str, float]:
        text = self.metrics_pages()
        assert all(name in text for name in HELD_GAUGES), "the messenger's page lacks a gauge"
        held = {name: metric_sum(text, name, {}) for name in HELD_GAUGES}
        return {name: value for name, value in held.items() if value != 0}

    def wait_at_rest(self) -> None:
        try:
            wait_until(lambda: not self.held(), REST_LIMIT_SECONDS, f"{self.server.name} is at rest")
        except TimeoutError as leaked:
            raise AssertionError(f"{leaked}, held: {self.held()}") from leaked

    def wait_released(self) -> None:
        """The engine's own gauges may lag behind: they show its last step."""
        wait_until(lambda: not self.held_by_messengers(), REST_LIMIT_SECONDS, f"{self.server.name} holds nothing")

    def wait_reported(self) -> None:
        """The engine's own page says what the messengers' pages say, by reason and of times as well."""

        def of_engine(name: str) -> float:
            return self.server.metric(f"vllm:{name}")

        def reported() -> bool:
            return all(of_engine(name) == self.metric(name) for name in ENGINE_FIGURES)

        wait_until(reported, REST_LIMIT_SECONDS, f"{self.server.name}'s page says what its messengers' do")
        page = self.server.get("/metrics")
        assert 'reason="time_limit"' in page, "a reason without a count is a series, too"
        for name in ("kv_messenger_fetch_seconds_sum", "kv_messenger_prefill_tail_seconds_sum"):
            assert abs(of_engine(name) - self.metric(name)) < ROUNDING_SECONDS, name

    def tokens_by_transfer(self) -> float:
        """How many prompt tokens the engine attributes to KV transfers."""
        return self.server.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")


@dataclass(frozen=True)
class Side:
    """How one side is started; `extra` goes into kv_connector_extra_config."""

    name: str
    kv_role: str
    core: int
    messenger_count: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    warm: bool = True
    """Forked from a process that has imported vLLM; False: started as users start it."""


def prefiller(name: str, **more: Any) -> Side:
    return Side(name, "kv_producer", 0, **more)


def decoder(name: str, core: int = 1, **more: Any) -> Side:
    return Side(name, "kv_consumer", core, **more)


def messenger(side: Side, model: Path, folder: Path, control_port: int | None = None) -> Messenger:
    """A server that is made, not started. A prefiller's ports are fixed, so that it can come back at them."""
    count = side.messenger_count
    port, metrics_port, control = free_port(), free_port(count), control_port or free_port(count)
    extra: dict[str, Any] = {
        "metrics_port": metrics_port,
        "timelines": "full",
        "silence_limit_seconds": SILENCE_LIMIT_SECONDS,
    }
    if side.kv_role != "kv_consumer":
        extra |= {"listen_port": control, "engine_api_url": f"http://{LOOPBACK}:{port}"}
        extra["unheard_limit_seconds"] = side.extra.get("grant_wait_seconds", UNHEARD_LIMIT_SECONDS)
    fields: dict[str, Any] = {
        "model": model,
        "kv_role": side.kv_role,
        "core": side.core,
        "prefix_caching": True,
        "extra_config": {**extra, **side.extra},
        **side.options,
    }
    kind = WarmServer if side.warm else Server
    server = engine(side.name, EngineOptions(**fields), folder, port, kind)
    return Messenger(server, range(metrics_port, metrics_port + count), control)


PREFILL_LEG: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def decode_leg(prefiller: Messenger, request: str) -> dict[str, Any]:
    """What a router that sends both legs at once puts on the decoder's."""
    return decode_leg_to(prefiller.control_host(), prefiller.control_port, request)


def decode_leg_to(host: str, port: int, request: str) -> dict[str, Any]:
    """The same, of a prefiller whose messenger has this address."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_host": host,
        "remote_port": port,
        "remote_request_id": request,
    }


def send_prefill(prefiller: Messenger, prompt: str, request: str) -> dict[str, Any]:
    return complete(prefiller.server, prompt, 1, PREFILL_LEG, {"X-Request-Id": request})


def send_decode(decoder: Messenger, prompt: str, tokens: int, leg: Mapping[str, Any], request: str) -> dict[str, Any]:
    return complete(decoder.server, prompt, tokens, leg, {"X-Request-Id": request})


def serial(prefiller: Messenger, decoder: Messenger, prompt: str, tokens: int) -> dict[str, Any]:
    """The prefiller's leg, then, with the parameters of its answer, the decoder's: the router's first request."""
    request = f"serial-{uuid.uuid4()}"
    answer = send_prefill(prefiller, prompt, request)
    named = answer.get("kv_transfer_params")
    assert named, f"the prefiller's answer names no parameters: {answer}"
    assert named["transfer_mode"] == "push", named
    leg = decode_leg(prefiller, request)
    leg |= {key: named[key] for key in ("remote_engine_id", "remote_host", "remote_port", "tp_size")}
    if digest := named.get("remote_prompt_digest"):  # builds before it are tried too
        leg["remote_prompt_digest"] = digest
    return send_decode(decoder, prompt, tokens, leg, request)


def decoder_waits(prefiller: Messenger, decoder: Messenger, prompt: str, tokens: int) -> dict[str, Any]:
    """The decoder's leg first, the prefiller's once it has the grant: pages are granted before their KV exists."""
    request = f"waits-{uuid.uuid4()}"
    waiting_before = prefiller.metric("kv_messenger_grants_waiting")
    with ThreadPoolExecutor(1) as other:
        leg: Future[dict[str, Any]] = other.submit(
            send_decode, decoder, prompt, tokens, decode_leg(prefiller, request), request
        )
        wait_until(
            lambda: leg.done() or prefiller.metric("kv_messenger_grants_waiting") > waiting_before,
            GRANT_LIMIT_SECONDS,
            "the prefiller has the decoder's grant",
        )
        if not leg.done():  # a leg that is over before the prefill began has failed: its answer says why
            send_prefill(prefiller, prompt, request)
        return leg.result()


def together(
    prefiller: Messenger, decoder: Messenger, prompt: str, tokens: int, request: str | None = None
) -> dict[str, Any]:
    """Both legs at the same time; either may come first."""
    request = request or f"together-{uuid.uuid4()}"
    with ThreadPoolExecutor(1) as other:
        prefill = other.submit(send_prefill, prefiller, prompt, request)
        answer = send_decode(decoder, prompt, tokens, decode_leg(prefiller, request), request)
        prefill.result()
        return answer


def prove(prefiller: Messenger, decoder: Messenger) -> None:
    """Has the decoder compare one prompt with what it computes itself, so that it fetches all others.

    With several KV cache groups, or with state, it computes prompts itself until then. What it found is on the page
    after one more step.
    """
    compared = "kv_messenger_last_tokens_compared_total"
    before = decoder.metric(compared, reason="equal")
    words_of(serial(prefiller, decoder, random_prompt(PROVING_TOKENS, 9000), 1))

    def is_proven() -> bool:
        words_of(complete(decoder.server, random_prompt(1, 9001), 1))
        return decoder.metric(compared, reason="equal") > before

    wait_until(is_proven, REST_LIMIT_SECONDS, f"{decoder.server.name} has proven {prefiller.server.name}")


WAYS: Final = (serial, decoder_waits, together)
"""The orders of the legs."""


def way_of(index: int) -> Callable[[Messenger, Messenger, str, int], dict[str, Any]]:
    """That of the request at this place in a row: each in turn."""
    return WAYS[index % len(WAYS)]


@dataclass
class Bed:
    """One prefiller and one decoder, shared by the tests of a run; what a test adds ends with its own stack."""

    prefiller: Messenger
    decoder: Messenger
    model: Path
    folder: Path

    def started(self, stack: ExitStack, *sides: Side) -> list[Messenger]:
        """More servers, side by side, that end with `stack`."""
        made = [messenger(side, self.model, self.folder) for side in sides]
        start_messengers(stack, made)
        return made


def start_messengers(stack: ExitStack, messengers: list[Messenger]) -> None:
    for made in messengers:
        stack.callback(made.server.stop)
    start_all([made.server for made in messengers], lambda line: print(line, flush=True))
