"""KV that reaches a device's memory over libfabric, by way of slabs in host memory, between engines on GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fabric
import pytest
from kv_connector.cli.timelines import prefills

from uncomputed.pair import Engines, stand_ins
from uncomputed.test_vllm import Case, brought, flash, triton

pytestmark = pytest.mark.at_length

FEW_SLABS = {"landing_slabs": 2, "landing_slab_kib": 64}
"""Four pages of a layer fill one: a writer waits until one is given back."""
PAIRS: dict[str, dict[str, Any]] = {
    "full-graphs": {"settings": flash(prefix_caching=True)},
    "breakable-graphs-few-slabs": {"settings": triton(graphs="FULL_AND_PIECEWISE"), "options": FEW_SLABS},
    "ranks-2-2": {"settings": flash(), "ranks": (2, 2)},
}


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    if fabric.folder() is None:
        pytest.skip("no libfabric: examples/setup/find-libfabric says why")
    made = Engines(stand_ins(), with_fabric=True)
    yield made
    made.stop()


@pytest.mark.parametrize("name", PAIRS)
def test_kv_lands_in_a_devices_memory_over_libfabric(name: str, engines: Engines, tmp_path: Path) -> None:
    settings = PAIRS[name]
    case = Case("libfabric", **settings | {"options": fabric.options() | settings.get("options", {})})
    brought(case, f"fabric-{name}", engines, tmp_path)
    left = prefills((tmp_path / "prefiller.log").read_text("utf-8"))
    assert {timeline.transport for timeline in left.values()} == {"libfabric"}
