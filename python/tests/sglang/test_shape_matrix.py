"""Every family of pools, with and without a draft, from prefillers of every shape to decoders of every shape.

Each pair either moves prompts, of which all bytes on each of the decoder's ranks are compared, or is refused with the
sentence that is expected of it. ``KV_MESSENGER_SHAPES`` is ``all``, or a seed by which a part is chosen.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shape_matrix import Matrix, MatrixPair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

Size = tuple[int, int]
SIZES: list[Size] = [(tp_size, pp_size) for pp_size in (1, 2) for tp_size in (1, 2, 4)]
FAMILIES = {
    "heads": ("none", "heads"),
    "heads of fp8": ("none", "heads"),
    "few heads": ("none", "heads"),
    "latent": ("none", "heads", "latent"),
    "index": ("none", "index"),
    "windows": ("none", "heads"),
    "windows of few heads": ("none", "heads"),
    "gated": ("none", "heads"),
    "latent, kimi": ("none", "latent"),
    "states": ("none", "heads"),
    "convolutions": ("none", "heads"),
    "index, waiting, kimi": ("none", "latent"),
    "selection, gated": ("none", "heads"),
    "sparse": ("none", "heads"),
    "scales": ("none", "heads"),
    "scales, windows": ("none", "heads"),
    "compressed": ("none",),
}
"""The drafts of each model, by the names of both in several_pools.py."""

NO_STAGES = {
    "selection, gated": "a model that keeps qsa_pending beside its KV pages",
    "sparse": "a model that keeps minimax_index_k beside its KV pages",
    "compressed": "it is not served with a model whose layers compress their KV",
}
OTHER_RANKS_REFUSED = {
    "states": r"the prefiller's dtype of KV group \d is bfloat16",
    "convolutions": r"the prefiller's dtype of KV group \d is bfloat16",
    "scales": "does NOT support different attention TP sizes with MXFP8 KV cache",
    "scales, windows": "does NOT support different attention TP sizes with MXFP8 KV cache",
    "sparse": "MiniMax sparse PD requires matching attention TP sizes",
}
"""What a decoder's rank answers."""


def refused_at_start(model: str, size: Size) -> str:
    """What the error says with which an engine of that shape does not start; "" if it does."""
    if size[1] == 1 or model not in NO_STAGES:
        return ""
    return f"--pp-size is {size[1]}, expected 1: {NO_STAGES[model]}"


def cases() -> list[Any]:
    chosen = os.environ.get("KV_MESSENGER_SHAPES", "1")
    families = [(model, draft) for model, drafts in FAMILIES.items() for draft in drafts]
    sizes = list(itertools.product(SIZES, SIZES))
    if chosen == "all":
        listed = list(itertools.product(families, sizes))
    else:
        random.Random(int(chosen)).shuffle(sizes)
        listed = sorted(zip(itertools.cycle(families), sizes, strict=False), key=lambda each: families.index(each[0]))
    return [
        pytest.param(*family, *pair, id=f"{family[0]} + draft {family[1]}, {_named(pair[0])} to {_named(pair[1])}")
        for family, pair in listed
    ]


def _named(size: Size) -> str:
    return f"TP {size[0]} PP {size[1]}"


@pytest.fixture(scope="module")
def matrix(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from shape_matrix import Matrix

        made = Matrix(tmp_path_factory.mktemp("model"))
    yield made
    made.close()


def opened(matrix: Matrix, model: str, draft: str, prefill: Size, decode: Size) -> MatrixPair | None:
    """None: an engine does not start, as expected."""
    with warnings.catch_warnings(action="ignore"):
        from shape_matrix import MatrixPair

        engines = [matrix.engine(mode, model, draft, size) for mode, size in (("prefill", prefill), ("decode", decode))]
    expected = [refused_at_start(model, size) for size in (prefill, decode)]
    for engine, sentence in zip(engines, expected, strict=True):
        assert sentence in engine.refused
        assert bool(sentence) == bool(engine.refused), engine.refused
    return None if any(expected) else MatrixPair(*engines)


@pytest.mark.parametrize(("model", "draft", "prefill", "decode"), cases())
def test_should_bring_each_rank_what_is_its_own_or_refuse(
    matrix: Matrix, model: str, draft: str, prefill: Size, decode: Size
) -> None:
    pair = opened(matrix, model, draft, prefill, decode)
    if pair is None:
        return
    expected = OTHER_RANKS_REFUSED.get(model) if prefill[0] != decode[0] else None
    if expected is not None:
        sentences = pair.refusals(20)
        assert all(re.search(expected, sentence) for sentence in sentences), sentences
    else:
        page_tokens = pair.decoders[0].shape.page_tokens
        for seed, tokens in enumerate((1, 6 * page_tokens + 5)):
            pair.move_prompt(tokens, 10 * seed)
    pair.assert_nothing_held()


def test_should_notice_parts_of_a_convolution_that_are_mistaken_for_each_other(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the matrix would see, held against a backend that takes queries, keys and values for one thing."""
    from kv_connector.sglang.state_slices import StateTensor

    monkeypatch.setattr(StateTensor, "blocks", lambda tensor, _tp_size: [tensor.divided])
    matrix.close()  # engines of the same family may be open, and have read their pools
    pair = opened(matrix, "gated", "none", (1, 1), (2, 1))
    assert pair is not None
    with pytest.raises(AssertionError, match="mamba, layer 0, 0"):
        pair.move_prompt(20, 0)
    matrix.close()


def test_should_notice_a_byte_that_is_not_the_prefillers(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = opened(matrix, "index, waiting, kimi", "latent", (1, 1), (1, 1))
    assert pair is not None
    finish = pair.finish
    (parts,) = pair.decode.parts
    for name, part in parts.items():

        def finish_and_damage(*ends: Any, part: Any = part) -> None:
            finish(*ends)
            part.items[:, -1, -1, -1] ^= 1

        monkeypatch.setattr(pair, "finish", finish_and_damage)
        with pytest.raises(AssertionError, match=re.escape(name)):
            pair.move_prompt(20, 0)
