"""The prompts of the demo and of the tests, and what a single plain vLLM answers to them.

The reference is one vLLM without any connector, run in the environment in which KV Messenger is not even installed.
Its answers are kept by model, versions, prompts and this file, since the same question has the same answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from servers import CHUNK_TOKENS, ENGINE_ENVIRONMENT, PAGE_TOKENS, core_binding

FIRST_ORDINARY_TOKEN = 4  # 0 to 3 are begin, end, padding and unknown
VOCABULARY_SIZE = 512
REFERENCE_LIMIT_SECONDS = 900.0


def random_prompt(token_count: int, seed: int) -> str:
    draw = random.Random(seed * 100_003 + token_count)
    return " ".join(f"w{draw.randrange(FIRST_ORDINARY_TOKEN, VOCABULARY_SIZE)}" for _ in range(token_count))


def cache_home() -> Path:
    return Path(os.environ.get("KV_MESSENGER_CACHE") or Path.home() / ".cache" / "kv-messenger")


def reference_answers(
    model: Path, prompts: Sequence[str], max_tokens: int, progress: Callable[[str], None]
) -> list[list[str]]:
    """The words a single plain vLLM answers to each prompt."""
    python = os.environ["KV_MESSENGER_BASE_PYTHON"]  # set by examples/setup/environment
    question = json.dumps({"model": str(model), "prompts": list(prompts), "max_tokens": max_tokens})
    digest = hashlib.sha256()
    for part in (question, python, Path(__file__).read_text(encoding="utf-8")):
        digest.update(part.encode())
    kept = cache_home() / "references" / f"{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        progress(f"asking a single plain vLLM for its {len(prompts)} answers (once; kept in {kept})")
        kept.parent.mkdir(parents=True, exist_ok=True)
        ask_plain_vllm(python, question, kept)
    answers: list[list[str]] = json.loads(kept.read_text(encoding="utf-8"))
    return answers


def ask_plain_vllm(python: str, question: str, kept: Path) -> None:
    environment = {
        **os.environ,
        **ENGINE_ENVIRONMENT,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": core_binding(0),
    }
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        run = subprocess.run(
            [python, str(Path(__file__).resolve()), str(answer)],
            input=question,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=REFERENCE_LIMIT_SECONDS,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(f"the reference vLLM failed:\n{run.stdout[-4000:]}")
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(answer.read_text(encoding="utf-8"), encoding="utf-8")
        partial.rename(kept)


def answer_as_plain_vllm(answer: Path) -> None:
    from vllm import LLM, SamplingParams

    question = json.load(sys.stdin)
    llm = LLM(
        model=question["model"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_batched_tokens=CHUNK_TOKENS,
        max_num_seqs=16,
        block_size=PAGE_TOKENS,
        enable_prefix_caching=False,
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=question["max_tokens"], ignore_eos=True, skip_special_tokens=False
    )
    outputs = llm.generate(question["prompts"], sampling, use_tqdm=False)
    answer.write_text(json.dumps([output.outputs[0].text.split() for output in outputs]), encoding="utf-8")


if __name__ == "__main__":
    answer_as_plain_vllm(Path(sys.argv[1]))
