"""The first token of turns 2 to 5 of a conversation: pulled, recomputed, from a store, or from the decoder alone.

    make race-pulls [ARGS="--rounds 6 --pairs ours nixl store"]

A conversation begins with 1,500 tokens; its turns add an answer and 300 new tokens. Cold: the prefiller's cache is
emptied before every one, as if another prefiller got it; warm: it has all but the last answer. Every pair has its turn
in each round, in a rotating order, while the others are stopped by a signal. All answers must equal those of the
decoder alone. Then: the time between tokens at the decoder while 20 pulls a second are asked of it, beside none, and
beside as many prompts that the prefiller computes; and what an abandoned conversation holds. Wants a quiet machine:
rounds in which others used it are marked. With --link KV goes by sockets only, through a loopback of 1 Gb/s (root).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder) for folder in ("e2e-tests", "examples", "examples/vllm-1p1d")
)

import quiet
from contenders import Ground, stream
from demo_console import say, unwind_on_sigterm
from engine_race import LINK_QUEUE, begin_apart, rivals_folder
from hand_over import percentile
from make_model import cached_model
from processes import descendants, read
from prompts import cache_home, random_prompt
from pull_pairs import PAGE_TOKENS, Bidirectional, Pulling, Stored, Talk, TalkingPair
from pulls_bed import source_at
from server_process import LOOPBACK, greedy_completion, start_all
from warm_starts import LAUNCHER

ROOT = Path(__file__).resolve().parents[2]
FIRST_TOKENS: Final = 1500
NEW_TOKENS: Final = 300
ANSWER_TOKENS: Final = 24
TURNS: Final = 5
GAP_TOKENS: Final = 400
GAPS_BESIDE: Final = ("nothing", "pulls", "computed prompts")
PROMPTS_A_SECOND: Final = 20
SETTLED_SECONDS: Final = 2.0
"""After this time what an engine holds and does is no rest of the conversation."""
ABANDONED_SECONDS: Final = 5.0
"""For which the use of cores is measured."""
LINK: Final = ("rate", "1gbit", "burst", "256kb", "limit", LINK_QUEUE)
"""Loopback packets have up to 64 KiB."""
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class PullRace:
    """The pairs of a run, and the prompts, of which no two are alike."""

    def __init__(self, pairs: list[TalkingPair], seed: int) -> None:
        self.pairs = pairs
        self.ways = [(pair, way) for pair in pairs for way in pair.ways]
        self.seeds = random.Random(seed)

    def prompt(self, tokens: int) -> str:
        return random_prompt(tokens, self.seeds.randrange(1 << 30))

    def conversation(self, pair: TalkingPair, way: str, *, cold: bool) -> list[float]:
        """Milliseconds to the first token of its turns but the first one."""
        talk, prompt, times_ms = Talk(), self.prompt(FIRST_TOKENS), []
        for _ in range(TURNS):
            if cold:
                pair.forget()
            first_token_ms, words = pair.turn(talk, way, prompt, ANSWER_TOKENS)
            times_ms.append(first_token_ms)
            if not words:
                raise SystemExit(f"{pair.name}, {way}: no answer")
            prompt = f"{prompt} {' '.join(words)} {self.prompt(NEW_TOKENS)}"
        self.check(pair, way, prompt)
        return times_ms[1:]

    def check(self, pair: TalkingPair, way: str, prompt: str) -> None:
        """What the prefiller has cached is what it computes: a wrong beginning would show in its answer."""
        cached, alone = (
            pair.prefiller.post("/v1/completions", {**greedy_completion(prompt, 8), "cache_salt": salt})
            for salt in (None, str(self.seeds.random()))
        )
        if cached["choices"][0]["text"] != alone["choices"][0]["text"]:
            raise SystemExit(f"{pair.name}, {way}: its prefiller answers otherwise from its cache")

    def rounds(self, count: int) -> Iterator[dict[str, Any]]:
        for index in range(count):
            turned = [*self.ways[index % len(self.ways) :], *self.ways[: index % len(self.ways)]]
            for pair, way in turned:
                pair.resume()
                for cold in (True, False):
                    before = quiet.now()
                    times_ms = self.conversation(pair, way, cold=cold)
                    yield {
                        "row": "turns",
                        "pair": pair.name,
                        "way": way,
                        "cache": "cold" if cold else "warm",
                        "firstTokenMs": [round(each, 1) for each in times_ms],
                        "foreignCores": round(quiet.foreign_cores(before, quiet.now()), 2),
                    }
                pair.pause()


def gaps(race: PullRace, pair: Pulling, clients: ThreadPoolExecutor) -> Iterator[dict[str, Any]]:
    """The time between tokens of a request at the decoder: alone, beside prompts that pull from it, and beside others.

    The two engines share the machine. So what pulls cost the decoder is seen beside the same prompts at the same rate,
    computed by the prefiller.
    """
    pair.resume()
    for index in range(9):
        beside = GAPS_BESIDE[index % len(GAPS_BESIDE)]
        histories = [race.prompt(4 * PAGE_TOKENS) for _ in range(8)]
        for history in histories:
            pair.decoder.post("/v1/completions", greedy_completion(history, 1))
        over = threading.Event()
        pulls = beside == "pulls"
        asked = clients.submit(prompts_on, race, pair, histories, over, pulls=pulls) if beside != "nothing" else None
        body = greedy_completion(race.prompt(40), GAP_TOKENS)
        answer = stream(pair.decoder, body, f"gaps-{index}", time.monotonic_ns())
        over.set()
        yield {
            "row": "gaps",
            "beside": beside,
            "promptsPerSecond": round(asked.result(), 1) if asked is not None else 0,
            "gapMs": {
                name: round(percentile(answer.gaps_ms, share), 2) for name, share in (("p50", 0.5), ("p99", 0.99))
            },
            "meanMs": round(statistics.mean(answer.gaps_ms), 2),
        }
    pair.pause()


def prompts_on(race: PullRace, pair: Pulling, histories: list[str], over: threading.Event, *, pulls: bool) -> float:
    """Sends the histories to the prefiller again and again at a steady rate; returns how many a second it answered."""
    begun_seconds, count = time.monotonic(), 0
    while not over.wait(max(0.0, begun_seconds + count / PROMPTS_A_SECOND - time.monotonic())):
        prompt = f"{histories[count % len(histories)]} {race.prompt(8)}"
        hint = {"kv_transfer_params": source_at(LOOPBACK, pair.ports[1])} if pulls else {}
        pair.forget()
        pair.prefiller.post("/v1/completions", {**greedy_completion(prompt, 1), **hint})
        count += 1
    return count / (time.monotonic() - begun_seconds)


def abandoned(race: PullRace, pair: TalkingPair) -> dict[str, Any]:
    """What is held, and the cores that are used, after a conversation that does not go on."""
    pair.resume()
    pair.turn(Talk(), pair.ways[0], race.prompt(FIRST_TOKENS), ANSWER_TOKENS)
    time.sleep(SETTLED_SECONDS)
    before = [cpu_seconds(server.pid) for server in pair.servers]
    time.sleep(ABANDONED_SECONDS)
    cores = [
        (cpu_seconds(server.pid) - was) / ABANDONED_SECONDS for server, was in zip(pair.servers, before, strict=True)
    ]
    usage = [server.metric("vllm:kv_cache_usage_perc") for server in pair.servers]
    pair.pause()
    return {
        "row": "abandoned",
        "pair": pair.name,
        "cores": [round(each, 2) for each in cores],
        "kvCacheUsage": [round(each, 5) for each in usage],
    }


def cpu_seconds(pid: int) -> float:
    ticks = 0
    for each in descendants(pid):
        fields = read(Path(f"/proc/{each}/stat")).rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:13]))
    return ticks / TICKS_A_SECOND


def summary(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The median over all turns of each way, beside the same of recomputing."""
    turns = [line for line in lines if line["row"] == "turns"]
    ways = sorted({(line["cache"], line["pair"], line["way"]) for line in turns})
    medians = {
        way: statistics.median(
            ms for line in turns if (line["cache"], line["pair"], line["way"]) == way for ms in line["firstTokenMs"]
        )
        for way in ways
    }
    yield from gap_summary([line for line in lines if line["row"] == "gaps"])
    for (cache, pair, way), median_ms in medians.items():
        beside = medians.get((cache, "ours", "recompute"))
        ratio = f", {median_ms / beside:.2f} x recompute" if beside else ""
        yield f"{cache}: {pair}, {way}: {median_ms:.0f} ms{ratio}"


def gap_summary(lines: list[dict[str, Any]]) -> Iterator[str]:
    means_ms = {
        beside: statistics.median(line["meanMs"] for line in lines if line["beside"] == beside)
        for beside in GAPS_BESIDE
        if lines
    }
    for beside, mean_ms in means_ms.items():
        yield f"between tokens, beside {beside}: {mean_ms:.1f} ms, {mean_ms / means_ms['nothing']:.2f} x nothing"


def made(name: str, ground: Ground, legs: ThreadPoolExecutor, stack: ExitStack) -> TalkingPair:
    match name:
        case "nixl":
            return Bidirectional(ground, legs)
        case "store":
            return Stored(ground, legs, stack)
        case _:
            return Pulling(ground, legs)


def run(given: argparse.Namespace) -> None:
    folder = ROOT / "build" / "race-pulls" / time.strftime("%Y%m%d-%H%M%S")
    rivals = rivals_folder() if "nixl" in given.pairs else folder
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        stack.callback(LAUNCHER.stop)
        legs = stack.enter_context(ThreadPoolExecutor(8))
        ground = Ground(cached_model(cache_home()), folder, rivals, sockets_only=given.link)
        race = PullRace([made(name, ground, legs, stack) for name in given.pairs], given.seed)
        for pair in race.pairs:
            for server in pair.servers:
                stack.callback(server.stop)
            start_all(list(pair.servers), say)
            stack.callback(pair.resume)
            for way in pair.ways:
                race.conversation(pair, way, cold=True)  # warms up, and proves the pair
            pair.pause()
        if not quiet.wait_quiet(given.wait_seconds):
            say("race-pulls: the machine did not become quiet")
        parts = [race.rounds(given.rounds)]
        parts += [gaps(race, pair, legs) for pair in race.pairs if isinstance(pair, Pulling)]
        parts.append(abandoned(race, pair) for pair in race.pairs)
        for part in parts:
            for line in part:
                lines.append(line)
                print(json.dumps(line), flush=True)
    for text in summary(lines):
        print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--pairs", nargs="+", choices=("ours", "nixl", "store"), default=["ours", "nixl", "store"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wait-seconds", type=float, default=60.0, help="for a quiet machine, before the first round")
    parser.add_argument("--link", action="store_true", help="KV by sockets only, through 1 Gb/s")
    given = parser.parse_args()
    unwind_on_sigterm()
    if given.link:
        limit_loopback()
    run(given)


def limit_loopback() -> None:
    """That of a network namespace of this program's own."""
    begin_apart("race-pulls", "--net")
    subprocess.run(["tc", "qdisc", "replace", "dev", "lo", "root", "tbf", *LINK], check=True)


if __name__ == "__main__":
    main()
