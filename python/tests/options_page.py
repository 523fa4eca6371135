"""Writes docs/options.md from the table of options: ``python tests/options_page.py > ../docs/options.md``."""

from __future__ import annotations

import dataclasses
import json
import math
import sys

from kv_connector.configuration.option_values import OptionSpec
from kv_connector.configuration.options import OPTION_SPECS, Options


def options_page() -> str:
    lines = [
        "# Options",
        "",
        "Made from `kv_connector/configuration/options.py`; edit that, not this page. With vLLM put options into",
        "`kv_connector_extra_config` of `--kv-transfer-config`; with SGLang put them as a JSON object into the",
        "environment variable `KV_MESSENGER_OPTIONS`. An unknown name, a wrong type or a value out of range is refused",
        "with an error before the messenger starts.",
        "",
        "An option that is not set there can be set in the environment of all of the engine's processes:",
        "`KV_MESSENGER_` and the name in capitals, for example `KV_MESSENGER_LISTEN_PORT=7100`. A flag is `true` or",
        "`false`; a list has commas between its strings, or is a JSON list. `java_home` and the shared secret have",
        "variables of their own, named below.",
        "",
        "| option | type | default | limits | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for field in dataclasses.fields(Options):
        spec = OPTION_SPECS.get(field.name)
        if spec is not None:
            default = spec.default_shown or _default_shown(field.default)
            lines.append(f"| `{field.name}` | {spec.kind} | {default} | {_limits(spec)} | {spec.sentence} |")
    return "\n".join(lines) + "\n"


def _default_shown(default: object) -> str:
    match default:
        case bool():
            return f"`{str(default).lower()}`"
        case tuple():
            return f"`{json.dumps(default)}`"
        case float():
            return f"`{default:g}`"
        case _:
            return f"`{default}`"


def _limits(spec: OptionSpec) -> str:
    if spec.choices:
        return ("one of " if spec.kind == "choice" else "some of ") + ", ".join(
            f"`{choice}`" for choice in spec.choices
        )
    if math.isfinite(spec.minimum):
        return f"{spec.minimum:g} to {spec.maximum:g}{' ' * bool(spec.unit)}{spec.unit}"
    return "none"


if __name__ == "__main__":
    sys.stdout.write(options_page())
