"""The ranks of a trainer whose model FSDP2 has split, each a process (`fsdp_trainer.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from faults import Gate
from weights_bed import Served

RANKS: Final = 2
TRAINER: Final = Path(__file__).with_name("fsdp_trainer.py")


class Trainer:
    """A process for each rank, which sends when it is asked to."""

    def __init__(
        self,
        servers: Sequence[Served],
        store: Path,
        gate: Gate | None = None,
        *,
        ranks: int = RANKS,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """The last rank's writes pass the gate, if there is one."""
        options = {} if gate is None else {"KV_MESSENGER_JVM_OPTIONS": ",".join(gate.jvm_options)}
        urls = [served.server.url for served in servers]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(TRAINER), str(rank), str(ranks), str(store), *urls],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | environment | (options if rank == ranks - 1 else {}),
            )
            for rank in range(ranks)
        ]

    def send(self, folder: Path, version: int, dies_before: str = "", dying: int = -1) -> list[dict[str, Any]]:
        """What each rank reports; nothing of a rank that died."""
        self.begin(folder, version, dies_before, dying)
        return self.reports()

    def send_all(self, folder: Path, version: int) -> list[dict[str, Any]]:
        """What the ranks report of an update in which each has sent its own part of the model, and gathered nothing."""
        sent = self.send(folder, version)
        print("trainer:", sent)
        assert [each["failure"] for each in sent] == [""] * len(self.ranks)
        assert [each["gathered"] for each in sent] == [0] * len(self.ranks)
        assert sum(each["bytes"] for each in sent) == sent[0]["whole"]
        return sent

    def begin(self, folder: Path, version: int, dies_before: str = "", dying: int = -1) -> None:
        for rank, process in enumerate(self.ranks):
            step = dies_before if rank == dying else ""
            assert process.stdin is not None
            print(
                json.dumps({"folder": str(folder), "version": version, "dies_before": step}),
                file=process.stdin,
                flush=True,
            )

    def reports(self) -> list[dict[str, Any]]:
        lines = [process.stdout.readline() for process in self.ranks if process.stdout is not None]
        return [json.loads(line) if line else {} for line in lines]

    def end(self) -> None:
        for process in self.ranks:
            process.kill()
            process.wait()
