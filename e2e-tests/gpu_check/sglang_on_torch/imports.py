"""Imports what a server of SGLang imports, in a process of its own, and prints what is missing.

    python -m gpu_check.sglang_on_torch.imports

A module that is missing is replaced by a placeholder, and the import tried again. The last line is a JSON list of those
that were replaced; a fault of another kind is a traceback and status 1.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

from gpu_check.sglang_on_torch.absent import MORE, absent

MODULES = (
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.llama",
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.disaggregation.prefill",
    "sglang.srt.disaggregation.decode",
    "sglang.srt.entrypoints.http_server",
    "sglang.launch_server",
)
TRIES = 30


def missing_for(module: str) -> list[str]:
    """The top-level modules that had to be replaced for this import; raises where that does not help."""
    replaced: list[str] = []
    for _ in range(TRIES):
        try:
            importlib.import_module(module)
            break
        except ModuleNotFoundError as fault:
            name = (fault.name or "").partition(".")[0]
            if not name or name == "sglang" or name in absent():
                raise
            replaced.append(name)
            os.environ[MORE] = ",".join([*filter(None, [os.environ.get(MORE)]), name])
    return replaced


def main() -> int:
    replaced: list[str] = []
    status = 0
    for module in MODULES:
        try:
            replaced += missing_for(module)
        except Exception:
            traceback.print_exc()
            print(f"{module} cannot be imported", file=sys.stderr)
            status = 1
    print(json.dumps(replaced))
    return status


if __name__ == "__main__":
    sys.exit(main())
