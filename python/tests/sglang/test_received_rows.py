"""The comparison of rows in SGLang's own pools, and the pages that an own pass takes from them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

TOKENS = 64
RECEIVED, OWN = 1, 2


class Rank:
    """A pool with two requests of equal tokens: one received, one computed."""

    def __init__(self, pool: Any, requests: Any = None) -> None:
        import torch

        self.pool = pool
        draw = torch.Generator().manual_seed(7)
        slots = torch.randperm(pool.size - 1, generator=draw)[: 2 * TOKENS].reshape(2, TOKENS) + 1
        self.requests = requests or SimpleNamespace(req_to_token=torch.zeros((4, 1024), dtype=torch.int32))
        self.requests.req_to_token[RECEIVED, :TOKENS] = slots[0]
        self.requests.req_to_token[OWN, :TOKENS] = slots[1]
        for tensor in self.tensors(pool):
            rows = torch.randn((TOKENS, *tensor.shape[1:]), generator=draw).to(pool.dtype).view(tensor.dtype)
            for each in self.slots(tensor, slots):
                tensor[each] = rows

    def slots(self, tensor: Any, slots: Any) -> list[Any]:
        windowed = getattr(self.pool, "swa_kv_pool", None)
        if windowed is None or not any(tensor is each for each in self.tensors(windowed)):
            return list(slots)
        return [self.pool.translate_loc_from_full_to_swa(each) for each in slots]

    @classmethod
    def tensors(cls, pool: Any) -> list[Any]:
        inner = [getattr(pool, name, None) for name in ("full_kv_pool", "swa_kv_pool")]
        if any(inner):
            return [tensor for each in inner if each is not None for tensor in cls.tensors(each)]
        return list(pool.kv_buffer) if hasattr(pool, "kv_buffer") else [*pool.k_buffer, *pool.v_buffer]

    def verdict(self, **more: int) -> Any:
        from kv_connector.sglang.received_rows import ReceivedRows, Rows

        allocator = SimpleNamespace(get_kvcache=lambda: self.pool)
        rows = Rows(RECEIVED, OWN, 0, computed_tokens=TOKENS, received_tokens=TOKENS, window_tokens=0)
        rank = SimpleNamespace(token_to_kv_pool_allocator=allocator, req_to_token_pool=self.requests)
        return ReceivedRows(rank).verdict(replace(rows, **more))

    def received(self, first: int, end: int) -> Any:
        return self.requests.req_to_token[RECEIVED, first:end].long()


def shape(**more: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape

        return Shape(**more).pool()


def fp8_pool() -> Any:
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    return MHATokenToKVPool(1024, 16, torch.float8_e4m3fn, 4, 8, 3, "cpu", False)


POOLS = {"heads": shape, "latent": lambda: shape(latent=True), "eight bits": fp8_pool}


@pytest.mark.parametrize("kind", POOLS)
def test_equal_rows_are_equal_and_other_rows_are_found(sglang_plugins: None, kind: str) -> None:
    assert sglang_plugins is None
    rank = Rank(POOLS[kind]())
    assert rank.verdict() == rank.verdict(first_token=16)
    assert rank.verdict().judged
    assert rank.verdict().worst == 0
    assert not rank.verdict().finding
    tensor = rank.tensors(rank.pool)[1]
    tensor[rank.received(0, TOKENS)] = tensor[rank.received(0, TOKENS).roll(1)]
    assert " of layer 1 " in rank.verdict().finding


def test_a_few_rows_that_differ_are_no_finding(sglang_plugins: None) -> None:
    assert sglang_plugins is None
    rank = Rank(shape())
    rank.pool.v_buffer[2][rank.received(0, 10)] *= -1
    assert not rank.verdict().finding
    rank.pool.v_buffer[2][rank.received(10, 30)] *= -1
    assert "V of layer 2 differs" in rank.verdict().finding
    assert not rank.verdict(first_token=30).finding, "what was not received is not compared"
    assert not rank.verdict(computed_tokens=10, first_token=10).judged


def test_numbers_that_are_none(sglang_plugins: None) -> None:
    """Received: it is found. Own: nothing is proven."""
    assert sglang_plugins is None
    rank = Rank(shape())
    rank.pool.k_buffer[3][rank.received(5, 6)] = float("nan")
    assert "K of layer 3 differs" in rank.verdict().finding
    rank.pool.k_buffer[0][rank.requests.req_to_token[OWN, 5].long()] = float("nan")
    assert not rank.verdict().judged


def test_of_a_window_only_what_was_received_is_compared(sglang_plugins: None) -> None:
    import torch

    assert sglang_plugins is None
    pool = shape(windowed_page_count=64)
    pool.register_mapping(torch.arange(pool.size + pool.page_size + 1))
    rank = Rank(pool)
    pool.swa_kv_pool.k_buffer[-1][rank.received(0, 32)] = 0
    assert "K of layer 2 differs" in rank.verdict(window_tokens=TOKENS).finding
    assert not rank.verdict(window_tokens=32).finding
    pool.full_to_swa_index_mapping[rank.received(0, 32)] = 0  # those tokens have no page there
    assert not rank.verdict(window_tokens=TOKENS).finding
    pool.full_kv_pool.k_buffer[0][rank.received(0, 32)] = 0
    assert "K of layer 3 differs" in rank.verdict(window_tokens=32).finding


@pytest.mark.parametrize("model", ["states", "windows, states", "selection, states"])
def test_a_state_is_compared_if_it_is_of_the_same_tokens(sglang_plugins: None, model: str) -> None:
    import torch

    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from several_pools import SeveralPools

        pool = SeveralPools(model=model, page_count=64).pool_of("decode", 0)
    if model.startswith("windows"):
        pool.register_mapping(torch.zeros(pool.size + pool.page_size + 1, dtype=torch.int64))
    rank = Rank(pool, pool.requests)
    pool.requests.req_index_to_mamba_index_mapping[torch.tensor([RECEIVED, OWN])] = torch.tensor(
        [3, 4], dtype=torch.int32
    )
    entries = [tensor for _, tensor, _, _ in pool.requests.mamba_pool._iter_transfer_state_entries()]
    for tensor in entries:
        tensor[3] = torch.randn(tensor[3].shape)
        tensor[4] = tensor[3]
    assert rank.verdict().judged
    assert not rank.verdict().finding
    entries[-1][3] *= -1
    assert "KV of layer 2.temporal differs" in rank.verdict().finding
    assert not rank.verdict(received_tokens=TOKENS + 1).finding, "it is the state after one token more"


def test_pools_of_other_kinds_are_not_compared(sglang_plugins: None) -> None:
    import torch

    from kv_connector.sglang.received_rows import IncomparableError

    assert sglang_plugins is None

    class OtherPool:
        dtype = torch.bfloat16
        size = 1024

    with pytest.raises(IncomparableError, match="its pool is a OtherPool"):
        Rank.verdict(SimpleNamespace(pool=OtherPool(), requests=None))  # type: ignore[arg-type]


@pytest.mark.parametrize("page_tokens", [1, 16])
def test_an_own_pass_gives_back_what_it_took(sglang_plugins: None, tmp_path: Any, page_tokens: int) -> None:
    """Also if SGLang fails in the middle of it, and it takes nothing from pools that are full."""
    assert sglang_plugins is None
    scheduler = scheduler_of(tmp_path, page_tokens)
    from kv_connector.sglang.own_pass import NoRoomError, OwnPass

    allocator, requests = scheduler.token_to_kv_pool_allocator, scheduler.req_to_token_pool

    def free() -> tuple[int, int]:
        return allocator.available_size(), requests.available_size()

    before = free()
    own = OwnPass(scheduler, range(5, 45), None)
    assert free()[0] <= before[0] - 40
    assert free()[1] == before[1] - 1
    assert len(set(requests.req_to_token[own.row, :40].tolist()) - {0}) == 40
    own.release()
    own.release()
    assert free() == before
    for place in ("maybe_hand_to_session", "supports_prefix_sharing"):  # behind the pages' allocation, before it
        whole = vars(scheduler.tree_cache).pop(place)
        with pytest.raises(AttributeError, match=place):
            OwnPass(scheduler, range(5, 45), None)
        setattr(scheduler.tree_cache, place, whole)
        assert free() == before
    with pytest.raises(NoRoomError, match="are free"):
        OwnPass(scheduler, range(before[0] + 1), None)
    requests.free_slots = []
    with pytest.raises(NoRoomError, match="no row"):
        OwnPass(scheduler, range(40), None)


def scheduler_of(folder: Any, page_tokens: int) -> Any:
    """What an own pass uses of a scheduler, but for the model."""
    import torch

    with warnings.catch_warnings(action="ignore"):
        from one_process import free_port, publish_arguments
        from sglang.srt.disaggregation.decode import DecodeReqToTokenPool
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        publish_arguments(folder, free_port(), page_tokens)
        pool = shape()
        if page_tokens == 1:
            allocator = TokenToKVPoolAllocator(1024, torch.bfloat16, "cpu", pool, False)
        else:
            allocator = PagedTokenToKVPoolAllocator(1024, page_tokens, torch.bfloat16, "cpu", pool, False)
        tree_cache = SimpleNamespace(
            page_size=page_tokens,
            token_to_kv_pool_allocator=allocator,
            supports_swa=lambda: False,
            supports_prefix_sharing=lambda: False,
            maybe_hand_to_session=lambda _: None,
        )
        return SimpleNamespace(
            req_to_token_pool=DecodeReqToTokenPool(4, 1024, "cpu", False, 2),
            token_to_kv_pool_allocator=allocator,
            tree_cache=tree_cache,
            model_config=SimpleNamespace(vocab_size=512, is_encoder_decoder=False),
            enable_overlap=False,
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )
