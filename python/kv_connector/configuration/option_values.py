"""What an option's value may be, and the check of one value. Pure; the table of options is in options.py."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Sequence

from kv_connector.configuration import option_variables
from kv_connector.exceptions import OptionError

TEXT_LENGTH_MAX = 4096
"""The longest path that Linux takes; names, addresses and secrets are shorter."""
SHOWN_LENGTH_MAX = 200
"""Of a value in an error message."""


@dataclasses.dataclass(frozen=True, slots=True)
class OptionSpec:
    """The type, limits and description of one option."""

    kind: option_variables.Kind
    sentence: str
    java: bool = True
    """Whether Java reads it."""
    unit: str = ""
    minimum: float = -math.inf
    maximum: float = math.inf
    choices: tuple[str, ...] = ()
    default_shown: str = ""
    """The default's text in the docs, if the bare value would mislead."""
    secret: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a value was set, for error messages."""

    subject: str
    remedy: str

    @classmethod
    def configuration(cls, name: str, place: str) -> Place:
        """An entry of the engine's configuration, at a place that the remedy names."""
        return cls(f"option {name!r}", f"fix it in {place}")

    @classmethod
    def variable(cls, name: str) -> Place:
        """A variable of the environment."""
        return cls(f"environment variable {option_variables.variable_of(name)}", "fix it, or unset it")


def checked(place: Place, spec: OptionSpec, value: object) -> object:
    """The value in its type; raises OptionError, one sentence."""
    match spec.kind:
        case "string":
            if not isinstance(value, str):
                raise _wrong(place, spec, value, "a string")
            _check_text(place, spec, value)
            return value
        case "choice":
            if value not in spec.choices:
                raise _wrong(place, spec, value, f"one of {', '.join(spec.choices)}")
            return value
        case "flag":
            if not isinstance(value, bool):
                raise _wrong(place, spec, value, "true or false")
            return value
        case "integer":
            if isinstance(value, bool) or not isinstance(value, int):
                raise _wrong(place, spec, value, "an integer")
            return _in_range(place, spec, value)
        case "seconds":
            if not _is_number(value):
                raise _wrong(place, spec, value, "a number of seconds")
            assert isinstance(value, int | float)
            return float(_in_range(place, spec, value))
        case "share":
            if not _is_number(value):
                raise _wrong(place, spec, value, "a number")
            assert isinstance(value, int | float)
            return float(_in_range(place, spec, value))
        case "list of strings":
            return _checked_texts(place, spec, value)
        case "list of integers":
            return _checked_integers(place, spec, value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _check_text(place: Place, spec: OptionSpec, text: str) -> None:
    """Refuses what no path, name, address or secret is, so that no later check has to foresee it."""
    if len(text) > TEXT_LENGTH_MAX:
        raise _wrong(place, spec, text, f"at most {TEXT_LENGTH_MAX} characters ({len(text)} are given)")
    if not encodable(text):
        raise _wrong(place, spec, text, "UTF-8 text")
    if not spec.secret and any(ord(character) < ord(" ") for character in text):
        raise _wrong(place, spec, text, "text without control characters such as a line end")


def encodable(text: str) -> bool:
    """Whether it is UTF-8: bytes of the environment that are not, and half of a JSON escape, are lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object) -> str:
    """The value for an error message, shortened."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = SHOWN_LENGTH_MAX
    return shortener.repr(value)


def _checked_texts(place: Place, spec: OptionSpec, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
        raise _wrong(place, spec, value, "a list of strings")
    texts = tuple(value)
    for text in texts:
        _check_text(place, spec, text)
    if spec.choices and (not texts or len(set(texts)) < len(texts) or not set(texts) <= set(spec.choices)):
        raise _wrong(place, spec, value, f"a list with one or more of {', '.join(spec.choices)}, each once")
    return texts


def _checked_integers(place: Place, spec: OptionSpec, value: object) -> tuple[int, ...]:
    numbers = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise _wrong(place, spec, value, "a list of integers")
    return tuple(int(_in_range(place, spec, int(str(number)))) for number in numbers)


def _in_range(place: Place, spec: OptionSpec, value: int | float) -> int | float:
    if not spec.minimum <= value <= spec.maximum:
        raise _wrong(
            place, spec, value, f"a value from {spec.minimum:g} to {spec.maximum:g}{' ' * bool(spec.unit)}{spec.unit}"
        )
    return value


def _wrong(place: Place, spec: OptionSpec, value: object, expected: str) -> OptionError:
    seen = shown(value)
    if spec.secret:
        seen = "not shown" if isinstance(value, str) else "of another type"
    return OptionError(f"{place.subject} is {seen}, expected {expected}: {place.remedy}")
