"""Options from environment variables, one for each: ``KV_MESSENGER_`` and the option's name in capitals. Pure."""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Literal

from kv_connector.exceptions import OptionError

Kind = Literal["string", "choice", "integer", "seconds", "share", "flag", "list of strings", "list of integers"]

PREFIX = "KV_MESSENGER_"
WITH_VARIABLES_OF_THEIR_OWN = frozenset({"shared_secret", "shared_secret_file", "java_home"})
"""Options whose variables have rules of their own, in the modules that read them."""
FLAGS = {"true": True, "1": True, "false": False, "0": False}
OTHER_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        *("CACHE", "JAVA_HOME", "OPTIONS", "SECRET", "SECRET_FILE"),
        *("BASE_PYTHON", "WHEEL_MACHINE", "HOLD_PASSES", "RECORDING", "RACE_NETWORK", "STATE_PICTURE"),
    )
)
"""Of this package, its build and its tests, with rules of their own."""
SERVICE_LINK = re.compile(r"_SERVICE_(?:HOST|PORT(?:_\w+)?)$|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?$")
"""Ends of the variables that Kubernetes sets for a service, besides NAME_PORT, which its value shows."""
OF_A_KUBERNETES_SERVICE = re.compile(r"(?:tcp|udp|sctp)://")


def variable_of(name: str) -> str:
    """The variable of an option; "" if it has none by this rule."""
    return "" if name in WITH_VARIABLES_OF_THEIR_OWN else PREFIX + name.upper()


def given_in(kinds: Mapping[str, Kind], environment: Mapping[str, str]) -> dict[str, object]:
    """The options that are set by variables, converted to their types but not checked further; raises OptionError."""
    given = {name: (variable_of(name), kind) for name, kind in kinds.items() if environment.get(variable_of(name), "")}
    return {name: _value(variable, kind, environment[variable]) for name, (variable, kind) in given.items()}


def places(sentence: str, of_variables: Iterable[str]) -> str:
    """What to add to an error message about options that variables have set: else it would name the wrong place."""
    named = [variable_of(name) for name in sorted(of_variables) if re.search(rf"\b{name}\b", sentence)]
    return (
        f" ({' and '.join(named)} of the environment {'sets it' if len(named) == 1 else 'set them'})" if named else ""
    )


def unknown_in(kinds: Mapping[str, Kind], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with the prefix that nothing reads, each with the nearest known name or "": misspelt, most likely.

    Kubernetes sets such variables for services whose names begin with kv-messenger; those are left out.
    """
    known = [name.upper() for name in kinds] + [name.removeprefix(PREFIX) for name in sorted(OTHER_VARIABLES)]
    return {
        name: PREFIX + near[0] if (near := difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)) else ""
        for name, value in environment.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known and not _is_service_link(name, value)
    }


def unknown_sentences(kinds: Mapping[str, Kind], environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable of :func:`unknown_in`."""
    return [
        f"environment variable {name} is no option of KV Messenger's and changes nothing:"
        f" {f'did you mean {near}?' if near else 'unset it, or see docs/options.md for the names'}"
        for name, near in unknown_in(kinds, environment).items()
    ]


def _is_service_link(name: str, value: str) -> bool:
    return bool(SERVICE_LINK.search(name)) or bool(OF_A_KUBERNETES_SERVICE.match(value))


def _value(variable: str, kind: Kind, text: str) -> object:
    if OF_A_KUBERNETES_SERVICE.match(text):
        raise OptionError(
            f"environment variable {variable} is {text!r}, which Kubernetes sets for a service of that name and which"
            " is no value of the option: set enableServiceLinks: false in the pod, or name the service otherwise"
        )
    match kind:
        case "string" | "choice":
            return text
        case "integer" | "seconds" | "share":
            return _number(variable, kind, text)
        case "flag":
            if text not in FLAGS:
                raise _wrong(variable, text, f"one of {', '.join(FLAGS)}")
            return FLAGS[text]
        case "list of strings":
            return _texts(variable, text)
        case "list of integers":
            return [_number(variable, "integer", str(part)) for part in _texts(variable, text)]


def _number(variable: str, kind: Kind, text: str) -> int | float:
    try:
        return int(text) if kind == "integer" else float(text)
    except ValueError:
        expected = {"integer": "an integer", "share": "a number"}.get(kind, "a number of seconds")
        raise _wrong(variable, text, expected) from None


def _texts(variable: str, text: str) -> list[object]:
    if not text.startswith("["):
        return [part.strip() for part in text.split(",")]
    try:
        return list(json.loads(text))
    except (ValueError, RecursionError):
        raise _wrong(variable, text, "strings with commas between them, or a JSON list of strings") from None


def _wrong(variable: str, text: str, expected: str) -> OptionError:
    return OptionError(
        f"environment variable {variable} is {reprlib.repr(text)}, expected {expected}: fix it, or unset it"
    )
