"""The rule of the last token is the same in Python as in Java: one table of cases for both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kv_connector.naming.last_token import FULL_ATTENTION, LastTokenRule

TABLE = json.loads(
    (Path(__file__).resolve().parents[2] / "spec-decode/src/test/resources/last-token-rule.json").read_text("utf-8")
)


def rule_of(case: dict[str, Any]) -> LastTokenRule:
    return LastTokenRule(case["state"], case["draftModules"], case["leavesOut"])


def test_should_share_a_prompt_as_the_table_says() -> None:
    assert len(TABLE["cases"]) >= 24
    for case in TABLE["cases"]:
        rule, tokens = rule_of(case), case["promptTokens"]
        shared = (rule.sent_tokens(tokens), rule.resume_token(tokens))
        assert shared == (case["sentTokens"], case["resumeToken"]), case


@pytest.mark.parametrize("case", TABLE["refused"], ids=lambda case: case["sentence"])
def test_should_refuse_what_no_side_can_do(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=case["sentence"]):
        rule_of(case).sent_tokens(case["promptTokens"])


def test_should_take_no_more_back_for_one_module_than_for_none() -> None:
    """vLLM's EAGLE drafts go with the model's KV, and nothing else is said of them."""
    eagle = LastTokenRule(draft_modules=1)
    for tokens in range(1, 50):
        assert eagle.sent_tokens(tokens) == FULL_ATTENTION.sent_tokens(tokens) == tokens
        assert eagle.resume_token(tokens) == FULL_ATTENTION.resume_token(tokens) == tokens - 1
