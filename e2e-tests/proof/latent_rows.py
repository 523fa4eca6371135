"""Shows why equal engines with latent KV differ on a CPU: vLLM's kernels take a slice's rows for contiguous ones.

    examples/setup/environment run engine --wheel "$(cat python/dist/.wheel)" -- e2e-tests/proof/latent_rows.py

Latent KV is a slice of a wider product. One row of it is contiguous, several are not: their numbers are then read from
the wrong places, and a pass of several tokens computes another KV than passes of one token each.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.platforms import current_platform

LATENT, ROTARY, TOKENS = 512, 64, 5


def normed(rows: Any, weight: Any) -> Any:
    out = torch.empty(rows.shape, dtype=rows.dtype)
    ops.rms_norm(out, rows, weight, 1e-6)
    return out


def rotated(product: Any, table: Any, first: int, count: int) -> Any:
    rows = product.clone()[first : first + count, LATENT:].unsqueeze(1)
    queries = torch.zeros(count, 1, ROTARY, dtype=rows.dtype)
    ops.rotary_embedding(torch.arange(first, first + count), queries, rows, ROTARY, table, False)
    return rows.squeeze(1).clone()


def off(a: Any, b: Any) -> float:
    return float((a.float() - b.float()).abs().max())


def main() -> None:
    current_platform.import_kernels()
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        product, weight = torch.randn(TOKENS, LATENT + ROTARY, dtype=dtype), torch.rand(LATENT, dtype=dtype)
        table, slices = torch.randn(TOKENS, ROTARY, dtype=dtype), product[:, :LATENT]
        norm = slices.float().pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()
        formula = slices.float() * norm * weight.float()
        alone = torch.cat([normed(slices[row : row + 1], weight) for row in range(TOKENS)])
        single = torch.cat([rotated(product, table, row, 1) for row in range(TOKENS)])
        print(f"{dtype}: a norm is off the formula by {off(alone, formula):.2g} for one row at a time,")
        print(f"   by {off(normed(slices, weight), formula):.2g} for all rows of the slice,")
        print(f"   by {off(normed(slices.contiguous(), weight), formula):.2g} for all rows of a copy;")
        together = rotated(product, table, 0, TOKENS)
        print(f"   rotating all rows at once is off rotating one at a time by {off(together, single):.2g}")


if __name__ == "__main__":
    main()
