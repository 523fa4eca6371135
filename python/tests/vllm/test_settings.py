"""Every option of the installed vLLM and every field of its models is compared, or harmless by a reason."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch", reason="torch comes with the engine")
config_of_vllm = pytest.importorskip("vllm.config", reason="vLLM is not installed")
transformers = pytest.importorskip("transformers", reason="transformers comes with the engine")

from kv_connector.naming import built_rope  # noqa: E402
from kv_connector.naming.model_settings import (  # noqa: E402
    COMPUTED_WITH,
    HARMLESS_FIELDS,
    as_mapping,
    harmless_in,
    names_in,
    of_configuration,
)
from kv_connector.vllm import engine_settings, engine_variables  # noqa: E402
from kv_connector.vllm.engine_settings import LISTS, OptionLists  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
PARTS = {
    "vllm_config": ("VllmConfig", engine_settings.ENGINE),
    "multimodal_config": ("MultiModalConfig", engine_settings.MULTIMODAL),
    "model_config": ("ModelConfig", LISTS["model_config"]),
    "cache_config": ("CacheConfig", LISTS["cache_config"]),
    "parallel_config": ("ParallelConfig", LISTS["parallel_config"]),
    "load_config": ("LoadConfig", LISTS["load_config"]),
    "attention_config": ("AttentionConfig", LISTS["attention_config"]),
    "kernel_config": ("KernelConfig", LISTS["kernel_config"]),
    "lora_config": ("LoRAConfig", LISTS["lora_config"]),
    "mamba_config": ("MambaConfig", LISTS["mamba_config"]),
}
OPTIONS = [
    (part, field.name)
    for part, (name, _) in PARTS.items()
    for field in dataclasses.fields(getattr(config_of_vllm, name))
]
FAMILIES = {
    "Llama": "LlamaConfig",
    "Qwen": "Qwen2Config Qwen3Config Qwen3MoeConfig Qwen2MoeConfig",
    "Mixtral": "MixtralConfig",
    "DeepSeek-V2": "DeepseekV2Config",
    "V3": "DeepseekV3Config",
    "Gemma 3": "Gemma3TextConfig Gemma3Config",
    "gpt-oss": "GptOssConfig",
    "Mistral with some windowed layers": "MinistralConfig",
    "Gemma 4": "Gemma4TextConfig",
    "Mistral 7B v0.1": "MistralConfig",
    "Llama 4": "Llama4TextConfig Llama4Config",
    "LFM2": "Lfm2Config",
    "Falcon-H1": "FalconH1Config",
    "Mamba 2": "Mamba2Config",
    "Granite 4": "GraniteMoeHybridConfig",
    "Nemotron-H": "NemotronHConfig",
    "Qwen3-Next": "Qwen3NextConfig",
    "Jamba": "JambaConfig",
    "MiniMax-Text": "MiniMaxConfig",
    "DeepSeek-V3.2": "DeepseekV32Config",
    "DeepSeek-V4": "DeepseekV4Config",
    "Inkling": "InklingTextConfig",
    "Qwen3.8-Next": "qwen3.8",
    "MiniMax-M3": "MiniMaxM3VLTextConfig",
    "EAGLE": "LlamaConfig",
    "MTP of one module": "mimo",
    "": "GraniteConfig",
    "Gemma 2": "Gemma2Config",
    "Gemma 3n": "Gemma3nTextConfig Gemma3nConfig",
    "Cohere 2": "Cohere2Config",
    "OLMo 3": "Olmo3Config",
    "Exaone 4": "Exaone4Config",
    "GLM-4": "Glm4Config",
    "Phi-3": "Phi3Config",
    "HRM-Text": "HrmTextConfig",
    "Qwen3-VL": "Qwen3VLTextConfig Qwen3VLConfig",
    "a draft model": "LlamaConfig",
    "EAGLE-3": "LlamaConfig",
}
"""The configuration classes of each model that docs/models.md names; a lower-case one has none in transformers."""
IN_FILES_ALONE = ("auto_map", "gradient_checkpointing", "tokenizer_class")
"""Fields of configuration files which no class declares."""
BY_ENGINES = ("context_len", "max_model_len", "num_lookahead_tokens")
"""Fields that engines write into configurations."""
CLASSES = sorted({name for names in FAMILIES.values() for name in names.split() if name[0].isupper()})


@pytest.mark.parametrize("part", list(PARTS))
def test_should_have_each_option_of_vllm_in_one_of_the_two_lists(part: str) -> None:
    name, lists = PARTS[part]
    options = {field.name for field in dataclasses.fields(getattr(config_of_vllm, name))}
    compared, harmless = set(lists.compared), names_in(lists.harmless)
    assert options - compared - harmless == set(), (
        f"options of {name} that no list knows: do they change a prompt's KV?"
    )
    assert (compared | harmless) - options == set(), f"{name} has no such options"
    assert compared & harmless == set()
    assert sum(map(len, lists.harmless.values())) == len(harmless), "a name stands under one reason"


def test_should_take_each_part_of_vllms_configuration_that_has_lists() -> None:
    parts = {name: lists for name, (_, lists) in PARTS.items() if name not in ("vllm_config", "multimodal_config")}
    assert parts == dict(LISTS)
    assert set(LISTS) <= set(engine_settings.ENGINE.compared)


class OptionsOf:
    """An engine whose options are all none, but one."""

    def __init__(self, part: str, name: str, value: object) -> None:
        for each, (cls, _) in PARTS.items():
            fields = {field.name: None for field in dataclasses.fields(getattr(config_of_vllm, cls))}
            options = SimpleNamespace(**fields)
            if each == part:
                setattr(options, name, value)
            self.__dict__[each] = options
        self.model_config.multimodal_config = self.multimodal_config
        if part == "kernel_config":
            self.model_config.quantization = "any"
        self.vllm_config.__dict__.update({each: self.__dict__[each] for each in LISTS})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.mark.parametrize(("part", "name"), [each for each in OPTIONS if each[1] not in LISTS], ids="-".join)
def test_should_see_a_change_of_each_option_that_is_not_harmless(part: str, name: str) -> None:
    one, other = (OptionsOf(part, name, value).vllm_config for value in ("dummy", "other"))
    lists: OptionLists = PARTS[part][1]
    same = engine_settings.of_engine(one) == engine_settings.of_engine(other)
    assert same == (name in names_in(lists.harmless))


def test_should_distinguish_invented_weights_from_files_and_no_other_loaders() -> None:
    dummy, auto, tensors = (
        engine_settings.of_engine(OptionsOf("load_config", "load_format", value).vllm_config)
        for value in ("dummy", "auto", "safetensors")
    )
    assert dummy != auto == tensors


KERNELS = importlib.import_module("vllm.config.kernel")
OF_OTHER_NUMBERS = {
    "weights alone are quantised": "aiter_triton_mxfp4_bf16 conch exllama humming machete marlin rdna3 xpu_woq",
    "a checkpoint of FP4": "aiter_triton_mxfp4_mxfp4 flashinfer_moe_ep_mega_deep_gemm aiter_mega_moe",
    "weights are quantised once more": "flashinfer_moe_ep_cutedsl",
    "numbers are quantised and not, one after the other": "emulation",
    "for whatever there is": "fbgemm triton_unfused xpu",
}
"""Kernels that do not, or not for sure, compute a checkpoint of FP8 with activations of FP8."""


def of_kernel(option: str, value: object, quantization: str | None) -> Mapping[str, str]:
    options = OptionsOf("kernel_config", option, value)
    options.model_config.quantization = quantization
    return {name: text for name, text in engine_settings.of_engine(options.vllm_config).items() if "kernel" in name}


@pytest.mark.parametrize("quantization", [None, "fp8", "mxfp4", "modelopt_fp4", "compressed-tensors"])
@pytest.mark.parametrize(("option", "kind"), [("moe_backend", "MoEBackend"), ("linear_backend", "LinearBackend")])
def test_should_compare_a_kernel_that_computes_a_quantised_model_with_other_numbers(
    quantization: str | None, option: str, kind: str
) -> None:
    others = {name for names in OF_OTHER_NUMBERS.values() for name in names.split()}
    kernels = set(get_args(getattr(KERNELS, kind)))
    assert kernels - others - engine_settings.KERNELS_OF_FP8 == set(), "with which numbers do these compute?"
    assert others & engine_settings.KERNELS_OF_FP8 == set()
    for kernel in kernels:
        alike = quantization is None or kernel == "auto" or (quantization == "fp8" and kernel not in others)
        expected = {} if alike else {f"kernel_config.{option}": kernel}
        assert of_kernel(option, kernel, quantization) == expected, kernel


def test_should_compare_the_kernels_of_single_formats() -> None:
    chosen = {"nvfp4_w4a16": "humming"}
    assert of_kernel("linear_backend_per_quant", chosen, "modelopt_fp4") == {
        "kernel_config.linear_backend_per_quant.nvfp4_w4a16": "humming"
    }
    assert of_kernel("linear_backend_per_quant", chosen, None) == {}


NUMBERS_IN_PARTS = re.compile(r"quant|fp4|fp8|int4|int8|a16|bf16|mxfp|precision|dtype")
NUMBERS_THAT_MAY_DIFFER = {
    "speculative_config": "a draft is compared by its configuration",
    "compilation_config.pass_config.fuse_norm_quant": "two kernels in one",
    "compilation_config.pass_config.fuse_act_quant": "two kernels in one",
    "compilation_config.pass_config.fuse_attn_quant": "two kernels in one",
}


def numbers_in(path: str, options: Any) -> Iterator[str]:
    """Options below a part, and choices that they have, which name a number format."""
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        name = f"{path}.{field.name}"
        choices = list(words_of(hints[field.name]))
        if NUMBERS_IN_PARTS.search(field.name) or any(NUMBERS_IN_PARTS.search(each) for each in choices):
            yield name
        for inner in parts_of(hints[field.name]):
            yield from numbers_in(name, inner)


def words_of(hint: Any) -> Iterator[str]:
    for each in get_args(hint):
        if isinstance(each, str):
            yield each
        yield from words_of(each)


def parts_of(hint: Any) -> Iterator[Any]:
    for each in (hint, *get_args(hint)):
        if isinstance(each, type) and dataclasses.is_dataclass(each) and each.__module__.startswith("vllm.config"):
            yield each


def test_should_leave_out_no_part_with_a_number_format_in_it() -> None:
    hints = typing.get_type_hints(config_of_vllm.VllmConfig)
    parts = {name: list(parts_of(hints[name])) for name in names_in(engine_settings.ENGINE.harmless)}
    looked_at = {name for name, inner in parts.items() if inner}
    assert {"compilation_config", "scheduler_config", "offload_config"} <= looked_at
    found = {each for name, inner in parts.items() for part in inner for each in numbers_in(name, part)}
    unknown = {each for each in found if not any(each.startswith(known) for known in NUMBERS_THAT_MAY_DIFFER)}
    assert unknown == set(), "a part that is harmless as a whole has numbers of other formats"


TEXT_FIELDS = {
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 8,
    "rope_scaling": {"type": "yarn", "factor": 4.0},
    "layer_types": ["full_attention", "sliding_attention"],
}


@pytest.mark.parametrize("prefix", ["", "draft."])
@pytest.mark.parametrize("changed", TEXT_FIELDS)
@pytest.mark.parametrize("of_both", [(), *itertools.combinations(TEXT_FIELDS, 1), tuple(TEXT_FIELDS)])
def test_should_see_a_change_in_the_text_part_whatever_the_whole_has_of_that_name(
    prefix: str, changed: str, of_both: Sequence[str]
) -> None:
    def settings(text: Mapping[str, Any]) -> Mapping[str, str]:
        config = SimpleNamespace(**text)
        whole = SimpleNamespace(text_config=config, **{name: TEXT_FIELDS[name] for name in of_both})
        model = SimpleNamespace(hf_text_config=config, hf_config=whole, architecture="Tiny")
        return engine_settings.of_model(model, prefix)

    other = {**TEXT_FIELDS, changed: {"type": "yarn", "factor": 2.0} if changed == "rope_scaling" else [7]}
    assert settings(TEXT_FIELDS) != settings(other)


def of_format(load_format: str, extra: object) -> Any:
    options = OptionsOf("load_config", "load_format", load_format)
    options.load_config.model_loader_extra_config = extra
    return engine_settings.of_engine(options.vllm_config)


@pytest.mark.parametrize("load_format", ["tensorizer", "modelexpress", "ipc_cache", "dummy", "a format of one's own"])
def test_should_distinguish_weights_that_are_from_elsewhere(load_format: str) -> None:
    uris = [{"tensorizer_uri": f"s3://weights/v{version}"} for version in (1, 1, 2)]
    one, again, other = (of_format(load_format, uri) for uri in uris)
    assert one == again != other
    assert one != of_format("auto", uris[0])


@pytest.mark.parametrize("load_format", sorted(engine_settings.FOLDER_FORMATS))
def test_should_not_distinguish_how_a_folder_is_read(load_format: str) -> None:
    assert of_format(load_format, {"concurrency": 4}) == of_format("auto", {})


def test_should_know_where_each_installed_load_format_has_weights_from() -> None:
    loader = pytest.importorskip("vllm.model_executor.model_loader", reason="the formats come with the engine")
    elsewhere = {"dummy", "ipc_cache", "modelexpress", "tensorizer"}
    assert set(get_args(loader.LoadFormats)) <= engine_settings.FOLDER_FORMATS | elsewhere


def test_should_know_the_configuration_of_each_model_of_the_page() -> None:
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \| [^|]+ \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.M)
    named = {name.strip() for names in rows[1:] for name in names.split(",") if re.search(r"\w", name)}
    assert len(named) > 15
    assert named - set(FAMILIES) == set(), "models of docs/models.md without a configuration class here"


def classes_of_vllm() -> dict[str, Any]:
    """vLLM's own configuration classes that can be made without a file."""
    own = pytest.importorskip("vllm.transformers_utils.configs")
    made = {}
    for name in own.__all__:
        with contextlib.suppress(Exception):  # some want a file, or another configuration
            made[name] = getattr(own, name)()
    return {name: config for name, config in made.items() if isinstance(config, transformers.PretrainedConfig)}


def test_should_see_a_change_of_each_field_of_vllms_own_configurations_that_is_not_harmless() -> None:
    configs = classes_of_vllm()
    assert len(configs) > 20, sorted(configs)
    for config in configs.values():
        must_see_each_field(config)


@pytest.mark.parametrize("name", CLASSES)
def test_should_see_a_change_of_each_field_of_a_configuration_that_is_not_harmless(name: str) -> None:
    must_see_each_field(getattr(transformers, name)())


def must_see_each_field(config: Any) -> None:
    fields = as_mapping(config)
    before = of_configuration(SimpleNamespace(to_dict=lambda: fields))
    for field in fields:
        changed = {**fields, field: "another value"}
        same = before == of_configuration(SimpleNamespace(to_dict=lambda changed=changed: changed))
        assert same == (field in harmless_in(fields)), field


def test_should_name_only_harmless_fields_that_a_configuration_has() -> None:
    fields = set(IN_FILES_ALONE) | set(BY_ENGINES)
    for config in (*(getattr(transformers, name)() for name in CLASSES), *classes_of_vllm().values()):
        fields |= set(as_mapping(config))
    for kind in list(transformers.CONFIG_MAPPING.keys()):
        with contextlib.suppress(Exception):  # some want a package that is not there
            for base in transformers.CONFIG_MAPPING[kind].__mro__:
                fields |= {*vars(base), *getattr(base, "__annotations__", ())}
    assert names_in(HARMLESS_FIELDS) - fields == set()


SOURCES = Path(config_of_vllm.__file__).parents[1]
READS = re.compile(r"config(?:\.|, \")(bos_token_id|eos_token_id|pad_token_id|sep_token_id|initializer_range)\b")
READ_BY = {
    "hrm_text": "hrm_text.py",
    "longcat_flash": "longcat_flash_ngram.py",
    "moondream3": "moondream3.py",
    "qwen4_exp": "ple_layer.py model_state.py ngram_embedding.py",
}
"""The sources that compute KV with a field that is harmless elsewhere, by the model's type."""
READ_FOR_OTHER_THINGS = {
    "the row of an embedding that is zero in training": "audio_encoder.py funaudiochat.py whisper.py",
    "models without a cache of KV": "roberta.py legacy.py",
    "the token that stands for an image in the prompt": "glm4v.py kanana_v.py",
}


def test_should_compare_a_field_that_is_harmless_elsewhere_for_each_model_that_computes_with_it() -> None:
    reading: dict[str, set[str]] = {}
    for folder in ("models", "model_executor/models"):
        for source in (SOURCES / folder).rglob("*.py"):
            fields = set(READS.findall(source.read_text(encoding="utf-8")))
            if fields:
                reading.setdefault(source.name, set()).update(fields)
    known = {name for names in (*READ_BY.values(), *READ_FOR_OTHER_THINGS.values()) for name in names.split()}
    assert set(reading) - known == set(), "compute these models KV with it?"
    for kind, names in READ_BY.items():
        for field in {field for name in names.split() for field in reading.get(name, ())}:
            assert field in COMPUTED_WITH[kind]
            assert of_configuration({"model_type": f"{kind}_text", field: 3}) == {
                "model_type": f"{kind}_text",
                field: "3",
            }
            assert field not in of_configuration({"model_type": "llama", field: 3})


NUMBERS_BY_DESIGN = re.compile(
    "QUANT|FP4|FP8|INT4|INT8|W4A|E8M0|PRECISION|ACCUM|SIMULATION|DTYPE|A16|BF16|WNA16|A4W4|LAYOUT|FORMAT"
)


def test_should_know_each_variable_of_vllm_that_names_a_number_format_or_a_layout() -> None:
    known = {*engine_variables.BY_DESIGN, *names_in(engine_variables.HARMLESS)}
    variables = set(importlib.import_module("vllm.envs").environment_variables)
    assert {name for name in variables if NUMBERS_BY_DESIGN.search(name)} - known == set(), "in neither list"
    assert known - variables == set(), "no variables of this vLLM"


@pytest.mark.parametrize("name", engine_variables.BY_DESIGN)
def test_should_see_a_variable_that_changes_what_is_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = engine_variables.of_process()
    monkeypatch.setattr(importlib.import_module("vllm.envs"), name, "another value", raising=False)
    assert engine_variables.of_process() == {**before, f"environment.{name}": "another value"}


def long_rope(monkeypatch: pytest.MonkeyPatch, max_model_len: int, max_position: int = 4096) -> Any:
    """vLLM's own module, as a worker with this limit builds it."""
    from vllm.model_executor.layers.rotary_embedding import phi3_long_rope_scaled_rope as module

    limit = SimpleNamespace(model_config=SimpleNamespace(max_model_len=max_model_len))
    monkeypatch.setattr(module, "get_current_vllm_config", lambda: limit)
    factors = [1.0 + 3.0 * index / 16 for index in range(16)]
    return module.Phi3LongRoPEScaledRotaryEmbedding(
        32, 32, max_position, 1024, 10000.0, True, torch.float32, [1.0] * 16, factors
    )


def test_should_distinguish_the_long_factors_that_are_in_use_from_the_short_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short, long, longer = (built_rope.of_modules([long_rope(monkeypatch, n)]) for n in (1024, 1025, 4096))
    assert short[built_rope.LONG_ROPE] == "short"
    assert long[built_rope.LONG_ROPE] == "long"
    assert short != long == longer, "both beyond the limit compute the same"
    assert len([name for name in short if short[name] != long[name]]) == 2, "the table in use differs, too"


@pytest.mark.parametrize("max_model_len", [1024, 1025])
def test_should_derive_from_the_configuration_what_was_built(
    monkeypatch: pytest.MonkeyPatch, max_model_len: int
) -> None:
    parameters = {"rope_type": "longrope", "original_max_position_embeddings": 1024}
    derived = built_rope.of_configuration(SimpleNamespace(rope_parameters=parameters), max_model_len)
    built = built_rope.of_modules([long_rope(monkeypatch, max_model_len)])
    assert derived == {built_rope.LONG_ROPE: built[built_rope.LONG_ROPE]}
    assert built_rope.of_configuration(SimpleNamespace(rope_parameters={"rope_type": "default"}), max_model_len) == {}


def test_should_see_no_difference_between_tables_of_other_lengths_and_one_between_bases() -> None:
    def rope(base: float, positions: int) -> Any:
        table = torch.arange(positions, dtype=torch.float)[:, None] / base ** (torch.arange(0, 32, 2) / 32)[None, :]
        return SimpleNamespace(
            head_size=32, rotary_dim=32, _buffers={"cos_sin_cache": torch.cat((table.cos(), table.sin()), dim=1)}
        )

    assert built_rope.of_modules([rope(1e4, 128)]) == built_rope.of_modules([rope(1e4, 4096)])
    assert built_rope.of_modules([rope(1e4, 128)]) != built_rope.of_modules([rope(5e5, 128)])


@pytest.mark.parametrize("prefiller", [False, True])
@pytest.mark.parametrize("decoder", [False, True])
def test_should_not_compare_what_vllm_derives_from_the_side_s_role(prefiller: bool, decoder: bool) -> None:
    """A decoder of a multimodal model has it on and a prefiller off, whatever they were started with."""

    def of_side(allowed: bool) -> object:
        images = SimpleNamespace(allow_missing_mm_embeddings=allowed, language_model_only=False)
        config = SimpleNamespace(model_config=SimpleNamespace(multimodal_config=images))
        return engine_settings.of_engine(config)

    assert of_side(prefiller) == of_side(decoder)
