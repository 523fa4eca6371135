from __future__ import annotations

import dataclasses

from kv_connector.naming.prompt_digest import Embeddings, Feature, prompt_digest

TOKENS = [1, 2, 300_000]
FEATURE = Feature("a1b2", 1, 2)
VECTORS = Embeddings("bfloat16", (3, 2), bytes(range(12)))


def test_should_stay_what_it_is_because_peers_of_other_versions_compare_it() -> None:
    assert prompt_digest(TOKENS) == "06818bf067f8a9c0f7e8d019f353c834"
    everything = prompt_digest(TOKENS, embeddings=VECTORS, lora="l", features=[FEATURE], cache_salt="s")
    assert everything == "21428bb470c4a771b34edee53f61a5cd"


def test_should_differ_for_all_that_changes_the_kv() -> None:
    digests = [
        prompt_digest(None),
        prompt_digest([]),
        prompt_digest(TOKENS),
        prompt_digest([1, 2, 300_001]),
        prompt_digest([2, 1, 300_000]),
        prompt_digest(TOKENS[:2]),
        prompt_digest(TOKENS, lora="sql"),
        prompt_digest(TOKENS, cache_salt="sql"),
        prompt_digest(TOKENS, weights="sql"),
        prompt_digest(TOKENS, cache_salt="\ud800"),
        prompt_digest(TOKENS, features=[FEATURE]),
        prompt_digest(TOKENS, features=[FEATURE, FEATURE]),
        prompt_digest(TOKENS, features=[dataclasses.replace(FEATURE, content="a1b3")]),
        prompt_digest(TOKENS, features=[dataclasses.replace(FEATURE, offset_tokens=0)]),
        prompt_digest(TOKENS, features=[dataclasses.replace(FEATURE, length_tokens=3)]),
        prompt_digest(None, embeddings=VECTORS),
        prompt_digest(None, embeddings=dataclasses.replace(VECTORS, dtype="float16")),
        prompt_digest(None, embeddings=dataclasses.replace(VECTORS, shape=(2, 3))),
        prompt_digest(None, embeddings=dataclasses.replace(VECTORS, data=bytes(12))),
        prompt_digest(TOKENS, embeddings=VECTORS),
        prompt_digest(TOKENS, embeddings=dataclasses.replace(VECTORS, token_positions=(True, False, True))),
        prompt_digest(TOKENS, embeddings=dataclasses.replace(VECTORS, token_positions=(True, True, True))),
    ]
    assert len(set(digests)) == len(digests)
    assert {len(each) for each in digests} == {32}


def test_should_not_depend_on_how_the_engine_keeps_the_ids() -> None:
    assert prompt_digest(tuple(TOKENS)) == prompt_digest(TOKENS)
