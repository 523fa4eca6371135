"""SGLang's prefix cache and its pages, as pulls use them: look-up, hold, take, add. Only here are they touched.

A look-up of SGLang's is a change: it moves what it finds away from eviction. So with several ranks all but
``held_count`` is called by all of them, at the same place of the same round.

Used by the scheduler's thread only. It serves a rank with one pool of full attention, whose cache is the plain tree.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CHUNK_SLACK_PAGES = 2
"""Pages beyond its tokens that SGLang may take for the next chunk of a prompt that is being computed."""


@dataclass(slots=True, eq=False)
class Held:
    """A beginning of a prompt in the cache, which is not evicted while it is held."""

    token_count: int
    """Whole pages."""
    slots: Any
    """The slot of each token, int64."""
    lock: Any


class PrefixTree:
    """The cache of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._tree = scheduler.tree_cache
        self._allocator = scheduler.token_to_kv_pool_allocator
        self.page_tokens = int(self._allocator.page_size)

    def unfit(self) -> str:
        """Why nothing of this cache can be pulled or offered; "" if it can."""
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        tree = self._tree
        if type(tree) is not UnifiedRadixCache:
            return f"its prefix cache is a {type(tree).__name__}, expected a UnifiedRadixCache"
        if not tree.supports_prefix_sharing():
            return "its prefix cache is switched off"
        if tree.linker is not None or tree.cache_controller is not None:
            return "its prefix cache has a store behind it"
        if len(tree.tree_components) > 1 or tree.tree_core.is_eagle:
            return "its prefix cache holds more than the KV of full attention"
        return ""

    def whole_pages(self, token_count: int) -> int:
        """The tokens of as many whole pages."""
        return token_count // self.page_tokens * self.page_tokens

    def held_count(self, tokens: Sequence[int], salt: str) -> int:
        """How many of the first tokens the cache holds now, in whole pages. Changes nothing."""
        held_count, _node, _pinned_count = self._tree.tree_core.match_full_device_prefix(_key(tokens, salt))
        return self.whole_pages(int(held_count))

    def hold(self, tokens: Sequence[int], salt: str) -> Held:
        """Looks up what the cache holds of the first tokens, and keeps it there until ``let_go``."""
        found = self._match(tokens, salt)
        lock = self._tree.lock(found.last_device_node)
        count = self.whole_pages(int(found.device_prefix_len))
        return Held(count, self._tree.path_device_indices(found.last_device_node)[:count], lock)

    def let_go(self, held: Held) -> None:
        """The beginning may be evicted again."""
        self._tree.unlock(held.lock)

    def protected_count(self) -> int:
        """The number of the cache's tokens that are not to be evicted now."""
        return int(self._tree.protected_size())

    def spare_count(self) -> int:
        """How many tokens' pages can be kept from SGLang now.

        A prompt that is computed in chunks was admitted because there were pages for all of them; SGLang ends its
        process where the next chunk finds none. A decoder that finds no page for a next token ends requests.
        """
        spare = int(self._allocator.available_size()) + int(self._tree.evictable_size()) - self._reserved_count()
        chunked = self._scheduler.chunked_req
        if chunked is not None:
            left = len(chunked.origin_input_ids) - int(chunked.extend_end)
            spare -= max(0, left) + CHUNK_SLACK_PAGES * self.page_tokens
        return spare

    def _reserved_count(self) -> int:
        """The tokens that a decoder keeps free for the answers of the requests that it has, as SGLang counts them."""
        scheduler = self._scheduler
        queue = scheduler.disagg_decode_prealloc_queue
        if queue is None:
            return 0
        requests = (scheduler.running_batch.reqs, scheduler.waiting_queue, scheduler.disagg_decode_transfer_queue.queue)
        return int(queue.num_reserved_decode_tokens) * sum(map(len, requests))

    def capacity_count(self) -> int:
        """The tokens for which there are pages in all."""
        return int(self._allocator.size)

    def take(self, token_count: int) -> Any | None:
        """Slots for as many tokens, whole pages, in place of cached tokens if need be; None if there are none."""
        from sglang.srt.mem_cache.common import evict_from_tree_cache

        if token_count > self.spare_count():
            return None
        evict_from_tree_cache(self._tree, token_count)
        return self._allocator.alloc(token_count)

    def free_up(self, token_count: int) -> None:
        """Evicts cached tokens until so many are free, as far as that is possible."""
        from sglang.srt.mem_cache.common import evict_from_tree_cache

        needed_count = -(-token_count // self.page_tokens) * self.page_tokens
        if needed_count <= self.spare_count():
            evict_from_tree_cache(self._tree, needed_count)

    def give_back(self, slots: Any) -> None:
        """Gives slots of ``take`` back."""
        self._allocator.free(slots)

    def pages_of(self, slots: Any) -> list[int]:
        """The pages of the slots of whole pages."""
        first = slots[:: self.page_tokens]
        pages = self._allocator.translate_kv_indices_for_transfer(first) // self.page_tokens
        return list(pages.tolist())

    def add(self, tokens: Sequence[int], salt: str, before: Any, slots: Any) -> None:
        """Adds tokens to the cache, which owns their slots then; those that it has had meanwhile are given back.

        :param tokens: from the prompt's first one, whole pages
        :param before: the slots that the cache holds of them
        :param slots: those of the others
        """
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        self._tree.insert(
            InsertParams(
                key=_key(tokens, salt),
                value=torch.cat((before, slots)).to(torch.int64),
                prev_prefix_len=len(before),
                inserted_len=len(before),
            )
        )

    def is_being_computed(self, tokens: Sequence[int], salt: str) -> bool:
        """Whether a pass that SGLang has not finished with computes a part of what would be added.

        SGLang frees the pages of such a pass when it finds the same tokens in its cache, and they may be leaving for a
        decoder.
        """
        count = self.held_count(tokens, salt) + self.page_tokens
        return any(
            (request.cache_salt or "") == salt
            and not request.extra_key
            and list(request.origin_input_ids[:count]) == list(tokens[:count])
            for request in self._requests_in_flight()
        )

    def _requests_in_flight(self) -> list[Any]:
        scheduler = self._scheduler
        batches = [scheduler.last_batch, scheduler.running_batch]
        if scheduler.enable_overlap:
            batches += [batch for batch, _result in scheduler.result_queue]
        requests = [request for batch in batches if batch is not None for request in batch.reqs]
        return requests if scheduler.chunked_req is None else [*requests, scheduler.chunked_req]

    def _match(self, tokens: Sequence[int], salt: str) -> Any:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return self._tree.match_prefix(MatchPrefixParams(key=_key(tokens, salt)))


def _key(tokens: Sequence[int], salt: str) -> Any:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(array("q", tokens), None, cache_salt=salt or None)
