"""SGLang with the backend on a GPU, a prefiller and a decoder, and the same SGLang alone: real tokens, compared.

Answers are judged as those of vLLM are, see vllm_checks. The servers are SGLang's own, asked over HTTP.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_check.counter_checks import expect
from gpu_check.report import NotShown, Skipped
from gpu_check.sglang_on_torch import servers
from gpu_check.sglang_on_torch.absent import MORE
from gpu_check.sglang_on_torch.plan import NO_SGLANG, SGLANG, SglangPlan
from gpu_check.vllm_checks import AT_ONCE, ONE_BY_ONE, PAGES, PROMPTS, SHARED, Compared, model, options, require_packed

LIMIT_SECONDS = 200
"""For a check: two servers import SGLang and capture their graphs first."""
ANSWER_TOKENS = 24
NEAR_TIE = 0.5
"""In nats: in bfloat16 SGLang alone, with torch's operators, differed from itself where one token was 0.31 ahead."""
ANSWER_LIMIT_SECONDS = 90.0
PARTS = 2
"""SGLang keeps K and V apart."""
SITE = Path(__file__).resolve().parent.parent / SGLANG
IMPORTS = "imports"
REPLACED = "replaced.json"
"""What the imports lacked, for the checks behind it."""
LOG_LINES = 60
FIRST_PASS = "the first forward pass was counted correctly"


def packed() -> None:
    """Raises if SGLang cannot run here."""
    require_packed("SGLang", SITE, NO_SGLANG)


def body(prompt: list[int], *, margins: bool = False) -> dict[str, Any]:
    """A request for a greedy answer of a fixed length."""
    asked = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": asked} | (
        {"return_logprob": True, "top_logprobs_num": 2} if margins else {}
    )


def forget_answers(logs: Path) -> None:
    """What SGLang alone answered in an earlier run, and what it lacked."""
    for file in [*logs.glob("alone-*.json"), *logs.glob(REPLACED)]:
        file.unlink()


class SglangChecks:
    """Each method is a check, called in a process of its own.

    Files keep what other checks need: answers of SGLang alone for each kind of number, and modules that are missing.
    """

    def __init__(self, logs: Path, device: str = "cuda") -> None:
        self._logs = logs
        self._models = TemporaryDirectory(prefix="gpu-check-models-")
        self._started: list[Path] = []
        on_cpu = {"attention": "torch_native", "decode_graphs": "disabled", "overlap": False}
        self._settings: dict[str, Any] = {"device": device} | (on_cpu if device == "cpu" else {})

    def all(self) -> dict[str, tuple[Callable[[], str], str]]:
        """With the name of the check whose finding one reads, or "". The plainest pair comes first."""
        float32 = {"dtype": "float32"}
        pairs: dict[str, tuple[str, dict[str, Any]]] = {
            "pair, no graphs, no overlap, cuda": ("cuda", {"decode_graphs": "disabled", "overlap": False}),
            "pair, graphs of decoding, cuda": ("cuda", {}),
            "pair, graphs of decoding, staged tcp": ("tcp", {}),
            "pair, passes of 512 tokens, cuda": ("cuda", {"chunk_tokens": 512}),
            "pair, shared beginnings, passes of 512 tokens, cuda": ("cuda", {"radix": True, "chunk_tokens": 512}),
            "pair, float32, shared beginnings, staged tcp": ("tcp", float32 | {"radix": True}),
        }
        named = {
            name: (
                partial(self.pair, re.sub(r"\W+", "-", name), transport, **settings),
                f"alone, {settings.get('dtype', 'bfloat16')}",
            )
            for name, (transport, settings) in pairs.items()
        }
        checks: dict[str, tuple[Callable[[], str], str]] = {
            IMPORTS: (self.imports, ""),
            "alone, bfloat16": (self.alone, IMPORTS),
            "alone, float32": (partial(self.alone, "float32"), IMPORTS),
            **named,
        }
        return {name: (partial(self._explained, run), after) for name, (run, after) in checks.items()}

    def _explained(self, run: Callable[[], str]) -> str:
        """The check; where it fails, all that is known of why is printed first."""
        self._started.clear()
        try:
            return run()
        except (NotShown, Skipped):
            raise
        except Exception:
            traceback.print_exc(file=sys.stdout)
            for log in sorted(log for folder in self._started for log in folder.glob("*.log")):
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                print(f"--- the end of {log.name}:", *lines[-LOG_LINES:], sep="\n", flush=True)
            raise

    def imports(self) -> str:
        """What a server imports; what is missing is replaced in the servers of the other checks."""
        packed()
        command = [sys.executable, "-m", "gpu_check.sglang_on_torch.imports"]
        environment = {**os.environ, **servers.environment_of(self._settings["device"])}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        replaced = json.loads((run.stdout.splitlines() or ["[]"])[-1])
        (self._logs / REPLACED).write_text(json.dumps(replaced), "utf-8")
        if run.returncode:
            raise AssertionError(f"status {run.returncode}, replaced {replaced}:\n{run.stderr[-6000:]}")
        return f"all found but {', '.join(replaced)}" if replaced else "all found"

    def alone(self, dtype: str = "bfloat16") -> str:
        """One by one, and all at once: how much SGLang differs from itself."""
        packed()
        plan = self._plan(f"alone-{dtype}", dtype=dtype)
        with servers.alone(plan, self._folder_of(plan)) as server, ThreadPoolExecutor(len(PROMPTS)) as askers:
            answers = [server.ask(body(prompt, margins=True)) for prompt in PROMPTS]
            beside = list(askers.map(server.ask, [body(prompt) for prompt in PROMPTS]))
        again = Compared("SGLang", NEAR_TIE)
        for at, (answer, together) in enumerate(zip(answers, beside, strict=True)):
            again.add(f"prompt {at} beside others", together["tokens"], answer)
        if again.wrong:
            raise AssertionError(again.wrong[0])
        kinds = len({tuple(answer["tokens"]) for answer in answers})
        if kinds != len(PROMPTS):
            raise AssertionError(f"{len(PROMPTS)} prompts have {kinds} different answers: they show no wrong page")
        self._answers_file(dtype).write_text(json.dumps(answers), "utf-8")
        return f"one by one and all at once, {again}"

    def pair(self, name: str, transport: str, **settings: Any) -> str:
        """All prompts: one by one, several at once, and with a beginning that is already cached."""
        packed()
        alone = self._of_alone(settings.get("dtype", "bfloat16"))
        plan = self._plan(name, options=options(transport), **settings)
        with servers.started(plan, self._folder_of(plan)) as pair:
            seen = Compared("SGLang", NEAR_TIE)
            cached = self._asked(pair, seen, alone)
            sent, received = pair.prefiller.rest(), pair.decoder.rest()
            sent["counted"] = FIRST_PASS in pair.prefiller.server.log()
        return judged(plan, seen, sent, received, cached)

    def _plan(self, name: str, **settings: Any) -> SglangPlan:
        return SglangPlan(name, model(Path(self._models.name), 20), **self._settings | settings)

    def _folder_of(self, plan: SglangPlan) -> Path:
        """For the logs of a check's servers, which then run without the modules that this machine lacks."""
        if (replaced := self._logs / REPLACED).exists():
            os.environ[MORE] = ",".join(json.loads(replaced.read_text("utf-8")))
        self._started.append(self._logs / plan.name)
        return self._started[-1]

    def _of_alone(self, dtype: str) -> list[dict[str, Any]]:
        if not (file := self._answers_file(dtype)).exists():
            raise NotShown("SGLang alone has given no answers to compare with")
        return list(json.loads(file.read_text("utf-8")))

    def _answers_file(self, dtype: str) -> Path:
        return self._logs / f"alone-{dtype}.json"

    def _asked(self, pair: Any, seen: Compared, alone: list[dict[str, Any]]) -> int:
        """How many tokens of shared beginnings the prefiller had in its cache."""
        answers = iter(alone)
        cached = 0
        groups = [[prompt] for prompt in ONE_BY_ONE] + [AT_ONCE] + [[prompt] for prompt in SHARED]
        for group in groups:
            for prompt, legs in [(prompt, pair.ask(body(prompt))) for prompt in group]:
                prefill, decode = (leg.result(ANSWER_LIMIT_SECONDS) for leg in legs)
                cached += prefill["cached"]
                seen.add(f"the prompt of {len(prompt)} tokens", decode["tokens"], next(answers))
        return cached


def judged(plan: SglangPlan, seen: Compared, sent: dict[str, Any], received: dict[str, Any], cached: int) -> str:
    """What the figures of both sides at rest say; raises where it is wrong."""
    if seen.wrong:
        raise AssertionError(f"{len(seen.wrong)} of {len(PROMPTS)} answers are wrong: {seen.wrong}")
    expect(sent["held"] | received["held"], {}, "what is held at rest")
    left, arrived = sent["figures"], received["figures"]
    expect(arrived["fetches_failed"], 0, "the number of failed fetches")
    compared = {kind: count for kind, count in arrived["compared"].items() if count}
    expect(compared, {"equal": 1}, "the proof of the pair")
    if plan.device != "cpu":
        expect(sent["counted"], True, "whether the first forward pass was counted correctly")
    pages = PARTS * PAGES - arrived["pages_received"]
    if plan.radix and not cached:
        raise AssertionError("the prefiller found none of the shared beginnings in its cache")
    if not plan.radix:
        expect(pages, 0, "the number of pages that did not come")
    prefixes = f", {cached} tokens of the prefiller and {pages:.0f} pages of the decoder cached" if cached else ""
    return (
        f"{seen}, one prompt of the pair computed by both and judged equal, {arrived['pages_received']:.0f} pages,"
        f" {left['layers_sent_early']:.0f} of {left['layers_sent']:.0f} layers left before their pass ended{prefixes}"
    )
