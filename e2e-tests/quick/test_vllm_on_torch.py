"""vLLM on a GPU's checks, as far as they need neither: what counts as right, what is packed, and what is not shown."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from gpu_check import pack, vllm_checks
from gpu_check.report import NotShown
from gpu_check.vllm_checks import FEW_BLOCKS_BYTES, PROMPTS, Checks, Compared, judged
from gpu_check.vllm_on_torch import extensions
from gpu_check.vllm_on_torch.gather import FOR_PYTHON, NotGathered, gather
from gpu_check.vllm_on_torch.plan import NO_VLLM, VLLM, VllmPlan
from right_figures import right_figures

ALONE = {"tokens": [1, 2, 3], "margins": [3.0, 0.01, 2.0]}


@pytest.mark.parametrize(
    ("tokens", "equal", "near_ties", "wrong"),
    [([1, 2, 3], 1, 0, 0), ([1, 9, 9], 0, 1, 0), ([9, 2, 3], 0, 0, 1), ([1, 2], 0, 0, 1)],
)
def test_answer_is_right_up_to_a_near_tie(tokens: list[int], equal: int, near_ties: int, wrong: int) -> None:
    seen = Compared()
    seen.add("it", tokens, ALONE)
    assert (seen.equal, len(seen.near_ties), len(seen.wrong)) == (equal, near_ties, wrong)


def at_rest(**changed: Any) -> dict[str, Any]:
    return {"held": changed.pop("held", {}), "figures": right_figures() | changed}


def test_pair_that_is_right_passes() -> None:
    assert f"{len(PROMPTS)} last tokens judged equal" in judged(plan(), Compared(), at_rest(), at_rest(), 0)


def plan(**settings: Any) -> VllmPlan:
    return VllmPlan("pair", "model", **settings)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"held": {"blocks": 3}}, "held at rest"),
        ({"fetches_failed": 1.0}, "failed fetches"),
        ({"compared": {"equal": 1.0}}, "the proof"),
        ({"compared": {"equal": float(len(PROMPTS)), "different": 1.0}}, "the proof"),
        ({"replays": 0}, "were replayed"),
        ({"pages_received": 5.0}, "pages that did not come"),
    ],
)
def test_pair_fails_for_what_its_figures_show(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        judged(plan(), Compared(), at_rest(), at_rest(**changed), 0)


def test_pair_fails_where_blocks_were_enough() -> None:
    few = plan(kv_bytes=FEW_BLOCKS_BYTES)
    assert "3 preemptions" in judged(few, Compared(), at_rest(), at_rest(preemptions=3), 0)
    with pytest.raises(AssertionError, match="preempted no request"):
        judged(few, Compared(), at_rest(), at_rest(), 0)


def test_pair_fails_where_shared_beginnings_were_not_found() -> None:
    with pytest.raises(AssertionError, match="were cached"):
        judged(plan(prefix_caching=True), Compared(), at_rest(), at_rest(), 0)


def test_every_pair_needs_the_answers_of_vllm_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_checks, "packed", lambda: None)
    checks = Checks(tmp_path).all()
    for name, (check, after) in checks.items():
        if not name.startswith("alone"):
            assert after in checks
            with pytest.raises(NotShown, match="to compare with"):
                check()


def test_reason_why_vllm_is_not_packed_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack.add_vllm(None, tmp_path / "made")
    monkeypatch.setattr(vllm_checks, "SITE", tmp_path / "made" / VLLM)
    with pytest.raises(NotShown, match="not packed: the file was made without"):
        vllm_checks.packed()
    assert [each.name for each in (tmp_path / "made").iterdir()] == [NO_VLLM]


def test_vllm_is_not_shown_by_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_checks, "SITE", tmp_path)
    (tmp_path / FOR_PYTHON).write_text("2.7", "utf-8")
    with pytest.raises(NotShown, match=r"for Python 2\.7, this is 3"):
        vllm_checks.packed()


def test_environment_without_vllm_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotGathered, match="has no vLLM"):
        gather(Path(sys.executable), tmp_path / "site")


def test_packed_vllm_is_a_build_for_cuda_whose_extensions_are_ours(tmp_path: Path) -> None:
    vllm = tmp_path / "vllm"
    (vllm / "vllm_flash_attn").mkdir(parents=True)
    extensions.place(vllm, "0.32.0")
    assert [(each.name, each.version) for each in distributions(path=[str(tmp_path)])] == [("vllm", "0.32.0")]
    assert "register()" in (vllm / "_C_stable_libtorch.py").read_text()
