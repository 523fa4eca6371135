"""A prefiller and a decoder of SGLang on two hosts, with a secret and no address among the messenger's options.

Each messenger listens where SGLang finds its host: at the address that ``SGLANG_HOST_IP`` has on the prefiller, and on
the decoder, where nothing names one, at that by which the default route leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest
from conftest import Reference
from faults import Outcome, attempt
from hosts import Host, ip, lack_of_privilege, second_host
from server_process import Server, free_port, greedy_completion
from sglang_bed import COMPLETIONS, Ground, Kind, Side, start
from sglang_workload import ANSWER_TOKENS, OVERLAPPED, TOKENS

pytest_plugins = ["sglang_fixtures"]
SECRET = {"KV_MESSENGER_SHARED_SECRET": "a secret of two hosts"}


@dataclass
class TwoHosts:
    """A side on each host, and where the prefiller's answers the question for its ranks."""

    host: Host
    prefiller: Side
    decoder: Side
    bootstrap_port: int
    prompts: int = 0

    def ask(self, prompt: str) -> Outcome:
        """The decoder's answer; both legs are sent at once, as a router does it."""
        self.prompts += 1
        body = {
            **greedy_completion(prompt, ANSWER_TOKENS),
            "bootstrap_host": self.host.data.near,
            "bootstrap_port": self.bootstrap_port,
            "bootstrap_room": self.prompts,
        }
        with ThreadPoolExecutor(1) as other:
            other.submit(attempt, self.prefiller.server.post, COMPLETIONS, body)
            return attempt(self.decoder.server.post, COMPLETIONS, body)


def listens_at(side: Side, address: str) -> None:
    """Its HTTP server and its messenger's metrics are asked there; SGLang's own processes stay on loopback."""
    server = side.server
    server.command[server.command.index("--host") + 1] = address
    server.url = f"http://{address}:{server.port}"
    side.metrics_host = address


@pytest.fixture(scope="module")
def hosts(ground: Ground) -> Iterator[TwoHosts]:
    lack = lack_of_privilege()
    if lack is not None:
        pytest.skip(lack)
    with ExitStack() as stack:
        host = stack.enter_context(second_host())
        ip("-n", host.name, "route", "add", "default", "via", host.data.near)
        kind = Kind(started_by=Server, environment=SECRET | {"SGLANG_HOST_IP": ""})
        near = replace(
            kind,
            environment=SECRET | {"SGLANG_HOST_IP": host.data.near},
            options={"metrics_host": host.data.near},
        )
        port = free_port()
        prefiller = ground.side("prefill", near, port, name="prefill-near")
        far = replace(kind, options={"metrics_host": host.data.far})
        decoder = ground.side("decode", far, name="decode-far")
        listens_at(prefiller, host.data.near)
        listens_at(decoder, host.data.far)
        decoder.server.command[:0] = host.prefix
        start(stack, [prefiller.server, decoder.server])
        yield TwoHosts(host, prefiller, decoder, port)


def test_tokens_are_those_of_a_single_sglang(hosts: TwoHosts, by_sglang: Reference) -> None:
    prompts = [*TOKENS.prompts(), *OVERLAPPED.prompts()]
    for prompt in prompts:
        assert hosts.ask(prompt).words == by_sglang.to(prompt)
    for side in (hosts.prefiller, hosts.decoder):
        side.wait_at_rest()
    assert hosts.decoder.metric("kv_messenger_fetches_arrived_total") >= len(prompts) - 1, "all but one token came"
    found = {
        hosts.prefiller: f"{hosts.host.data.near}, which SGLANG_HOST_IP names",
        hosts.decoder: f"{hosts.host.data.far}, by which the default route leaves",
    }
    for side, where in found.items():
        assert f"the messenger listens on {where}" in side.server.log_path.read_text(encoding="utf-8")
