"""Tiny models with drafts as SGLang takes them, and what its servers are started with to guess with these."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from draft_models import Drafted, eagle, eagle3, mtp

GUESSES: Final = 3
PLUGINS: Final = ("drafts_on_cpu",)
WEIGHTS: Final = "model.safetensors"


@dataclass(frozen=True)
class Guessing:
    """A kind of speculation of SGLang's, and how its draft's files differ from those that vLLM takes."""

    algorithm: str
    made_by: Callable[[Path], Drafted]
    architecture: str = ""
    has_bias: bool = False
    """SGLang's head adds one, and leaves it to chance where the files have none."""

    def model(self, home: Path) -> Path:
        return self.made_by(home).model

    def arguments(self, home: Path) -> tuple[str, ...]:
        drafted = self.made_by(home)
        draft = Path(drafted.more.get("model", drafted.model))
        path = self._renamed(draft) if self.architecture else draft
        return (
            *("--speculative-algorithm", self.algorithm, "--speculative-draft-model-path", str(path)),
            *("--speculative-num-steps", str(GUESSES), "--speculative-num-draft-tokens", str(GUESSES + 1)),
            *("--speculative-eagle-topk", "1"),
        )

    def _renamed(self, draft: Path) -> Path:
        folder = draft.with_name(f"{draft.name}-sglang")
        if not folder.exists():
            partial = folder.with_name(f"{folder.name}.{os.getpid()}")
            shutil.copytree(draft, partial)
            self._change(partial)
            partial.rename(folder)
        return folder

    def _change(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [self.architecture]}))
        if self.has_bias:
            self._add_bias(folder, config)

    @staticmethod
    def _add_bias(folder: Path, config: Mapping[str, Any]) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / WEIGHTS) | {"fc.bias": torch.zeros(config["hidden_size"])}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


# Not STANDALONE: SGLang 0.5.23 hands a decoder no first guesses of it, and its decoder ends at the first pass.
EAGLE: Final = Guessing("EAGLE", eagle, "LlamaForCausalLMEagle", has_bias=True)
EAGLE3: Final = Guessing("EAGLE3", eagle3, "LlamaForCausalLMEagle3")
MTP: Final = Guessing("NEXTN", mtp)
