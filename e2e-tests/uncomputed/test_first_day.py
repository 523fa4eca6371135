"""The first start on a machine with GPUs and RDMA devices, with as few options as it takes."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_check.vllm_on_torch.plan import EAGER, PREFILLER, VllmPlan
from kv_connector.cli.timelines import prefills
from torch_engine.pair import EngineEnded

from uncomputed.engine import MACHINE
from uncomputed.pair import Engines, Uncomputed
from uncomputed.test_vllm import RDMA_DEVICES, Case, brought, flash, triton

TREES = Path(__file__).resolve().parents[2] / "python" / "tests"
"""Where the module that makes a machine's /sys lies."""
FIRST_BUS = 0x10
"""Where the stand-in for the driver says that device 0 is; the others are on the buses behind it."""

pytestmark = pytest.mark.at_length


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Each GPU has a PCI switch with one of the RDMA devices."""
    sys.path.append(str(TREES))
    trees: Any = importlib.import_module("sys_trees")
    root = tmp_path / "machine"
    tree = trees.Tree(root)
    for number, device in enumerate(RDMA_DEVICES):
        bus = 0x40 + 0x10 * number
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        tree.gpu(f"{switch}/0000:{bus + 2:02x}:00.0/0000:{FIRST_BUS + number:02x}:00.0", 0, "0-255")
        tree.nic(f"{switch}/0000:{bus + 2:02x}:01.0/0000:{bus + 3:02x}:00.0", device, 0, "0-255")
    return root


class OfDefaultTransports(Case):
    """A pair that names none."""

    def plan(self, name: str) -> VllmPlan:
        made = super().plan(name)
        return replace(made, options={each: value for each, value in made.options.items() if each != "transports"})


def test_each_rank_takes_the_rdma_device_that_is_near_its_gpu(engines: Engines, machine: Path, tmp_path: Path) -> None:
    case = Case(
        "verbs",
        flash(),
        ranks=(2, 2),
        options={"transports": ["verbs", "tcp"]},
        driver={MACHINE: str(machine)},
    )
    brought(case, "near", engines, tmp_path)
    for side in ("prefiller", "decoder"):
        log = (tmp_path / f"{side}.log").read_text("utf-8")
        taken = re.findall(r"\(Worker_TP(\d) .*directly, by dma-buf, through (\w+)[:;]", log)
        assert set(taken) == {(str(rank), device) for rank, device in enumerate(RDMA_DEVICES)}


def test_kv_leaves_over_cuda_where_no_transport_is_named(engines: Engines, tmp_path: Path) -> None:
    brought(OfDefaultTransports(settings=triton()), "defaults", engines, tmp_path)
    left = prefills((tmp_path / "prefiller.log").read_text("utf-8"))
    assert {timeline.transport for timeline in left.values()} == {"cuda"}


@pytest.mark.parametrize("layout", ["", "HND"])
def test_no_engine_starts_on_a_gpu_that_is_off(layout: str, engines: Engines, tmp_path: Path) -> None:
    """Also where vLLM asks its connector for no layout, since there is one in the environment, nor of graphs."""
    plan = Case("tcp", triton(graphs=EAGER, layout=layout), options={"gpu": "off"}).plan("off")
    with (
        pytest.raises(EngineEnded, match="computes on device 'cuda'"),
        Uncomputed(replace(plan, role=PREFILLER), tmp_path / "off.log", engines, {}) as engine,
    ):
        engine.ready()
