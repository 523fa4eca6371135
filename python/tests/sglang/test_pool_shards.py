"""Second pools of engines that are split differently: states over other numbers of ranks, and layers over stages."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sharded_pools import ShardedPools

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


@contextlib.contextmanager
def opened(folder: Path, shape: str, prefill: tuple[int, int], decode: tuple[int, int]) -> Iterator[ShardedPools]:
    with warnings.catch_warnings(action="ignore"):
        import sharded_pools

        pair = sharded_pools.opened(folder, shape, prefill, decode)
    with contextlib.closing(pair):
        yield pair


@pytest.mark.parametrize(
    ("shape", "prefill", "decode"),
    [
        pytest.param("gated", (2, 1), (1, 1), id="states, TP 2 to 1"),
        pytest.param("gated", (1, 1), (2, 1), id="states, TP 1 to 2"),
        pytest.param("gated", (4, 1), (2, 1), id="states, TP 4 to 2"),
        pytest.param("gated", (2, 1), (2, 1), id="states, TP 2 to 2"),
        pytest.param("gated", (1, 2), (1, 1), id="states, PP 2 to 1"),
        pytest.param("gated", (2, 2), (1, 1), id="states, TP 2 PP 2 to TP 1"),
        pytest.param("windows", (1, 2), (1, 1), id="windows, PP 2 to 1"),
        pytest.param("windows", (2, 1), (1, 1), id="windows, TP 2 to 1"),
        pytest.param("windows", (1, 1), (2, 1), id="windows, TP 1 to 2"),
        pytest.param("windows", (2, 2), (1, 1), id="windows, TP 2 PP 2 to TP 1"),
    ],
)
def test_should_move_each_part_to_every_rank_that_holds_it(
    tmp_path: Path, shape: str, prefill: tuple[int, int], decode: tuple[int, int]
) -> None:
    with opened(tmp_path, shape, prefill, decode) as pair:
        for tokens in (1, 100, 16 * 20):
            pair.move_prompt(tokens)
            pair.assert_moved()
        pair.assert_nothing_held()


def test_should_refuse_states_of_which_it_is_not_known_how_ranks_divide_them(tmp_path: Path) -> None:
    with opened(tmp_path, "mamba", (2, 1), (1, 1)) as pair:
        assert "the prefiller's dtype of KV group 1 is bfloat16[64, 3] float32" in pair.refusal(tokens=20)
