"""Many requests of a GPU's right pairs, as far as they need no GPU: what is asked, and what counts as right."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from gpu_check import right_pairs
from gpu_check.right_pairs import AT_ONCE, PAIRS, PROVING_TOKENS, RightPairs, asked
from torch_engine.pair import Legs, Pair

REQUESTS = 50
RIGHT: dict[str, Any] = {
    "compared": {"equal": float(REQUESTS), "different": 0.0},
    "fetches_failed": 0.0,
    "fetches_refuted": 0.0,
    "pages_received": 7.0,
}


class FakeSide:
    def __init__(self, figures: dict[str, Any], held: dict[str, int]) -> None:
        self.figures = figures
        self.held = held

    def rest(self) -> dict[str, Any]:
        return {"held": self.held, "figures": {**self.figures, "compared": dict(self.figures["compared"])}}


class FakePair:
    """Ends each request when it is asked for."""

    def __init__(self, figures: dict[str, Any], held: dict[str, int] | None = None, how: str = "length") -> None:
        self.prompts: list[list[int]] = []
        self.prefiller = FakeSide(figures, held or {})
        self.decoder = FakeSide(figures, {})
        self.how = how

    def ask(self, prompt: list[int], answer: int) -> Legs:
        self.prompts.append(prompt)
        done: Future[dict[str, Any]] = Future()
        done.set_result({"cached": 16, "how": self.how, "tokens": [0] * answer})
        return Legs(f"cmpl-{len(self.prompts)}", done, done)


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RightPairs:
    for name in ("model", "scaled"):
        monkeypatch.setattr(right_pairs, name, lambda *_: "a model")
    monkeypatch.setattr(right_pairs, "packed", lambda: None)
    return RightPairs(tmp_path, REQUESTS)


def runs_with(monkeypatch: pytest.MonkeyPatch, pair: FakePair) -> None:
    @contextmanager
    def started(*_: Any) -> Any:
        yield pair

    monkeypatch.setattr(right_pairs, "started", started)


def test_asks_for_all_requests_and_half_of_them_begin_as_others() -> None:
    pair = FakePair(RIGHT)
    assert len(list(asked(cast(Pair, pair), REQUESTS))) == REQUESTS == len(pair.prompts)
    assert len(pair.prompts[0]) == PROVING_TOKENS
    assert len({tuple(prompt[:8]) for prompt in pair.prompts if len(prompt) >= AT_ONCE}) < REQUESTS - AT_ONCE // 2


@pytest.mark.parametrize("name", PAIRS)
def test_equal_pair_passes(checks: RightPairs, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    runs_with(monkeypatch, FakePair(RIGHT))
    assert f"{REQUESTS} last tokens judged equal" in checks.equal("equal", PAIRS[name])


@pytest.mark.parametrize(
    ("changed", "held"),
    [
        ({"compared": {"equal": 49.0, "different": 1.0}}, {}),
        ({"compared": {"equal": float(REQUESTS), "failed": 1.0}}, {}),
        ({"compared": {"equal": 49.0}}, {}),
        ({"fetches_failed": 1.0}, {}),
        ({}, {"blocks": 3}),
    ],
)
def test_suspected_pair_fails(
    checks: RightPairs, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], held: dict[str, int]
) -> None:
    runs_with(monkeypatch, FakePair({**RIGHT, **changed}, held))
    with pytest.raises(AssertionError):
        checks.equal("equal", next(iter(PAIRS.values())))


@pytest.mark.parametrize("check", [RightPairs.refused_scales, RightPairs.refuted_scales])
def test_answer_with_other_scales_fails(checks: RightPairs, monkeypatch: pytest.MonkeyPatch, check: Any) -> None:
    runs_with(monkeypatch, FakePair({**RIGHT, "pages_received": 0.0, "compared": {"different": 1.0}}, how="error"))
    check(checks)
    runs_with(monkeypatch, FakePair({**RIGHT, "pages_received": 0.0, "compared": {"different": 1.0}}))
    with pytest.raises(AssertionError):
        check(checks)
