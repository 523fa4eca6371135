"""A plug-in of SGLang that writes down what its scheduler asks of KV Messenger's senders and receivers, in order.

A line of JSON a call, into a file for each process in the folder that `KV_MESSENGER_RECORDING` names: the room, which
of the process's senders and receivers it is, the call, and its arguments without data. Of polls only those are said
that end a request.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Fields = Mapping[str, Any]
ENDS = {0: "Failed", 4: "Success"}
Described = Callable[..., Fields]
PREFILL: Mapping[str, Described] = {
    "init": lambda sender, num_kv_indices, aux_index=None: {"page_count": int(num_kv_indices)},
    "send": lambda sender, kv_indices, *rest, **named: {
        "page_count": len(kv_indices),
        "event": sender._early_send_wait_event is not None,
    },
    "leave_to_send": lambda sender: {},
    "abort": lambda sender: {},
    "failure_exception": lambda sender: {},
    "clear": lambda sender: {},
}
DECODE: Mapping[str, Described] = {
    "init": lambda receiver, prefill_dp_rank: {},
    "send_metadata": lambda receiver, kv_indices, *rest, **named: {"page_count": len(kv_indices)},
    "abort": lambda receiver: {},
    "failure_exception": lambda receiver: {},
    "clear": lambda receiver: {},
}


class Recording:
    """That of this process. The scheduler's thread only, as the calls that it writes down."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{os.getpid()}.jsonl"
        self._count = itertools.count(1)
        self._in_pass: Sequence[tuple[Any, int, int]] = ()
        """Of each request in the forward pass: its sender, and its first and its end token there."""

    def say(self, side: str, transfer: Any, call: str, fields: Fields) -> None:
        made = {"room": transfer.bootstrap_room, "transfer": transfer.recorded_number}
        line = {"at_ns": time.monotonic_ns(), "side": side, **made, "call": call, **fields}
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def around(self, side: str, call: str, described: Described) -> Callable[..., Any]:
        def recorded(original: Callable[..., Any], transfer: Any, *given: Any, **named: Any) -> Any:
            self.say(side, transfer, call, described(transfer, *given, **named))
            return original(transfer, *given, **named)

        return recorded

    def made(self, side: str, original: Callable[..., None], transfer: Any, *given: Any, **named: Any) -> None:
        transfer.recorded_number = next(self._count)
        original(transfer, *given, **named)
        self.say(side, transfer, "new", {})

    def poll(self, side: str, original: Callable[..., int], transfer: Any) -> int:
        known = transfer.conclude_state
        state = original(transfer)
        if int(state) in ENDS and known != state:
            self.say(side, transfer, "poll", {"state": ENDS[int(state)]})
        return state

    def plan(self, original: Callable[..., Any], sender: Any, end_token: int, prompt_tokens: int, pages_of: Any) -> Any:
        planned = original(sender, end_token, prompt_tokens, pages_of)
        fields = {"end_token": end_token, "prompt_tokens": prompt_tokens, "leaves": planned is not None}
        self.say("prefill", sender, "plan", fields)
        return planned

    def run_batch(self, original: Callable[..., Any], scheduler: Any, batch: Any, *more: Any, **named: Any) -> Any:
        extend = batch.forward_mode.is_extend()
        self._in_pass = [
            (request.disagg_kv_sender, request.prefix_len, request.extend_end)
            for request in (batch.reqs if extend else ())
            if hasattr(getattr(request, "disagg_kv_sender", None), "leave_to_send")
        ]
        try:
            return original(scheduler, batch, *more, **named)
        finally:
            self._in_pass = ()

    def forward(self, original: Callable[..., Any], runner: Any, *more: Any, **named: Any) -> Any:
        result = original(runner, *more, **named)
        for sender, first_token, end_token in self._in_pass:
            self.say("prefill", sender, "computed", {"first_token": first_token, "end_token": end_token})
        return result


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    recording = Recording(Path(os.environ["KV_MESSENGER_RECORDING"]))
    hooks: dict[str, Callable[..., Any]] = {
        "sglang.srt.managers.scheduler.Scheduler.run_batch": recording.run_batch,
        "sglang.srt.model_executor.model_runner.ModelRunner.forward": recording.forward,
        "kv_connector.sglang.sender.Sender.plan": recording.plan,
    }
    for side, name, calls in (("prefill", "sender.Sender", PREFILL), ("decode", "receiver.Receiver", DECODE)):
        hooks[f"kv_connector.sglang.{name}.__init__"] = functools.partial(recording.made, side)
        hooks[f"kv_connector.sglang.{name}.poll"] = functools.partial(recording.poll, side)
        for call, described in calls.items():
            hooks[f"kv_connector.sglang.{name}.{call}"] = recording.around(side, call, described)
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
