"""What the messenger costs a worker that has nothing to do: nearly nothing. (Its boot: test_wheel.py.)"""

from __future__ import annotations

import pytest
from bed import Bed
from idle_cost import Spent, assert_sleeps, spent

IDLE_SECONDS = 10.0


@pytest.fixture(scope="module")
def both(bed: Bed) -> dict[str, list[Spent]]:
    return spent({"prefiller": bed.prefiller, "decoder": bed.decoder}, IDLE_SECONDS)


@pytest.mark.parametrize("role", ["prefiller", "decoder"])
def test_idle_messenger_sleeps(both: dict[str, list[Spent]], role: str) -> None:
    assert_sleeps(role, both[role])
