from __future__ import annotations

import pytest

from kv_connector.configuration.messenger_addresses import Address, host_text, read_list


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h:1", [("h", 1)]),
        ("10.0.0.1:7100,10.0.0.2:7101", [("10.0.0.1", 7100), ("10.0.0.2", 7101)]),
        ("[::1]:4000,[fe80::2]:65535", [("::1", 4000), ("fe80::2", 65535)]),
        ("", []),
        ("h", []),
        (":1", []),
        ("h:0", []),
        ("h:65536", []),
        ("h:1,", []),
        (",h:1", []),
        ("h:1,h:x", []),
        ("h:" + "1" * 5000, []),
        ("h:\N{SUPERSCRIPT TWO}", []),
        (",".join(["h:1"] * 2000), []),
    ],
)
def test_should_read_addresses_or_none(text: str, expected: list[tuple[str, int]]) -> None:
    assert [(address.host, address.port) for address in read_list(text)] == expected


def test_should_read_what_it_says() -> None:
    several = (Address("10.0.0.1", 7100), Address("::1", 7101))
    assert host_text(several) == "10.0.0.1:7100,[::1]:7101"
    assert read_list(host_text(several)) == several


def test_should_say_a_single_messenger_as_any_router_expects_it() -> None:
    assert host_text([Address("::1", 7101)]) == "::1"
