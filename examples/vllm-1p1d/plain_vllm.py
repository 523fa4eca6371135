"""What a single plain vLLM answers: the reference of the demo and of the tests.

The reference is one vLLM without any connector, run in the environment in which KV Messenger is not even installed.
Its answers are kept by model, versions, prompts and this file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also run as a script, in a bare environment

from references import Answers, ask_script, base_python, kept_answers, question
from server_process import core_binding
from servers import CHUNK_TOKENS, ENGINE_ENVIRONMENT, PAGE_TOKENS

THIS_FILE = Path(__file__).resolve()


def reference_answers(model: Path, prompts: Sequence[str], max_tokens: int, progress: Callable[[str], None]) -> Answers:
    """The words a single plain vLLM answers to each prompt."""
    asked = question(model, prompts, max_tokens)

    def ask() -> Answers:
        progress(f"asking a single plain vLLM for its {len(prompts)} answers (once, they are kept)")
        environment = {
            **ENGINE_ENVIRONMENT,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": core_binding(0),
        }
        return ask_script(THIS_FILE, asked, environment)

    return kept_answers([asked, base_python(), THIS_FILE.read_text(encoding="utf-8")], ask)


def answer_as_plain_vllm(answer: Path) -> None:
    from vllm import LLM, SamplingParams

    asked = json.load(sys.stdin)
    llm = LLM(
        model=asked["model"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_batched_tokens=CHUNK_TOKENS,
        max_num_seqs=16,
        block_size=PAGE_TOKENS,
        enable_prefix_caching=False,
    )
    sampling = SamplingParams(temperature=0, max_tokens=asked["max_tokens"], ignore_eos=True, skip_special_tokens=False)
    outputs = llm.generate(asked["prompts"], sampling, use_tqdm=False)
    answer.write_text(json.dumps([output.outputs[0].text.split() for output in outputs]), encoding="utf-8")


if __name__ == "__main__":
    answer_as_plain_vllm(Path(sys.argv[1]))
