"""The prompts of demos and tests, and the folder outside the tree for their cached files."""

from __future__ import annotations

import os
import random
from pathlib import Path

FIRST_ORDINARY_TOKEN = 4  # 0 to 3 are begin, end, padding and unknown
VOCABULARY_SIZE = 512


def random_prompt(token_count: int, seed: int) -> str:
    draw = random.Random(seed * 100_003 + token_count)
    return " ".join(f"w{draw.randrange(FIRST_ORDINARY_TOKEN, VOCABULARY_SIZE)}" for _ in range(token_count))


def cache_home() -> Path:
    return Path(os.environ.get("KV_MESSENGER_CACHE") or Path.home() / ".cache" / "kv-messenger")
