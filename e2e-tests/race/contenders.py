"""Pairs of vLLM servers that transfer KV with different connectors; requests are sent as each connector's router does.

Ours gets both legs at once, as from the stock router. NixlConnector's decoder reads the blocks that the prefiller's
answer names, so its legs are sent one after the other. MooncakeConnector's are sent at once, with a common transfer id.
"""

from __future__ import annotations

import abc
import http.client
import json
import os
import signal
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bed import PREFILL_LEG, decode_leg_to
from hand_over import Streamed
from hosts import Host
from server_process import LOOPBACK, REQUEST_LIMIT_SECONDS, Server, free_port, greedy_completion
from servers import EngineOptions, engine
from warm_starts import WarmServer

HERE = Path(__file__).resolve().parent
PLUGINS = HERE / "vllm_plugins"
ENDED = b"data: [DONE]"
SECRET = "between two hosts"
SILENCE_LIMIT_SECONDS = 120.0
"""Longer than any pause of a pair."""


def stream(server: Server, body: Mapping[str, Any], request: str, sent_ns: int) -> Streamed:
    """Sends a request and reads its streamed answer; ends the run if the server fails."""
    address = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or LOOPBACK, address.port, timeout=REQUEST_LIMIT_SECONDS)
    headers = {"Content-Type": "application/json", "X-Request-Id": request}
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), headers)
    parts_ns, text = [], ""
    with connection.getresponse() as answer:
        if answer.status != 200:
            raise SystemExit(f"{server.name} refused {request}: {answer.read().decode(errors='replace')}")
        for line in answer:
            if line.startswith(b"data: ") and not line.startswith(ENDED):
                at_ns, part = time.monotonic_ns(), json.loads(line[len(b"data: ") :])
                if "choices" not in part:
                    raise SystemExit(f"{server.name} failed {request}: {part}")
                parts_ns.append(at_ns)
                text += part["choices"][0]["text"]
    connection.close()
    return Streamed(request, sent_ns, parts_ns, text.split())


@dataclass(frozen=True)
class Ground:
    """The hosts of a run's servers: one for all, or a second one, behind a data link, for the decoders."""

    model: Path
    folder: Path
    rivals: Path
    """The site-packages with NIXL and Mooncake in them."""
    host: Host | None = None
    earlier: Path | None = None
    """The folder of an unpacked earlier wheel of ours, if that build is compared too."""
    sockets_only: bool = False
    """Whether no KV goes through shared memory."""

    @property
    def near(self) -> str:
        return self.host.data.near if self.host else LOOPBACK

    @property
    def far(self) -> str:
        return self.host.data.far if self.host else LOOPBACK

    def server(self, name: str, options: EngineOptions) -> Server:
        """Creates a server; with two hosts a decoder is on the second one and gets requests by the management link."""
        made = engine(name, options, self.folder, kind=WarmServer)
        if self.host and options.kv_role == "kv_consumer":
            made.command[made.command.index("--host") + 1] = self.host.management.far
            made.command[:0] = self.host.prefix
            made.url = f"http://{self.host.management.far}:{made.port}"
        return made

    @property
    def interface(self) -> str:
        """The name of the data link's interface, equal at both ends."""
        return self.host.data.interface if self.host else "lo"


class Contender:
    """A single vLLM or a pair. Its servers run until the end of the run; any thread may send requests."""

    name = "single"

    def __init__(self, ground: Ground, legs: ThreadPoolExecutor) -> None:
        self.ground = ground
        self.legs = legs

    def pause(self) -> None:
        """Stops its processes until ``resume``: a contender that spins when idle must take no CPU from the others."""
        for server in self.servers:
            os.killpg(server.pid, signal.SIGSTOP)

    def resume(self) -> None:
        for server in self.servers:
            os.killpg(server.pid, signal.SIGCONT)

    @cached_property
    def servers(self) -> tuple[Server, ...]:
        options = EngineOptions(self.ground.model, environment={"PYTHONPATH": str(PLUGINS)})
        return (self.ground.server(self.name, options),)

    def ask(self, prompt: str, tokens: int, request: str) -> Streamed:
        (server,) = self.servers
        return stream(server, greedy_completion(prompt, tokens), request, time.monotonic_ns())


class Pair(Contender, abc.ABC):
    """A prefiller and a decoder."""

    @abc.abstractmethod
    def transfer(self, far: bool) -> dict[str, Any]:
        """The value of --kv-transfer-config, without the role."""

    def environment(self, far: bool) -> dict[str, str]:
        return {"PYTHONPATH": f"{PLUGINS}:{self.ground.rivals}"}

    @cached_property
    def servers(self) -> tuple[Server, ...]:
        return tuple(self.made(role, core) for core, role in enumerate(("kv_producer", "kv_consumer")))

    def made(self, role: str, core: int) -> Server:
        far = role == "kv_consumer"
        options = EngineOptions(
            self.ground.model,
            kv_role=role,
            transfer={"kv_role": role, **self.transfer(far)},
            core=core,
            environment=self.environment(far),
        )
        return self.ground.server(f"{self.name}-{'decoder' if far else 'prefiller'}", options)

    @property
    def prefiller(self) -> Server:
        return self.servers[0]

    @property
    def decoder(self) -> Server:
        return self.servers[1]

    def prefill(self, prompt: str, leg: Mapping[str, Any], request: str) -> dict[str, Any]:
        body = {**greedy_completion(prompt, 1), "kv_transfer_params": dict(leg)}
        answer = self.prefiller.post("/v1/completions", body, {"X-Request-Id": request})
        if "choices" not in answer:
            raise SystemExit(f"{self.prefiller.name} failed {request}: {answer}")
        return answer

    def decode(self, prompt: str, tokens: int, leg: Mapping[str, Any], request: str, sent_ns: int) -> Streamed:
        body = {**greedy_completion(prompt, tokens), "kv_transfer_params": dict(leg)}
        return stream(self.decoder, body, request, sent_ns)

    def together(
        self, prompt: str, tokens: int, legs: tuple[Mapping[str, Any], Mapping[str, Any]], request: str
    ) -> Streamed:
        sent_ns = time.monotonic_ns()
        first: Future[dict[str, Any]] = self.legs.submit(self.prefill, prompt, legs[0], request)
        answer = self.decode(prompt, tokens, legs[1], request, sent_ns)
        first.result()
        return answer


class KvMessenger(Pair):
    """Ours with default options, except a longer silence limit, full timelines, and the one transport over a link."""

    name = "kv_messenger"

    @cached_property
    def control_port(self) -> int:
        return free_port()

    def transfer(self, far: bool) -> dict[str, Any]:
        extra: dict[str, Any] = {"silence_limit_seconds": SILENCE_LIMIT_SECONDS, "timelines": "full"}
        if not far:
            extra["listen_port"] = self.control_port
        if self.ground.host:
            own = self.ground.far if far else self.ground.near
            extra |= {"listen_host": own, "shared_secret": SECRET, "transports": ["tcp"]}
        return {"kv_connector": "KvMessengerConnector", "kv_connector_extra_config": extra}

    def ask(self, prompt: str, tokens: int, request: str) -> Streamed:
        leg = decode_leg_to(self.ground.near, self.control_port, request)
        return self.together(prompt, tokens, (PREFILL_LEG, leg), request)


class Earlier(KvMessenger):
    """Ours from an earlier build."""

    name = "earlier"

    def environment(self, far: bool) -> dict[str, str]:
        return {"PYTHONPATH": f"{self.ground.earlier}:{super().environment(far)['PYTHONPATH']}"}


class Nixl(Pair):
    """vLLM's NixlConnector with its UCX backend and the KV cache itself registered as host memory.

    UCX gets one thread instead of vLLM's four: they never sleep, and share their worker's only core with its forward
    pass.
    """

    name = "nixl"

    def environment(self, far: bool) -> dict[str, str]:
        return {
            **super().environment(far),
            "UCX_TLS": "tcp,self" if self.ground.host else "tcp,shm,self",  # it does not start with shm alone
            "UCX_NET_DEVICES": self.ground.interface,
            "NIXL_LOG_LEVEL": "WARN",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": self.ground.far if far else self.ground.near,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        }

    def transfer(self, far: bool) -> dict[str, Any]:
        return {
            "kv_connector": "NixlConnector",
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {"num_threads": 1},
        }

    def ask(self, prompt: str, tokens: int, request: str) -> Streamed:
        sent_ns = time.monotonic_ns()
        named = self.prefill(prompt, PREFILL_LEG, request)["kv_transfer_params"]
        return self.decode(prompt, tokens, named, request, sent_ns)


class Mooncake(Pair):
    """vLLM's MooncakeConnector over tcp, the only transport of its wheel without CUDA."""

    name = "mooncake"

    @cached_property
    def bootstrap_port(self) -> int:
        return free_port()

    @cached_property
    def engine_id(self) -> str:
        """The id of the prefiller's engine, from its bootstrap server."""
        engines = json.loads(Server("bootstrap", [], self.bootstrap_port, self.ground.folder).get("/query"))
        return str(next(iter(engines.values()))["engine_id"])

    def environment(self, far: bool) -> dict[str, str]:
        return {
            **super().environment(far),
            "VLLM_HOST_IP": self.ground.far if far else self.ground.near,
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.bootstrap_port),
        }

    def transfer(self, far: bool) -> dict[str, Any]:
        return {
            "kv_connector": "MooncakeConnector",
            "kv_connector_module_path": "mooncake_on_cpu",
            "kv_connector_extra_config": {"mooncake_protocol": "tcp", "num_workers": 2},
        }

    def ask(self, prompt: str, tokens: int, request: str) -> Streamed:
        first = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": request}
        second = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_bootstrap_addr": f"http://{self.ground.near}:{self.bootstrap_port}",
            "remote_engine_id": self.engine_id,
            "transfer_id": request,
        }
        return self.together(prompt, tokens, (first, second), request)


PAIRS: Mapping[str, type[Pair]] = {"kv_messenger": KvMessenger, "nixl": Nixl, "mooncake": Mooncake}


def made(names: list[str], ground: Ground, legs: ThreadPoolExecutor) -> Iterator[Contender]:
    """Yields a single vLLM, the pairs with these names, and ours from the earlier build if there is one."""
    yield Contender(ground, legs)
    for name in names:
        yield PAIRS[name](ground, legs)
    if ground.earlier is not None:
        yield Earlier(ground, legs)
