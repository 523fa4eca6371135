"""Prices against measured pulls: an engine pulls from two others, one of them behind a slow link; needs root.

    make price-trio [ARGS="--rounds 40 --mbit 100 --seed 1"]

The slow source is on a second host (a network namespace), whose end of the link `tbf` limits. Both sources hold each
prompt. In a round with an oracle the prompt is pulled from each source alone, and then with both named in a random
order; in one without, both are named at once. A price is read before each pull, and compared with the time from the
question to the arrival of the KV, which the messenger's own histograms add up. Each line is from one run.

With --decide the asker may compute (`pulls` `auto`) and only the far source holds a prompt. The near engine, which
always pulls, is the oracle: what it takes to the first token, beside what the asker takes that computes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder) for folder in ("e2e-tests", "examples", "examples/vllm-1p1d")
)

from bed import Messenger, Side, messenger, start_messengers
from demo_console import say, unwind_on_sigterm
from hand_over import percentile
from hosts import Host, lack_of_privilege, second_host
from kv_connector.runtime.plain_http import ask
from make_model import cached_model
from prompts import cache_home, random_prompt
from pulls_bed import OPTIONS, source_at, whole_pages
from server_process import complete, greedy_completion, words_of
from warm_starts import LAUNCHER

ROOT = Path(__file__).resolve().parents[2]
SIZES: Final = (192, 384, 768, 1536)
ANSWER_TOKENS: Final = 2
LIMIT_SECONDS: Final = 60.0
NEAR: Final = 0
"""The source on this host; the other one is behind the slow link."""


@dataclass(frozen=True)
class Pulled:
    """What one prompt came to."""

    source: int
    """-1: nothing was pulled."""
    price: dict[str, Any]
    seconds: float
    first_token_seconds: float


@dataclass
class Trio:
    asker: Messenger
    sources: Sequence[Messenger]
    addresses: Sequence[tuple[str, int]]
    seeds: random.Random

    def prompt(self, tokens: int) -> str:
        """One that both sources hold, and the asker does not."""
        made = random_prompt(tokens, self.seeds.randrange(1 << 30))
        for source in self.sources:
            complete(source.server, made, 1)
        return made

    def price(self, source: int, tokens: int) -> dict[str, Any]:
        host, port = self.addresses[source]
        page = f"http://{self.asker.metrics_host}:{self.asker.metrics_ports[0]}/price"
        answer = ask("GET", f"{page}?peer={host}:{port}&tokens={tokens}", limit_seconds=LIMIT_SECONDS)
        if answer.status != 200:
            raise SystemExit(f"/price answers {answer.status}: {answer.text}")
        read: dict[str, Any] = json.loads(answer.text)
        return read

    def pull(self, prompt: str, named: Sequence[int]) -> Pulled:
        """The prompt at the asker, whose cache is emptied before."""
        self.asker.server.post("/reset_prefix_cache", {})
        tokens = whole_pages(len(prompt.split()) - 1)
        prices = [self.price(source, tokens) for source in range(len(self.sources))]
        offers, seconds = self._offers(), self._seconds()
        hints = [source_at(*self.addresses[source])["remote_kv_source"] for source in named]
        hint = {"remote_kv_source": hints if len(hints) > 1 else hints[0]}
        began = time.monotonic()
        complete(self.asker.server, prompt, 1, hint)
        first_token_seconds = time.monotonic() - began
        words_of(complete(self.asker.server, random_prompt(1, 1), ANSWER_TOKENS))  # what is counted leaves with steps
        made = [after - before for after, before in zip(self._offers(), offers, strict=True)]
        source = made.index(1) if sum(made) == 1 else -1
        return Pulled(source, prices[source] if source >= 0 else {}, self._seconds() - seconds, first_token_seconds)

    def _offers(self) -> list[float]:
        return [source.metric("kv_messenger_offers_made_total", reason="held") for source in self.sources]

    def _seconds(self) -> float:
        return sum(self.asker.metric(f"kv_messenger_{part}_seconds_sum") for part in ("ask", "pull"))


def rounds(trio: Trio, count: int, *, oracle: bool) -> Iterator[dict[str, Any]]:
    for index in range(count):
        tokens = trio.seeds.choice(SIZES) + trio.seeds.randrange(64)
        prompt, order = trio.prompt(tokens), trio.seeds.sample((0, 1), 2)
        alone = [trio.pull(prompt, [source]) for source in (0, 1)] if oracle else []
        chosen = trio.pull(prompt, order)
        yield {
            "round": index,
            "oracle": oracle,
            "tokens": tokens,
            "alone": [round(each.seconds, 4) for each in alone],
            "priceAlone": [each.price.get("transfer_seconds") for each in alone],
            "knownAlone": [each.price.get("known") for each in alone],
            "chosen": chosen.source,
            "price": chosen.price.get("transfer_seconds"),
            "known": chosen.price.get("known"),
            "seconds": round(chosen.seconds, 4),
            "firstTokenSeconds": round(chosen.first_token_seconds, 4),
            "computePrice": chosen.price.get("compute_seconds"),
            "load": round(os.getloadavg()[0], 1),
        }


def decisions(trio: Trio, count: int) -> Iterator[dict[str, Any]]:
    """Whether the asker pulls what is faster to pull, and computes what is not."""
    far = source_at(*trio.addresses[1])
    for index in range(count):
        prompt = random_prompt(trio.seeds.choice(SIZES) + trio.seeds.randrange(64), trio.seeds.randrange(1 << 30))
        complete(trio.sources[1].server, prompt, 1)
        pulled = first_token_seconds(trio.sources[NEAR], prompt, far)
        computed = first_token_seconds(trio.asker, prompt, {"salt": str(index)})
        price = trio.price(1, whole_pages(len(prompt.split()) - 1))
        before = trio.asker.tokens_by_transfer()
        seconds = first_token_seconds(trio.asker, prompt, far)
        words_of(complete(trio.asker.server, random_prompt(1, 1), ANSWER_TOKENS))  # what is counted leaves with steps
        yield {
            "round": index,
            "tokens": len(prompt.split()),
            "pulled": round(pulled, 4),
            "computed": round(computed, 4),
            "pulls": trio.asker.tokens_by_transfer() > before,
            "seconds": round(seconds, 4),
            "price": price.get("transfer_seconds"),
            "known": price["known"],
            "computePrice": price.get("compute_seconds"),
            "load": round(os.getloadavg()[0], 1),
        }


def first_token_seconds(server: Messenger, prompt: str, leg: dict[str, Any]) -> float:
    """Of the prompt; with a salt nothing is cached."""
    body = {**greedy_completion(prompt, 1)}
    body |= {"cache_salt": leg["salt"]} if "salt" in leg else {"kv_transfer_params": leg}
    began = time.monotonic()
    words_of(server.server.post("/v1/completions", body))
    return time.monotonic() - began


def decision_summary(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    right = sum(line["pulls"] == (line["pulled"] < line["computed"]) for line in lines)
    pulls = sum(line["pulls"] for line in lines)
    yield f"{right} of {len(lines)} decided as the oracle would, {pulls} pulled"


def summary(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    for oracle in (True, False):
        of = [line for line in lines if line["oracle"] is oracle]
        if not of:
            continue
        cheapest = [min((0, 1), key=line["alone"].__getitem__) if oracle else NEAR for line in of]
        right = sum(line["chosen"] == best for line, best in zip(of, cheapest, strict=True))
        by = "the oracle's" if oracle else "the near one"
        yield f"{'with' if oracle else 'without'} oracle: {right} of {len(of)} chosen as {by}"
        pairs = [(line["price"], line["seconds"]) for line in of if line["known"]]
        pairs += [
            pair
            for line in of
            for pair, known in zip(zip(line["priceAlone"], line["alone"], strict=True), line["knownAlone"], strict=True)
            if known
        ]
        errors = [abs(price - seconds) / seconds for price, seconds in pairs if seconds]
        within = sum(error <= 0.2 for error in errors)
        yield f"  {within} of {len(errors)} known prices within 20 %, median error {percentile(errors, 0.5):.0%}"


def trio(stack: ExitStack, host: Host, folder: Path, given: argparse.Namespace) -> Trio:
    common = {"transports": ["tcp"], "last_token_check": "off", "shared_secret": "between the engines of a trio"}
    near = {**common, "pulls": "always", "pull_tokens_min": 1, "listen_host": host.data.near}
    far = {**near, "listen_host": host.data.far, "metrics_host": host.management.far}
    model = cached_model(cache_home())
    asker = {**near, "pulls": "auto", "pull_tokens_min": 64} if given.decide else near
    made = [
        messenger(Side(name, "kv_both", core, extra=extra, options=OPTIONS), model, folder)
        for name, core, extra in (("asker", 0, asker), ("near-source", 1, near), ("far-source", 1, far))
    ]
    server = made[2].server
    server.command[server.command.index("--host") + 1] = "0.0.0.0"  # its messenger asks it on its own loopback
    server.command[:0] = host.prefix
    server.url = f"http://{host.management.far}:{server.port}"
    made[2].metrics_host = host.management.far
    rate = ("rate", f"{given.mbit:g}mbit", "burst", "64kb", "latency", "200ms")
    tc = ("tc", "qdisc", "replace", "dev", f"{host.data.interface}-far", "root", "tbf", *rate)
    subprocess.run([*host.prefix, *tc], check=True)
    start_messengers(stack, made)
    addresses = [(host.data.near, made[1].control_port), (host.data.far, made[2].control_port)]
    return Trio(made[0], made[1:], addresses, random.Random(given.seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="with an oracle, and as many without one")
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--decide", action="store_true", help="whether to pull or to compute, in place of which source")
    given = parser.parse_args()
    unwind_on_sigterm()
    if (lack := lack_of_privilege()) is not None:
        raise SystemExit(lack)
    folder = ROOT / "build" / "price-trio" / time.strftime("%Y%m%d-%H%M%S")
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        stack.callback(LAUNCHER.stop)
        made = trio(stack, stack.enter_context(second_host()), folder, given)
        choices = (rounds(made, given.rounds, oracle=oracle) for oracle in (True, False))
        for part in (decisions(made, given.rounds),) if given.decide else choices:
            for line in part:
                lines.append(line)
                print(json.dumps(line), flush=True)
    for text in decision_summary(lines) if given.decide else summary(lines):
        say(text)


if __name__ == "__main__":
    main()
