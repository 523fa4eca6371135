"""The tests' model with a tokenizer that can write JSON, for structured output. Needs the engine's environment.

The tiny models' words are separated by spaces, and none of them is a character of JSON. Here the last ones are: their
tokens, and all weights, stay what they are.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from make_model import SPECIAL_WORDS, word
from prompts import VOCABULARY_SIZE

JSON_WORDS: Final = (*'{}[]":,-', *"0123456789", "true", "false", "null")
FIRST_JSON_TOKEN: Final = VOCABULARY_SIZE - len(JSON_WORDS)


def write_json_model(model: Path, folder: Path) -> Path:
    """Writes ``model`` with such a tokenizer into ``folder``, which must not exist; its weights are linked."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    for weights in model.glob("*.safetensors"):
        (folder / weights.name).symlink_to(weights)
    words = [*(word(token) for token in range(FIRST_JSON_TOKEN)), *JSON_WORDS]
    begin, end, pad, unknown = SPECIAL_WORDS
    tokenizer = Tokenizer(models.WordLevel({each: token for token, each in enumerate(words)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=begin, eos_token=end, pad_token=pad, unk_token=unknown
    ).save_pretrained(folder)
    return folder
