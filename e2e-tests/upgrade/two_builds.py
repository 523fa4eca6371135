"""Moves pages between this tree's build and an earlier one, each as prefiller and as decoder, over shm and tcp.

    two_builds.py [--earlier REVISION]

The earlier build is made from the repository's history, once, into the cache. Both sides are ``kv-messenger ping`` of
their own tree, Python and jar, with a shared secret: so frames, transcripts, seals and data sockets meet as well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EARLIER = "91cea70b5ea42a91c371d1150ab68d73ab66f85c"
"""The last build that demands its own version of a peer: all later ones name a range."""
SECRET = "a secret of both builds"
TRANSPORTS = ("shm", "tcp")
LIMIT_SECONDS = 120


@dataclass(frozen=True)
class Build:
    """A tree that holds `kv_connector` with its jar."""

    name: str
    tree: Path

    def ping(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kv_connector", "ping", *arguments]
        environment = os.environ | {"PYTHONPATH": str(self.tree / "python")}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd="/"
        )


def cache() -> Path:
    return Path(os.environ.get("KV_MESSENGER_CACHE") or Path.home() / ".cache" / "kv-messenger")


def earlier_build(revision: str) -> Build:
    """The tree of that revision with its jar, made where it is not there."""
    named = subprocess.run(
        ["git", "rev-parse", "--verify", f"{revision}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if named.returncode != 0:
        sys.exit(f"--earlier is {revision!r}, and this repository's history has no such commit: fetch all of it")
    commit = named.stdout.strip()
    tree = cache() / f"build-{commit[:12]}"
    if not (tree / "python" / "kv_connector" / "_jar" / "kv-messenger.jar").is_file():
        print(f"building {commit[:12]}", flush=True)
        tree.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
        subprocess.run(["examples/setup/with-jdk", "mvn", "-B", "-q", "-DskipTests", "package"], cwd=tree, check=True)
    return Build(f"build {commit[:12]}", tree)


def config(role: str, transport: str) -> list[str]:
    options = {"transports": [transport], "aot_cache": False, "shared_secret": SECRET, "listen_port": 0}
    transfer_config = {"kv_connector": "KvMessengerConnector", "kv_role": role, "kv_connector_extra_config": options}
    return ["--kv-transfer-config", json.dumps(transfer_config)]


def moved(prefiller: Build, decoder: Build, transport: str) -> tuple[bool, str]:
    """Whether all pages came over that transport, byte for byte; and the last lines of both sides."""
    with prefiller.ping("--answer", *config("kv_producer", transport)) as answering:
        assert answering.stdout is not None
        try:
            line = answering.stdout.readline()
            at = re.search(r"answers at (\S+:\d+)", line)
            if not at:
                return False, line + (answering.stdout.read() if answering.poll() is not None else "")
            with decoder.ping(at[1], *config("kv_consumer", transport)) as asking:
                asked, _ = asking.communicate(timeout=LIMIT_SECONDS)
        finally:
            answering.terminate()
        answered = answering.stdout.read()
    well = asking.returncode == 0 and "every byte was compared" in asked and f"over {transport}\n" in answered
    return well, asked + answered


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Moves pages between this tree's build and an earlier one.")
    parser.add_argument("--earlier", default=EARLIER, help="revision of the earlier build")
    earlier = earlier_build(parser.parse_args(arguments).earlier)
    current = Build("this build", ROOT)
    failed = 0
    for prefiller, decoder in ((earlier, current), (current, earlier)):
        for transport in TRANSPORTS:
            well, output = moved(prefiller, decoder, transport)
            failed += not well
            print(f"{'ok' if well else 'FAILED'}: {prefiller.name} to {decoder.name} over {transport}", flush=True)
            if not well:
                print(output, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
