"""vLLM with the connector on a GPU, a prefiller and a decoder, and the same vLLM alone: real tokens, compared.

In bfloat16 two engines that batch differently round differently, so an answer may leave the other where the likeliest
two tokens are nearly equally likely. It then counts as a near tie; anywhere else it is wrong.

Where no kernel computes (by_rows.py) rows are judged and tokens are not.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from torch_engine.pair import EngineProcess, Legs, Pair

from gpu_check import by_rows
from gpu_check.counter_checks import expect
from gpu_check.report import InPart, NotShown
from gpu_check.surroundings import has_kernels, limit
from gpu_check.vllm_on_torch.gather import FOR_PYTHON
from gpu_check.vllm_on_torch.plan import ALONE, DECODER, EAGER, NO_VLLM, PREFILLER, VLLM, VllmPlan

NEAR_TIE = 0.25
"""In nats: less than this is within what rounding moves."""
ANSWERS = {"bfloat16": 24, "float32": 96}
"""Tokens of an answer; in bfloat16 longer ones meet near ties."""
START_LIMIT_SECONDS = limit(120.0)
ANSWER_LIMIT_SECONDS = limit(60.0)
END_LIMIT_SECONDS = limit(30.0)
LIMIT_SECONDS = 150
"""For a check: the first vLLM on a machine takes a minute to import all it needs."""
SITE = Path(__file__).resolve().parent.parent / VLLM


class VllmProcess(EngineProcess):
    """A vLLM and the way to it."""

    module = "gpu_check.vllm_on_torch" if has_kernels() else by_rows.MODULE
    path: tuple[str, ...] = (str(SITE),)
    start_limit_seconds = START_LIMIT_SECONDS
    end_limit_seconds = END_LIMIT_SECONDS

    def __init__(self, plan: VllmPlan, log: Path) -> None:
        super().__init__(cast(Any, plan), log)

    def __exit__(self, *fault: object) -> None:
        """How the process ends counts too; not where something else is wrong already."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(self.end_limit_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if fault[0] is None and status != 0:
            raise AssertionError(f"{self.plan.name} ended with status {status}, expected 0")

    def ready(self) -> dict[str, Any]:
        return self._ready.result(self.start_limit_seconds)


@dataclass
class Compared:
    """Answers beside those of the same engine alone."""

    engine: str = "vLLM"
    near_tie: float = NEAR_TIE
    equal: int = 0
    near_ties: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, what: str, tokens: Sequence[int], alone: Mapping[str, Any]) -> None:
        if list(tokens) == alone["tokens"]:
            self.equal += 1
            return
        at = next((at for at, (a, b) in enumerate(zip(tokens, alone["tokens"], strict=False)) if a != b), len(tokens))
        margin = alone["margins"][at] if at < len(tokens) else float("inf")
        if margin < self.near_tie:
            self.near_ties.append(margin)
        else:
            self.wrong.append(f"{what} differs at token {at}, where the margin is {margin:.2f}")

    def __str__(self) -> str:
        ties = (
            f", {len(self.near_ties)} others at near ties (at most {max(self.near_ties):.3f})" if self.near_ties else ""
        )
        return f"{self.equal} answers equal those of {self.engine} alone{ties}"


def tokens(length: int, seed: int, vocabulary: int = 512) -> list[int]:
    drawn = random.Random(1000 * seed + length)
    return [drawn.randrange(4, vocabulary) for _ in range(length)]


LENGTHS = (20, 200, 700, 1500)
"""Some fit one chunk of a prefill and some do not."""
ONE_BY_ONE = [tokens(length, 1) for length in LENGTHS]
AT_ONCE = [tokens(length, 2) for length in (17, 33, 64, 150, 300, 512, 600, 1100)]
BEGINNING = tokens(320, 3)
SHARED = [BEGINNING + tokens(length, 4) for length in (30, 90, 200)]
PAGE_TOKENS, LAYERS = 16, 4
PROMPTS = [*ONE_BY_ONE, *AT_ONCE, *SHARED]
FEW_BLOCKS = 200
"""Room for all of AT_ONCE when they begin, and not when their answers of 96 tokens end."""
FEW_BLOCKS_BYTES = FEW_BLOCKS * LAYERS * 2 * 4 * 64 * PAGE_TOKENS * 4
PAGES = LAYERS * sum(-(-len(prompt) // PAGE_TOKENS) for prompt in PROMPTS)
OTHER_WEIGHTS = "pair whose prefiller has other weights"


def packed() -> None:
    """Raises if vLLM cannot run here."""
    require_packed("vLLM", SITE, NO_VLLM)


def require_packed(what: str, site: Path, absent: str) -> None:
    """Raises if an engine cannot run here; beside its folder `site` lies `absent`, the reason why there is none."""
    if not site.exists():
        reason = site.with_name(absent)
        raise NotShown(f"{what} is not packed: {reason.read_text('utf-8') if reason.exists() else f'no {site}'}")
    version, expected = ".".join(map(str, sys.version_info[:2])), (site / FOR_PYTHON).read_text("utf-8")
    if version != expected:
        raise NotShown(f"{what} is packed for Python {expected}, this is {version}")
    if importlib.util.find_spec("transformers") is None:
        raise NotShown("transformers is not installed")


@cache
def model(home: Path, seed: int, shape: str = "TinyModel") -> str:
    """A model with random weights, so spread that tokens vary with all that is before them; by default a Llama."""
    import make_model

    return str(make_model.cached_model(home, getattr(make_model, shape)(seed=seed)))


@contextmanager
def started(plan: VllmPlan, logs: Path, prefiller: VllmPlan | None = None) -> Iterator[Pair]:
    """A pair by one plan, whose name and role are filled in, or its prefiller by another."""
    with ExitStack() as entered:
        sides = [
            entered.enter_context(
                VllmProcess(replace(each, name=f"{plan.name}-{side}", role=role), logs / plan.name / f"{side}.log")
            )
            for side, role, each in (("prefiller", PREFILLER, prefiller or plan), ("decoder", DECODER, plan))
        ]
        for side in sides:
            side.ready()
        yield Pair(sides[0], sides[1])


def forget_answers(logs: Path) -> None:
    """What vLLM alone answered in an earlier run."""
    for file in logs.glob("alone-*.json"):
        file.unlink()


def rows_read_min(plan: VllmPlan) -> int:
    """By all layers of the engine that answers, for all prompts: each token of an answer reads its prompt."""
    return LAYERS * ANSWERS[plan.dtype] * sum(map(len, PROMPTS))


class Checks:
    """Each method is a check; what vLLM alone answers is asked once for each kind of number, and kept in a file."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._models = TemporaryDirectory(prefix="gpu-check-models-")

    def all(self) -> dict[str, tuple[Callable[[], str | InPart], str]]:
        """With the name of the check whose answers one reads, or ""."""
        full, prefixes = {"graphs": "FULL"}, {"prefix_caching": True}
        pairs: dict[str, tuple[str, dict[str, Any]]] = {
            "pair, FULL graphs, cuda": ("cuda", full),
            "pair, FULL graphs, staged tcp": ("tcp", full),
            "pair, FULL graphs, shared beginnings, cuda": ("cuda", full | prefixes),
            "pair, FULL graphs and breakable ones, cuda": ("cuda", {"graphs": "FULL_AND_PIECEWISE"}),
            "pair, PIECEWISE graphs of torch.compile, cuda": ("cuda", {"graphs": "PIECEWISE", "compile": "eager"}),
            "pair, FULL graphs, model runner V1, cuda": ("cuda", full | {"runner": 1}),
            "pair, float32, shared beginnings, staged tcp": ("tcp", full | prefixes | {"dtype": "float32"}),
            "pair, float32, too few blocks for all answers, cuda": (
                "cuda",
                full | {"dtype": "float32", "kv_bytes": FEW_BLOCKS_BYTES},
            ),
        }
        named = {
            name: (
                partial(self.pair, re.sub(r"\W+", "-", name), transport, **settings),
                f"alone, {settings.get('dtype', 'bfloat16')}",
            )
            for name, (transport, settings) in pairs.items()
        }
        wrong_weights = partial(self.wrong_weights, "other-weights", "cuda")
        return {
            "alone, bfloat16": (self.alone, ""),
            "alone, float32": (partial(self.alone, "float32"), ""),
            **named,
            OTHER_WEIGHTS: (wrong_weights, "alone, bfloat16"),
        }

    def alone(self, dtype: str = "bfloat16") -> str | InPart:
        packed()
        plan = VllmPlan(f"alone-{dtype}", self._model(), ALONE, dtype=dtype)
        with VllmProcess(plan, self._logs / f"{plan.name}.log") as engine:
            versions = engine.ready()["versions"]
            asked = [(prompt, engine.add(f"a{at}", prompt, ANSWERS[dtype])) for at, prompt in enumerate(PROMPTS)]
            together = [future.result(ANSWER_LIMIT_SECONDS) for _, future in asked]
            again = Compared()
            answers = []
            for at, (prompt, beside) in enumerate(zip(PROMPTS, together, strict=True)):
                answer = engine.add(f"b{at}", prompt, ANSWERS[dtype]).result(ANSWER_LIMIT_SECONDS)
                answers.append(answer)
                again.add(f"prompt {at} beside others", beside["tokens"], answer)
            at_rest = engine.rest()
        if again.wrong:
            raise AssertionError(again.wrong[0])
        expect(at_rest["held"], {}, "what is held at rest")
        kinds = len({tuple(answer["tokens"]) for answer in answers})
        if has_kernels() and kinds != len(PROMPTS):
            raise AssertionError(f"{len(PROMPTS)} prompts have {kinds} different answers: they show no wrong page")
        self._answers_file(dtype).write_text(json.dumps(answers), "utf-8")
        if has_kernels():
            return f"{versions}: one by one and all at once, {again}"
        whole = f"{again.equal} whole answers of {versions}, one by one and all at once"
        return by_rows.without_arithmetic(whole, at_rest, rows_read_min=2 * rows_read_min(plan))

    def pair(self, name: str, transport: str, **settings: Any) -> str | InPart:
        """All prompts: one by one, several at once, and with a beginning that is already cached."""
        packed()
        alone = self._of_alone(settings.get("dtype", "bfloat16"))
        given = options(transport) if has_kernels() else options(transport, last_token_check="off")
        plan = VllmPlan(name, self._model(), options=given, **settings)
        with started(plan, self._logs) as pair:
            seen = Compared()
            cached = self._asked(pair, seen, alone, ANSWERS[plan.dtype])
            sent, received = pair.prefiller.rest(), pair.decoder.rest()
        if has_kernels():
            return judged(plan, seen, sent, received, cached)
        moved = f"{seen.equal} whole answers, {judged_moves(plan, seen, sent, received, cached)}"
        return by_rows.without_arithmetic(moved, sent, received, rows_read_min=rows_read_min(plan))

    def wrong_weights(self, name: str, transport: str) -> str:
        """A prefiller that says it has the decoder's model, and has another: the decoder's own KV convicts it."""
        packed()
        alone = self._of_alone("bfloat16")
        right = VllmPlan(name, self._model(), options=options(transport, model_id="the same"))
        with started(right, self._logs, replace(right, model=self._model(21))) as pair:
            ended = [pair.ask(prompt, ANSWERS["bfloat16"]).decode.result(ANSWER_LIMIT_SECONDS) for prompt in PROMPTS]
            figures = pair.decoder.rest()["figures"]
        kept = Compared()
        for at, (each, right_one) in enumerate(zip(ended, alone, strict=True)):
            if each["how"] == "length":
                kept.add(f"answer {at}", each["tokens"], right_one)
        if kept.wrong or figures["compared"].get("different") != 1:
            raise AssertionError(f"wrong answers: {kept.wrong}; last tokens were compared with {figures['compared']}")
        failed = len(PROMPTS) - kept.equal - len(kept.near_ties)
        return (
            f"{failed} of {len(PROMPTS)} requests failed, and none has a wrong answer: one prefill was refuted,"
            f" {figures['fetches_refuted']:.0f} fetches were refused then"
        )

    def _model(self, seed: int = 20) -> str:
        return model(Path(self._models.name), seed)

    def _of_alone(self, dtype: str) -> list[dict[str, Any]]:
        if not (file := self._answers_file(dtype)).exists():
            raise NotShown("vLLM alone has given no answers to compare with")
        return list(json.loads(file.read_text("utf-8")))

    def _answers_file(self, dtype: str) -> Path:
        return self._logs / f"alone-{dtype}.json"

    def _asked(self, pair: Pair, seen: Compared, alone: list[dict[str, Any]], answer: int) -> int:
        """How many tokens of shared beginnings the prefiller had in its cache."""
        answers = iter(alone)
        cached = 0

        def judge(prompt: Sequence[int], legs: Legs) -> None:
            nonlocal cached
            assert legs.prefill is not None
            cached += legs.prefill.result(ANSWER_LIMIT_SECONDS)["cached"] or 0
            tokens = legs.decode.result(ANSWER_LIMIT_SECONDS)["tokens"]
            seen.add(f"{legs.name} of {len(prompt)} tokens", tokens, next(answers))

        for prompt in ONE_BY_ONE:
            judge(prompt, pair.ask(prompt, answer))
        for prompt, legs in [(prompt, pair.ask(prompt, answer)) for prompt in AT_ONCE]:
            judge(prompt, legs)
        for prompt in SHARED:
            judge(prompt, pair.ask(prompt, answer))
        return cached


def options(transport: str, **more: Any) -> dict[str, Any]:
    """The check of last tokens is left as it is by default."""
    made = {"transports": [transport], "gpu": "unproven", "aot_cache": False, "timelines": "full", "listen_port": 0}
    return made | more


def judged(plan: VllmPlan, seen: Compared, sent: dict[str, Any], received: dict[str, Any], cached: int) -> str:
    """What answers and the figures of both sides at rest say; raises where it is wrong."""
    moved = judged_moves(plan, seen, sent, received, cached)
    compared = received["figures"]["compared"]
    expect({kind: count for kind, count in compared.items() if count}, {"equal": len(PROMPTS)}, "the proof")
    return f"{seen}, {len(PROMPTS)} last tokens judged equal, {moved}"


def judged_moves(plan: VllmPlan, seen: Compared, sent: dict[str, Any], received: dict[str, Any], cached: int) -> str:
    """The same but for the proof."""
    if seen.wrong:
        raise AssertionError(f"{len(seen.wrong)} of {len(PROMPTS)} answers are wrong: {seen.wrong}")
    held = {**sent["held"], **received["held"]}
    expect(held, {}, "what is held at rest")
    left, arrived = sent["figures"], received["figures"]
    expect(arrived["fetches_failed"], 0, "the number of failed fetches")
    replays = left["replays"], arrived["replays"]
    if plan.graphs != EAGER and not all(replays):
        raise AssertionError(f"graphs were replayed {replays[0]} times by the prefiller, {replays[1]} by the decoder")
    pages = PAGES - arrived["pages_received"]
    if plan.prefix_caching and not (cached and pages > 0):
        raise AssertionError(f"{cached} tokens of the prefiller and {pages:.0f} pages of the decoder were cached")
    if not plan.prefix_caching:
        expect(pages, 0, "the number of pages that did not come")
    if plan.kv_bytes == FEW_BLOCKS_BYTES and not arrived["preemptions"]:
        raise AssertionError("the decoder preempted no request")
    preempted = f", {arrived['preemptions']} preemptions by the decoder" if arrived["preemptions"] else ""
    prefixes = f", {cached} tokens of the prefiller and {pages:.0f} pages of the decoder cached" if cached else ""
    return (
        f"{arrived['pages_received']:.0f} pages,"
        f" {left['layers_sent_early']:.0f} of {left['layers_sent']:.0f} layers left before their pass ended,"
        f" {replays[0]} and {replays[1]} graphs replayed{prefixes}{preempted}"
    )
