"""Asks a reference engine, and caches its answers outside the tree: equal questions have equal answers."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prompts import cache_home

SCRIPT_LIMIT_SECONDS = 900.0
Answers = list[list[str]]
"""The words of each prompt's answer."""


def base_python() -> str:
    """The interpreter of the base environment, in which KV Messenger is not installed."""
    return os.environ["KV_MESSENGER_BASE_PYTHON"]  # set by examples/setup/environment


def question(model: Path, prompts: Sequence[str], max_tokens: int) -> str:
    return json.dumps({"model": str(model), "prompts": list(prompts), "max_tokens": max_tokens})


def kept_answers(of_what: Sequence[str], ask: Callable[[], Answers]) -> Answers:
    """The cached answers for the strings ``of_what``, on which they depend; calls ``ask`` if there are none."""
    digest = hashlib.sha256()
    for part in of_what:
        digest.update(hashlib.sha256(part.encode()).digest())
    kept = cache_home() / "references" / f"{digest.hexdigest()[:16]}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with open(kept.with_suffix(".lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may wait for the same answers
        if not kept.exists():
            partial = kept.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(ask()), encoding="utf-8")
            partial.rename(kept)
    answers: Answers = json.loads(kept.read_text(encoding="utf-8"))
    return answers


def ask_script(script: Path, question: str, environment: Mapping[str, str]) -> Answers:
    """Runs ``script`` with the question on standard input; it writes the answers to the file in its argument."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        run = subprocess.run(
            [base_python(), str(script), str(answer)],
            input=question,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            timeout=SCRIPT_LIMIT_SECONDS,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(f"the reference {script.stem} failed:\n{run.stdout[-4000:]}")
        answers: Answers = json.loads(answer.read_text(encoding="utf-8"))
        return answers
