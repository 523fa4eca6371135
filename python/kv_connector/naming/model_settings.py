"""What decides which KV an engine computes, as short texts by name. Pure; equal for all engines.

The default is to compare: each field of a model's configuration and each option of an engine is a setting, except those
that a list names as harmless, with its reason. Two sides that differ in a field or option which no list knows refuse
each other, instead of exchanging KV of two computations (docs/decisions, 0043).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

Settings = dict[str, str]

HarmlessBy = Mapping[str, tuple[str, ...]]
"""Names, by the reason for which they may differ."""

HARMLESS_FIELDS: HarmlessBy = {
    "a name, or who wrote the file": ("_name_or_path", "name_or_path", "transformers_version"),
    "which library loads the model, which is none of the engine's": (
        "_attn_implementation",
        "_experts_implementation",
        "auto_map",
    ),
    "the format in which weights are stored or computed with; the engine's own is compared": (
        "dtype",
        "torch_dtype",
    ),
    "what a token id means; prompts are compared token by token": (
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "tokenizer_class",
    ),
    "labels and losses of heads that make no KV": (
        "classifier_dropout",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
    ),
    "used in training alone": (
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "dropout",
        "embd_pdrop",
        "embedding_dropout",
        "gradient_checkpointing",
        "hidden_dropout",
        "hidden_dropout_prob",
        "initializer_range",
        "output_router_logits",
        "resid_pdrop",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "router_z_loss_coef",
    ),
    "what a call of transformers returns": (
        "chunk_size_feed_forward",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "use_cache",
        "use_return_dict",
    ),
    "how long requests may be; what follows from it is compared as it was built": (
        "context_len",
        "max_model_len",
    ),
    "how many tokens a draft guesses": ("num_lookahead_tokens",),
}
"""Fields of configurations, of whatever model, that do not change its KV."""

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
COMPUTED_WITH: Mapping[str, tuple[str, ...]] = {
    "hrm_text": ("initializer_range",),
    "longcat_flash": _TOKEN_IDS,
    "moondream3": _TOKEN_IDS,
    "qwen4_exp": _TOKEN_IDS,
}
"""Fields that are harmless elsewhere and that these models compute KV with, by the beginning of their ``model_type``.

Embeddings of n-grams begin anew behind the end of a text, images begin with a token's embedding, and a default scale
follows from the range of random weights.
"""
_EMBEDDED_BY_NEIGHBOURS = ("ngram", "per_layer_input")
"""Parts of names of fields whose models, listed above or not, embed special tokens in their own way: n-grams begin anew
at an end of text, and tokens of images are padding to an embedding for each layer."""
_OF_SAMPLING = "repeat"
"""In the name of a field of sampling, which may be about n-grams too."""

NAME_LENGTH_MAX = 128
VALUE_LENGTH_MAX = 96
SETTINGS_MAX = 640
_DIGEST_DIGITS = 12
_MODEL_TYPE = "model_type"
"""A field of each configuration of a model, or of a part of one."""


def names_in(harmless: HarmlessBy) -> frozenset[str]:
    """All names of such a list."""
    return frozenset(name for names in harmless.values() for name in names)


_HARMLESS_FIELDS = names_in(HARMLESS_FIELDS)


def model_name(model: str, model_id: str) -> str:
    """The name that sides compare: the user's ``model_id``, or the last part of the model's own."""
    return model_id or PurePath(model).name


def of_configuration(config: Any, *, without: Iterable[str] = (), prefix: str = "") -> Settings:
    """Each field of a model's configuration and of the configurations in it, except the harmless ones."""
    fields = {name: value for name, value in as_mapping(config).items() if name not in set(without)}
    return dict(_flattened(prefix, fields, _compared_of(fields)))


def harmless_in(fields: Mapping[Any, Any]) -> frozenset[str]:
    """The fields that are not compared in this configuration of a model, or of a part of one."""
    kind = str(fields.get(_MODEL_TYPE))
    used = {name for begin, names in COMPUTED_WITH.items() if kind.startswith(begin) for name in names}
    named = (str(name) for name, value in fields.items() if value)
    if any(_OF_SAMPLING not in name and mark in name for name in named for mark in _EMBEDDED_BY_NEIGHBOURS):
        used |= set(_TOKEN_IDS)
    return _HARMLESS_FIELDS - used


def _compared_of(fields: Mapping[Any, Any]) -> Callable[[str], bool]:
    harmless = harmless_in(fields)
    return lambda name: name not in harmless


def of_options(prefix: str, options: Any, harmless: HarmlessBy) -> Settings:
    """Each field of a dataclass of an engine's options, except the harmless ones."""
    skipped = names_in(harmless)
    fields = {name: getattr(options, name, None) for name in _option_names(options) if name not in skipped}
    return dict(_flattened(f"{prefix}.", fields, _everything))


def _option_names(options: Any) -> Iterable[str]:
    if dataclasses.is_dataclass(options):
        return [each.name for each in dataclasses.fields(options)]
    of_struct: Iterable[str] | None = getattr(options, "__struct_fields__", None)  # of msgspec, which SGLang uses
    return vars(options) if of_struct is None else of_struct


def bounded(settings: Settings) -> Settings:
    """At most SETTINGS_MAX settings with short names: those behind are compared by one digest."""
    short = {_shortened(name, NAME_LENGTH_MAX): value for name, value in settings.items()}
    if len(short) <= SETTINGS_MAX:
        return short
    items = list(short.items())
    kept, others = items[: SETTINGS_MAX - 1], items[SETTINGS_MAX - 1 :]
    return {**dict(kept), "all other settings": f"{len(others)} values, digest {_digest(repr(sorted(others)))}"}


def as_mapping(config: Any) -> Mapping[str, Any]:
    """A configuration's fields as they are in its file: transformers raises on one that differs between layers."""
    if isinstance(config, Mapping):
        return config
    with contextlib.suppress(Exception):  # a model's own class may have a broken one
        fields: Mapping[str, Any] = config.to_dict()
        return fields
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def text_of(value: object) -> str:
    """A value as a short text that is the same in all processes; a long one is cut, with a digest of the whole."""
    return _shortened(_text(value), VALUE_LENGTH_MAX, _count_of(value))


def _flattened(prefix: str, fields: Mapping[Any, Any], wanted: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    for name in sorted(fields, key=str):
        value = fields[name]
        if value is None or not wanted(str(name)):
            continue
        inner = _fields_in(value)
        if inner is None:
            yield f"{prefix}{name}", text_of(value)
        else:
            yield from _flattened(
                f"{prefix}{name}.", inner, _compared_of(inner) if _MODEL_TYPE in inner else _everything
            )


def _everything(name: str) -> bool:  # noqa: ARG001
    """No field is left out: the harmless names are those of models, and quantisations use them for other things."""
    return True


def _fields_in(value: object) -> Mapping[Any, Any] | None:
    """What is in a mapping or configuration; None for a value, and for a list written with its indices as keys."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(value, "to_dict") and not isinstance(value, type):
        return as_mapping(value)
    if isinstance(value, Mapping):
        return None if value and all(str(key).isdigit() for key in value) else value
    return None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.12g}"  # a number is the same whether its file has 8 or 8.0
    if isinstance(value, str | int | float | PurePath) or value is None:
        return str(value)
    inner = _fields_in(value)
    if inner is not None or isinstance(value, Mapping):
        fields: Mapping[Any, Any] = inner if inner is not None else value  # type: ignore[assignment]
        return "{" + ", ".join(f"{key}: {_text(fields[key])}" for key in sorted(fields, key=str)) + "}"
    if isinstance(value, set | frozenset):
        return "[" + ", ".join(sorted(map(_text, value))) + "]"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return _text_of_object(value)


def _text_of_object(value: object) -> str:
    if isinstance(value, type) or callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    text = str(value)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    return type(value).__qualname__  # its text may have an address, which no other process has


def _count_of(value: object) -> str:
    return f"{len(value)} values" if isinstance(value, list | tuple | set | frozenset | Mapping) else "a long text"


def _shortened(text: str, length_max: int, what: str = "") -> str:
    if len(text) <= length_max:
        return text
    digest = f"digest {_digest(text)}"
    return f"{what}, {digest}" if what else f"{text[: length_max - len(digest) - 3]}..., {digest}"[:length_max]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
