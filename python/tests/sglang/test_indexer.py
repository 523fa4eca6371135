"""Sparse attention's indexer: its keys lie in pages of the same numbers as the latent KV, and go with them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

PAGE_TOKENS = 64
"""SGLang's indexer knows no other page size here."""
PAGE_COUNT = 40
WITHOUT_INDEXER = 2
"""A layer that reads what the one before it has chosen."""


@pytest.fixture(scope="module")
def pair(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import Pair

        opened = Pair(tmp_path_factory.mktemp("indexer"), indexed_shape())
    yield opened
    opened.close()


def indexed_shape() -> Any:
    import torch
    from one_process import LATENT_SIZE, LAYER_COUNT, ROPE_SIZE, Shape
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

    @dataclass(frozen=True)
    class IndexedShape(Shape):
        def pool(self, pp_rank: int = 0) -> Any:  # noqa: ARG002 - one stage
            return DSATokenToKVPool(
                self.page_count * self.page_tokens,
                self.page_tokens,
                LATENT_SIZE,
                torch.bfloat16,
                ROPE_SIZE,
                LAYER_COUNT,
                "cpu",
                index_head_dim=128,
                enable_memory_saver=False,
                kv_cache_dim=LATENT_SIZE + ROPE_SIZE,
                start_layer=0,
                end_layer=LAYER_COUNT,
                skip_topk_layers=[layer == WITHOUT_INDEXER for layer in range(LAYER_COUNT)],
            )

    return IndexedShape(latent=True, page_tokens=PAGE_TOKENS, page_count=PAGE_COUNT)


def keys(side: Any) -> list[Any]:
    """Of each layer that has an indexer, by page."""
    return [buffer for buffer in side.pool.index_k_with_scale_buffer if len(buffer)]


def scribble(pair: Pair) -> None:
    import torch

    for seed, side in enumerate((pair.prefiller, pair.decoder)):
        side.scribble(seed)
        for buffer in keys(side):
            buffer.random_(generator=torch.Generator().manual_seed(10 + seed))


@pytest.mark.parametrize(("tokens", "prefix_pages"), [(1, 0), (64, 0), (65, 0), (700, 0), (1000, 0), (700, 3), (65, 1)])
def test_should_move_the_keys_with_the_pages(pair: Pair, tokens: int, prefix_pages: int) -> None:
    import torch
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    scribble(pair)
    before = [buffer.clone() for buffer in keys(pair.decoder)]
    assert len(before) == 3
    draw, count, room = random.Random(tokens), -(-tokens // PAGE_TOKENS) - prefix_pages, pair.next_room()
    sources, targets = (draw.sample(range(1, PAGE_COUNT), count) for _ in range(2))
    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.send_metadata(pages(*targets), 5, [pages(*targets)], decode_prefix_len=prefix_pages * PAGE_TOKENS)
    wait_for(sender, KVPoll.WaitingForInput)
    sender.init(count, 5)
    pair.write_metadata(5, room, 9)
    for at in range(0, count - 4, 4):
        sender.send(pages(*sources[at : at + 4]))
    sender.send(pages(*sources[(count - 1) // 4 * 4 :]), [pages(*sources)])
    wait_for(receiver, KVPoll.Success)
    pair.assert_equal_pages(sources, targets)
    others = [page for page in range(PAGE_COUNT) if page not in targets]
    for here, there, old in zip(keys(pair.prefiller), keys(pair.decoder), before, strict=True):
        assert torch.equal(here[sources], there[targets])
        assert torch.equal(old[others], there[others])
    wait_for(sender, KVPoll.Success)
    for end in (sender, receiver):
        end.clear()
    pair.assert_nothing_held()


def test_should_fail_a_prompt_whose_indexer_has_other_pages_than_its_kv(pair: Pair) -> None:
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.send_metadata(pages(3, 4), 5, [pages(3, 4)])
    wait_for(sender, KVPoll.WaitingForInput)
    sender.init(2, 5)
    sender.send(pages(7, 8), [pages(7, 9)])
    assert sender.poll() == KVPoll.Failed
    with pytest.raises(Exception, match="gives 2 pages of its indexer, expected those 2 that hold the KV: please"):
        sender.failure_exception()
    receiver.abort()
    for end in (sender, receiver):
        end.clear()
    pair.assert_nothing_held()
