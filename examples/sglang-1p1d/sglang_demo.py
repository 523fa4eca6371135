"""One prefiller, one decoder and SGLang's load balancer on this machine; prints whether the tokens are right.

For each prompt it prints whether the tokens are those of a single SGLang and of transformers. The last line is the
total; the status is 0 when all are the same.

    make demo-sglang     or, with a wheel at hand:
    examples/setup/environment run sglang --wheel python/dist/<wheel> -- examples/sglang-1p1d/sglang_demo.py
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo_console import say, unwind_on_sigterm
from make_model import cached_model
from plain_sglang import sglang_answers, transformers_answers
from prompts import cache_home, random_prompt
from server_process import Server, complete, free_port, start_all, words_of
from sglang_servers import EngineOptions, engine, load_balancer

PROMPT_TOKENS = (1, 15, 16, 17, 29, 65, 255, 257, 720)
ANSWER_TOKENS = 16
SEED = 1
ROOT = Path(__file__).resolve().parents[2]


def start(stack: ExitStack, model: Path, folder: Path) -> Server:
    """Starts the pair and returns the load balancer in front of it."""
    bootstrap_port = free_port()
    prefiller = engine("prefiller", EngineOptions(model, role="prefill", core=0, bootstrap_port=bootstrap_port), folder)
    decoder = engine("decoder", EngineOptions(model, role="decode", core=1), folder)
    front = load_balancer("load-balancer", prefiller, bootstrap_port, decoder)
    for server in (prefiller, decoder, front):
        stack.callback(server.stop)
    say(f"starting a prefiller and a decoder, logs in {folder}")
    start_all([prefiller, decoder], say)
    start_all([front], say)
    return front


def ask(front: Server, prompts: list[str], expected: list[list[str]]) -> int:
    """Sends each prompt through the load balancer; returns how many answers equal the references."""
    same_count = 0
    print("prompt tokens   same tokens   time of the request", flush=True)
    for prompt, answer in zip(prompts, expected, strict=True):
        asked = time.monotonic()
        same = words_of(complete(front, prompt, ANSWER_TOKENS)) == answer
        took_ms = (time.monotonic() - asked) * 1e3
        same_count += same
        print(f"{len(prompt.split()):13d}{'yes' if same else 'NO':>14}{took_ms:19.1f} ms", flush=True)
    return same_count


def main() -> int:
    unwind_on_sigterm()
    folder = ROOT / "build" / "demo-sglang" / time.strftime("%Y%m%d-%H%M%S")
    model = cached_model(cache_home())
    prompts = [random_prompt(count, SEED) for count in PROMPT_TOKENS]
    expected = sglang_answers(model, prompts, ANSWER_TOKENS, folder, say)
    if expected != transformers_answers(model, prompts, expected):
        raise SystemExit("a single SGLang and transformers do not answer alike: there is no reference to compare with.")
    with ExitStack() as stack:
        same_count = ask(start(stack, model, folder), prompts, expected)
        say("stopping")
    print(f"{same_count} of {len(prompts)} prompts: same tokens")
    return 0 if same_count == len(prompts) else 1


if __name__ == "__main__":
    sys.exit(main())
