"""vLLM's checks where no kernel computes: wrong or missing rows fail them. On a GPU none is judged by rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_check import by_rows, surroundings, vllm_checks
from gpu_check.report import FAILED, IN_PART, PASSED, Outcome, outcome_of
from gpu_check.vllm_checks import ANSWERS, LAYERS, PROMPTS, Checks
from right_figures import right_figures

TOKEN = 5
ROWS_READ = LAYERS * ANSWERS["bfloat16"] * sum(map(len, PROMPTS))


@pytest.fixture(autouse=True)
def variables_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test leaves there is gone when it is over."""
    for name in ("GPU_CHECK_DEVICE", "GPU_CHECK_TIMES_AS_LONG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def figures(**changed: Any) -> dict[str, Any]:
    of_rows = {"rows_written": 1000, "rows_read": 2 * ROWS_READ, "rows_wrong": 0, "first_wrong": ""}
    return right_figures() | of_rows | changed


@dataclass
class Engine:
    """Gives each prompt an answer of its own, or the same one to all, as where all tokens are made up."""

    at_rest: dict[str, Any]
    made_up: bool

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ready(self) -> dict[str, Any]:
        return {"versions": "vLLM 0.32.0"}

    def add(self, _: str, prompt: list[int], answer: int) -> Any:
        tokens = [TOKEN] * answer if self.made_up else (answer * prompt)[-answer:]
        return SimpleNamespace(result=lambda _: {"tokens": tokens, "margins": [], "how": "length", "cached": 0})

    def rest(self) -> dict[str, Any]:
        return self.at_rest


def alone(monkeypatch: pytest.MonkeyPatch, logs: Path, at_rest: dict[str, Any], *, made_up: bool) -> Outcome:
    monkeypatch.setattr(vllm_checks, "packed", lambda: None)
    monkeypatch.setattr(Checks, "_model", lambda *_: "model")
    monkeypatch.setattr(vllm_checks, "VllmProcess", lambda *_: Engine(at_rest, made_up))
    return outcome_of(Checks(logs).alone)


def pair(
    monkeypatch: pytest.MonkeyPatch, logs: Path, sent: dict[str, Any], received: dict[str, Any]
) -> tuple[Outcome, dict[str, Any]]:
    """With the options that the pair was given."""
    given: dict[str, Any] = {}
    answer = {"tokens": [TOKEN] * ANSWERS["bfloat16"], "margins": [], "cached": 0}
    done = SimpleNamespace(result=lambda _: answer)

    @contextmanager
    def started(plan: Any, _: Path) -> Iterator[Any]:
        given.update(plan.options)
        prefiller, decoder = (
            SimpleNamespace(rest=lambda at_rest=at_rest: {"held": {}, "figures": at_rest})
            for at_rest in (sent, received)
        )
        ask: Any = lambda *_: SimpleNamespace(name="it", prefill=done, decode=done)  # noqa: E731
        yield SimpleNamespace(prefiller=prefiller, decoder=decoder, ask=ask)

    monkeypatch.setattr(vllm_checks, "packed", lambda: None)
    monkeypatch.setattr(vllm_checks, "started", started)
    monkeypatch.setattr(Checks, "_model", lambda *_: "model")
    checks = Checks(logs)
    checks._answers_file("bfloat16").write_text(json.dumps([answer] * len(PROMPTS)), "utf-8")
    run, _ = checks.all()["pair, FULL graphs, cuda"]
    return outcome_of(run), given


def on_a_gpu() -> None:
    """Whatever an earlier run has left."""
    surroundings.leave(surroundings.OF_HOST, 10)
    surroundings.leave("NVIDIA H200", 1)


def test_on_a_gpu_answers_of_vllm_alone_have_to_differ_and_rows_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_a_gpu()
    nothing: dict[str, Any] = {"held": {}, "figures": {}}
    assert alone(monkeypatch, tmp_path, nothing, made_up=False).kind == PASSED
    all_alike = alone(monkeypatch, tmp_path, {"held": {}, "figures": figures()}, made_up=True)
    assert (all_alike.kind, "have 1 different answers" in all_alike.detail) == (FAILED, True)


def test_on_a_gpu_the_last_tokens_of_a_pair_have_to_be_judged_equal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_a_gpu()
    outcome, given = pair(monkeypatch, tmp_path, figures(), figures())
    assert (outcome.kind, "last_token_check" in given) == (PASSED, False)
    outcome, _ = pair(monkeypatch, tmp_path, figures(), figures(compared={}))
    assert (outcome.kind, "the proof" in outcome.detail) == (FAILED, True)


def test_where_no_kernel_computes_what_passes_says_that_tokens_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    surroundings.leave(surroundings.OF_HOST, 10)
    at_rest = {"held": {}, "figures": figures()}
    for outcome in (
        alone(monkeypatch, tmp_path, at_rest, made_up=True),
        pair(monkeypatch, tmp_path, figures(), figures(compared={}))[0],
    ):
        assert outcome.kind == IN_PART, outcome.detail
        assert f"{2 * ROWS_READ} rows read, none wrong, {len(PROMPTS)} whole answers" in outcome.detail
        assert f"not shown: {by_rows.ARITHMETIC}" in outcome.detail


WRONG = {"rows_wrong": 1, "first_wrong": "layer 2 at 7f00, token 3"}


@pytest.mark.parametrize(
    ("sent", "received", "why"),
    [
        (WRONG, {}, "layer 2 at 7f00"),
        ({}, WRONG, "layer 2 at 7f00"),
        ({"rows_written": 0}, {}, "0 rows were written"),
        ({}, {"rows_read": ROWS_READ - 1}, f"{ROWS_READ - 1} read, expected {ROWS_READ} at least"),
        ({}, {"fetches_failed": 1.0}, "failed fetches"),
        ({}, {"pages_received": 5.0}, "pages that did not come"),
        ({"replays": 0}, {}, "were replayed"),
    ],
)
def test_where_no_kernel_computes_a_pair_fails_for_what_its_rows_and_figures_show(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sent: dict[str, Any], received: dict[str, Any], why: str
) -> None:
    surroundings.leave(surroundings.OF_HOST, 10)
    outcome, _ = pair(monkeypatch, tmp_path, figures(**sent), figures(**received))
    assert (outcome.kind, why in outcome.detail) == (FAILED, True), outcome.detail


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"figures": figures(**WRONG)}, "layer 2 at 7f00"),
        ({"figures": figures(rows_read=2 * ROWS_READ - 1)}, f"expected {2 * ROWS_READ} at least"),
        ({"held": {"blocks": 3}}, "held at rest"),
    ],
)
def test_where_no_kernel_computes_vllm_alone_fails_for_what_its_rows_show(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    surroundings.leave(surroundings.OF_HOST, 10)
    at_rest = {"held": {}, "figures": figures()} | changed
    outcome = alone(monkeypatch, tmp_path, at_rest, made_up=True)
    assert (outcome.kind, why in outcome.detail) == (FAILED, True), outcome.detail


@pytest.mark.parametrize(
    ("device", "module"), [("NVIDIA H200", "gpu_check.vllm_on_torch"), (surroundings.OF_HOST, by_rows.MODULE)]
)
def test_which_engine_is_started_follows_from_the_device(device: str, module: str) -> None:
    """Of a process of its own, as each check has."""
    surroundings.leave(device, 3)
    asked = "from gpu_check import vllm_checks as v; print(v.VllmProcess.module, v.START_LIMIT_SECONDS)"
    folder = Path(vllm_checks.__file__).resolve().parents[1]
    printed = subprocess.run([sys.executable, "-c", asked], cwd=folder, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == [module, "360.0"]
