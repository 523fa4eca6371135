"""The examples run as their readers would run them."""

from __future__ import annotations

import re
import subprocess
import sys

from conftest import ROOT

DEMO_LIMIT_SECONDS = 900


def test_demo_ends_with_all_tokens_the_same() -> None:
    demo = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "vllm-1p1d" / "demo.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEMO_LIMIT_SECONDS,
        check=False,
    )
    print(demo.stdout)
    summary = re.fullmatch(r"(\d+) of (\d+) prompts: same tokens", demo.stdout.splitlines()[-1])
    assert summary, "the demo's last line is another one"
    assert summary.group(1) == summary.group(2)
    assert demo.returncode == 0
