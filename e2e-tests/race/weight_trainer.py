"""A trainer of the race of weights: a process that holds two checkpoints and brings them into a server, by one flow.

Started by weight_race.py with its settings as JSON in the first argument. Each line of standard input is `connect` or
`send N`, which sends checkpoint N; each is answered by a line of JSON with times of the monotonic clock.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 300.0
Settings = Mapping[str, Any]


def post(url: str, path: str, body: Mapping[str, Any] | None = None) -> None:
    """Raises urllib.error.HTTPError for a server that fails."""
    request = urllib.request.Request(
        f"{url}{path}", json.dumps(body or {}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as answer:
        answer.read()


class Ours:
    """Our sender. What a trainer gathers is a copy from memory to memory."""

    def __init__(self, settings: Settings) -> None:
        from kv_connector.weights.checkpoint import Checkpoint
        from kv_connector.weights.sender import WeightSender
        from kv_connector.weights.sender_options import sender_options

        checkpoints = [Checkpoint(Path(folder)) for folder in settings["folders"]]
        self._held = [bytearray(each.manifest.length_bytes) for each in checkpoints]
        for checkpoint, held in zip(checkpoints, self._held, strict=True):
            checkpoint.read_into(memoryview(held))
        given = {"transports": settings["transports"]}
        options = sender_options(settings["near"], given, "near")
        self._sender = WeightSender(options, checkpoints[0].manifest, [settings["url"]])

    def connect(self) -> None:
        failed = self._sender.connect()
        if failed:
            raise RuntimeError(f"our sender does not connect: {failed}")

    def send(self, number: int) -> dict[str, float]:
        from kv_connector.weights.versions import version_of_now

        landed: list[float] = []
        self._sender.staging[: len(self._held[number])] = self._held[number]
        staged = time.monotonic()
        failed = self._sender.send(version_of_now(), LIMIT_SECONDS, lambda: landed.append(time.monotonic()))
        if failed:
            raise RuntimeError(f"our sender does not send: {failed}")
        return {"staged": staged, "landed": landed[0]}


class Broadcast:
    """As trainers of vLLM's servers do it: a pause around all, and a broadcast of each tensor."""

    def __init__(self, settings: Settings) -> None:
        from safetensors.torch import load_file

        self._url, self._settings = settings["url"], settings
        self._tensors = [load_file(Path(folder) / "model.safetensors") for folder in settings["folders"]]
        self._group: Any = None
        self._calls = ThreadPoolExecutor(1)

    def connect(self) -> None:
        from gloo_group import joined

        near, port, rank_count = self._settings["near"], self._settings["port"], 1 + self._settings["ranks"]
        asked = self._calls.submit(self._rpc, "race_join", near, port, self._settings["far"], rank_count)
        self._group = joined(near, port, near, 0, rank_count)
        asked.result()

    def send(self, number: int) -> dict[str, float]:
        from gloo_group import broadcast

        tensors = self._tensors[number]
        meta = [(name, str(each.dtype).removeprefix("torch."), list(each.shape)) for name, each in tensors.items()]
        post(self._url, "/pause?mode=keep")
        self._rpc("race_start")
        received = self._calls.submit(self._rpc, "race_receive", *map(list, zip(*meta, strict=True)))
        received.add_done_callback(end_if_failed)
        for tensor in tensors.values():
            broadcast(self._group, tensor)
        received.result()
        self._rpc("race_finish")
        post(self._url, "/resume")
        return {}

    def _rpc(self, method: str, *given: Any) -> None:
        post(self._url, "/collective_rpc", {"method": method, "args": list(given)})


def end_if_failed(received: Future[None]) -> None:
    """Otherwise a broadcast waits for a server that does not take part any more."""
    failure = received.exception()
    if failure is not None:
        answer = failure.read().decode(errors="replace") if isinstance(failure, urllib.error.HTTPError) else ""
        print(f"the server failed: {failure} {answer}", file=sys.stderr, flush=True)
        os._exit(1)


class Reload:
    """On one host: a checkpoint's folder in memory, and vLLM's own `reload_weights`."""

    def __init__(self, settings: Settings) -> None:
        from safetensors.torch import load_file

        self._url = settings["url"]
        self._tensors = [load_file(Path(folder) / "model.safetensors") for folder in settings["folders"]]
        self._folder = Path(settings["memory"])

    def connect(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def send(self, number: int) -> dict[str, float]:
        saved = self._save(number)
        self._reload()
        return saved

    def _save(self, number: int) -> dict[str, float]:
        from safetensors.torch import save_file

        save_file(self._tensors[number], self._folder / "model.safetensors")
        return {"landed": time.monotonic()}

    def _reload(self) -> None:
        named = {"weights_path": str(self._folder)}
        post(self._url, "/collective_rpc", {"method": "reload_weights", "kwargs": named})


class ReloadAnew(Reload):
    """The same within vLLM's pause, which drops the KV of the weights before: no token is computed of it."""

    def send(self, number: int) -> dict[str, float]:
        saved = self._save(number)
        post(self._url, "/pause?mode=keep")
        self._reload()
        post(self._url, "/resume")
        return saved


FLOWS: Mapping[str, Callable[[Settings], Ours | Broadcast | Reload]] = {
    "ours": Ours,
    "broadcast": Broadcast,
    "reload": Reload,
    "reload_anew": ReloadAnew,
}


def main() -> None:
    settings = json.loads(sys.argv[1])
    trainer = FLOWS[settings["kind"]](settings)
    for line in sys.stdin:
        what, _, number = line.strip().partition(" ")
        begun = time.monotonic()
        seen = trainer.send(int(number)) if what == "send" else trainer.connect()
        print(json.dumps({"begun": begun, "ended": time.monotonic(), **(seen or {})}), flush=True)


if __name__ == "__main__":
    main()
