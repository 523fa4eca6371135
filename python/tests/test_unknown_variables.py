"""Misspelt variables are warned of; those that Kubernetes sets for services are not."""

from __future__ import annotations

import pytest

from kv_connector.cli import machine
from kv_connector.configuration import option_warnings, options


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("KV_MESSENGER_LISTENPORT", "KV_MESSENGER_LISTEN_PORT"),
        ("KV_MESSENGER_GRANT_WAIT_SECOND", "KV_MESSENGER_GRANT_WAIT_SECONDS"),
        ("KV_MESSENGER_SECRETFILE", "KV_MESSENGER_SECRET_FILE"),
        ("KV_MESSENGER_QQQ", ""),
    ],
)
def test_unknown_variable_is_warned_of_once(
    name: str, near: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(option_warnings, "_warned", set())
    for _ in range(2):
        options.parse_options({}, role="both", engine_id="", environment={name: "1"})
    (line,) = caplog.messages
    assert line.startswith(f"environment variable {name} is no option of KV Messenger's and changes nothing: ")
    assert line.endswith(f"did you mean {near}?" if near else "see docs/options.md for the names")
    (found,) = machine.variables({name: "1"})
    assert (found.level, found.value) == ("warn", line)


LINKS_OF_SERVICES = {
    "KV_MESSENGER_SERVICE_HOST": "10.0.0.1",
    "KV_MESSENGER_SERVICE_PORT": "8000",
    "KV_MESSENGER_SERVICE_PORT_HTTP": "8000",
    "KV_MESSENGER_PORT": "tcp://10.0.0.1:8000",
    "KV_MESSENGER_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "KV_MESSENGER_PORT_8000_TCP_PROTO": "tcp",
    "KV_MESSENGER_PORT_8000_TCP_PORT": "8000",
    "KV_MESSENGER_PORT_8000_TCP_ADDR": "10.0.0.1",
    "KV_MESSENGER_ROUTER_SERVICE_HOST": "10.0.0.1",
    "KV_MESSENGER_ROUTER_PORT": "udp://10.0.0.1:8000",
    "KV_MESSENGER_ROUTER_PORT_53_UDP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("name", LINKS_OF_SERVICES)
def test_links_of_kubernetes_services_are_not_warned_of(name: str) -> None:
    assert options.unknown_variables({name: LINKS_OF_SERVICES[name]}) == []


def test_known_variables_are_not_warned_of() -> None:
    names = [f"KV_MESSENGER_{name.upper()}" for name in options.OPTION_SPECS]
    assert options.unknown_variables(dict.fromkeys([*names, "KV_MESSENGER_CACHE", "VLLM_PORT"], "1")) == []
