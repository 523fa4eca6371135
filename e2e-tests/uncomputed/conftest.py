"""Each engine's pairs run in the environment that has the engine; what they stand on runs in both."""

from __future__ import annotations

import importlib.util

PAIRS = {
    "vllm": ("test_backends.py", "test_fabric.py", "test_first_day.py", "test_pulls.py", "test_vllm.py"),
    "sglang": ("test_sglang.py", "test_sglang_sleep.py"),
}
collect_ignore = [file for engine, files in PAIRS.items() if importlib.util.find_spec(engine) is None for file in files]
