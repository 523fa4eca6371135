"""How a request names the engines that it may pull from: one or several, each read whole or refused by its place."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kv_connector.configuration.messenger_addresses import Address
from kv_connector.pulls.pull_hint import SOURCES_MAX, Pull, Unreadable, read_hint

RIGHT: list[tuple[dict[str, Any], tuple[Address, ...]]] = [
    ({"remote_host": "10.0.0.7", "remote_port": 14579}, (Address("10.0.0.7", 14579),)),
    ({"remote_host": "10.0.0.8", "remote_port": 1}, (Address("10.0.0.8", 1),)),
    ({"remote_host": "fd00::7", "remote_port": 65535}, (Address("fd00::7", 65535),)),
    ({"remote_host": "a:1,[fd00::7]:2", "remote_port": 1}, (Address("a", 1), Address("fd00::7", 2))),
]
WRONG: list[tuple[Any, str]] = [
    (7, ""),
    (None, ""),
    ([], ""),
    ("10.0.0.7:14579", ""),
    ({}, ".remote_host"),
    ({"remote_host": 7, "remote_port": 1}, ".remote_host"),
    ({"remote_host": "a b", "remote_port": 1}, ".remote_host"),
    ({"remote_host": "a:1,b", "remote_port": 1}, ".remote_host"),
    ({"remote_host": "a", "remote_port": 0}, ".remote_port"),
    ({"remote_host": "a", "remote_port": True}, ".remote_port"),
    ({"remote_host": "a"}, ".remote_port"),
]


def read(source: Any) -> Pull | Unreadable | None:
    return read_hint({"remote_kv_source": source}, "custom_params")


@pytest.mark.parametrize("seed", range(20))
def test_should_read_any_list_of_engines_in_their_order_and_each_once(seed: int) -> None:
    named = random.Random(seed).choices(RIGHT, k=1 + seed % SOURCES_MAX)
    assert read([each for each, _ in named]) == Pull(tuple(dict.fromkeys(addresses for _, addresses in named)))


@pytest.mark.parametrize(("named", "addresses"), RIGHT)
def test_should_read_one_engine_alone_and_in_a_list(named: Any, addresses: Any) -> None:
    assert read(named) == read([named]) == Pull((addresses,))


@pytest.mark.parametrize(("wrong", "where"), WRONG)
@pytest.mark.parametrize("place", range(3))
def test_should_name_the_place_of_what_cannot_be_read(wrong: Any, where: str, place: int) -> None:
    named = [each for each, _ in itertools.islice(RIGHT, 2)]
    unreadable = read([*named[:place], wrong, *named[place:]])
    assert isinstance(unreadable, Unreadable)
    assert unreadable.reason.startswith(f"custom_params.remote_kv_source[{place}]{where} is ")
    assert unreadable.reason.endswith(": correct the router")


@pytest.mark.parametrize("count", [0, SOURCES_MAX + 1, 10_000])
def test_should_refuse_no_engine_and_too_many(count: int) -> None:
    unreadable = read([RIGHT[0][0]] * count)
    assert isinstance(unreadable, Unreadable)
    expected = f"custom_params.remote_kv_source is a list of {count}, expected 1 to {SOURCES_MAX} engines"
    assert unreadable.reason == f"{expected}: correct the router"


@pytest.mark.parametrize("params", [None, 7, [], {}, {"remote_kv_source": None}])
def test_should_read_nothing_where_none_is_named(params: Any) -> None:
    assert read_hint(params, "custom_params") is None
