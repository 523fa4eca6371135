"""Prints what keeping and comparing a last token costs on this CPU, for models of several depths.

examples/setup/environment run engine --wheel "$(cat python/dist/.wheel)" -- e2e-tests/proof/cost.py
"""

from __future__ import annotations

import logging
import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch
from kv_connector.naming.row_limits import LIMITS
from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.last_token_proof import LastTokenProof, proof_layers
from kv_connector.vllm.proof_messages import Proof

HEADS, PAGE_TOKENS, HEAD_DIM, PAGES, TURNS = 8, 128, 128, 16, 200


class Rows:
    """K and V side by side in the token's row."""

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, pages: Any, slots: Any) -> None:
        page, token = divmod(int(slots[0]), PAGE_TOKENS)
        pages[page, :, token] = torch.cat((key[0], value[0]), dim=-1)


def main() -> None:
    torch.set_num_threads(1)
    for depth in (4, 32, 80):
        names = [f"model.layers.{index}.attn" for index in range(depth)]
        pages = {name: torch.randn(PAGES, HEADS, PAGE_TOKENS, 2 * HEAD_DIM).to(torch.bfloat16) for name in names}
        attention = SimpleNamespace(impl=Rows(), _k_scale_float=1.0, _v_scale_float=1.0)
        layers = proof_layers(pages, names, [KvGroup(tuple(names), PAGE_TOKENS)], dict.fromkeys(names, attention))
        proof = LastTokenProof(
            layers,
            cache_dtype="auto",
            model_dtype=torch.bfloat16,
            limits=LIMITS["bfloat16"],
            logger=logging.getLogger(),
        )
        kept, judged = [], []
        for turn in range(TURNS):
            due = [Proof("r", [(turn % PAGES, 77)], [])]
            begun = time.perf_counter()
            proof.keep(due)
            between = time.perf_counter()
            proof.judge()
            kept.append(between - begun)
            judged.append(time.perf_counter() - between)
        rows_kib = depth * HEADS * 2 * HEAD_DIM * 2 / 1024
        print(
            f"{depth} layers: {statistics.median(kept) * 1e6:.0f} us before the pass,"
            f" {statistics.median(judged) * 1e6:.0f} us after it, {rows_kib:.0f} KiB kept"
        )


if __name__ == "__main__":
    main()
