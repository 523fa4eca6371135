"""Engines are killed and stopped, clients leave, routers forget a leg: no wrong token, nothing lost, nothing leaked.

One prefiller whose writes can be held back, and two decoders: KV comes to one over shm and to the other over tcp, and
when it does not come the one fails the request and the other computes the prompt. After each fault the surviving
requests have the right tokens, the failed ones an error, engines stay up, nothing is held, and a request that comes
after works. How soon a fault was noticed is printed; what is asserted is that noticing it, and not the request's own
limit, ended the wait.
"""

from __future__ import annotations

import random
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from bed import (
    PREFILL_LEG,
    Messenger,
    decode_leg,
    decoder,
    messenger,
    prefiller,
    send_decode,
    send_prefill,
    start_messengers,
    together,
)
from conftest import Reference
from faults import (
    Clients,
    Gate,
    Outcome,
    attempt,
    body_of,
    granted_without_prefill,
    leave,
    sent_in_part,
    still_serves,
)
from kv_connector.cli.timelines import fetches
from kv_connector.vllm.pair_proofs import PROBE_LIMIT_SECONDS
from processes import descendants, kill, kill_alone, maps_a_jvm, stopped
from prompts import random_prompt
from server_process import LOOPBACK, complete, free_port, start_all, wait_until, words_of
from servers import router
from workload import ABORTED, ANSWER_TOKENS, FAULTS

GRANT_WAIT_SECONDS = 25.0
UNHEARD_LIMIT_SECONDS = 20.0
CONNECT_LIMIT_SECONDS = 20.0
"""All are as long as a messenger may get no core while engines wait by `sched_yield`: see docs/testing.md."""
SILENCE_LIMIT_SECONDS = 10.0  # the default
PREFILLER_TOKENS_MAX = 1024
"""Its --max-model-len; the decoders take prompts of twice as many."""
NOTICED_LIMIT_SECONDS = 600.0
"""Bounds a test that fails; far below fetch_limit_seconds, which would end any request."""
LONELY_LEGS = 5
ABORT_TOKENS = 4
ABORTS_IN_FLIGHT = 12
ABORT_WITHIN_SECONDS = 1.5


@dataclass
class Faulty:
    """A prefiller whose writes can be held back, and two decoders of it."""

    prefiller: Messenger
    failing: Messenger
    """Over shm, with vLLM's default policy for KV that does not come: the request fails."""
    recomputing: Messenger
    """Over tcp, with the other policy: the prompt is computed here."""
    gate: Gate
    clients: Clients
    reference: Reference
    prompts: Iterator[str]

    def prompt(self) -> str:
        return next(self.prompts)

    def right(self, outcome: Outcome, prompt: str) -> bool:
        return outcome.words == self.reference.to(prompt)

    def at_rest_and_serving(self) -> None:
        """Everything works, KV comes over both transports, and nothing is held."""
        sides = (self.prefiller, self.failing, self.recomputing)
        for side in sides:
            still_serves(side.server)
        for target in (self.failing, self.recomputing):
            prompt, before = self.prompt(), target.tokens_by_transfer()
            assert words_of(together(self.prefiller, target, prompt, ANSWER_TOKENS)) == self.reference.to(prompt)
            came = target.tokens_by_transfer() - before
            assert came == len(prompt.split()), f"{target.server.name} answered, and computed the prompt itself"
        for side in sides:
            side.wait_at_rest()


@dataclass
class Servers:
    """Those of all tests here, with what they are used through."""

    prefiller: Messenger
    failing: Messenger
    recomputing: Messenger
    gate: Gate
    clients: Clients
    failed_tests: int
    """How many tests had failed when they were last known to be as they should."""

    def be_new_after_a_failure(self, failed_tests: int) -> None:
        """A test that failed may have left a server dead, stopped or with pages held: the next one gets new ones."""
        sides = [side.server for side in (self.prefiller, self.failing, self.recomputing)]
        self.gate.open()
        if failed_tests > self.failed_tests or not all(server.alive() for server in sides):
            for server in sides:
                server.kill()
            start_all(sides, print)
        self.failed_tests = failed_tests


@pytest.fixture
def faulty(servers: Servers, reference: Reference, request: pytest.FixtureRequest) -> Faulty:
    servers.be_new_after_a_failure(request.session.testsfailed)
    prompts = FAULTS[request.node.name.removeprefix("test_")].prompts()
    return Faulty(
        servers.prefiller,
        servers.failing,
        servers.recomputing,
        servers.gate,
        servers.clients,
        reference,
        iter(prompts),
    )


@pytest.fixture(scope="module")
def servers(model: Path, run_folder: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    gate = Gate(run_folder / "held-writes")
    sides = (
        prefiller(
            "prefiller-faulty",
            extra={
                "jvm_options": gate.jvm_options,
                "grant_wait_seconds": GRANT_WAIT_SECONDS,
                "unheard_limit_seconds": UNHEARD_LIMIT_SECONDS,
                "silence_limit_seconds": SILENCE_LIMIT_SECONDS,
            },
            options={"arguments": ("--max-model-len", str(PREFILLER_TOKENS_MAX))},
        ),
        decoder("decoder-failing", extra={"silence_limit_seconds": SILENCE_LIMIT_SECONDS}),
        decoder(
            "decoder-recomputing",
            extra={
                "transports": ["tcp"],
                "connect_limit_seconds": CONNECT_LIMIT_SECONDS,
                "silence_limit_seconds": SILENCE_LIMIT_SECONDS,
            },
            options={"load_failure_policy": "recompute"},
        ),
    )
    with ExitStack() as stack:
        clients = Clients(stack.enter_context(ThreadPoolExecutor(ABORTS_IN_FLIGHT)))  # ends after the servers
        source, failing, recomputing = (messenger(side, model, run_folder) for side in sides)
        start_messengers(stack, [source, failing, recomputing])
        stack.callback(gate.open)
        yield Servers(source, failing, recomputing, gate, clients, request.session.testsfailed)


def noticed(what: str, since_seconds: float, ended: Outcome) -> None:
    print(f"noticed: {what}: {ended.at_seconds - since_seconds:.2f} s")


def test_killed_prefiller_fails_what_waits_for_it(faulty: Faulty) -> None:
    """kill -9 with requests at several steps: granted and not begun, sent in part, in the forward pass, ended."""
    source, clients = faulty.prefiller, faulty.clients
    prompts = [faulty.prompt() for _ in range(6)]
    with faulty.gate.closed():
        halfway = sent_in_part(clients, source, faulty.failing, prompts[0], ANSWER_TOKENS)
        granted = granted_without_prefill(clients, source, faulty.failing, prompts[1], ANSWER_TOKENS)
        recomputed = granted_without_prefill(clients, source, faulty.recomputing, prompts[2], ANSWER_TOKENS)
        unfetched = clients.prefill(source, prompts[3], f"unfetched-{uuid.uuid4()}")
        unfetched.result(NOTICED_LIMIT_SECONDS)
        computing = [clients.send(source, faulty.failing, prompt, ANSWER_TOKENS) for prompt in prompts[4:]]
        killed_seconds = time.monotonic()
        kill(source.server.pid)
        for pending, step in ((halfway, "sent in part"), (granted, "granted")):
            ended = pending.ended(NOTICED_LIMIT_SECONDS)
            noticed(f"killed prefiller, {step}", killed_seconds, ended)
            assert ended.failed, ended
        for pending in computing:
            assert pending.ended(NOTICED_LIMIT_SECONDS).failed, "its writes were held back"
        assert faulty.right(recomputed.ended(NOTICED_LIMIT_SECONDS), prompts[2])
    still_serves(faulty.failing.server)
    faulty.failing.wait_at_rest()

    start_all([source.server], print)
    faulty.at_rest_and_serving()


def test_killed_decoder_costs_its_prefiller_nothing(faulty: Faulty) -> None:
    """kill -9 of a decoder at several steps: the prefiller's pages come back, and it goes on for others."""
    source, target, clients = faulty.prefiller, faulty.recomputing, faulty.clients
    prompts = [faulty.prompt() for _ in range(4)]
    with faulty.gate.closed():
        halfway = sent_in_part(clients, source, target, prompts[0], ANSWER_TOKENS)
        granted = granted_without_prefill(clients, source, target, prompts[1], ANSWER_TOKENS)
        killed_seconds = time.monotonic()
        kill(target.server.pid)
        assert halfway.ended(NOTICED_LIMIT_SECONDS).failed
        assert granted.ended(NOTICED_LIMIT_SECONDS).failed
        wait_until(lambda: not source.held(), NOTICED_LIMIT_SECONDS, "the prefiller has given everything back")
        print(f"noticed: killed decoder: all its pages are back after {time.monotonic() - killed_seconds:.2f} s")
    prompt = prompts[2]
    assert words_of(together(source, faulty.failing, prompt, ANSWER_TOKENS)) == faulty.reference.to(prompt)

    start_all([target.server], print)
    faulty.at_rest_and_serving()


def test_idle_prefiller_whose_worker_is_killed_comes_back_at_its_address(faulty: Faulty) -> None:
    """Only the process with the messenger dies; what vLLM makes of it is an ended server."""
    source, prompt = faulty.prefiller, faulty.prompt()
    faulty.at_rest_and_serving()  # sessions are open and idle
    (worker,) = (pid for pid in descendants(source.server.pid) if maps_a_jvm(pid))
    kill_alone(worker)
    source.server.wait_ended(NOTICED_LIMIT_SECONDS)
    begun_seconds = time.monotonic()
    ended = faulty.clients.send(source, faulty.failing, prompt, ANSWER_TOKENS).ended(NOTICED_LIMIT_SECONDS)
    noticed("request to a prefiller that is gone", begun_seconds, ended)
    assert ended.failed
    ended = faulty.clients.send(source, faulty.recomputing, prompt, ANSWER_TOKENS).ended(NOTICED_LIMIT_SECONDS)
    assert faulty.right(ended, prompt)

    start_all([source.server], print)
    faulty.at_rest_and_serving()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_late_writes_of_a_stopped_prefiller_reach_no_page_in_use(faulty: Faulty, transport: str) -> None:
    """SIGSTOP in the middle of a transfer until the decoder has given up, reuse of its blocks, SIGCONT."""
    source, prompt, other = faulty.prefiller, faulty.prompt(), faulty.prompt()
    recomputes = transport == "tcp"
    target = faulty.recomputing if recomputes else faulty.failing
    with faulty.gate.closed():
        halfway = sent_in_part(faulty.clients, source, target, prompt, ANSWER_TOKENS)
        with stopped(source.server.pid):
            stopped_seconds = time.monotonic()
            ended = halfway.ended(NOTICED_LIMIT_SECONDS)
            noticed(f"stopped prefiller, {target.server.name}", stopped_seconds, ended)
            assert faulty.right(ended, prompt) if recomputes else ended.failed, ended
            quarantined = target.metric("kv_messenger_pages_quarantined") > 0
            assert quarantined == (transport == "shm"), "a closed socket is proof, a mapping that may be in use is not"
            # Blocks that were freed last are taken first: these would be the stopped transfer's.
            assert words_of(complete(target.server, other, ANSWER_TOKENS)) == faulty.reference.to(other)
            faulty.gate.open()  # what was held back leaves as soon as the process runs again
    wait_until(lambda: not target.metric("kv_messenger_pages_quarantined"), NOTICED_LIMIT_SECONDS, "the proof is there")
    source.wait_at_rest()
    still_serves(target.server)
    cached_before = target.server.metric("vllm:prefix_cache_hits_total")
    assert words_of(complete(target.server, other, ANSWER_TOKENS)) == faulty.reference.to(other)
    assert target.server.metric("vllm:prefix_cache_hits_total") > cached_before, "its pages were not looked at again"
    target.wait_at_rest()
    faulty.at_rest_and_serving()


def test_requests_to_a_prefiller_that_is_silent_for_ever_end_within_their_limit(faulty: Faulty) -> None:
    """One that accepts and never speaks, and one that stands still; the connection's limit ends the wait."""
    prompts = [faulty.prompt() for _ in range(2)]
    target = faulty.recomputing
    with socket.socket() as mute, stopped(faulty.prefiller.server.pid):
        mute.bind((LOOPBACK, free_port()))
        mute.listen()
        begun_seconds = time.monotonic()
        silent = Messenger(faulty.prefiller.server, (), mute.getsockname()[1])
        pendings = [
            faulty.clients.send(to, target, prompt, ANSWER_TOKENS, prefill=False)
            for to, prompt in zip((silent, faulty.prefiller), prompts, strict=True)
        ]
        for pending, prompt in zip(pendings, prompts, strict=True):
            ended = pending.ended(NOTICED_LIMIT_SECONDS + SILENCE_LIMIT_SECONDS)
            noticed(f"silent prefiller, connect_limit_seconds {CONNECT_LIMIT_SECONDS:g}", begun_seconds, ended)
            assert faulty.right(ended, prompt), "the policy of this decoder is to compute the prompt itself"
    faulty.at_rest_and_serving()


@pytest.mark.parametrize("side", ["prefiller", "decoder"])
def test_stop_shorter_than_the_silence_limit_only_delays(faulty: Faulty, side: str) -> None:
    source, target, prompt = faulty.prefiller, faulty.failing, faulty.prompt()
    lost_before = target.metric("kv_messenger_links_lost_total")
    with faulty.gate.closed():
        halfway = sent_in_part(faulty.clients, source, target, prompt, ANSWER_TOKENS)
        with stopped((source if side == "prefiller" else target).server.pid):
            time.sleep(SILENCE_LIMIT_SECONDS / 5)  # nothing happens meanwhile that could be waited for
            faulty.gate.open()
    assert faulty.right(halfway.ended(NOTICED_LIMIT_SECONDS), prompt)
    assert target.metric("kv_messenger_links_lost_total") == lost_before
    faulty.at_rest_and_serving()


def test_decoder_stopped_beyond_the_silence_limit_is_given_up_and_comes_back(faulty: Faulty) -> None:
    source, target = faulty.prefiller, faulty.recomputing
    prompts = [faulty.prompt() for _ in range(3)]
    with faulty.gate.closed():
        halfway = sent_in_part(faulty.clients, source, target, prompts[0], ANSWER_TOKENS)
        granted = granted_without_prefill(faulty.clients, source, target, prompts[1], ANSWER_TOKENS)
        with stopped(target.server.pid):
            stopped_seconds = time.monotonic()
            wait_until(lambda: not source.held(), NOTICED_LIMIT_SECONDS, "the prefiller has given everything back")
            print(f"noticed: stopped decoder: all its pages are back after {time.monotonic() - stopped_seconds:.2f} s")
            faulty.gate.open()
            prompt = prompts[2]
            assert words_of(together(source, faulty.failing, prompt, ANSWER_TOKENS)) == faulty.reference.to(prompt)
        assert faulty.right(halfway.ended(NOTICED_LIMIT_SECONDS), prompts[0])
        assert faulty.right(granted.ended(NOTICED_LIMIT_SECONDS), prompts[1])
    faulty.at_rest_and_serving()


def test_router_that_sends_one_leg_leaves_nothing_behind(faulty: Faulty) -> None:
    """Several decode legs at once: of an unproven pair one goes first, and the others wait for a limited time."""
    source = faulty.prefiller
    expired_before = source.metric("kv_messenger_prefills_expired_total")
    seen = len(faulty.failing.server.log())
    alone = faulty.clients.prefill(source, faulty.prompt(), f"prefill-alone-{uuid.uuid4()}")
    begun_seconds = time.monotonic()
    lonely = [
        faulty.clients.send(source, faulty.failing, faulty.prompt(), ANSWER_TOKENS, prefill=False)
        for _ in range(LONELY_LEGS)
    ]
    assert not alone.result(NOTICED_LIMIT_SECONDS).failed
    limit_seconds = UNHEARD_LIMIT_SECONDS + PROBE_LIMIT_SECONDS + NOTICED_LIMIT_SECONDS
    for leg in lonely:
        ended = leg.ended(begun_seconds + limit_seconds - time.monotonic())
        noticed(f"decode leg alone, unheard_limit_seconds {UNHEARD_LIMIT_SECONDS:g}", begun_seconds, ended)
        assert ended.failed
    assert faulty.failing.server.log()[seen:].count("(unheard_limit_seconds)") >= LONELY_LEGS
    faulty.at_rest_and_serving()
    assert source.metric("kv_messenger_prefills_expired_total") == expired_before + 1


def test_prompt_beyond_the_prefillers_max_model_len_fails_soon_and_leaves_nothing_behind(
    faulty: Faulty, run_folder: Path, stack: ExitStack
) -> None:
    """The stock router sends both legs at once; the prefiller's API server answers one of them with 400."""
    source, target = faulty.prefiller, faulty.failing
    front = router("router-faulty", [source.server], [target.server], run_folder)
    stack.callback(front.stop)
    start_all([front], print)
    prompt = faulty.prompt()
    assert words_of(complete(front, prompt, ANSWER_TOKENS)) == faulty.reference.to(prompt), "it has learnt the order"
    of_source, of_target = len(source.server.log()), len(target.server.log())
    begun_seconds = time.monotonic()
    ended = attempt(complete, front, random_prompt(PREFILLER_TOKENS_MAX + 100, 99), ANSWER_TOKENS)
    noticed(f"prompt that is too long, unheard_limit_seconds {UNHEARD_LIMIT_SECONDS:g}", begun_seconds, ended)
    assert ended.failed, ended
    assert ended.at_seconds - begun_seconds < UNHEARD_LIMIT_SECONDS + NOTICED_LIMIT_SECONDS
    assert '"POST /v1/completions HTTP/1.1" 400' in source.server.log()[of_source:]
    assert "(unheard_limit_seconds)" in target.server.log()[of_target:]
    faulty.at_rest_and_serving()


@pytest.mark.parametrize("stream", [False, True], ids=["waiting for all", "streaming"])
def test_client_that_leaves_while_it_waits_leaves_nothing_behind(faulty: Faulty, stream: bool) -> None:
    """Before the prefill has begun, and with KV on its way."""
    source, target = faulty.prefiller, faulty.failing
    abandoned_before = target.metric("kv_messenger_fetches_abandoned_total")

    def abandoned(count: int) -> bool:
        return target.metric("kv_messenger_fetches_abandoned_total") >= abandoned_before + count

    def come_and_leave(request: str, prompt: str, *, prefill: bool) -> None:
        granted_before = target.metric("kv_messenger_grants_sent_total")

        def granted() -> bool:
            return target.metric("kv_messenger_grants_sent_total") > granted_before

        def stay() -> None:
            wait_until(granted, NOTICED_LIMIT_SECONDS, "the request waits for KV")
            if prefill:
                assert not faulty.clients.prefill(source, prompt, request).result(NOTICED_LIMIT_SECONDS).failed

        leave(target.server, body_of(prompt, 4, decode_leg(source, request), stream=stream), request, stay)

    come_and_leave(f"leaves-{uuid.uuid4()}", faulty.prompt(), prefill=False)
    wait_until(lambda: abandoned(1), NOTICED_LIMIT_SECONDS, "the engine has given the request up")
    target.wait_at_rest()
    with faulty.gate.closed():
        come_and_leave(f"leaves-{uuid.uuid4()}", faulty.prompt(), prefill=True)
        wait_until(lambda: abandoned(2), NOTICED_LIMIT_SECONDS, "the engine has given the request up")
        assert target.metric("kv_messenger_pages_quarantined") > 0, "writes are held back, and nothing is confirmed"
    faulty.at_rest_and_serving()


def test_next_prefiller_is_asked_when_the_first_is_not_there(faulty: Faulty) -> None:
    prompt = faulty.prompt()
    named = [f"{LOOPBACK}:{free_port()}", f"{LOOPBACK}:{faulty.prefiller.control_port}"]
    leg = {"do_remote_prefill": True, "prefiller": named}
    before = faulty.failing.tokens_by_transfer()
    answer = complete(faulty.failing.server, prompt, ANSWER_TOKENS, leg)
    assert words_of(answer) == faulty.reference.to(prompt)
    assert faulty.failing.tokens_by_transfer() - before == len(prompt.split())
    faulty.at_rest_and_serving()


def test_random_aborts_leave_right_tokens_and_nothing_behind(faulty: Faulty) -> None:
    """200 requests over two decoders, half of them left by their clients at a random moment of either leg."""
    draw = random.Random(4)
    plans = [
        (prompt, draw.random() < 0.5, draw.random() < 0.5, draw.uniform(0, ABORT_WITHIN_SECONDS))
        for prompt in ABORTED.prompts()
    ]

    targets = (faulty.failing, faulty.recomputing)
    seen = [len(target.server.log()) for target in targets]
    names = [f"aborts-{uuid.uuid4()}" for _ in plans]

    def one(index: int) -> Outcome | None:
        prompt, leaves, at_decoder, after_seconds = plans[index]
        source, to, name = faulty.prefiller, targets[index % 2], names[index]
        if not leaves:
            return attempt(together, source, to, prompt, ABORT_TOKENS, name)
        leg, leaving = (decode_leg(source, name), to) if at_decoder else (PREFILL_LEG, source)
        with ThreadPoolExecutor(1) as other:
            if at_decoder:
                stays = other.submit(attempt, send_prefill, source, prompt, name)
            else:
                stays = other.submit(attempt, send_decode, to, prompt, ABORT_TOKENS, decode_leg(source, name), name)
            leave(leaving.server, body_of(prompt, 1, leg, stream=False), name, lambda: time.sleep(after_seconds))
            ended = stays.result()
        return None if at_decoder else ended

    with ThreadPoolExecutor(ABORTS_IN_FLIGHT) as pool:
        outcomes = list(pool.map(one, range(len(plans))))
    judged = [(plan, outcome) for plan, outcome in zip(plans, outcomes, strict=True) if outcome is not None]
    wrong = [
        plan
        for plan, outcome in judged
        if not outcome.failed and outcome.words != faulty.reference.to(plan[0], ABORT_TOKENS)
    ]
    assert not wrong, f"{len(wrong)} answers differ from a single vLLM's"
    lost = [plan for plan, outcome in judged if outcome.failed and not plan[1]]
    assert not lost, f"{len(lost)} requests failed although no client left them"
    arrived = "\n".join(
        transfer
        for target, known in zip(targets, seen, strict=True)
        for transfer in fetches(target.server.log()[known:])
    )
    computed = [name for name, plan in zip(names, plans, strict=True) if not plan[1] and name not in arrived]
    assert not computed, f"{len(computed)} answers were right without their KV: {computed}"
    print(f"aborts: {sum(plan[1] for plan in plans)} of {len(plans)} were left, {len(judged)} answers were compared")
    faulty.at_rest_and_serving()
