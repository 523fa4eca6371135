"""A draft with heads of its own (EAGLE-3) beside latent KV: each decoder's rank gets those of its own heads.

Latent KV is whole on each rank, so any of the prefiller's may send it; a draft's heads are divided among them.
"""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sharded import ShardedPair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

DRAFT_HEADS = 4
HEAD_SIZE = 8


class Drafts:
    """The draft's pools, by side and rank, which one_process adds to what SGLang describes to a backend."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import one_process

        from kv_connector.sglang import engine_facts

        self.pools: dict[tuple[str, int], Any] = {}
        self._described = one_process.kv_args
        monkeypatch.setattr(one_process, "kv_args", self._with_draft)
        draft = engine_facts.Draft(latent=False, kv_head_count=DRAFT_HEADS)
        monkeypatch.setattr(engine_facts, "draft_of", lambda _: draft)

    def _with_draft(self, mode: str, pool: Any, metadata: Any, rank: Any, page_tokens: int = 16) -> Any:
        import one_process
        import torch
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
        from sglang.srt.runtime_context import get_parallel

        args = self._described(mode, pool, metadata, rank, page_tokens)
        slots, heads = one_process.PAGE_COUNT * page_tokens, DRAFT_HEADS // get_parallel().attn_tp_size
        draft = MHATokenToKVPool(slots, page_tokens, torch.bfloat16, heads, HEAD_SIZE, 1, "cpu", False)
        if mode == "prefill":
            for half in (draft.k_buffer[0], draft.v_buffer[0]):
                half.copy_(torch.arange(1 + rank.tp_rank * heads, 1 + (rank.tp_rank + 1) * heads)[:, None])
        self.pools[mode, rank.tp_rank] = draft
        of_model = (args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens)
        for own, more in zip(of_model, draft.get_contiguous_buf_infos(), strict=True):
            own += more
        args.num_draft_entries = 2
        return args

    def heads_at(self, slot: int, ranks: int) -> list[tuple[list[int], list[int]]]:
        """Which heads' K and V each decoder's rank has at a slot."""
        pools = [self.pools["decode", rank] for rank in range(ranks)]
        return [(_heads(pool.k_buffer[0][slot]), _heads(pool.v_buffer[0][slot])) for pool in pools]


def _heads(token: Any) -> list[int]:
    return [int(head[0]) - 1 for head in token]


def opened(folder: Path, prefill_ranks: int, decode_ranks: int) -> ShardedPair:
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape
        from sharded import ShardedPair

        return ShardedPair(folder, Shape(prefill_ranks, latent=True), Shape(decode_ranks, latent=True))


@pytest.mark.parametrize(("prefill_ranks", "decode_ranks"), [(2, 2), (4, 2), (1, 2)])
def test_should_send_each_rank_the_drafts_heads_that_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefill_ranks: int, decode_ranks: int
) -> None:
    drafts = Drafts(monkeypatch)
    with contextlib.closing(opened(tmp_path, prefill_ranks, decode_ranks)) as pair:
        for target in range(7, 15):  # several: the transfer draws which rank sends latent KV
            pair.move([3, 9, 4], [target, 2, 21])
            assert drafts.heads_at(target * 16, 2) == [([0, 1], [0, 1]), ([2, 3], [2, 3])]
        pair.assert_equal_pages([3, 9, 4], [14, 2, 21])
