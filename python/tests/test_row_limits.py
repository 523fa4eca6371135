from __future__ import annotations

import math
from itertools import product

import pytest

from kv_connector.naming.row_limits import LIMITS, RowDifference, compared, first_finding, limits_of, worst_of

FORMATS = ("float32", "float16", "bfloat16")


def layer(number: int) -> str:
    return f"model.layers.{number}.self_attn.attn"


def rows(*relative: tuple[float, float]) -> list[RowDifference]:
    """For each layer how far K and V are off; the cosine belongs to numbers that are off by so much each."""
    return [
        RowDifference(layer(number), part, off, 1 / math.hypot(1, off))
        for number, pair in enumerate(relative)
        for part, off in zip(("K", "V"), pair, strict=True)
    ]


MEASURED_RIGHT = [
    ("float32", [0.0, 1e-7, 1.8e-6, 5.5e-6]),
    ("float16", [0.0021, 0.0030, 0.0040, 0.0043]),
    ("bfloat16", [0.0, 0.012, 0.022, 0.029]),
    ("bfloat16", [0.013, *(0.084 + 0.166 * depth / 23 for depth in range(1, 24))]),
    ("bfloat16", [0.01, *(0.037 for _ in range(79))]),
    ("float16", [0.002, *(0.0091 + 0.0229 * depth / 23 for depth in range(1, 24))]),
]


@pytest.mark.parametrize(("number_format", "noise"), MEASURED_RIGHT)
def test_should_suspect_no_pair_that_was_measured_as_right(number_format: str, noise: list[float]) -> None:
    assert first_finding(rows(*((each, each) for each in noise)), LIMITS[number_format]) is None


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize(
    ("what", "differences", "hint"),
    [
        ("long rope", [(1.7, 0.0), (1.7, 1.6), (1.8, 1.9)], "positions"),
        ("rope, two tokens", [(0.087, 0.0), (0.05, 0.06), (0.07, 0.08)], "positions"),
        ("other weights", [(1.6, 1.6), (1.8, 1.8), (2.1, 2.1)], "weights"),
        ("experts", [(0.0, 0.0), (0.73, 0.6), (0.7, 0.6)], "experts"),
    ],
)
def test_should_find_what_was_measured_on_wrong_pairs(
    number_format: str, what: str, differences: list[tuple[float, float]], hint: str
) -> None:
    finding = first_finding(rows(*differences), LIMITS[number_format])
    assert finding is not None, what
    assert hint in finding.sentence


def test_should_name_the_first_layer_the_part_the_number_and_what_was_expected() -> None:
    finding = first_finding(rows((0.0, 0.0), (0.012, 0.9), (0.9, 0.9)), LIMITS["bfloat16"])
    assert finding is not None
    assert (finding.layer, finding.part) == (layer(1), "V")
    assert "V of layer model.layers.1.self_attn.attn differs by 0.9" in finding.sentence
    assert "expected at most 0.1" in finding.sentence


@pytest.mark.parametrize(("number_format", "part", "depth"), [*product(FORMATS, ("K", "V"), (0, 1, 30))])
def test_should_find_a_difference_in_a_single_row_of_any_layer(number_format: str, part: str, depth: int) -> None:
    limits = LIMITS[number_format]
    for off, found in ((0.9 * limits.relative_at(depth), False), (1.1 * limits.relative_at(depth), True)):
        differences = rows(*((0.0, 0.0) for _ in range(32)))
        place = 2 * depth + (part == "V")
        differences[place] = RowDifference(layer(depth), differences[place].part, off, 1.0)
        assert (first_finding(differences, limits) is not None) == found


@pytest.mark.parametrize("number_format", FORMATS)
def test_should_be_stricter_where_less_was_computed(number_format: str) -> None:
    limits = LIMITS[number_format]
    allowed = [limits.relative_at(depth) for depth in range(100)]
    assert allowed == sorted(allowed)
    assert allowed[0] < allowed[1]
    assert allowed[-1] == limits.deepest


def test_should_find_a_row_that_points_elsewhere_though_no_number_is_far_off() -> None:
    turned = [RowDifference(layer(20), "K", 0.4, 0.89)]
    assert first_finding(turned, LIMITS["bfloat16"]) is not None
    assert first_finding([RowDifference(layer(20), "K", 0.4, 0.978)], LIMITS["bfloat16"]) is None


@pytest.mark.parametrize("number_format", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_should_find_scales_in_eight_bits_and_no_rounding(number_format: str) -> None:
    limits = LIMITS[number_format]
    assert first_finding([RowDifference(layer(0), "K", 0.62, 0.95, 1.1)], limits) is None
    for factor in (0.5, 2.0, 0.1, 30.0):
        finding = first_finding([RowDifference(layer(0), "V", abs(factor - 1), 1.0, factor)], limits)
        assert finding is not None, factor
        assert "scales" in finding.sentence
    assert first_finding([RowDifference(layer(3), "K", 0.62, 0.7, 1.0)], limits) is not None


def test_should_know_no_limits_of_an_unknown_format() -> None:
    assert limits_of("nvfp4") is None
    assert limits_of("uint8") is None
    assert limits_of("auto") is None


def test_should_find_a_received_number_that_is_none() -> None:
    broken = compared(layer(0), "K", (math.nan, 1.0, math.nan, math.nan, 1.0))
    assert worst_of([broken]) == math.inf
    assert first_finding([broken], LIMITS["fp8"]) is None or first_finding([broken], LIMITS["bfloat16"]) is not None
    assert first_finding([broken], LIMITS["bfloat16"]) is not None


def test_should_find_rows_of_zeros_equal_and_unlike_any_other() -> None:
    nothing = compared(layer(0), "K", (0.0, 0.0, 0.0, 0.0, 0.0))
    assert (nothing.relative, nothing.cosine) == (0.0, 1.0)
    for sums in ((1.0, 1.0, 0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 1.0, 0.0)):
        assert first_finding([compared(layer(0), "K", sums)], LIMITS["float32"]) is not None


def test_should_compute_what_the_sums_say() -> None:
    ours, theirs = [3.0, 4.0], [3.0, 5.0]
    seen = compared(layer(7), "V", (1.0, 4.0, 29.0, 34.0, 25.0))
    assert seen.depth == 7
    assert seen.relative == 0.25
    assert seen.cosine == pytest.approx(29 / (math.hypot(*ours) * math.hypot(*theirs)))
    assert seen.length_ratio == pytest.approx(math.hypot(*theirs) / math.hypot(*ours))


def test_should_report_the_worst_of_all_layers() -> None:
    assert worst_of(rows((0.1, 0.2), (0.05, 0.3))) == 0.3
    assert worst_of([]) == 0.0
