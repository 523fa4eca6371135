"""What a pull takes of the scheduler's thread in vLLM, by the length of the prompt: the asker's calls and the source's.

    examples/setup/environment run engine -- python/tests/look_up_cost.py

With vLLM's own block pool and hashes. Times of the thread, so what else runs on the host counts little; medians.
"""

from __future__ import annotations

import logging
import pickle
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from vllm.sampling_params import SamplingParams  # noqa: E402 - found by what the line above says
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.block_pool import BlockPool  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

from kv_connector.naming.prompt_digest import prompt_digest  # noqa: E402
from kv_connector.runtime.facade import Offered  # noqa: E402
from kv_connector.vllm.kv_groups import KvGroup  # noqa: E402
from kv_connector.vllm.metadata import StepMetadata  # noqa: E402
from kv_connector.vllm.offers import Offers  # noqa: E402
from kv_connector.vllm.prompts import digest_of  # noqa: E402
from kv_connector.vllm.pull_params import Carrier  # noqa: E402
from kv_connector.vllm.pull_rules import PullRules  # noqa: E402
from kv_connector.vllm.pulls import Pulls  # noqa: E402
from kv_connector.vllm.request_numbers import RequestNumbers  # noqa: E402

REPEATS: Final = 25
TOKENS: Final = (1_000, 16_000, 128_000)
BLOCKS: Final = (16, 64)
RULES: Final = PullRules("", "", True, 64, 0.9, 5.0)
LOGGER: Final = logging.getLogger("look-up")
SOURCE: Final = {"remote_kv_source": {"remote_host": "10.0.0.7", "remote_port": 14579}}


class MayPull:
    """Pairs are proven."""

    def may_pull(self, _request: Any, _receive: Any) -> bool:
        return True


class Timed:
    """The milliseconds of each call, by its name."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = {}

    def __call__(self, name: str, call: Callable[[], Any]) -> Any:
        begun_ns = time.thread_time_ns()
        result = call()
        self.calls.setdefault(name, []).append((time.thread_time_ns() - begun_ns) / 1e6)
        return result

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(times) for name, times in self.calls.items()}


def request_of(ids: list[int], block_tokens: int, number: int, params: dict[str, Any] | None) -> Any:
    hasher = get_request_block_hasher(block_tokens, sha256)
    request = Request(
        request_id=f"cmpl-{number}-0",
        prompt_token_ids=ids,
        sampling_params=SamplingParams(max_tokens=8),
        pooling_params=None,
        block_hasher=hasher,
    )
    request.kv_transfer_params = params
    return request


def pool_with(request: Any, block_tokens: int, count: int) -> Any:
    """All of the prompt's blocks are cached, and no request holds them."""
    pool = BlockPool(num_gpu_blocks=2 * count + 10, enable_caching=True, hash_block_size=block_tokens)
    blocks = pool.get_new_blocks(count)
    pool.cache_full_blocks(request, blocks, 0, count, block_tokens, 0)
    pool.free_blocks(reversed(blocks))
    return pool


def asker_costs(ids: list[int], block_tokens: int, timed: Timed) -> None:
    count = (len(ids) - 1) // block_tokens
    empty = BlockPool(num_gpu_blocks=count + 10, enable_caching=True, hash_block_size=block_tokens)
    for number in range(REPEATS):
        request = request_of(ids, block_tokens, number, dict(SOURCE))
        pulls = Pulls([KvGroup(("layer",), block_tokens)], RULES, RequestNumbers(), digest_of, 1, LOGGER)
        pulls.bind(empty)
        meta = StepMetadata(step=1)
        timed("ask", lambda: pulls.queued(request, meta))  # noqa: B023 - called at once
        timed("question to the worker", lambda: pickle.dumps(meta, pickle.HIGHEST_PROTOCOL))  # noqa: B023
        (ask,) = meta.asks
        pulls.offered([Offered(ask.request, count * block_tokens, "")], meta)
        timed("match", lambda: pulls.matched_tokens(request, 0, MayPull()))  # type: ignore[arg-type]  # noqa: B023
        begun, tables = StepMetadata(step=2), [list(range(count + 1))]
        timed("fetch", lambda: pulls.allocated(request, tables, count * block_tokens, begun, MayPull()))  # type: ignore[arg-type]  # noqa: B023
        timed("fetch to the worker", lambda: pickle.dumps(begun, pickle.HIGHEST_PROTOCOL))  # noqa: B023


def source_costs(ids: list[int], block_tokens: int, timed: Timed) -> None:
    count = (len(ids) - 1) // block_tokens
    asked = ids[: count * block_tokens]
    pool = pool_with(request_of(asked, block_tokens, 0, None), block_tokens, count)
    digest = prompt_digest(asked)
    for number in range(REPEATS):
        request = request_of(list(asked), block_tokens, number, {})
        offers = Offers([KvGroup(("layer",), block_tokens)], RULES, RequestNumbers(), digest_of, LOGGER)
        offers.bind(pool)
        timed("look up and hold", lambda: offers.asked(request, Carrier("pull-1", digest)))  # noqa: B023 - at once
        meta = StepMetadata(step=1)
        offers.step_begins(meta)
        (offer,) = meta.offers
        assert offer.held_tokens == len(asked), offer
        timed("offer to the worker", lambda: pickle.dumps(meta, pickle.HIGHEST_PROTOCOL))  # noqa: B023
        timed("let go", lambda: offers.released([offer.request]))  # noqa: B023


def main() -> None:
    init_none_hash(sha256)
    for tokens in TOKENS:
        ids = [random.randrange(128_000) for _ in range(tokens)]
        for block_tokens in BLOCKS:
            timed = Timed()
            asker_costs(ids, block_tokens, timed)
            source_costs(ids, block_tokens, timed)
            shown = ", ".join(f"{name} {millis:.2f}" for name, millis in timed.medians().items())
            print(f"{tokens} tokens, blocks of {block_tokens}: {shown} ms", flush=True)


if __name__ == "__main__":
    main()
