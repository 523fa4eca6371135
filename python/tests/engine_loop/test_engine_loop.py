"""The engine in the loop: clean for 3,000 requests, half of them with each release of vLLM; not so on broken code."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine_loop.vllm_release import RELEASES, SLEEPING

REQUESTS = int(os.environ.get("LOOP_REQUESTS", "3000"))
SEED = int(os.environ.get("LOOP_SEED", "1"))
LIMIT_SECONDS = 3600.0 + REQUESTS
"""Thirty times what it takes on a quiet core."""
CLEAN_KINDS = (
    *("beginnings", "logprobs", "children", "long-ids", "reused-id", "same-id", "retried", "prefiller-queue"),
    *(
        "decoder-queue",
        "aborts",
        "aborts-known",
        "crossed",
        "routes",
        "tenants",
        "preemption",
        "mixed",
        "rejected",
        "rejected-once",
        "windows",
        "chunks",
        "states",
        "goes-on",
    ),
)


SHADOWED_KINDS = ("windows", "states", "chunks", "preemption", "aborts", "mixed")
SHADOWED_REQUESTS = 300
SLEEP_REQUESTS = 400
PULLING_REQUESTS = 160
ENDED_REQUESTS = 240
"""Each second of their worlds has a pull from an engine that ends before all has arrived, whatever the pace."""
PULLING_KINDS = "pulls,pulls-counted,pulls-left,pulls-evicted,pulls-twins,pulls-ranks,pulls-windows,pulls-updated"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: a process runs one release of vLLM, and one JVM."""
    command = [sys.executable, str(Path(__file__).parent), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TMPDIR": folder}
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=False, env=environment
        )
        assert not list(Path(folder).iterdir()), "it leaves nothing behind"
    return ended


def test_should_find_every_fault_that_was_put_in() -> None:
    ended = run("--mutants", "--world", "40")
    assert ended.returncode == 0, ended.stdout
    assert "found: " in ended.stdout


def test_should_not_stand_still_where_it_once_did() -> None:
    ended = run("--worlds", "crossed:31,mixed:11,mixed:45,same-id:2,same-id:44,same-id:48", "--keep-going")
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("release", RELEASES)
def test_should_serve_every_request_right(release: str) -> None:
    requests = str(REQUESTS // len(RELEASES))
    ended = run("--release", release, "--kind", ",".join(CLEAN_KINDS), "--requests", requests, "--seed", str(SEED))
    assert ended.returncode == 0, ended.stdout
    print(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("release", SLEEPING)
def test_should_serve_what_comes_between_sleeps_right(release: str) -> None:
    ended = run("--release", release, "--kind", "sleep", "--requests", str(SLEEP_REQUESTS), "--seed", str(SEED))
    assert ended.returncode == 0, ended.stdout
    for mode in ("abort", "wait", "keep"):
        assert f"'{mode}': " in ended.stdout, ended.stdout


@pytest.mark.parametrize("release", RELEASES)
def test_should_pull_what_other_engines_hold(release: str) -> None:
    requests = str(PULLING_REQUESTS)
    ended = run("--release", release, "--kind", PULLING_KINDS, "--requests", requests, "--world", "20")
    assert ended.returncode == 0, ended.stdout
    for outcome in ("arrived", "not_held", "aborted"):
        assert f"'{outcome}': " in ended.stdout, ended.stdout


@pytest.mark.parametrize("release", RELEASES)
def test_should_compute_what_an_engine_that_ends_has_not_sent(release: str) -> None:
    requests = str(ENDED_REQUESTS)
    ended = run("--release", release, "--kind", "pulls-ended", "--requests", requests, "--world", "20")
    assert ended.returncode == 0, ended.stdout
    for outcome in ("arrived", "unreachable", "failed"):
        assert f"'{outcome}': " in ended.stdout, ended.stdout


@pytest.mark.parametrize("release", RELEASES)
def test_should_prove_pairs_by_shadow_fetches_beside_all_traffic(release: str) -> None:
    kinds, requests = ",".join(SHADOWED_KINDS), str(SHADOWED_REQUESTS)
    ended = run("--release", release, "--kind", kinds, "--requests", requests, "--shadows")
    assert ended.returncode == 0, ended.stdout
    compared = next(line for line in ended.stdout.splitlines() if line.startswith("shadow fetches: "))
    assert "'compared': " in compared
    print(compared)
