"""A replacement for SGLang's kernel package on machines without a GPU; demos and tests add it to the servers' path.

SGLang on CPU imports names of CPU kernels when its modules load, but no kernel package on PyPI has them. The tiny Llama
needs one of them, which is implemented here with torch, and those of speculative decoding are in `chains.py`; for the
others SGLang has fallbacks in torch. Any other name can be imported but raises when it is called, so no result is
silently wrong. Not part of the product.
"""

from __future__ import annotations

import sys
import types
from typing import Any, NoReturn

import torch

from sgl_kernel.chains import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    build_tree_kernel_efficient_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]
SUBMODULES = (
    "elementwise",
    "flash_attn",
    "kvcacheio",
    "mamba",
    "moe",
    "quantization",
    "scalar_type",
    "speculative",
    "utils",
)


def assign_req_to_token_pool_cpu(  # noqa: PLR0913, PLR0917, the real kernel's signature
    request_rows: torch.Tensor,
    request_to_token: torch.Tensor,
    first_tokens: torch.Tensor,
    end_tokens: torch.Tensor,
    slots: torch.Tensor,
    row_length: int,
) -> None:
    """Writes each request's new slots, which are consecutive in ``slots``, into its row of the token table."""
    taken = 0
    ranges = zip(request_rows.tolist(), first_tokens.tolist(), end_tokens.tolist(), strict=True)
    for row, first, end in ranges:
        request_to_token[row, first:end] = slots[taken : taken + end - first].to(request_to_token.dtype)
        taken += end - first


class Missing:
    """A kernel that only the real package has; raises when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Missing:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Missing(f"{self._name}.{attribute}")

    def __call__(self, *arguments: Any, **named: Any) -> NoReturn:
        raise NotImplementedError(
            f"{self._name} was called, which the stand-in for SGLang's kernels does not have: "
            "use a model that needs no such kernel, or write it in torch beside assign_req_to_token_pool_cpu."
        )


class MissingModule(types.ModuleType):
    def __getattr__(self, name: str) -> Missing:
        return missing(self.__name__, name)


def missing(module: str, name: str) -> Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing(f"{module}.{name}")


def __getattr__(name: str) -> Missing:
    return missing(__name__, name)


for _name in SUBMODULES:
    sys.modules[f"{__name__}.{_name}"] = MissingModule(f"{__name__}.{_name}")
