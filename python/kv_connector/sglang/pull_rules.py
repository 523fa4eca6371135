"""What this engine may pull and offer, read once from its configuration. Pure but for the line in the log."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any, Literal

from kv_connector.configuration.options import Options
from kv_connector.naming.pair_rules import Check
from kv_connector.runtime.commands import PullOutcome


@dataclass(frozen=True, slots=True)
class PullRules:
    """The options of pulls, and the reasons for which this engine takes no part in them."""

    asks_none_because: PullOutcome | Literal[""]
    """The reason, as it is counted, for which no other engine is asked; "" if some may be."""
    offers: bool
    """Whether other engines may ask this one."""
    always: bool
    """Whether to pull whatever the other engine holds, also where computing it would be faster."""
    tokens_min: int
    pages_share: float
    offer_limit_seconds: float
    check: Check = "fail"
    """What happens to KV of an engine that is not proven to compute the same."""
    counts: bool = True
    """Whether this rank asks, and counts the requests that name an engine: each comes to all ranks of one model."""

    def opening(self, options: Options) -> Options:
        """The options of the messenger: an engine that pulls, or is pulled from, both sends and receives."""
        takes_part = self.offers or not self.asks_none_because
        return dataclasses.replace(options, role="both") if takes_part else options


def pull_rules(
    options: Options, server_args: Any, mode: str, pool_count: int, check: Check, logger: logging.Logger
) -> PullRules:
    """The rules of this engine; ``pool_count`` is the number of its groups of layers."""
    unfit = _unfit(server_args, mode, pool_count)
    if unfit and options.pulls == "always":
        logger.warning("nothing is pulled from this engine or by it: %s (docs/pulls.md)", unfit)
    neither: PullOutcome | Literal[""] = "off" if options.pulls == "off" else "misfit" if unfit else ""
    asks_none: PullOutcome | Literal[""] = neither or ("role" if mode == "decode" else "")
    return PullRules(
        asks_none,
        not neither,
        options.pulls == "always",
        options.pull_tokens_min,
        options.pull_pages_share,
        options.offer_limit_seconds,
        check,
        _is_first_rank(),
    )


def _is_first_rank() -> bool:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return not max(int(rank) for rank in (parallel.attn_tp_rank, parallel.attn_cp_rank, parallel.pp_rank))


def _unfit(server_args: Any, mode: str, pool_count: int) -> str:
    """Why this engine can neither pull nor be pulled from; "" if it can."""
    from sglang.srt.runtime_context import get_exec, get_memory, get_parallel

    parallel = get_parallel()
    sizes = {
        "--pp-size": parallel.pp_size,
        "--attn-cp-size": parallel.attn_cp_size,
        "--dp-size": parallel.num_dp_ranks,
    }
    for option, size in sizes.items():
        if int(size) > 1:
            return f"{option} is {size}, expected 1, since ranks change their prefix caches in one round: leave it out"
    if parallel.enable_kv_cache_sharding:
        return "--enable-kv-cache-sharding is on, expected off, since no rank has all pages: leave it out"
    if pool_count > 1:
        return f"the model's KV is in {pool_count} pools, expected 1, that of full attention: it takes another model"
    if server_args.disable_radix_cache:
        remedy = "--disaggregation-decode-enable-radix-cache" if mode == "decode" else "no --disable-radix-cache"
        return f"its radix cache is off, expected on: start it with {remedy}"
    if server_args.speculative_algorithm is not None:
        return f"--speculative-algorithm is {server_args.speculative_algorithm}, expected none: leave it out"
    if get_memory().enable_hierarchical_cache:
        return "--enable-hierarchical-cache is set, expected no store behind the prefix cache: leave it out"
    kept = get_exec().features
    for name in ("enable_return_routed_experts", "enable_return_indexer_topk"):
        if getattr(kept, name):
            option = name.replace("_", "-")
            return f"--{option} is set, expected not, since what layers chose of a token is not pulled: leave it out"
    return ""
