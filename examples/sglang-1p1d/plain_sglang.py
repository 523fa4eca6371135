"""What a single SGLang answers, and whether transformers does too: the two references of the demo and of the tests.

Both run in the environment in which KV Messenger is not even installed. Their answers are kept by model, versions,
prompts and this file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also run as a script, in a bare environment

from references import Answers, ask_script, base_python, kept_answers, question
from server_process import complete, start_all, words_of
from sglang_servers import EngineOptions, engine

THIS_FILE = Path(__file__).resolve()


def sglang_answers(
    model: Path, prompts: Sequence[str], max_tokens: int, folder: Path, progress: Callable[[str], None]
) -> Answers:
    """The words a single SGLang answers to each prompt; its log goes into `folder`."""
    parts = ["sglang", question(model, prompts, max_tokens), base_python(), THIS_FILE.read_text(encoding="utf-8")]

    def ask() -> Answers:
        progress(f"asking a single SGLang for its {len(prompts)} answers (once, they are kept)")
        server = engine("single", EngineOptions(model, python=base_python()), folder)
        try:
            start_all([server], progress)
            return [words_of(complete(server, prompt, max_tokens)) for prompt in prompts]
        finally:
            server.stop()

    return kept_answers(parts, ask)


def transformers_answers(model: Path, prompts: Sequence[str], answers: Answers) -> Answers:
    """The words of transformers' own greedy search, as far as they follow `answers`.

    One forward pass over prompt and answer gives the choice after each of its prefixes. Where all of them are the
    answer's words, a search word by word would have found the same; it would only take as many passes as words.
    """
    asked = json.dumps({"model": str(model), "prompts": list(prompts), "answers": answers})
    parts = ["transformers", asked, base_python(), THIS_FILE.read_text(encoding="utf-8")]
    return kept_answers(parts, lambda: ask_script(THIS_FILE, asked, {"HF_HUB_OFFLINE": "1"}))


def answer_as_transformers(answer: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # two that wait for each other on busy cores are much slower than one
    asked = json.load(sys.stdin)
    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32)
    chosen = []
    for prompt, words in zip(asked["prompts"], asked["answers"], strict=True):
        tokens = torch.tensor([tokenizer.convert_tokens_to_ids([*prompt.split(), *words[:-1]])])
        with torch.inference_mode():
            logits = model(tokens).logits[0, -len(words) :]
        chosen.append(tokenizer.convert_ids_to_tokens(logits.argmax(-1).tolist()))
    answer.write_text(json.dumps(chosen), encoding="utf-8")


if __name__ == "__main__":
    answer_as_transformers(Path(sys.argv[1]))
