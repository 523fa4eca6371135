"""SGLang on a GPU's checks, as far as they need neither: what counts as right, what is packed, and what is not."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from gpu_check import pack, sglang_checks
from gpu_check.report import NotShown
from gpu_check.sglang_checks import PARTS, SglangChecks, judged
from gpu_check.sglang_on_torch import absent, gather, imports, kernels, servers
from gpu_check.sglang_on_torch.plan import DECODER, NO_SGLANG, PREFILLER, SGLANG, SglangPlan
from gpu_check.vllm_checks import PAGES, Compared
from gpu_check.vllm_on_torch.gather import NotGathered

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def at_rest(**changed: Any) -> dict[str, Any]:
    figures = {
        "fetches_failed": 0.0,
        "compared": {"equal": 1.0, "different": 0.0},
        "pages_received": float(PARTS * PAGES),
        "layers_sent": 8.0,
        "layers_sent_early": 2.0,
    }
    held, counted = changed.pop("held", {}), changed.pop("counted", True)
    return {"held": held, "counted": counted, "figures": figures | changed}


def plan(**settings: Any) -> SglangPlan:
    return SglangPlan("pair", "model", **settings)


def test_pair_that_is_right_passes() -> None:
    seen = Compared("SGLang", equal=15)
    assert "15 answers equal those of SGLang alone, one prompt" in judged(plan(), seen, at_rest(), at_rest(), 0)


@pytest.mark.parametrize(
    ("sent", "received", "why"),
    [
        ({}, {"held": {"num_used_tokens": 3}}, "held at rest"),
        ({"held": {"kv_messenger_prefills_open": 1.0}}, {}, "held at rest"),
        ({}, {"fetches_failed": 1.0}, "failed fetches"),
        ({}, {"compared": {}}, "the proof"),
        ({}, {"compared": {"equal": 1.0, "different": 1.0}}, "the proof"),
        ({"counted": False}, {}, "was counted correctly"),
        ({}, {"pages_received": 5.0}, "pages that did not come"),
    ],
)
def test_pair_fails_for_what_its_figures_show(sent: dict[str, Any], received: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        judged(plan(), Compared("SGLang"), at_rest(**sent), at_rest(**received), 0)


def test_pair_fails_where_shared_beginnings_were_not_found() -> None:
    with pytest.raises(AssertionError, match="shared beginnings"):
        judged(plan(radix=True), Compared("SGLang"), at_rest(), at_rest(), 0)


def test_pair_fails_for_a_wrong_answer() -> None:
    with pytest.raises(AssertionError, match="1 of 15 answers are wrong"):
        judged(plan(), Compared("SGLang", wrong=["it"]), at_rest(), at_rest(), 0)


def test_both_roles_of_a_plan_have_their_arguments() -> None:
    prefiller = plan(role=PREFILLER, radix=True).arguments(1, 2, 3)
    assert prefiller[prefiller.index("--disaggregation-bootstrap-port") + 1] == "3"
    assert "--disable-radix-cache" not in prefiller
    decoder = plan(role=DECODER, overlap=False).arguments(1, 2, 3)
    assert "--disaggregation-bootstrap-port" not in decoder
    assert {"--disable-radix-cache", "--disable-overlap-schedule"} <= {*decoder}


def test_checks_need_the_answers_of_sglang_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_checks, "packed", lambda: None)
    checks = SglangChecks(tmp_path).all()
    for name, (check, after) in checks.items():
        assert not after or [*checks].index(after) < [*checks].index(name)
        if name.startswith("pair"):
            assert after == f"alone, {'float32' if 'float32' in name else 'bfloat16'}"
            with pytest.raises(NotShown, match="to compare with"):
                check()


def test_what_the_imports_lacked_is_replaced_in_later_checks_of_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_checks, "packed", lambda: None)
    monkeypatch.setenv(absent.MORE, "")
    lacking = subprocess.CompletedProcess([], 0, stdout='noise\n["missing_here"]\n', stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: lacking)
    assert SglangChecks(tmp_path).imports() == "all found but missing_here"
    assert os.environ[absent.MORE] == ""
    SglangChecks(tmp_path)._folder_of(plan())
    assert "missing_here" in absent.absent()
    sglang_checks.forget_answers(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_failed_check_prints_the_end_of_its_own_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def dies(_: SglangPlan, folder: Path) -> Iterator[None]:
        folder.mkdir()
        (folder / "alone-bfloat16.log").write_text("Segmentation fault", "utf-8")
        raise OSError("it died")
        yield

    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "server.log").write_text("not of this check", "utf-8")
    monkeypatch.setattr(sglang_checks, "packed", lambda: None)
    monkeypatch.setattr(sglang_checks, "model", lambda *_: "model")
    monkeypatch.setattr(servers, "alone", dies)
    with pytest.raises(OSError, match="it died"):
        SglangChecks(tmp_path).all()["alone, bfloat16"][0]()
    printed = capsys.readouterr().out
    assert "Segmentation fault" in printed
    assert "not of this check" not in printed


def test_reason_why_sglang_is_not_packed_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack.add_sglang(None, tmp_path / "made")
    monkeypatch.setattr(sglang_checks, "SITE", tmp_path / "made" / SGLANG)
    with pytest.raises(NotShown, match="not packed: the file was made without"):
        sglang_checks.packed()
    assert {each.name for each in (tmp_path / "made").iterdir()} == {NO_SGLANG, "make_model.py", "server_process.py"}


def test_environment_without_sglang_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotGathered, match="has no SGLang"):
        gather.gather(Path(sys.executable), tmp_path, tmp_path / "site")


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    for name in gather.ADDED:
        module = tmp_path / "sglang" / name
        module.parent.mkdir(parents=True)
        module.write_text("class DualGemm: ...\n", encoding="utf-8")
    gather.place(tmp_path, EXAMPLES / "sglang-1p1d" / "cpu_kernels", "0.5.23")
    return tmp_path


def test_packed_sglang_has_a_version_and_placeholders_in_each_process(placed: Path) -> None:
    assert [(each.name, each.version) for each in distributions(path=[str(placed)])] == [("sglang", "0.5.23")]
    assert "install()" in (placed / "sitecustomize.py").read_text(encoding="utf-8")


def test_packed_sglang_refuses_to_compile_and_has_no_fused_gemm(placed: Path) -> None:
    assert (placed / "sglang" / gather.JIT).read_text(encoding="utf-8").endswith("import load_jit\n")
    fused = (placed / "sglang" / gather.DUAL_GEMM).read_text(encoding="utf-8")
    made: dict[str, Any] = {}
    exec(fused, made)
    assert made["DualGemm"]()._select_mode("a layer", 512) is None


def test_packed_kernels_answer_what_a_server_on_a_gpu_asks(placed: Path) -> None:
    stand_in = (placed / "sgl_kernel" / "__init__.py").read_text(encoding="utf-8")
    assert stand_in.endswith(gather.ANSWERED)
    assert "utils" in stand_in.split("SUBMODULES", 1)[1].split(")", 1)[0]
    assert kernels.is_arch_support_pdl() is False


def test_kernel_that_is_not_carried_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"kernel kvcache\.256 is not carried"):
        kernels.load_jit("kvcache", 256, cuda_files=[])


def in_its_own_process(*lines: str) -> str:
    script = "\n".join(["from gpu_check.sglang_on_torch.absent import install", "install()", *lines])
    folder = str(Path(sglang_checks.__file__).resolve().parents[1])
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True, timeout=600
    )
    return run.stdout.strip()


def test_placeholder_has_any_name_and_is_not_found_by_those_who_ask() -> None:
    asked = (
        "import importlib.util",
        "from gguf.quants import Kind",
        "kinds = {Kind.F32, Kind[int]}",
        "print(importlib.util.find_spec('gguf'), Kind(3, four=5).__class__.__name__, len(kinds))",
        "try:",
        "    import not_there_at_all",
        "except ModuleNotFoundError as fault:",
        "    print(fault.name)",
    )
    assert in_its_own_process(*asked).split() == ["None", "Kind", "2", "not_there_at_all"]


def test_placeholder_may_be_the_type_of_a_model_s_field() -> None:
    asked = ("from xgrammar import Tag", "print(Tag.__get_pydantic_core_schema__(Tag, None), hasattr(Tag, '__len__'))")
    assert in_its_own_process(*asked) == "{'type': 'any'} False"


def test_missing_module_is_replaced_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wants_more.py").write_text("from missing_here.deep import Name\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(absent.MORE, "")
    finders = [*sys.meta_path]
    found = importlib.util.find_spec
    try:
        absent.install()
        assert imports.missing_for("wants_more") == ["missing_here"]
    finally:
        sys.meta_path[:] = finders
        importlib.util.find_spec = found
        for name in ("wants_more", "missing_here", "missing_here.deep"):
            sys.modules.pop(name, None)


def test_margin_is_that_of_the_two_likeliest() -> None:
    assert servers._margin([[-0.5, 7, None], [-2.0, 9, None]]) == 1.5
