"""The wheel is all that a user needs: installed by pip into a bare venv, it brings its Java and opens a messenger."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

INSTALL_LIMIT_SECONDS = 600
OPEN_LIMIT_SECONDS = 120

OPEN_A_MESSENGER = """
import ctypes, importlib.metadata, sys, urllib.request

assert [e.value for e in importlib.metadata.entry_points(group="vllm.general_plugins", name="kv_messenger")]
import kv_connector
assert "libjvm" not in open("/proc/self/maps").read(), "importing alone has loaded a JVM"

memory = ctypes.create_string_buffer(4 * 4096)
geometry = {
    "model": "m", "dtype": "float32", "elementBytes": 4, "pageTokens": 16, "layout": "HND", "kvHeadCount": 1,
    "tpSize": 1, "tpRank": 0, "ppSize": 1, "ppRank": 0, "pageCount": 4,
    "memory": {"address": ctypes.addressof(memory), "lengthBytes": len(memory), "memfd": -1},
    "layers": [{"name": "l0", "offsetBytes": 0, "pageStrideBytes": 4096, "pageBytes": 4096}],
}
options = kv_connector.parse_options({"listen_port": 0}, role="prefiller", engine_id="wheel")
messenger = kv_connector.Messenger.open(options, geometry)
opened = messenger.opened
page = urllib.request.urlopen(f"http://{opened.metrics_host}:{opened.metrics_port}/metrics", timeout=30).read()
assert b"kv_messenger_prefills_open" in page
assert urllib.request.urlopen(f"http://{opened.metrics_host}:{opened.metrics_port}/health", timeout=30).status == 200
assert messenger.leak_check().clean, messenger.leak_check()
messenger.close()
print("opened and closed", opened.incarnation)
"""


@pytest.fixture(scope="module")
def bare_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("bare") / "venv"
    wheel = (ROOT / "python" / "dist" / ".wheel").read_text(encoding="utf-8").strip()
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=INSTALL_LIMIT_SECONDS)
    install = [str(home / "bin" / "python"), "-m", "pip", "-q", "install", wheel]
    subprocess.run(install, check=True, timeout=INSTALL_LIMIT_SECONDS)
    return home


def test_wheel_opens_a_messenger_with_the_java_it_brings(bare_venv: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if "JAVA" not in key}
    environment["PATH"] = f"{bare_venv / 'bin'}{os.pathsep}{os.defpath}"
    ran = subprocess.run(
        [str(bare_venv / "bin" / "python"), "-c", OPEN_A_MESSENGER],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=OPEN_LIMIT_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "opened and closed" in ran.stdout
