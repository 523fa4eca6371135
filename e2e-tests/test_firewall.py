"""A new user on two hosts with firewalls: the wheel by pip, options and open ports as docs/ports.md says, no engine.

The hosts are network namespaces, and each drops what comes in but for the one port of the page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from hosts import lack_of_privilege

LIMIT_SECONDS = 600
GIVEN_UP_SECONDS = 20
"""Of a data path that a firewall closes. A messenger's first handshake loads classes, and is to be over by then."""
CONNECTIONS = 3
"""Those of data that a decoder and a prefiller open."""
LOOK_SECONDS = 0.2
ESTABLISHED = "01"
"""As /proc/net/tcp has it."""
ASK_TWICE = """
import json, sys
from kv_connector.cli import given_options, ping
options = ping.fitting(given_options.of_vllm(sys.argv[1]), answers=False)
prefiller = ping.PrefillerAddress(*ping.address(sys.argv[2]))
pages = ping.HostPages(ping.MODEL, ping.PAGE_BYTES, ping.PAGE_COUNT)
messenger = ping.Messenger.open(options, pages.geometry(ping.PAGE_TOKENS))
lines = ping.Asking(messenger, pages, prefiller, ping.fetch_limit_seconds(options)).lines()
print(next(lines), flush=True)
sys.stdin.readline()
print(next(lines), flush=True)
sys.stdin.readline()
messenger.close()
"""
"""Fetches a page, waits for a line, fetches more, and waits again: its connections stay open while they are counted."""
NETWORK = "10.214"
PAGE = (ROOT / "docs" / "ports.md").read_text(encoding="utf-8")
RULES = """
table inet firewall {{
 chain input {{
  type filter hook input priority 0; policy drop;
  iif "lo" accept
  ct state established,related accept
  meta l4proto {{ icmp, ipv6-icmp }} accept
  ip saddr {peer} tcp dport {port} accept
  counter comment "dropped"
 }}
}}
"""


def documented(option: str) -> int:
    """The port that the page tells users to open and set."""
    (port,) = set(re.findall(rf'"{option}": (\d+)', PAGE))
    return int(port)


@dataclass(frozen=True)
class Behind:
    """A host behind its firewall."""

    name: str
    address: str
    nft: str
    command: Path

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.there(*arguments), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, **more
        )

    def there(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *arguments]

    def messenger(self, command: str, *arguments: str, **options: Any) -> list[str]:
        """The installed command with the options of an engine of this host, to be run there."""
        role = "kv_producer" if "listen_port" in options else "kv_consumer"
        transfer_config = {
            "kv_connector": "KvMessengerConnector",
            "kv_role": role,
            "kv_connector_extra_config": options,
        }
        return [str(self.command), command, *arguments, "--kv-transfer-config", json.dumps(transfer_config)]

    def program(self, text: str, *arguments: str) -> list[str]:
        """A program for the interpreter that the wheel is installed in."""
        return self.there(str(self.command.parent / "python"), "-c", text, *arguments)

    def open_to(self, port: int, *, at_peer: bool) -> set[int]:
        """The ports at the other end of the established connections to a port, whichever end has it."""
        ends = established_ports(self.run("cat", "/proc/net/tcp").stdout)
        return {local if at_peer else remote for local, remote in ends if (remote if at_peer else local) == port}

    def forget(self, rule: str) -> None:
        """Drops what comes in for connections that are open already, as a firewall does that has lost their state."""
        subprocess.run(self.there(self.nft, "insert", "rule", "inet", "firewall", "input", rule), check=True)

    def dropped(self) -> int:
        ruleset = self.run(self.nft, "list", "ruleset").stdout
        found = re.search(r"counter packets (\d+) bytes \d+ comment \"dropped\"", ruleset)
        assert found, ruleset
        return int(found[1])


def established_ports(table: str) -> list[tuple[int, int]]:
    """The local and the remote port of each established connection in a table like /proc/net/tcp."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return [
        (int(row[1].rpartition(":")[2], 16), int(row[2].rpartition(":")[2], 16))
        for row in rows
        if row[3] == ESTABLISHED
    ]


@contextmanager
def hosts(nft: str, command: Path) -> Iterator[tuple[Behind, Behind]]:
    """The prefiller's and the decoder's, one link between them."""
    number = os.getpid() % 250
    near, far = (
        Behind(f"kvm-{end}-{os.getpid()}", f"{NETWORK}.{number}.{place}", nft, command)
        for place, end in enumerate(("p", "d"), start=1)
    )
    with ExitStack() as stack:
        for host in (near, far):
            subprocess.run(["ip", "netns", "add", host.name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "delete", host.name], check=True)
        link = ["ip", "-n", near.name, "link", "add", "nic", "type", "veth", "peer", "name", "nic", "netns", far.name]
        subprocess.run(link, check=True)
        for host in (near, far):
            for interface in (["lo"], ["nic"]):
                subprocess.run(["ip", "-n", host.name, "link", "set", *interface, "up"], check=True)
            subprocess.run(["ip", "-n", host.name, "addr", "add", f"{host.address}/30", "dev", "nic"], check=True)
        for host, peer, option in ((near, far, "listen_port"), (far, near, "data_port")):
            rules = RULES.format(peer=peer.address, port=documented(option))
            done = host.run(nft, "-f", "-", input=rules)
            if done.returncode != 0:
                pytest.skip(f"this kernel has no firewall for network namespaces: {done.stderr.strip()}")
        yield near, far


@pytest.fixture(scope="module")
def firewall(bare_venv: Path) -> Iterator[tuple[Behind, Behind]]:
    lacks = lack_of_privilege()
    if lacks:
        pytest.skip(lacks)
    found = subprocess.run([str(ROOT / "examples/setup/find-nftables")], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    with hosts(found.stdout.strip().splitlines()[-1], bare_venv / "bin" / "kv-messenger") as pair:
        yield pair


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As operations.md says: a file."""
    file = tmp_path_factory.mktemp("secret") / "kv"
    file.write_text(os.urandom(32).hex(), encoding="utf-8")
    file.chmod(0o600)
    return str(file)


def address_in(lines: Iterable[str]) -> str:
    """Where a ping answers; warnings may come before that, and the end of its output means that it failed."""
    read = []
    for line in lines:
        read.append(line)
        if found := re.match(r"answers at (\S+:\d+) until", line):
            return found[1]
    raise AssertionError("".join(read))


@contextmanager
def answering(host: Behind, **options: Any) -> Iterator[str]:
    """Where the prefiller's side answers."""
    command = host.there(*host.messenger("ping", "--answer", **options))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as side:
        assert side.stdout is not None
        try:
            yield address_in(side.stdout)
        finally:
            side.terminate()


def test_pages_move_through_the_ports_that_the_page_opens(firewall: tuple[Behind, Behind], secret: str) -> None:
    prefiller, decoder = firewall
    of_prefiller = {
        "listen_host": prefiller.address,
        "listen_port": documented("listen_port"),
        "shared_secret_file": secret,
    }
    of_decoder = {"listen_host": decoder.address, "data_port": documented("data_port"), "shared_secret_file": secret}
    for host, options in ((prefiller, of_prefiller), (decoder, of_decoder)):
        looked = host.run(*host.messenger("doctor", **options))
        assert looked.returncode == 0, looked.stdout + looked.stderr
        assert "opened and closed" in looked.stdout
    before = prefiller.dropped() + decoder.dropped()
    with answering(prefiller, **of_prefiller) as at:
        assert at == f"{prefiller.address}:{documented('listen_port')}"
        asked = decoder.run(*decoder.messenger("ping", at, **of_decoder))
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert asked.stdout.endswith("every byte was compared\n")
    assert prefiller.dropped() + decoder.dropped() == before, "a port was tried that the page does not name"


def test_a_decoder_on_loopback_is_advised_where_to_listen(firewall: tuple[Behind, Behind], secret: str) -> None:
    """Another likely mistake: listen_host is set on the prefiller only, and data flows to the decoder."""
    prefiller, decoder = firewall
    of_prefiller = {
        "listen_host": prefiller.address,
        "listen_port": documented("listen_port"),
        "shared_secret_file": secret,
        "connect_limit_seconds": GIVEN_UP_SECONDS,
    }
    with answering(prefiller, **of_prefiller) as at:
        asked = decoder.run(
            *decoder.messenger("ping", at, shared_secret_file=secret, connect_limit_seconds=GIVEN_UP_SECONDS)
        )
    assert asked.returncode == 1, asked.stdout
    assert re.search(r"127\.0\.0\.1:\d+.*look at the decoder's listen_host", asked.stdout), asked.stdout


def test_a_data_port_that_is_closed_is_named(firewall: tuple[Behind, Behind], secret: str) -> None:
    """The likely mistake: control is open, and the decoder's data port is any free one, which the firewall closes."""
    prefiller, decoder = firewall
    of_prefiller = {
        "listen_host": prefiller.address,
        "listen_port": documented("listen_port"),
        "shared_secret_file": secret,
        "connect_limit_seconds": GIVEN_UP_SECONDS,
    }
    of_decoder = {
        "listen_host": decoder.address,
        "shared_secret_file": secret,
        "connect_limit_seconds": GIVEN_UP_SECONDS,
    }
    with answering(prefiller, **of_prefiller) as at:
        asked = decoder.run(*decoder.messenger("ping", at, **of_decoder))
    assert asked.returncode == 1, asked.stdout
    assert decoder.dropped() > 0
    assert "data path" in asked.stdout, asked.stdout
    assert decoder.address in asked.stdout, asked.stdout


def test_what_the_firewall_forgot_while_idle_is_replaced_before_it_is_needed(
    firewall: tuple[Behind, Behind], secret: str, request: pytest.FixtureRequest
) -> None:
    """The data port's connections only: the control connection has heartbeats, and says that all is well.

    With ``--silence-seconds`` the next request comes that long after the firewall's loss.
    """
    prefiller, decoder = firewall
    port = documented("data_port")
    of_prefiller = {
        "listen_host": prefiller.address,
        "listen_port": documented("listen_port"),
        "shared_secret_file": secret,
    }
    of_decoder = {"listen_host": decoder.address, "data_port": port, "shared_secret_file": secret}
    with answering(prefiller, **of_prefiller) as at:
        command = decoder.messenger("ping", **of_decoder)
        asking = decoder.program(ASK_TWICE, command[-1], at)
        with subprocess.Popen(asking, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as side:
            assert side.stdin is not None
            assert side.stdout is not None
            try:
                assert "first page after" in side.stdout.readline()
                old = decoder.open_to(port, at_peer=False)
                assert len(old) == len(prefiller.open_to(port, at_peer=True)) == CONNECTIONS, old
                ports = "{ " + ", ".join(map(str, sorted(old))) + " }"
                decoder.forget(f"tcp dport {port} tcp sport {ports} drop")
                prefiller.forget(f"tcp sport {port} tcp dport {ports} drop")
                began = time.monotonic()
                while old & (decoder.open_to(port, at_peer=False) | prefiller.open_to(port, at_peer=True)):
                    assert time.monotonic() - began < LIMIT_SECONDS, "dead connections are taken for open ones"
                    time.sleep(LOOK_SECONDS)
                time.sleep(max(0.0, request.config.getoption("--silence-seconds") - (time.monotonic() - began)))
                side.stdin.write("\n")
                side.stdin.flush()
                line = side.stdout.readline()
                assert "ms worst" in line, line
                new = decoder.open_to(port, at_peer=False)
                assert len(new) == CONNECTIONS, new
                assert not new & old, "those that the firewall had forgotten were asked for pages"
            finally:
                side.kill()
