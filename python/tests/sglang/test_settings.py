"""Every argument of the installed SGLang is compared or harmless by a reason, and so is what is derived from them."""

from __future__ import annotations

import json
import logging
import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

server_args = pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")
torch = pytest.importorskip("torch", reason="torch comes with SGLang")
transformers = pytest.importorskip("transformers", reason="transformers comes with SGLang")

from kv_connector.configuration import releases  # noqa: E402
from kv_connector.naming.model_settings import names_in  # noqa: E402
from kv_connector.sglang import kv_settings  # noqa: E402
from kv_connector.sglang.argument_lists import COMPARED, HARMLESS  # noqa: E402
from kv_connector.sglang.engine_facts import Draft  # noqa: E402
from kv_connector.sglang.variable_list import COMPARED_VARIABLES  # noqa: E402

ARGUMENTS: tuple[str, ...] = server_args.ServerArgs.__struct_fields__


def compared(argument: str = "", value: object = None, *, draft: str = "", **fields: Any) -> dict[str, str]:
    """The settings of an engine with this argument, the others being none, and of a model with these fields."""
    arguments = SimpleNamespace(**dict.fromkeys(ARGUMENTS))
    arguments.model_path = "/models/tiny"
    if argument:
        setattr(arguments, argument, value)
    config = transformers.LlamaConfig(**fields)
    model = SimpleNamespace(hf_text_config=config, hf_config=config, dtype=torch.float32, quantization=None)
    return kv_settings.compared(arguments, model, model_id="", logger=logging.getLogger("test"), draft=draft)


def test_should_have_each_argument_of_sglang_in_one_of_the_two_lists() -> None:
    harmless = names_in(HARMLESS)
    if metadata.version("sglang") == releases.SGLANG[-1]:  # what no list knows is compared with other releases
        unknown = set(ARGUMENTS) - set(COMPARED) - harmless
        assert unknown == set(), "arguments of SGLang that no list knows: do they change a prompt's KV?"
        assert (set(COMPARED) | harmless) - set(ARGUMENTS) == set(), "SGLang has no such arguments"
    assert set(COMPARED) & harmless == set()
    assert sum(map(len, HARMLESS.values())) == len(harmless), "a name stands under one reason"


@pytest.mark.parametrize("argument", [each for each in ARGUMENTS if each != "model_path"])
def test_should_see_a_change_of_each_argument_that_is_not_harmless(argument: str) -> None:
    one, other = (compared(argument, value) for value in ("dummy", "other"))
    assert (one == other) == (argument in names_in(HARMLESS))


NUMBERS_BY_NAME = re.compile(r"quant|fp4|fp8|fp32|int4|int8|bf16|tf32|precision|dtype|rounding|dispatch_type")
NUMBERS_THAT_MAY_DIFFER = {
    "resolved": "dtype quantization",
    "compared with the pages": "kv_cache_dtype mamba_ssm_dtype",
    "of a draft": "_speculative_draft_quantization_explicitly_set speculative_draft_kv_cache_dtype"
    " speculative_draft_model_quantization speculative_enable_w4a4_mxfp4_megamoe",
    "of answers": "enable_fp32_lm_head",
    "another kernel for the model's own format": "bf16_gemm_backend disable_flashinfer_cutlass_moe_fp4_allgather"
    " flashinfer_a2a_dispatch_type fp4_gemm_runner_backend fp8_gemm_runner_backend",
    "in more digits": "triton_attention_reduce_in_fp32",
    "how many are kept": "int8_mamba_ckpt_size",
    "follows from the device, of the kernel that reads pages which are compared": "prefill_kv_cache_dequant_dtype",
}


def test_should_have_a_reason_for_each_harmless_argument_that_names_a_number_format() -> None:
    known = {name for names in NUMBERS_THAT_MAY_DIFFER.values() for name in names.split()}
    named = {name for name in names_in(HARMLESS) if NUMBERS_BY_NAME.search(name)}
    assert named - known == set(), "numbers of another format are not the same sums in another order"
    assert known - named == set(), "no harmless arguments"


def test_should_take_the_format_in_which_tokens_go_to_experts_unless_it_follows_from_the_model() -> None:
    formats = ["auto", "bf16", "fp8", "int8", "nvfp4"]
    settings = [compared("deepep_dispatcher_output_dtype", each) for each in formats]
    assert settings[0] == compared()
    assert len({json.dumps(each) for each in settings}) == len(formats)


def test_should_name_a_draft_that_has_kv_and_only_such_a_one() -> None:
    with_kv = Draft(latent=False, kv_head_count=4).text("EAGLE")
    assert compared(draft=with_kv)["draft"] == "EAGLE with 4 KV heads"
    assert Draft(latent=True, kv_head_count=1).text("EAGLE3") == "EAGLE3 with latent KV"
    assert "draft" not in compared()
    assert compared("speculative_algorithm", "NGRAM") == compared(), "it has no draft, and no KV of its own"


def test_should_take_a_models_name_its_type_of_numbers_and_each_field() -> None:
    assert compared()["model"] == "tiny"
    assert compared()["server_args.dtype"] == "float32"
    assert compared(rope_theta=5e5) != compared()
    assert compared(rms_norm_eps=1e-3)["rms_norm_eps"] == "0.001"


def test_should_take_sglangs_own_models_for_the_default() -> None:
    assert compared("model_impl", "auto") == compared("model_impl", "sglang") == compared()
    assert compared("model_impl", "transformers")["server_args.model_impl"] == "transformers"
    assert compared("load_format", "safetensors") == compared("load_format", "auto")
    assert compared("load_format", "expert_pack") != compared("load_format", "auto"), "its weights are in a pack"


def test_should_know_where_each_load_format_has_weights_from() -> None:
    from sglang.srt.configs.load_config import LoadFormat

    elsewhere = {
        *("dummy", "expert_pack", "flash_rl", "ipc_cache", "jax", "private", "rdma", "remote_instance"),
    }
    assert {each.value for each in LoadFormat} <= kv_settings.FOLDER_FORMATS | elsewhere
    for each in elsewhere:
        assert compared("load_format", each) != compared(), each
    for each in kv_settings.FOLDER_FORMATS:
        assert compared("load_format", each) == compared(), each


def test_should_compare_what_is_in_a_file_and_not_where_it_lies(tmp_path: Path) -> None:
    places = [tmp_path / name / "scales.json" for name in ("one", "again", "other")]
    for place, scale in zip(places, (0.5, 0.5, 2.0), strict=True):
        place.parent.mkdir()
        place.write_text(json.dumps({"0": scale}), encoding="utf-8")
    one, again, other = (compared("quantization_param_path", str(place)) for place in places)
    assert one == again != other
    assert compared("quantization_param_path", "/nowhere/scales.json")["server_args.quantization_param_path"]


def test_should_see_which_modules_are_quantised_and_not_how_files_are_read() -> None:
    here, there, other = (
        compared("model_loader_extra_config", f'{{"qlora_adapter_name_or_path": "{path}", "concurrency": {count}}}')
        for path, count in (("/here/sql", 1), ("/there/sql", 8), ("/here/law", 1))
    )
    assert here == there != other
    for harmless in ("{}", '{"concurrency": 8}', "no JSON", "[]", {"concurrency": 8}, None):
        assert compared("model_loader_extra_config", harmless) == compared()


@pytest.mark.parametrize("variable", COMPARED_VARIABLES)
def test_should_see_each_variable_that_changes_numbers(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.environ import EnvBool, EnvJSON, envs

    field = getattr(envs, variable)
    monkeypatch.delenv(variable, raising=False)
    without = compared()
    default = field.get()
    other = str(not default) if isinstance(field, EnvBool) else '{"a": 1}' if isinstance(field, EnvJSON) else "other"
    monkeypatch.setenv(variable, other)
    assert compared().keys() - without.keys() == {f"environment.{variable}"}
    if isinstance(default, bool | str):
        monkeypatch.setenv(variable, str(default))
        assert compared() == without, "a variable that is set to its default changes nothing"


def test_should_start_without_a_comparison_of_variables_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_variables: object) -> dict[str, str]:
        raise OSError("a file that a variable names is gone")

    monkeypatch.setattr(kv_settings, "of_variables", broken)
    assert compared()["model"] == "tiny"
