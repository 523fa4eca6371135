"""Settings as texts: the same in all processes, short, and compared unless a list names them."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.naming.model_settings import (
    HARMLESS_FIELDS,
    NAME_LENGTH_MAX,
    SETTINGS_MAX,
    VALUE_LENGTH_MAX,
    bounded,
    model_name,
    names_in,
    of_configuration,
    of_options,
    text_of,
)


class Kind(enum.Enum):
    FAST = 1


@dataclasses.dataclass
class Options:
    scale: float = 1.0
    served_as: str = ""
    inner: Any = None
    of_a_later_release: Any = None


class Config:
    """As transformers makes one: fields, configurations in it, and what only its file says of single layers."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def to_dict(self) -> dict[str, Any]:
        return dict(self._fields)


@pytest.mark.parametrize(
    ("one", "other"),
    [(8, 8.0), (500000, 5e5), ((1, 2), [1, 2]), ({"a", "b"}, {"b", "a"}), ({"b": 1, "a": [2]}, {"a": [2], "b": 1.0})],
    ids=repr,
)
def test_should_write_equal_values_alike(one: object, other: object) -> None:
    assert text_of(one) == text_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 2), (1e-5, 1e-6), (True, False), ("a", "b"), ([1, 2], [2, 1]), ([1.0] * 90, [1.0] * 91), (Kind.FAST, "SLOW")],
    ids=lambda value: repr(value)[:20],
)
def test_should_write_other_values_otherwise(one: object, other: object) -> None:
    assert text_of(one) != text_of(other)


def test_should_write_readable_values_and_cut_long_ones() -> None:
    assert [text_of(each) for each in (True, 4, 1e-5, "silu", None, Kind.FAST, [1, "a"], Path("/a"))] == [
        *("true", "4", "1e-05", "silu", "None", "FAST", "[1, a]", "/a")
    ]
    long = text_of([float(index) for index in range(400)])
    assert long.startswith("400 values, digest ")
    assert max(map(len, (long, text_of("x" * 4096)))) <= VALUE_LENGTH_MAX


def test_should_write_no_address_of_this_process() -> None:
    assert text_of(object()) == text_of(object()) == "object"
    assert text_of(Callable) == text_of(Callable)
    assert "0x" not in text_of([object(), lambda: 1])


def test_should_take_fields_of_parts_by_their_whole_names_and_leave_out_what_is_none() -> None:
    config = Config(
        model_type="tiny", rope_parameters={"rope_type": "yarn", "factor": 4.0}, sliding_window=None, dtype="bfloat16"
    )
    assert of_configuration(config) == {
        "model_type": "tiny",
        "rope_parameters.factor": "4",
        "rope_parameters.rope_type": "yarn",
    }


def test_should_see_what_differs_between_layers() -> None:
    two, again, four = (Config(per_layer_config={"1": {"num_key_value_heads": heads}}) for heads in (2, 2, 4))
    assert of_configuration(two) == of_configuration(again) != of_configuration(four)


@pytest.mark.parametrize("name", sorted(names_in(HARMLESS_FIELDS)))
def test_should_leave_out_what_is_harmless_in_a_model_and_nowhere_else(name: str) -> None:
    assert of_configuration(Config(**{name: "x"})) == {}
    part = {"model_type": "vision", name: "x"}
    assert of_configuration(Config(vision_config=part)) == {"vision_config.model_type": "vision"}
    assert of_configuration(Config(quantization_config={name: "x"})) == {f"quantization_config.{name}": "x"}


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "pad_token_id"])
@pytest.mark.parametrize("field", ["ngram_vocab_size_ratio", "ngram_size", "hidden_size_per_layer_input"])
def test_should_see_special_tokens_of_a_model_that_embeds_them_in_its_own_way(name: str, field: str) -> None:
    for parts in (lambda fields: fields, lambda fields: {"text_config": {"model_type": "inner", **fields}}):
        one, other = (of_configuration(parts({field: 2, name: token})) for token in (1, 2))
        assert one != other, "LongCat's n-grams begin anew at an end of text, Gemma pads where an image is"
        assert of_configuration(parts({field: None, name: 1})) == of_configuration(parts({field: None, name: 2}))
        assert of_configuration(parts({"no_repeat_ngram_size": 3, name: 1})) == of_configuration(
            parts({"no_repeat_ngram_size": 3, name: 2})
        )


def test_should_read_a_configuration_whose_own_method_is_broken() -> None:
    class Broken:
        def __init__(self) -> None:
            self.hidden_size = 8

        def to_dict(self) -> dict[str, Any]:
            raise ValueError("no")

    assert of_configuration(Broken()) == {"hidden_size": "8"}


def test_should_compare_options_of_which_no_list_knows() -> None:
    harmless = {"a name": ("served_as",)}
    plain = of_options("engine", Options(served_as="a"), harmless)
    assert plain == of_options("engine", Options(served_as="b"), harmless) == {"engine.scale": "1"}
    later = of_options("engine", Options(of_a_later_release={"on": True}, inner=Options(scale=2.5)), harmless)
    assert later == {
        "engine.inner.scale": "2.5",
        "engine.inner.served_as": "",
        "engine.of_a_later_release.on": "true",
        "engine.scale": "1",
    }
    assert of_options("engine", SimpleNamespace(scale=1.0), harmless) == {"engine.scale": "1"}


def test_should_bound_what_is_sent_and_still_see_each_difference() -> None:
    many = {f"field{index:05d}" + "x" * 200: "1" for index in range(3 * SETTINGS_MAX)}
    sent = bounded(many)
    assert len(sent) == SETTINGS_MAX
    assert max(map(len, sent)) <= NAME_LENGTH_MAX
    assert len(json.dumps(sent)) < 200_000, "with the geometry it must fit into a frame of the handshake"
    for changed in (next(iter(many)), list(many)[-1]):
        assert bounded({**many, changed: "2"}) != sent
    assert bounded({"a": "1"}) == {"a": "1"}


def test_should_name_a_model_by_the_users_word_or_its_folder() -> None:
    assert model_name("/models/tiny/", "") == model_name("elsewhere/tiny", "") == "tiny"
    assert model_name("/models/tiny", "ours") == "ours"
