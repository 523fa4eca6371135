"""Questions to this pod and to peers: no proxy, no .netrc, every address of a name."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from kv_connector.cli import engine_http
from kv_connector.configuration.engine_keys import NO_KEYS
from kv_connector.exceptions import WeightsError
from kv_connector.runtime import plain_http
from kv_connector.sglang import prefillers
from kv_connector.weights.servers import Server as WeightServer
from kv_connector.weights.servers import checked_urls

NOTHING_LISTENS = "http://127.0.0.1:9"
PROXY_VARIABLES = [name for lower in ("http_proxy", "https_proxy", "all_proxy") for name in (lower, lower.upper())]


class Server:
    """Answers with JSON, and keeps what it was asked."""

    def __init__(self, status: int = 200) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                server.asked.append((self.command, self.path, dict(self.headers.items()), self.rfile.read(length)))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b'{"known": 1}')

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def use_tls(self, key: str, certificate: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def environment_of_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All proxies at once, and passwords for every host."""
    for name in PROXY_VARIABLES:
        monkeypatch.setenv(name, NOTHING_LISTENS)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    netrc = tmp_path / "netrc"
    netrc.write_text("default login user password word\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))


def test_should_ask_the_server_itself_and_send_no_password(server: Server) -> None:
    assert plain_http.ask("GET", f"http://{server.address}/metrics?a=1", limit_seconds=60).status == 200
    (method, path, headers, _) = server.asked[0]
    assert (method, path) == ("GET", "/metrics?a=1")
    assert "Authorization" not in headers


def test_should_find_a_prefiller_without_a_proxy(server: Server) -> None:
    assert prefillers.get_json(f"http://{server.address}/route", {"rank": 1}) == {"known": 1}
    assert server.asked[0][1] == "/route?rank=1"


def test_should_register_a_room_without_a_proxy(server: Server) -> None:
    assert prefillers.register_room(server.address, 7, 1)
    assert server.asked[0][3] == b'{"bootstrap_room": 7, "dp_rank": 1}'


def test_should_say_why_a_room_was_not_registered(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(status=500)
    assert not prefillers.register_room(server.address, 7, 1)
    assert "it answered 500" in caplog.text
    server.close()


def found(*addresses: str) -> Any:
    """A name service that knows these addresses of every name, in this order."""

    def look_up(_: str, port: int, **_kind: object) -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port))
            for address in addresses
        ]

    return look_up


@pytest.mark.parametrize(
    "addresses",
    [("127.0.0.1", "127.0.0.9"), ("127.0.0.9", "127.0.0.1"), ("::1", "127.0.0.9", "127.0.0.1")],
)
def test_should_try_every_address_of_a_name(
    server: Server, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", found(*addresses))
    assert plain_http.ask("GET", f"http://many:{server.port}/", limit_seconds=60).status == 200


def test_should_name_each_address_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", found("127.0.0.9", "127.0.0.8"))
    with pytest.raises(OSError, match=r"127\.0\.0\.9: .*refused; 127\.0\.0\.8: .*refused"):
        plain_http.ask("GET", "http://many:9/", limit_seconds=60)


@pytest.mark.parametrize(
    "url", ["http://", "http://host", "ftp://host:1/", "http://host:x/", "http://host:70000/", "http://a b:1/"]
)
def test_should_refuse_what_names_no_port(url: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        plain_http.ask("GET", url, limit_seconds=60)


def test_should_speak_tls_to_an_https_address_and_compare_its_name(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ["-subj", "/CN=pod", "-addext", "subjectAltName=DNS:pod"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    files = [str(tmp_path / name) for name in ("key.pem", "certificate.pem")]
    subprocess.run([*made, "-keyout", files[0], "-out", files[1]], check=True, capture_output=True)
    server.use_tls(*files)
    monkeypatch.setenv("SSL_CERT_FILE", files[1])
    monkeypatch.setattr(socket, "getaddrinfo", found("127.0.0.9", "127.0.0.1"))
    assert plain_http.ask("GET", f"https://pod:{server.port}/", limit_seconds=60).status == 200
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        plain_http.ask("GET", f"https://another:{server.port}/", limit_seconds=60)


WITH_PORTS = {
    "http://router": "http://router:80",
    "https://router/": "https://router:443",
    "http://[::1]": "http://[::1]:80",
    "http://router:": "http://router:80",
    "http://router:8000/v1": "http://router:8000/v1",
}


@pytest.fixture
def urls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked for."""
    asked: list[str] = []

    def ask(_: str, url: str, **__: object) -> plain_http.Answer:
        asked.append(url)
        return plain_http.Answer(200, "{}")

    monkeypatch.setattr(plain_http, "ask", ask)
    return asked


@pytest.mark.parametrize("url", WITH_PORTS)
def test_should_ask_engines_at_the_port_of_the_scheme(urls: list[str], url: str) -> None:
    engine_http.ask_text(url, "/health", 60, NO_KEYS)
    WeightServer(url, 60).status()
    assert len(urls) > 2
    assert not [asked for asked in urls if not asked.startswith(f"{WITH_PORTS[url]}/")]


@pytest.mark.parametrize("url", ["", "router", "router:8000", "ftp://router:1", "http://", "http://u@router:1"])
def test_should_wait_for_no_server_that_has_no_address(urls: list[str], url: str) -> None:
    for ask in (
        lambda: engine_http.ask_text(url, "/health", 60, NO_KEYS),
        lambda: WeightServer(url, 60).await_ready(60),
        lambda: checked_urls([url]),
    ):
        with pytest.raises((OSError, WeightsError), match=r"expected (one|a URL) such as http://127\.0\.0\.1:8000"):
            ask()
    assert not urls


@pytest.mark.parametrize("url", WITH_PORTS)
def test_should_know_a_server_that_is_named_twice(url: str) -> None:
    with pytest.raises(WeightsError, match="each once"):
        checked_urls([url, WITH_PORTS[url]])
