"""What an engine may pull and offer, read once from its configuration. Pure but for the line in the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

from kv_connector.configuration.options import Options
from kv_connector.runtime.commands import PullOutcome
from kv_connector.vllm.drafts import draft_with_kv
from kv_connector.vllm.engine_facts import EngineFacts, keeps_experts
from kv_connector.vllm.kv_groups import has_state


@dataclass(frozen=True, slots=True)
class PullRules:
    """The options of pulls, and the reasons for which this engine takes no part in them."""

    asks_none_because: PullOutcome | Literal[""]
    """The reason, as it is counted, for which no other engine is asked; "" if some may be."""
    offers_none_because: PullOutcome | Literal[""]
    """Why nothing is offered; "" if something may be."""
    always: bool
    """Whether to pull whatever the other engine holds, also where computing it would be faster."""
    tokens_min: int
    pages_share: float
    offer_limit_seconds: float
    answers_name_source: bool = False
    """Whether answers name this engine as one to pull from."""
    has_drafts: bool = False
    """Whether pages also hold a draft's KV."""


def pull_rules(vllm_config: Any, facts: EngineFacts, load_failure_policy: str, logger: logging.Logger) -> PullRules:
    """The rules of this engine."""
    options = facts.options
    shared = _neither_because(facts)
    asks_none = shared or ("role" if options.role == "prefiller" else "misfit" if keeps_experts(vllm_config) else "")
    if not asks_none and load_failure_policy != "recompute":
        asks_none = "policy_fail"
        logger.info(
            "no prompt's beginning is pulled from other engines: kv_load_failure_policy is %r, expected 'recompute', so"
            " that a pull that fails is computed here instead of failing its request",
            load_failure_policy,
        )
    offers_none = shared or ("role" if options.role == "decoder" else "")
    return PullRules(
        asks_none,
        offers_none,
        options.pulls == "always",
        options.pull_tokens_min,
        options.pull_pages_share,
        options.offer_limit_seconds,
        _names_source(vllm_config, options, offers_none, logger),
        draft_with_kv(vllm_config) is not None,
    )


def _names_source(vllm_config: Any, options: Options, offers_none_because: str, logger: logging.Logger) -> bool:
    """Whether answers name this engine, which they do only where it answers questions."""
    if not options.answers_name_source:
        return False
    wrong = ""
    if offers_none_because == "role":
        wrong = "kv_role is 'kv_consumer', expected 'kv_both' or 'kv_producer'"
    elif offers_none_because == "off":
        wrong = "pulls is 'off', expected 'auto' or 'always'"
    elif offers_none_because:
        wrong = f"its KV cannot be offered ({offers_none_because}, docs/metrics.md), expected KV that can be"
    elif not options.engine_api_url:
        wrong = "engine_api_url is '', expected the URL of this engine's own HTTP API"
    elif not vllm_config.cache_config.enable_prefix_caching:
        wrong = "enable_prefix_caching is False, expected True"
    if wrong:
        logger.warning(
            "answers_name_source is true and no answer names this engine, because nothing can be pulled from it: %s;"
            " change that, or set answers_name_source to false",
            wrong,
        )
    return not wrong


def _neither_because(facts: EngineFacts) -> PullOutcome | Literal[""]:
    if facts.options.pulls == "off":
        return "off"
    sizes = {group.block_tokens for group in facts.kv_groups}
    both_ways = any(group.both_ways for group in facts.kv_groups)
    return "" if not has_state(facts.kv_groups) and not both_ways and len(sizes) == 1 else "misfit"
