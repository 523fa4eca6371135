"""An engine that pulls, and the one that it pulls from, are stopped and killed, and clients leave, in each state.

The states are ASKED (the source has not answered), OFFERED (the source holds pages, the asker has none yet) and
FETCHING (writes are on their way). The asker may also send the prompt on to a decoder, which computes what does not
come. Whatever happens, every answer that comes is right, no engine ends, and nothing is held.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from bed import PREFILL_LEG, Messenger, Side, decode_leg, decoder, messenger, prove, send_decode, start_messengers
from faults import Gate, Outcome, attempt, body_of, busy, leave, still_serves
from processes import kill, stopped
from pulls_bed import ANSWER_TOKENS, EXTRA, OPTIONS, Engines, Tokens, source_of, whole_pages
from server_process import complete, start_all, wait_until

SOURCE: Final = 0
ASKER: Final = 1
SILENCE_LIMIT_SECONDS: Final = 10.0  # the default
NOTICED_LIMIT_SECONDS: Final = 600.0
SEQUENCES_MAX: Final = 2
HISTORY_TOKENS: Final = 300
NEW_TOKENS: Final = 40


@dataclass
class Pull:
    """A request to the asker, and the decoder's leg if it is sent on."""

    prompt: str
    name: str
    params: dict[str, Any]
    decode: Future[Outcome] | None


@dataclass
class Bed:
    engines: Engines
    decoder: Messenger
    gate: Gate
    pool: ThreadPoolExecutor

    @property
    def source(self) -> Messenger:
        return self.engines.servers[SOURCE]

    @property
    def asker(self) -> Messenger:
        return self.engines.servers[ASKER]

    def pull(self, *, sends: bool) -> Pull:
        """A prompt whose beginning the source holds, and the decoder's leg on its way."""
        history = self.engines.prompt(HISTORY_TOKENS)
        self.engines.ask(SOURCE, history)
        prompt, name = f"{history} {self.engines.prompt(NEW_TOKENS)}", f"pull-{uuid.uuid4()}"
        params = source_of(self.source)
        if not sends:
            return Pull(prompt, name, params, None)
        leg = decode_leg(self.asker, name)
        decode = self.pool.submit(attempt, send_decode, self.decoder, prompt, ANSWER_TOKENS, leg, name)
        return Pull(prompt, name, {**PREFILL_LEG, **params}, decode)

    def ask(self, pull: Pull) -> Future[Outcome]:
        headers = {"X-Request-Id": pull.name}
        return self.pool.submit(attempt, complete, self.asker.server, pull.prompt, ANSWER_TOKENS, pull.params, headers)

    def is_right(self, pull: Pull, asked: Future[Outcome] | None) -> None:
        """All answers that are due are right; the engine that answers alone is asked once the others are."""
        outcomes = [each.result(NOTICED_LIMIT_SECONDS) for each in (asked, pull.decode) if each is not None]
        self.settle(self.source, self.asker, self.decoder)
        right = self.engines.alone(pull.prompt)
        assert all(outcome.words == right for outcome in outcomes), (outcomes, right)

    def settle(self, *sides: Messenger) -> None:
        """Waits until their messengers hold nothing and prints how long that took, then until the engines do not."""
        since_seconds = time.monotonic()
        for side in sides:
            side.wait_released()
            print(f"{side.server.name} held nothing {time.monotonic() - since_seconds:.2f} s later")
        for side in sides:
            still_serves(side.server)  # its page shows its last step
            side.wait_at_rest()

    def at_rest_and_pulling(self) -> None:
        sides = (self.source, self.asker, self.decoder)
        self.settle(*sides)
        pull = self.pull(sends=True)
        before = Tokens.of(self.asker)
        self.is_right(pull, self.ask(pull))
        assert Tokens.of(self.asker).since(before).moved == whole_pages(HISTORY_TOKENS), "nothing was pulled"
        self.settle(*sides)

    def prove(self) -> None:
        self.engines.prove(ASKER, SOURCE)
        prove(self.asker, self.decoder)


State = Callable[[Bed], AbstractContextManager[Callable[[], bool]]]


@contextmanager
def asked(bed: Bed) -> Iterator[Callable[[], bool]]:
    with stopped(bed.source.server.pid):
        yield lambda: bed.asker.server.metric("vllm:num_requests_waiting") > 0


@contextmanager
def offered(bed: Bed) -> Iterator[Callable[[], bool]]:
    with busy(bed.asker, SEQUENCES_MAX):
        yield lambda: bed.source.metric("kv_messenger_pages_offered") > 0


@contextmanager
def fetching(bed: Bed) -> Iterator[Callable[[], bool]]:
    with bed.gate.closed(after=0):
        yield lambda: bed.source.metric("kv_messenger_writes_in_flight") > 0


STATES: Final[dict[str, State]] = {"asked": asked, "offered": offered, "fetching": fetching}


@pytest.fixture(scope="module")
def bed(model: Path, run_folder: Path) -> Iterator[Bed]:
    gate = Gate(run_folder / "held-pulls")
    limits = {"silence_limit_seconds": SILENCE_LIMIT_SECONDS}
    extra, options = {**EXTRA, **limits}, {**OPTIONS, "sequences_max": SEQUENCES_MAX}
    sides = (
        Side("pulls-source", "kv_both", 0, extra={**extra, "jvm_options": gate.jvm_options}, options=options),
        Side("pulls-asker", "kv_both", 1, extra=extra, options=options),
        decoder("pulls-target", 0, extra=limits, options={"load_failure_policy": "recompute", "page_tokens": 32}),
    )
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(8))
        source, asker, target = (messenger(side, model, run_folder) for side in sides)
        start_messengers(stack, [source, asker, target])
        stack.callback(gate.open)
        made = Bed(Engines([source, asker]), target, gate, pool)
        made.prove()
        yield made


@pytest.mark.parametrize(
    "sends", [pytest.param(False, id="alone", marks=pytest.mark.at_length), pytest.param(True, id="sending on")]
)
@pytest.mark.parametrize("state", STATES)
def test_client_that_leaves(bed: Bed, state: str, sends: bool) -> None:
    pull = bed.pull(sends=sends)
    with STATES[state](bed) as reached:
        body = body_of(pull.prompt, ANSWER_TOKENS, pull.params, stream=False)
        leave(bed.asker.server, body, pull.name, lambda: wait_until(reached, NOTICED_LIMIT_SECONDS, state))
        if state == "asked":  # of a source that stands still nothing is waited for
            bed.settle(bed.asker)
        if state == "offered":
            bed.settle(bed.source)
    bed.is_right(pull, None)
    bed.at_rest_and_pulling()


@pytest.mark.parametrize(
    ("state", "sends"),
    [
        ("asked", False),
        ("offered", True),
        ("fetching", True),
        pytest.param("asked", True, marks=pytest.mark.at_length),
        pytest.param("offered", False, marks=pytest.mark.at_length),
        pytest.param("fetching", False, marks=pytest.mark.at_length),
    ],
)
def test_source_that_stops(bed: Bed, state: str, sends: bool) -> None:
    """The prompt is computed while the source stands still; what it sends afterwards reaches no page in use."""
    pull = bed.pull(sends=sends)
    with ExitStack() as stack:
        if state == "asked":
            stack.enter_context(stopped(bed.source.server.pid))
            answer = bed.ask(pull)
        else:
            with STATES[state](bed) as reached:
                answer = bed.ask(pull)
                wait_until(reached, NOTICED_LIMIT_SECONDS, state)
                stack.enter_context(stopped(bed.source.server.pid))
        ended = answer.result(NOTICED_LIMIT_SECONDS)
        assert not ended.failed, ended
    bed.is_right(pull, answer)
    bed.at_rest_and_pulling()


@pytest.mark.parametrize(
    "state",
    [
        "fetching",
        pytest.param("asked", marks=pytest.mark.at_length),
        pytest.param("offered", marks=pytest.mark.at_length),
    ],
)
def test_source_that_is_killed(bed: Bed, state: str) -> None:
    pull = bed.pull(sends=True)
    with STATES[state](bed) as reached:
        answer = bed.ask(pull)
        wait_until(reached, NOTICED_LIMIT_SECONDS, state)
        kill(bed.source.server.pid)
    assert not answer.result(NOTICED_LIMIT_SECONDS).failed
    bed.settle(bed.asker)
    start_all([bed.source.server], print)
    bed.is_right(pull, answer)
    bed.engines.proven.clear()
    bed.prove()
    bed.at_rest_and_pulling()


@pytest.mark.parametrize("state", ["fetching", pytest.param("offered", marks=pytest.mark.at_length)])
def test_asker_that_stops(bed: Bed, state: str) -> None:
    """The source has its pages back while the asker stands still, whose prompt is computed afterwards."""
    pull = bed.pull(sends=False)
    with STATES[state](bed) as reached:
        answer = bed.ask(pull)
        wait_until(reached, NOTICED_LIMIT_SECONDS, state)
        with stopped(bed.asker.server.pid):
            bed.settle(bed.source)
    bed.is_right(pull, answer)
    bed.at_rest_and_pulling()


def test_asker_that_is_killed(bed: Bed) -> None:
    """With one request that fetches and one that has an offer."""
    pulls = [bed.pull(sends=False) for _ in range(2)]
    with fetching(bed) as fetches:
        answers = [bed.ask(pulls[0])]
        wait_until(fetches, NOTICED_LIMIT_SECONDS, "fetching")
        with offered(bed) as is_offered:
            answers.append(bed.ask(pulls[1]))
            wait_until(is_offered, NOTICED_LIMIT_SECONDS, "offered")
            kill(bed.asker.server.pid)
            for answer in answers:
                assert answer.result(NOTICED_LIMIT_SECONDS).failed
            bed.settle(bed.source)
    start_all([bed.asker.server], print)
    bed.engines.proven.clear()
    bed.prove()
    bed.at_rest_and_pulling()
