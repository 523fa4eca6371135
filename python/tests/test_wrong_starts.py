"""What a user's wrong option says when a messenger is opened with it: one sentence with option, value and remedy."""

from __future__ import annotations

import json
import re

import pytest
from conftest import RunPython

from kv_connector.runtime import preflight

SCRIPT = """
    import json, socket
    from kv_connector import KvConnectorError, Messenger, parse_options
    from kv_connector.cli.host_pages import HostPages

    pages = HostPages("started", 4096, 4)
    secret = {"shared_secret": "s" * 20}
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    mistakes = {
        "control port in use": {"listen_port": port},
        "data port in use": {"data_port": port},
        "metrics port in use": {"metrics_port": port},
        "another machine's metrics address": {"metrics_host": "192.0.2.1"},
        "another machine's address": {"listen_host": "192.0.2.1", **secret},
        "unknown host": {"listen_host": "no.such.host.invalid", **secret},
        "advertised loopback": {"listen_host": "0.0.0.0", "advertise_host": "localhost", **secret},
        "streams": {"streams_per_peer": 32},
        "misspelt": {"listenPort": 1},
        "nixl": {"kv_lease_duration": 30},
        "no url": {"engine_api_url": "http://a b:8000"},
    }
    said = {}
    for name, options in mistakes.items():
        try:
            parsed = parse_options({"listen_port": 0, **options}, role="prefiller", engine_id=name, environment={})
            Messenger.open(parsed, pages.geometry(16)).close()
            said[name] = "opened"
        except KvConnectorError as refused:
            said[name] = str(refused)
    print(json.dumps(said))
"""

SENTENCES = {
    "control port in use": r"listen_port \d+ on listen_host 127\.0\.0\.1 cannot be used \(.*in use\): end the program"
    r" that uses it, or choose another port, or 0 for any free one",
    "data port in use": r".*option data_port is \d+ .* \(EADDRINUSE\); choose a free port above 1023, or 0 for any, .*",
    "metrics port in use": r"metrics_port is \d+ on 127\.0\.0\.1, expected a free port .*: .*",
    "another machine's metrics address": r"metrics_host is '192\.0\.2\.1', expected an address of this machine.*",
    "another machine's address": r".*option listen_host is 192\.0\.2\.1, which this machine cannot listen on"
    r" \(EADDRNOTAVAIL\); name one of its own addresses",
    "unknown host": r".*listen_host is '?no\.such\.host\.invalid'?, .*",
    "advertised loopback": r"option 'advertise_host' is 'localhost', .*: set advertise_host to an address that peers"
    r" can dial, or listen on 127\.0\.0\.1",
    "streams": r"option 'streams_per_peer' is 32, expected a value from 1 to 16: fix it in .*",
    "misspelt": r"unknown option 'listenPort' in .*: did you mean 'listen_port'\?",
    "nixl": r"unknown option 'kv_lease_duration' in .*, which is NixlConnector's: .*grant_wait_seconds.*",
    "no url": r"(option '?)?engine_api_url'? is '?http://a b:8000'?, expected .*",
}


@pytest.fixture(scope="module")
def refusals(jar: preflight.Jar, java: preflight.JavaRuntime) -> dict[str, str]:
    """Filled by the first test that asks: all mistakes are made in one process."""
    assert jar.path.exists()
    assert java.launcher.exists()
    return {}


@pytest.mark.parametrize("mistake", list(SENTENCES))
def test_should_say_what_to_do(mistake: str, refusals: dict[str, str], run_python: RunPython) -> None:
    if not refusals:
        refusals.update(json.loads(run_python(SCRIPT).stdout.splitlines()[-1]))
    assert "\n" not in refusals[mistake]
    assert re.fullmatch(SENTENCES[mistake], refusals[mistake]), refusals[mistake]


WITHOUT_VLLM = """
    import sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name == "vllm":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Hidden())
    import kv_connector.vllm.connector
"""


def test_should_say_that_there_is_no_vllm(run_python: RunPython) -> None:
    done = run_python(WITHOUT_VLLM, succeeds=False)
    last = done.stderr.splitlines()[-1]
    says = r"ImportError: KV Messenger \S+ is made for vLLM .*, and this Python has no vLLM: install one of .* into it"
    assert re.fullmatch(says, last), last
