"""The link to a decoder on another host goes down and up: KV comes late and right, or the request fails."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from bed import Messenger, decode_leg, decoder, messenger, prefiller, send_decode, send_prefill, start_messengers
from conftest import Reference
from faults import LEAVE_FIRST, Gate, Outcome, attempt, still_serves
from hosts import Host, lack_of_privilege, second_host
from server_process import wait_until
from workload import ANSWER_TOKENS, LINKS

SILENCE_LIMIT_SECONDS = 4.0
NOTICED_LIMIT_SECONDS = 600.0
TCP_COMES_BACK_SECONDS = 60.0
"""After a link is up again TCP waits up to twice as long as it was down."""
LIMITS = {
    "heartbeat_seconds": 0.5,
    "silence_limit_seconds": SILENCE_LIMIT_SECONDS,
    "shared_secret": "between two hosts",
}


@dataclass
class TwoHosts:
    prefiller: Messenger
    decoder: Messenger
    host: Host
    gate: Gate
    pool: ThreadPoolExecutor
    reference: Reference
    prompts: Iterator[str]

    def decode(self, prompt: str, request: str) -> Outcome:
        leg = {**decode_leg(self.prefiller, request), "remote_host": self.host.data.near}
        return attempt(send_decode, self.decoder, prompt, ANSWER_TOKENS, leg, request)

    def works(self) -> None:
        prompt, request = next(self.prompts), f"link-{uuid.uuid4()}"
        decode = self.pool.submit(self.decode, prompt, request)
        send_prefill(self.prefiller, prompt, request)
        assert decode.result(NOTICED_LIMIT_SECONDS).words == self.reference.to(prompt)
        for side in (self.prefiller, self.decoder):
            still_serves(side.server)
            side.wait_at_rest()


@pytest.fixture(scope="module")
def hosts(model: Path, run_folder: Path, reference: Reference) -> Iterator[TwoHosts]:
    lack = lack_of_privilege()
    if lack is not None:
        pytest.skip(lack)
    gate = Gate(run_folder / "held-writes-of-links")
    with ExitStack() as stack:
        host = stack.enter_context(second_host())
        pool = stack.enter_context(ThreadPoolExecutor(4))
        near = {"listen_host": host.data.near, "jvm_options": gate.jvm_options, **LIMITS}
        far = {
            "listen_host": host.data.far,
            "metrics_host": host.management.far,
            "transports": ["tcp"],
            **LIMITS,
        }
        source = messenger(prefiller("prefiller-near", extra=near), model, run_folder)
        target = messenger(decoder("decoder-far", extra=far), model, run_folder)
        move(target, host)
        start_messengers(stack, [source, target])
        stack.callback(gate.open)
        yield TwoHosts(source, target, host, gate, pool, reference, iter(LINKS.prompts()))


def move(made: Messenger, host: Host) -> None:
    """Its server will run on the other host, where it is asked by the management link."""
    server, address = made.server, host.management.far
    at = server.command.index("--host")
    server.command[at + 1] = address
    server.command[:0] = host.prefix
    server.url = f"http://{address}:{server.port}"
    made.metrics_host = address


@pytest.mark.parametrize(
    "down_seconds", [SILENCE_LIMIT_SECONDS / 4, SILENCE_LIMIT_SECONDS * 2], ids=["shortly", "for long"]
)
def test_link_that_goes_down_in_a_transfer_delays_it_or_fails_it(hosts: TwoHosts, down_seconds: float) -> None:
    hosts.works()
    source, target, prompt, request = hosts.prefiller, hosts.decoder, next(hosts.prompts), f"link-{uuid.uuid4()}"
    before = source.metric("kv_messenger_layers_sent_total")
    with hosts.gate.closed():
        decode = hosts.pool.submit(hosts.decode, prompt, request)
        wait_until(
            lambda: decode.done() or source.metric("kv_messenger_grants_waiting") > 0,
            NOTICED_LIMIT_SECONDS,
            "the prefiller has the grant",
        )
        send_prefill(source, prompt, request)
        wait_until(
            lambda: decode.done() or source.metric("kv_messenger_layers_sent_total") - before == LEAVE_FIRST,
            NOTICED_LIMIT_SECONDS,
            f"{LEAVE_FIRST} writes have left",
        )
        assert not decode.done(), decode.result()
        with hosts.host.data.down():
            cut_seconds = time.monotonic()
            hosts.gate.open()
            if down_seconds > SILENCE_LIMIT_SECONDS:
                ended = decode.result(NOTICED_LIMIT_SECONDS)
                print(f"noticed: link down: {ended.at_seconds - cut_seconds:.2f} s")
                assert ended.failed, ended
                wait_until(lambda: not source.held(), NOTICED_LIMIT_SECONDS, "the prefiller has given everything back")
            else:
                time.sleep(down_seconds)  # nothing happens meanwhile that could be waited for
    if down_seconds < SILENCE_LIMIT_SECONDS:
        assert decode.result(TCP_COMES_BACK_SECONDS).words == hosts.reference.to(prompt)
    still_serves(target.server)
    hosts.works()
