"""Whatever a client of SGLang sends, it is checked where it enters, and the answer is one short sentence."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kv_connector.configuration.host_addresses import PORT_MAX
from kv_connector.sglang.client_fields import (
    HOST_LENGTH_MAX,
    ROOM_MAX,
    address_fault,
    dp_rank_fault,
    logprob_start_fault,
    logprobs_fault,
    room_fault,
    samples_fault,
)

SENTENCE_LENGTH_MAX = 400


def odd_values(seed: int = 0) -> list[Any]:
    """Values of all types that JSON has, and some that it has not: around limits, huge, nested."""
    randoms = random.Random(seed)
    numbers = [base + off for base in (0, 1 << 16, 1 << 31, 1 << 53, 1 << 63, 1 << 64) for off in (-1, 0, 1)]
    texts = [
        "",
        "x",
        "1",
        "a\0b",
        "a\nb",
        "\ud83d",
        "é" * 9,
        "x" * 1_000_000,
        "18446744073709551616",
        "[::1]",
        "a/../b",
    ]
    values: list[Any] = [
        None,
        True,
        False,
        0.0,
        1.0,
        1.5,
        -0.0,
        float("nan"),
        float("inf"),
        float("-inf"),
        10**400,
        10**5000,
    ]
    values += numbers + [-number for number in numbers] + texts + [b"1", (1, 2), {1}]
    values += [[each] for each in values[:20]] + [{"room": each} for each in values[:5]] + [[], {}, [[[1]]]]
    return values + [
        randoms.choice([randoms.getrandbits(70), randoms.random(), [randoms.getrandbits(8)]]) for _ in range(50)
    ]


@pytest.mark.parametrize(
    "check",
    [
        room_fault,
        address_fault,
        dp_rank_fault,
        samples_fault,
        logprob_start_fault,
        lambda value: logprobs_fault(value, most=128),
    ],
)
def test_should_answer_any_value_with_one_short_sentence_or_none(check: Any) -> None:
    for value in odd_values():
        refusal = check(value)
        assert len(refusal) <= SENTENCE_LENGTH_MAX
        assert refusal.isprintable()
        assert refusal.isascii()


def test_should_take_rooms_that_sglang_can_write() -> None:
    """As it writes them: a word of 64 bits, in which 0 stands for none yet."""
    for value in odd_values():
        right = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 64
        assert (room_fault(value) == "") == right, value
    assert ROOM_MAX == 2**64 - 1
    assert room_fault([1, 2]) == (
        "bootstrap_room is list, expected an integer from 1 to 18446744073709551615: send one, equal to both sides"
    )


def test_should_take_a_number_of_alternatives_that_a_row_holds() -> None:
    for value in odd_values():
        right = isinstance(value, int) and value <= 128
        assert (logprobs_fault(value, most=128) == "") == right, value


def test_should_take_one_sample_of_a_request() -> None:
    for value in odd_values():
        right = isinstance(value, int | float) and not value > 1
        assert (samples_fault(value) == "") == right, value


@pytest.mark.parametrize(
    "address",
    ["h:1", "a.b-c_d:8998", "127.0.0.1:65535", "[::1]:8998", "[fe80::1%eth0]:1", f"{'h' * HOST_LENGTH_MAX}:1"],
)
def test_should_take_addresses_as_sglang_joins_them(address: str) -> None:
    assert address_fault(address) == ""


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            ":1",
            "h",
            "h:",
            "h:0",
            f"h:{PORT_MAX + 1}",
            "h:-1",
            "h:1.5",
            "h:None",
            "h:[1]",
            "h:²",
            "h: 1",
            "h:000001",
        ),
        *("a b:1", "a/b:1", "a?b:1", "a#b:1", "u@h:1", "a\nb:1", "a\0b:1", "é:1", "\ud83d:1", "['a']:1", "{'a': 1}:1"),
        *(f"{'h' * (HOST_LENGTH_MAX + 1)}:1", f"h:{'1' * 100_000}"),
    ],
)
def test_should_refuse_addresses_that_name_no_server(address: str) -> None:
    assert "expected" in address_fault(address)
