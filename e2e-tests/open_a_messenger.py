"""Opens a messenger on a few pages of its own, as a worker would, and prints as JSON what that took. No engine."""

from __future__ import annotations

import importlib.metadata
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

PAGE_BYTES = 4096
PAGE_COUNT = 4
PAGE_TOKENS = 16


def status_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no {field}")


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as page:
            return int(page.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return int(refused.code)


def main() -> None:
    registered = importlib.metadata.entry_points(group="vllm.general_plugins", name="kv_messenger")
    assert len(registered) == 1, "the wheel does not register itself with vLLM"

    import kv_connector
    from kv_connector.cli.host_pages import HostPages
    from kv_connector.cli.main import main as command

    assert "libjvm" not in Path("/proc/self/maps").read_text(encoding="utf-8"), "importing alone has loaded a JVM"
    pages = HostPages("none", PAGE_BYTES, PAGE_COUNT)
    resident_before, begun = status_mib("VmRSS"), time.monotonic()
    options = kv_connector.parse_options({"listen_port": 0}, role="prefiller", engine_id="alone")
    messenger = kv_connector.Messenger.open(options, pages.geometry(PAGE_TOKENS))
    milliseconds, resident = 1000 * (time.monotonic() - begun), status_mib("VmRSS") - resident_before
    metrics = f"{messenger.opened.metrics_host}:{messenger.opened.metrics_port}"
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=30) as page:
        assert b"kv_messenger_prefills_open" in page.read()
    assert [status(f"http://{metrics}/{name}") for name in ("health", "ready")] == [200, 200]
    assert command(["drain", "--metrics", metrics]) == 0
    assert [status(f"http://{metrics}/{name}") for name in ("health", "ready")] == [200, 503]
    assert command(["undrain", "--metrics", metrics]) == 0
    assert status(f"http://{metrics}/ready") == 200
    assert status(f"http://{metrics}/state") == 401, "only the key shows the state"
    held = messenger.leak_check()
    messenger.close()
    print(json.dumps({"milliseconds": milliseconds, "mebibytes": resident, "clean": held.clean}))


if __name__ == "__main__":
    main()
