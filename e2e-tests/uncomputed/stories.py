"""Short programs on a CUDA that computes nothing, each in a process of its own that need not import torch again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from warm_starts import WarmLauncher

from uncomputed.pair import FOLDER, LIMIT_SECONDS, Wanted, environment, stand_ins

PRELOADED = ("setproctitle", "torch", "torch.utils._python_dispatch")


class Stories:
    """One runs at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given = environment(stand_ins()) | {"PYTHONPATH": str(FOLDER)}
        self._launcher = WarmLauncher(PRELOADED, lambda: self._given)
        self._count = 0

    def run(self, program: str, **given: Any) -> dict[str, Any]:
        """What it prints in its last line, a JSON object; its argument is one of what is given."""
        self._count += 1
        log = self._folder / f"{self._count}.log"
        wanted = Wanted(log, {**os.environ, **self._given})
        with open(log, "ab") as lines:
            arguments = [program, json.dumps(given)]
            process = self._launcher.start(cast(Any, wanted), "", "uncomputed.story", arguments, lines)
        status = process.wait(LIMIT_SECONDS)
        output = log.read_text("utf-8")
        assert status == 0, output
        return dict(json.loads(output.splitlines()[-1]))

    def stop(self) -> None:
        self._launcher.stop()
