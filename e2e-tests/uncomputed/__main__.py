"""A vLLM in a process of its own, on a CUDA that computes nothing; its ranks, where it has several, are forked from it.

    python -m uncomputed PLAN [SOCKET]

It connects twice to SOCKET, an abstract one, for its commands and for its answers; without one they come and go over
standard input and output. They are those of gpu_check.vllm_on_torch, and so is the engine but for what is not there:
vLLM's compiled operators, Triton's kernels, and the tokens. Attention's part in KV is done by rows.c.
"""

from __future__ import annotations

import os
import socket
import sys


def main() -> None:
    for name in sys.argv[2:]:
        connect(name)
    from gpu_check.vllm_on_torch import __main__ as served

    import uncomputed.preloaded  # noqa: F401
    from uncomputed.engine import UncomputedEngine

    served.main(UncomputedEngine)


def connect(name: str) -> None:
    for descriptor in (0, 1):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(f"\0{name}")
            os.dup2(end.fileno(), descriptor)


if __name__ == "__main__":
    main()
