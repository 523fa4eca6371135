"""How the fields of options.Options are declared: a default, and what else is known of an option, in its metadata."""

from __future__ import annotations

import dataclasses
from typing import Any

from kv_connector.configuration.option_values import OptionSpec

WAIT_MAX_SECONDS = 86_400.0
METADATA_KEY = "kv_messenger_option"


def text(sentence: str, default: str, **more: Any) -> Any:
    """A string."""
    return _option(default, OptionSpec(kind="string", sentence=sentence, **more))


def choice(sentence: str, default: str, **more: Any) -> Any:
    """One of `choices`."""
    return _option(default, OptionSpec(kind="choice", sentence=sentence, **more))


def integer(sentence: str, default: int, **more: Any) -> Any:
    """A whole number."""
    return _option(default, OptionSpec(kind="integer", sentence=sentence, **more))


def seconds(sentence: str, default: float, **more: Any) -> Any:
    """A time in seconds, at most WAIT_MAX_SECONDS."""
    limits = {"minimum": 0.001, "maximum": WAIT_MAX_SECONDS} | more
    return _option(default, OptionSpec(kind="seconds", sentence=sentence, unit="s", **limits))


def share(sentence: str, default: float, **more: Any) -> Any:
    """A part of a whole, from 0 to 1."""
    limits = {"minimum": 0.0, "maximum": 1.0} | more
    return _option(default, OptionSpec(kind="share", sentence=sentence, **limits))


def flag(sentence: str, default: bool, **more: Any) -> Any:
    """True or false."""
    return _option(default, OptionSpec(kind="flag", sentence=sentence, **more))


def integers(sentence: str, default: tuple[int, ...], **more: Any) -> Any:
    """A list of whole numbers."""
    return _option(default, OptionSpec(kind="list of integers", sentence=sentence, **more))


def texts(sentence: str, default: tuple[str, ...], **more: Any) -> Any:
    """A list of strings."""
    return _option(default, OptionSpec(kind="list of strings", sentence=sentence, **more))


def _option(default: object, spec: OptionSpec) -> Any:
    return dataclasses.field(default=default, metadata={METADATA_KEY: spec}, repr=not spec.secret)
