"""What the race of weights makes of token times, of a link's counters, and of the updates that it saw."""

from __future__ import annotations

import pytest
from weight_figures import (
    Span,
    Update,
    aligned,
    answer_under_way,
    bounds,
    busy_seconds,
    longest_gap,
    rows,
    sent_bytes,
    under_way,
    usual_gap,
)

NET_DEV = """\
Inter-|   Receive                               |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:   100       1    0    0    0     0          0         0   200      1    0    0    0     0       0          0
 kvmd7: 4711 12 0 0 0 0 0 0 193188761 99 0 0 0 0 0 0
kvmd70: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0
"""
MODEL_BYTES = 1_000_000
LINK_RATE = 1e6


def update(flow: str, **changed: object) -> Update:
    given: dict[str, object] = {
        "flow": flow,
        "number": 0,
        "longest_gap": 0.3,
        "longest_before": 0.05,
        "usual_gap": 0.03,
        "load": 0.25,
        "anew": 0.0,
        "whole": 1.5,
        "landed": 1.05,
        "link_bytes": MODEL_BYTES,
        "link_seconds": 1.0,
        "kvperf_rate": LINK_RATE,
        "right": True,
        "whole_answers": True,
    }
    return Update(**(given | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("within", "longest"),
    [
        (Span(2.0, 2.5), 2.0),  # it lies in the gap
        (Span(0.5, 1.5), 2.0),  # it ends in it
        (Span(2.9, 3.5), 2.0),  # it begins in it
        (Span(3.05, 4.0), 0.5),
        (Span(9.0, 9.5), 0.0),
    ],
)
def test_a_gap_counts_that_meets_the_update_and_is_of_one_stream(within: Span, longest: float) -> None:
    streams = [[0.0, 1.0, 3.0, 3.5], [0.0, 0.2, 2.0, 3.0, 3.1]]
    assert longest_gap(streams, within) == pytest.approx(longest)


def test_the_usual_gap_is_of_the_time_beside_the_update() -> None:
    assert usual_gap([[0.0, 0.1, 0.2, 2.2, 2.3]], Span(0.5, 2.0)) == pytest.approx(0.1)
    assert usual_gap([], Span(0.0, 1.0)) == 0.0


@pytest.mark.parametrize(("at", "count"), [(0.5, 0), (1.0, 1), (3.5, 0), (2.5, 2), (4.0, 1), (9.0, 2)])
def test_tokens_under_way_are_of_the_present_answer(at: float, count: int) -> None:
    assert under_way([1.0, 2.0, 3.0, 4.0, 5.0], [0, 3], at) == count


@pytest.mark.parametrize(("at", "number"), [(0.5, 0), (1.0, 0), (3.5, 0), (4.0, 1), (9.0, 1)])
def test_the_answer_under_way_had_the_last_token(at: float, number: int) -> None:
    assert answer_under_way([1.0, 2.0, 3.0, 4.0, 5.0], [0, 3, 5], at) == number


def test_what_an_interface_has_sent_is_its_own_line() -> None:
    assert sent_bytes(NET_DEV, "kvmd7") == 193188761
    assert sent_bytes(NET_DEV, "lo") == 200
    with pytest.raises(KeyError, match="kvmd8"):
        sent_bytes(NET_DEV, "kvmd8")


def test_a_link_is_busy_between_the_first_and_the_last_bytes_that_matter() -> None:
    quiet_seconds = [(at, 5) for at in range(5)]
    climbing = [(5 + step / 100, 5 + 1000 * step) for step in range(101)]
    over = [(at, 100_005) for at in range(7, 12)]
    assert busy_seconds([*quiet_seconds, *climbing, *over]) == pytest.approx(1.0, abs=0.02)
    assert busy_seconds([]) == 0.0


def test_a_first_update_has_a_row_of_its_own_and_a_wrong_answer_shows() -> None:
    wrong = update("ours", whole=2.0, right=False, whole_answers=False, longest_gap=0.5)
    seen = [update("ours"), update("ours", whole=1.0), wrong]
    header, first, later = rows(seen, MODEL_BYTES)
    assert first[:3] == ["ours", "first", "0.300"]
    assert later[:4] == ["ours", "2 later", "0.400", "0.500"]
    assert dict(zip(header, later, strict=True))["whole s"] == "1.50"
    assert (first[-2:], later[-2:]) == (["right", "right"], ["WRONG", "of neither"])


def test_cells_are_below_their_headings() -> None:
    assert list(aligned([["flow", "s"], ["longer name", "1"], ["x", "20"]])) == [
        "flow         s",
        "longer name  1",
        "x            20",
    ]


def missed(own: list[Update], rival: Update) -> list[str]:
    return [
        sentence for sentence, figure, most in bounds([*own, rival], MODEL_BYTES, "ours", "broadcast") if figure > most
    ]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"longest_gap": 0.36}, "longest gap - load of the median update, s"),
        ({"link_bytes": 1_011_000}, "bytes of a host / model"),
        ({"whole": 1.0}, "first update / median later one"),
        ({"landed": 1.2}, "kvperf's rate / rate from call to landed"),
        ({"link_seconds": 1.2}, "kvperf's rate / rate on the link"),
    ],
)
def test_each_bound_is_missed_by_what_is_beyond_it(changed: dict[str, object], sentence: str) -> None:
    rival = update("broadcast", longest_gap=2.0, landed=None)
    assert missed([update("ours"), update("ours")], rival) == []
    seen = missed([update("ours"), update("ours", **changed), update("ours", **changed)], rival)
    assert sentence in seen
    assert set(seen) <= {sentence, sentence.replace("median", "worst"), "the same without tokens computed anew, s"}


def test_what_is_computed_anew_is_no_part_of_the_last_bound_of_gaps() -> None:
    own = [update("ours", longest_gap=0.5, anew=0.2), update("ours", longest_gap=0.5, anew=0.2)]
    seen = missed(own, update("broadcast", longest_gap=9.0, landed=None))
    assert seen == [f"longest gap - load of the {which} update, s" for which in ("worst", "median")]


def test_the_worst_update_is_a_miss_of_its_own() -> None:
    own = [update("ours"), update("ours"), update("ours", longest_gap=0.36)]
    rival = update("broadcast", longest_gap=2.0, landed=None)
    assert missed(own, rival) == ["longest gap - load of the worst update, s"]


def test_a_gap_that_the_broadcast_has_too_is_a_miss() -> None:
    rival = update("broadcast", longest_gap=1.0, landed=None)
    assert missed([update("ours"), update("ours")], rival) == ["median longest gap / the broadcast flow's"]
