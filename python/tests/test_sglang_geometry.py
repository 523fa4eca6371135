"""Which of a prefiller's ranks hold the heads of a decoder's rank; no SGLang."""

from __future__ import annotations

import pytest

from kv_connector.sglang.geometry import Place, ranks_with_heads_of


@pytest.mark.parametrize(
    ("tp_rank", "tp_size", "kv_head_count", "source_tp_size", "expected"),
    [
        pytest.param(1, 2, 8, 2, [1], id="the twin"),
        pytest.param(1, 2, 8, 4, [2, 3], id="more ranks there"),
        pytest.param(3, 4, 8, 2, [1], id="fewer ranks there"),
        pytest.param(1, 3, 12, 2, [0, 1], id="sizes of which none divides the other"),
        pytest.param(0, 2, 2, 8, [0, 1, 2, 3], id="all that hold the same head"),
        pytest.param(5, 8, 2, 2, [1], id="more ranks than heads here"),
        pytest.param(1, 2, 1, 4, [0, 1, 2, 3], id="latent KV is on every rank"),
        pytest.param(0, 2, 8, 3, [], id="heads that cannot be split so"),
    ],
)
def test_should_name_every_rank_that_may_send(
    tp_rank: int, tp_size: int, kv_head_count: int, source_tp_size: int, expected: list[int]
) -> None:
    assert ranks_with_heads_of(Place(tp_size, tp_rank, 1, 0), kv_head_count, source_tp_size) == expected
