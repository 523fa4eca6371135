"""The wheel is all that a user needs: installed by pip into a bare venv, it brings its Java and opens a messenger."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

OPEN_LIMIT_SECONDS = 600
BOOTS = 3
BOOT_MEBIBYTES_MAX = 100


def open_a_messenger(venv: Path) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if "JAVA" not in key}
    environment["PATH"] = f"{venv / 'bin'}{os.pathsep}{os.defpath}"
    ran = subprocess.run(
        [str(venv / "bin" / "python"), str(Path(__file__).with_name("open_a_messenger.py"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=OPEN_LIMIT_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def test_wheel_opens_a_messenger_with_the_java_it_brings(bare_venv: Path) -> None:
    assert open_a_messenger(bare_venv)["clean"]


def test_boot_is_small(bare_venv: Path) -> None:
    """Memory is held to its limit. Milliseconds are printed only: a busy machine makes them say nothing."""
    boots = [open_a_messenger(bare_venv) for _ in range(BOOTS)]
    print(f"boot and open: {[(round(b['milliseconds']), round(b['mebibytes'])) for b in boots]} (ms, MiB)")
    assert max(boot["mebibytes"] for boot in boots) < BOOT_MEBIBYTES_MAX


def test_wheel_has_a_command_that_finds_nothing_wrong(bare_venv: Path) -> None:
    config = {"kv_connector": "KvMessengerConnector", "kv_role": "kv_producer"}
    config_text = json.dumps({**config, "kv_connector_extra_config": {"listen_port": 0}})
    command = [str(bare_venv / "bin" / "kv-messenger"), "doctor", "--kv-transfer-config", config_text]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=OPEN_LIMIT_SECONDS, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "fail" not in ran.stdout.split()
    assert "opened and closed" in ran.stdout


def test_wheel_says_under_which_licence_it_is(bare_venv: Path) -> None:
    script = (
        "import importlib.metadata as m; d = m.distribution('kv-connector'); print(d.metadata['License-Expression'])"
    )
    read = "print(d.read_text('licenses/LICENSE').split()[0:2])"
    ran = subprocess.run(
        [str(bare_venv / "bin" / "python"), "-c", f"{script}; {read}"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["Apache-2.0", "['Apache', 'License']"]
