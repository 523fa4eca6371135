"""Runs the checks of SGLang on this machine's GPU, with the SGLang that is packed beside this package.

    python -m gpu_check.sglang_on_torch [--need-gpu] [--logs DIR] [--only REGEX] [--cpu]

With --cpu the servers compute on the CPU, which shows nothing of a GPU. What is printed, and the status: see runner.py.
"""

from __future__ import annotations

import argparse
import sys

from gpu_check.runner import Runner
from gpu_check.sglang_checks import forget_answers
from gpu_check.sglang_on_torch.catalogue import catalogue

LANES = 2
"""Checks at a time. Each has up to two servers, and each of these several processes."""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cpu", action="store_true", help="rehearse on the CPU")
    runner = Runner(
        "gpu_check.sglang_on_torch",
        lambda parsed: catalogue(parsed.logs, "cpu" if parsed.cpu else "cuda"),
        LANES,
        lambda logs, _: forget_answers(logs),
    )
    return runner.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
