"""Writes what Java's ``OptionsTest`` reads: ``python tests/options_for_java.py > ../FILE``, with the path in ``FILE``.

For each option that Java is to read it has what a messenger is opened with if the option is set to another value than
its default. So an option that only one side has fails a test of the other.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

from kv_connector import parse_options
from kv_connector.configuration.java_values import boundary_name
from kv_connector.configuration.option_values import OptionSpec, Place, checked
from kv_connector.configuration.options import OPTION_SPECS

FILE = Path("connector-java/connector/src/test/resources/options.json")


def options_for_java() -> str:
    options = parse_options({}, role="prefiller", engine_id="e", environment={})
    passed = options.for_java()
    described: dict[str, dict[str, Any]] = {}
    for name, spec in OPTION_SPECS.items():
        value = checked(Place.configuration(name, "a test"), spec, _other(name, spec, getattr(options, name)))
        changed = dataclasses.replace(options, **{name: value}).for_java()
        assert (boundary_name(name) in changed) == spec.java, name
        if spec.java:
            described[name] = {"changes": {key: changed[key] for key in changed if changed[key] != passed[key]}}
            if spec.choices:
                described[name]["choices"] = spec.choices
            if spec.kind in ("integer", "list of integers"):
                described[name]["limits"] = [spec.minimum, spec.maximum]
    return json.dumps({"passed": passed, "options": described}, indent=1) + "\n"


def _other(name: str, spec: OptionSpec, value: Any) -> object:
    match spec.kind:
        case "string":
            return f"another {name}"
        case "choice":
            return next(choice for choice in spec.choices if choice != value)
        case "integer" | "seconds" | "share":
            assert math.isfinite(spec.maximum), name
            return spec.maximum if value != spec.maximum else spec.minimum
        case "flag":
            return not value
        case "list of strings":
            return [choice for choice in spec.choices if choice not in value][:1] or [f"another {name}"]
        case "list of integers":
            return [spec.maximum]


if __name__ == "__main__":
    sys.stdout.write(options_for_java())
