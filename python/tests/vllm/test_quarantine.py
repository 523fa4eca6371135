from __future__ import annotations

import logging

from simulated_requests import SimulatedBlockPool

from kv_connector.vllm.quarantine import Quarantine


def test_should_keep_blocks_until_each_rank_that_took_them_in_has_proof() -> None:
    pool = SimulatedBlockPool(4)
    blocks = pool.take(2)
    quarantine = Quarantine(logging.getLogger("test"))
    quarantine.bind(pool)
    quarantine.take_in("1", "request", blocks)
    quarantine.take_in("1", "request", blocks)
    pool.free_blocks(blocks)

    quarantine.let_go("1")
    assert len(pool.free) == 2, "the second rank's prefiller may still write to its part of these blocks"
    quarantine.let_go("1")
    assert len(pool.free) == 4
    assert quarantine.is_empty()
