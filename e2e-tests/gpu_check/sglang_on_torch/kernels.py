"""What a packed SGLang calls in place of kernels that it would compile with nvcc: a refusal that names the kernel.

SGLang's operators that have a version in torch take that one (SGLANG_FORCE_FUSED_OP_BACKEND); its writing of KV asks
first whether its kernel is there, and indexes in torch where it is not. Any other one ends the server that needs it.
"""

from __future__ import annotations

from typing import Any, NoReturn


def load_jit(*names: Any, **_build: Any) -> NoReturn:
    """In place of SGLang's own, which compiles."""
    raise NotImplementedError(f"the kernel {'.'.join(map(str, names))} is not carried: torch has to stand in for it")


def is_arch_support_pdl() -> bool:
    """In place of that of SGLang's kernel package; kernels that depend on each other's begin are an optimisation."""
    return False
