"""Addresses to listen on are judged by what they resolve to, and those for peers by their text."""

from __future__ import annotations

import pytest

from kv_connector.cli import given_options, machine
from kv_connector.configuration import host_addresses
from kv_connector.configuration.options import check_options
from kv_connector.exceptions import OptionError

NAMES = {
    "debianhost": ["127.0.1.1"],
    "both": ["127.0.0.1", "192.0.2.7"],
    "six": ["::1"],
    "far": ["192.0.2.7", "2001:db8::7"],
    "any": ["0.0.0.0"],
    "unknown": [],
}


def known(name: str) -> list[str]:
    return NAMES.get(name, [])


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *(("localhost", True), ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True)),
        *(("192.0.2.1", False), ("::", False), ("", False), ("0.0.0.0", False), ("[2001:db8::1]", False)),
        *(("debianhost", True), ("both", False), ("six", True), ("far", False), ("unknown", False)),
    ],
)
def test_loopback_is_judged_by_what_a_name_resolves_to(host: str, loopback: bool) -> None:
    assert host_addresses.is_loopback(host, known) is loopback


@pytest.mark.parametrize(("host", "wild"), [("any", True), ("::", True), ("[::]", True), ("", True), ("both", False)])
def test_wildcard_is_judged_by_what_a_name_resolves_to(host: str, wild: bool) -> None:
    assert host_addresses.is_any_address(host, known) is wild


@pytest.mark.parametrize(("host", "loopback"), [("localhost", True), ("[::1]", True), ("debianhost", False)])
def test_a_name_for_peers_is_theirs_to_resolve(host: str, loopback: bool) -> None:
    assert host_addresses.says_loopback(host) is loopback


@pytest.fixture
def name_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(2, 1, 6, "", (address, 0)) for address in NAMES[host]]

    monkeypatch.setattr("socket.getaddrinfo", look_up)


@pytest.mark.usefixtures("name_service")
def test_doctor_warns_of_a_name_that_is_loopback_here() -> None:
    found = machine.reach(check_options({"listen_host": "debianhost"}))
    assert found.level == "warn"
    assert "listen_host 'debianhost' is 127.0.1.1 here, where only this machine connects" in found.value


@pytest.mark.usefixtures("name_service")
def test_a_name_that_is_reachable_by_one_of_its_addresses_needs_the_secret() -> None:
    with pytest.raises(OptionError, match="reachable from other machines, and no shared secret"):
        check_options({"listen_host": "both"})


@pytest.mark.usefixtures("name_service")
def test_a_name_known_to_peers_only_may_be_advertised() -> None:
    given = {"listen_host": "192.0.2.7", "advertise_host": "prefiller-0", "shared_secret": "a secret of 24 characters"}
    assert check_options(given).advertise_host == "prefiller-0"


def test_brackets_of_an_ipv6_address_are_left_out() -> None:
    options = check_options({"listen_host": "[::1]", "metrics_host": "[::1]", "data_hosts": ["[::1]"]})
    assert (options.listen_host, options.metrics_host, options.data_hosts) == ("::1", "::1", ("::1",))
    assert machine.reach(given_options.none_given()).level == "ok"
