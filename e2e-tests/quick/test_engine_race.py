"""What the race of engines reads from logs and from /proc, and how it marks rounds that were not quiet."""

from __future__ import annotations

import pytest
import quiet
from hand_over import Streamed, hidden_share, percentile, stamps, summary, waits_ms
from quiet import FOREIGN_CORES_MAX, Usage

PREFILLER = """\
(Worker pid=7) stopwatch forward_end at_ns=1000000 requests=cmpl-race-1-0-ab12,cmpl-race-2-0-cd34
INFO something else
(Worker pid=7) stopwatch forward_end at_ns=3000000 requests=cmpl-race-2-0-cd34
stopwatch forward_end at_ns=4000000 requests=cmpl-warm-9-0
"""
DECODER = """\
(EngineCore pid=8) stopwatch told at_ns=2500000 requests=cmpl-race-1-0-ffff
(EngineCore pid=8) stopwatch ready at_ns=2600000 requests=cmpl-race-1-0-ffff
(EngineCore pid=8) stopwatch ready at_ns=2900000 requests=cmpl-race-2-0-eeee
"""
STAT = "cpu  100 5 50 900 30 2 3 10 40 0\ncpu0 50 2 25 450 15 1 1 5 20 0\n"


def test_the_last_stamp_of_a_request_counts_whatever_vllm_made_of_its_id() -> None:
    assert stamps(PREFILLER, "forward_end") == {"race-1": 1_000_000, "race-2": 3_000_000}


def test_a_wait_ends_at_either_stamp_and_may_be_below_zero() -> None:
    assert waits_ms(PREFILLER, DECODER) == {"race-1": 1.6, "race-2": -0.1}
    assert waits_ms(PREFILLER, DECODER, "told") == {"race-1": 1.5}


def test_a_stream_says_when_its_first_part_came_and_how_far_apart_the_others_were() -> None:
    answer = Streamed("race-1", 1_000_000, (3_000_000, 4_000_000, 7_000_000), ("a", "b", "c"))
    assert answer.first_token_ms == 2.0
    assert answer.gaps_ms == [1.0, 3.0]


def test_figures_are_values_that_were_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile(range(1, 201), 0.99) == 198
    assert summary([1.0, 2.0, 9.0]) == {"p50": 2.0, "p99": 9.0}


@pytest.mark.parametrize(("waited_ms", "share"), [(10.0, 0.9), (0.0, 1.0), (150.0, -0.5)])
def test_the_hidden_share_falls_below_zero_where_more_was_waited_than_the_link_needs(
    waited_ms: float, share: float
) -> None:
    assert hidden_share(waited_ms, 10_000_000, 100e6) == share


def test_busy_time_is_all_but_idle_and_waiting_and_counts_guests_once() -> None:
    assert quiet.busy_ticks(STAT) == 100 + 5 + 50 + 2 + 3 + 10


def test_a_process_counts_with_the_children_that_it_has_waited_for() -> None:
    assert quiet.process_ticks("7 (a (b) c) S 1 7 7 0 -1 0 0 0 0 0 11 12 13 14 20 0") == 50


def test_what_others_took_is_what_was_busy_and_not_ours() -> None:
    assert quiet.foreign_cores(Usage(0.0, 10.0, 5.0), Usage(2.0, 13.0, 7.5)) == pytest.approx(0.25)
    assert quiet.foreign_cores(Usage(0.0, 10.0, 5.0), Usage(2.0, 11.0, 7.5)) == 0.0


def usages(*foreign: float) -> list[Usage]:
    read, busy = [Usage(0.0, 0.0, 0.0)], 0.0
    for at, cores in enumerate(foreign, 1):
        busy += cores
        read.append(Usage(float(at), busy, 0.0))
    return read


def test_a_quiet_second_is_waited_for_and_not_longer_than_the_limit() -> None:
    loud, still = FOREIGN_CORES_MAX + 0.1, FOREIGN_CORES_MAX / 2
    for foreign, found in (((loud, loud, still), True), ((loud,) * 9, False)):
        left = iter(usages(*foreign))
        assert quiet.wait_quiet(5.0, lambda left=left: next(left), lambda seconds: None) is found  # type: ignore[misc]
