"""One prefiller, one decoder and the stock router on this machine; prints whether the tokens are those of one vLLM.

For each prompt it prints whether the tokens are those of a single vLLM, the bytes moved, how many layers left before
the forward pass that computed them ended, and the time from the last layer to ready. Then `kv-messenger compare` holds
the pair against its decoder alone, as one would without a third engine. The last line is the total; the status is 0
when all are the same.

    make demo            or, with a wheel at hand:
    examples/setup/environment run engine --wheel python/dist/<wheel> -- examples/vllm-1p1d/demo.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo_console import say, unwind_on_sigterm
from kv_connector.cli.timelines import FetchTimeline, PrefillTimeline, fetches, prefills
from make_model import cached_model
from plain_vllm import reference_answers
from prompts import cache_home, random_prompt
from server_process import Server, complete, free_port, start_all, wait_until, words_of
from servers import EngineOptions, engine, router

PROMPT_TOKENS = (2, 20, 127, 128, 129, 200, 700, 1500)
ANSWER_TOKENS = 16
COMPARED_LENGTHS = "2,127,129,700"
SEED = 1
TIMELINE_LIMIT_SECONDS = 30.0
SILENCE_LIMIT_SECONDS = 60.0
"""Both engines wait by `sched_yield`, which on two cores keeps a messenger from a core for 10 s (docs/testing.md)."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bed:
    prefiller: Server
    decoder: Server
    router: Server


def start(stack: ExitStack, model: Path, folder: Path) -> Bed:
    both = {"timelines": "full", "silence_limit_seconds": SILENCE_LIMIT_SECONDS}
    control = {"listen_port": free_port(), **both}  # the default port is fixed, and another demo may be running
    prefiller = engine("prefiller", EngineOptions(model, kv_role="kv_producer", core=0, extra_config=control), folder)
    decoder = engine("decoder", EngineOptions(model, kv_role="kv_consumer", core=1, extra_config=both), folder)
    front = router("router", [prefiller], [decoder], folder)
    for server in (prefiller, decoder, front):
        stack.callback(server.stop)
    say(f"starting a prefiller and a decoder, logs in {folder}")
    start_all([prefiller, decoder], say)
    start_all([front], say)
    return Bed(prefiller, decoder, front)


def new_transfer(bed: Bed, known: set[str]) -> tuple[PrefillTimeline, FetchTimeline]:
    """Waits until both sides have logged the timelines of a new transfer; returns them."""

    def fresh() -> set[str]:
        return set(fetches(bed.decoder.log()).keys() & prefills(bed.prefiller.log()).keys()) - known

    wait_until(lambda: bool(fresh()), TIMELINE_LIMIT_SECONDS, "both sides have logged the transfer's timeline")
    transfer = fresh().pop()
    known.add(transfer)
    return prefills(bed.prefiller.log())[transfer], fetches(bed.decoder.log())[transfer]


HEADER = "prompt tokens   same tokens   bytes moved   layers sent early   last layer to ready"
"""A layer is sent early if it has left before the forward pass that computed it ended."""


def row(tokens: int, same: bool, prefill: PrefillTimeline, fetch: FetchTimeline) -> str:
    """A line below the header, right-aligned with its headings."""
    early, layers = prefill.left_early()
    return (
        f"{tokens:13d}{'yes' if same else 'NO':>14}{fetch.length_bytes:14,d}{f'{early} of {layers}':>20}"
        f"{fetch.ready_ms_after(prefill):19.2f} ms"
    )


def ask(bed: Bed, prompts: list[str], expected: list[list[str]]) -> int:
    """Sends each prompt through the router; returns how many answers equal the reference."""
    known: set[str] = set()
    say("one request ahead: from its answer the router learns to send both legs at once")
    words_of(complete(bed.router, random_prompt(5, SEED + 1), 1))
    new_transfer(bed, known)
    same_count = 0
    print(HEADER, flush=True)
    for prompt, answer in zip(prompts, expected, strict=True):
        same = words_of(complete(bed.router, prompt, ANSWER_TOKENS)) == answer
        same_count += same
        print(row(len(prompt.split()), same, *new_transfer(bed, known)), flush=True)
    return same_count


def attribute(bed: Bed) -> None:
    external = bed.decoder.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
    computed = bed.decoder.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    say(f"the decoder's own metrics: {external:.0f} prompt tokens by KV transfer, {computed:.0f} computed by itself")


def compare_with_decoder_alone(bed: Bed) -> bool:
    say(f"kv-messenger compare {bed.router.url} {bed.decoder.url} --lengths {COMPARED_LENGTHS}")
    command = [sys.executable, "-m", "kv_connector", "compare", bed.router.url, bed.decoder.url]
    return subprocess.run([*command, "--lengths", COMPARED_LENGTHS], check=False).returncode == 0


def main() -> int:
    unwind_on_sigterm()
    folder = ROOT / "build" / "demo" / time.strftime("%Y%m%d-%H%M%S")
    model = cached_model(cache_home())
    prompts = [random_prompt(count, SEED) for count in PROMPT_TOKENS]
    expected = reference_answers(model, prompts, ANSWER_TOKENS, say)
    with ExitStack() as stack:
        bed = start(stack, model, folder)
        same_count = ask(bed, prompts, expected)
        attribute(bed)
        compared = compare_with_decoder_alone(bed)
        say("stopping")
    print(f"{same_count} of {len(prompts)} prompts: same tokens")
    return 0 if compared and same_count == len(prompts) else 1


if __name__ == "__main__":
    sys.exit(main())
