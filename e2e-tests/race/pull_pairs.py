"""Pairs of vLLM servers that hold conversations: ours, NixlConnector in its bidirectional mode, and Mooncake Store."""

from __future__ import annotations

import abc
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final

import mooncake_store
from bed import PREFILL_LEG, decode_leg_to
from contenders import SILENCE_LIMIT_SECONDS, Ground, Pair, stream
from hand_over import Streamed
from pulls_bed import source_at
from server_process import LOOPBACK, Server, free_port, greedy_completion
from servers import EngineOptions, engine
from warm_starts import WarmServer

ARGUMENTS: Final = ("--max-model-len", "4096")
PAGE_TOKENS: Final = 32
RESETS: Final[Mapping[str, str]] = {"VLLM_SERVER_DEV_MODE": "1"}
"""Lets a prefix cache be emptied by HTTP."""


class Talk:
    """One conversation: what the following turn needs to know of the last one."""

    def __init__(self) -> None:
        self.turns = 0
        self.params: dict[str, Any] | None = None


class TalkingPair(Pair):
    """A prefiller whose cache may be empty, and a decoder that holds what was said."""

    ways: tuple[str, ...] = ()

    @cached_property
    def ports(self) -> tuple[int, int]:
        return free_port(), free_port()

    @cached_property
    def api_ports(self) -> tuple[int, int]:
        return free_port(), free_port()

    @cached_property
    def servers(self) -> tuple[Server, ...]:
        made = []
        for index, side in enumerate(("prefiller", "decoder")):
            options = EngineOptions(
                self.ground.model,
                transfer=self.transfer(bool(index)),
                kv_role="kv_both",
                core=index,
                prefix_caching=True,
                page_tokens=PAGE_TOKENS,
                environment={**self.environment(bool(index)), **RESETS},
                arguments=ARGUMENTS,
            )
            made.append(engine(f"{self.name}-{side}", options, self.ground.folder, self.api_ports[index], WarmServer))
        return tuple(made)

    def forget(self) -> None:
        """Empties the prefiller's prefix cache, as if another prefiller got the turn."""
        answer = self.prefiller.post("/reset_prefix_cache", {})
        assert "error" not in answer, answer

    @abc.abstractmethod
    def turn(self, talk: Talk, way: str, prompt: str, tokens: int) -> tuple[float, list[str]]:
        """(milliseconds to the first token, the answer) of a conversation's turn."""


class Pulling(TalkingPair):
    """Ours: the prefiller pulls from the decoder, or computes; or the turn goes to the decoder alone."""

    name = "ours"
    ways = ("pull", "recompute", "decoder alone")

    def environment(self, far: bool) -> dict[str, str]:
        return {}

    def transfer(self, far: bool) -> dict[str, Any]:
        return {
            "kv_connector": "KvMessengerConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "silence_limit_seconds": SILENCE_LIMIT_SECONDS,
                "listen_port": self.ports[far],
                "engine_api_url": f"http://{LOOPBACK}:{self.api_ports[far]}",
                **({"transports": ["tcp"]} if self.ground.sockets_only else {}),
            },
        }

    def turn(self, talk: Talk, way: str, prompt: str, tokens: int) -> tuple[float, list[str]]:
        request = f"pull-race-{uuid.uuid4()}"
        talk.turns += 1
        if way == "decoder alone" and talk.turns > 1:
            answer = stream(self.decoder, greedy_completion(prompt, tokens), request, time.monotonic_ns())
            return answer.first_token_ms, list(answer.words)
        first = dict(PREFILL_LEG)
        if way == "pull" and talk.turns > 1:
            first |= source_at(LOOPBACK, self.ports[1])
        second = decode_leg_to(LOOPBACK, self.ports[0], request)
        answer = self.together(prompt, tokens, (first, second), request)
        return answer.first_token_ms, list(answer.words)


class Bidirectional(TalkingPair):
    """NixlConnector whose prefiller reads the blocks that the decoder keeps of the turn before."""

    name = "nixl"
    ways = ("bidirectional",)

    def environment(self, far: bool) -> dict[str, str]:
        return {
            "PYTHONPATH": str(self.ground.rivals),
            "UCX_TLS": "tcp,self" if self.ground.sockets_only else "tcp,shm,self",
            "UCX_NET_DEVICES": "lo",
            "NIXL_LOG_LEVEL": "WARN",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": LOOPBACK,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.ports[int(far)]),
        }

    def transfer(self, far: bool) -> dict[str, Any]:
        return {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"num_threads": 1, "bidirectional_kv_xfer": True},
        }

    def turn(self, talk: Talk, way: str, prompt: str, tokens: int) -> tuple[float, list[str]]:
        """Its decoder times the first token: in vLLM 0.32 no streamed answer has kv_transfer_params."""
        request, begun_ns = f"pull-race-{uuid.uuid4()}", time.monotonic_ns()
        named = self.prefill(prompt, talk.params or PREFILL_LEG, request)["kv_transfer_params"]
        prefilled_ms = (time.monotonic_ns() - begun_ns) / 1e6
        figure = "vllm:time_to_first_token_seconds_sum"
        before = self.decoder.metric(figure)
        body = {**greedy_completion(prompt, tokens), "kv_transfer_params": named}
        answer = self.decoder.post("/v1/completions", body, {"X-Request-Id": request})
        if "choices" not in answer:
            raise SystemExit(f"{self.decoder.name} failed {request}: {answer}")
        talk.params = answer["kv_transfer_params"]
        first_token_ms = prefilled_ms + (self.decoder.metric(figure) - before) * 1e3
        return first_token_ms, str(answer["choices"][0]["text"]).split()


class Stored(TalkingPair):
    """Ours beside vLLM's MooncakeStoreConnector, from which the prefiller takes what both sides have stored."""

    name = "store"
    ways = ("mooncake store",)

    def __init__(self, ground: Ground, legs: ThreadPoolExecutor, stack: ExitStack) -> None:
        super().__init__(ground, legs)
        self.store = mooncake_store.started(stack, "pull-race-store", ground.folder)

    def environment(self, far: bool) -> dict[str, str]:
        return self.store.environment()

    def transfer(self, far: bool) -> dict[str, Any]:
        extra: dict[str, Any] = {"silence_limit_seconds": SILENCE_LIMIT_SECONDS}
        if self.ground.sockets_only:
            extra["transports"] = ["tcp"]
        if not far:
            extra |= {"listen_port": self.ports[0], "engine_api_url": f"http://{LOOPBACK}:{self.api_ports[far]}"}
        role = "kv_consumer" if far else "kv_producer"
        ours = {"kv_connector": "KvMessengerConnector", "kv_role": role, "kv_connector_extra_config": extra}
        looks = {"enable_lookup": False, "save_decode_cache": True} if far else {"lookup_async": True}
        store = {**mooncake_store.CONNECTOR, "kv_connector_extra_config": looks}
        return {
            "kv_connector": "MultiConnector",
            "kv_role": role,
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [ours, store] if far else [store, ours]},
        }

    def turn(self, talk: Talk, way: str, prompt: str, tokens: int) -> tuple[float, list[str]]:
        request = f"pull-race-{uuid.uuid4()}"
        second = decode_leg_to(LOOPBACK, self.ports[0], request)
        answer: Streamed = self.together(prompt, tokens, (PREFILL_LEG, second), request)
        return answer.first_token_ms, list(answer.words)
