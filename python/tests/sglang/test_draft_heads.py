"""A draft with heads of its own (EAGLE-3) beside latent KV: each decoder's rank gets those of its own heads, or none.

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

HEADS_OF_A_RANK = 2
HEAD_SIZE = 8


class Drafts:
    """The draft's pools, by side and rank, which one_process adds to what SGLang describes to a backend."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import one_process

        self.pools: dict[tuple[str, int], Any] = {}
        self._described = one_process.kv_args
        monkeypatch.setattr(one_process, "kv_args", self._with_draft)

    def _with_draft(self, mode: str, pool: Any, metadata: Any, rank: Any, page_tokens: int = 16) -> Any:
        import one_process
        import torch
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        args = self._described(mode, pool, metadata, rank, page_tokens)
        slots = one_process.PAGE_COUNT * page_tokens
        draft = MHATokenToKVPool(slots, page_tokens, torch.bfloat16, HEADS_OF_A_RANK, HEAD_SIZE, 1, "cpu", False)
        for half in (draft.k_buffer[0], draft.v_buffer[0]):
            half.fill_(rank.tp_rank + 1 if mode == "prefill" else 0)
        self.pools[mode, rank.tp_rank] = draft
        of_model = (args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens)
        for own, more in zip(of_model, draft.get_contiguous_buf_infos(), strict=True):
            own += more
        args.num_draft_entries = 2
        return args

    def ranks_at(self, slot: int, ranks: int) -> list[tuple[int, ...]]:
        """Whose K and V each decoder's rank has at a slot."""
        pools = [self.pools["decode", rank] for rank in range(ranks)]
        return [tuple(int(half[0][slot, 0, 0]) - 1 for half in (p.k_buffer, p.v_buffer)) for p in pools]


def opened(folder: Path, prefill_ranks: int, decode_ranks: int) -> ShardedPair:
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape
        from sharded import ShardedPair

        return ShardedPair(folder, Shape(prefill_ranks, latent=True), Shape(decode_ranks, latent=True))


def test_should_send_each_rank_the_drafts_heads_of_its_counterpart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = Drafts(monkeypatch)
    with contextlib.closing(opened(tmp_path, 2, 2)) as pair:
        for target in range(7, 15):
            pair.move([3, 9, 4], [target, 2, 21])
            assert drafts.ranks_at(target * 16, 2) == [(0, 0), (1, 1)]
        pair.assert_equal_pages([3, 9, 4], [14, 2, 21])


@pytest.mark.parametrize(("prefill_ranks", "decode_ranks"), [(4, 2), (1, 2)])
def test_should_fail_requests_whose_prefiller_divides_the_drafts_heads_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefill_ranks: int, decode_ranks: int
) -> None:
    Drafts(monkeypatch)
    with contextlib.closing(opened(tmp_path, prefill_ranks, decode_ranks)) as pair:
        from one_process import backend_class
        from sglang.srt.disaggregation.base.conn import KVPoll

        endpoint = pair.decoders[0].endpoint
        assert endpoint.try_ensure_parallel_info(pair.address)
        receiver = backend_class("receiver")(endpoint, pair.address, 1)
        receiver.init(0)
        assert receiver.poll() == KVPoll.Failed
        with pytest.raises(Exception, match=rf"has attention TP {prefill_ranks}, expected {decode_ranks} as here: lat"):
            receiver.failure_exception()
