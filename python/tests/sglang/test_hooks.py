"""Hooks of a scheduler come late, when the backend is asked for; other plug-ins' may be there already."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

RUN_BATCH = "sglang.srt.managers.scheduler.Scheduler.run_batch"


class Steps:
    """What an endpoint runs its forward passes in."""

    twins = None
    first_pass = None

    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def run(self, _plan: Any, forward: Any) -> Any:
        self._seen.append("ours")
        return forward()


def test_should_hook_what_another_plug_in_has_hooked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang itself hooks a target once."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from kv_connector.sglang.registration import hook_scheduler

    hook_scheduler()  # what is put in place below is undone
    seen: list[object] = []
    monkeypatch.setattr(HookRegistry, "_hooks", HookRegistry._hooks | {RUN_BATCH: []})
    monkeypatch.setattr(HookRegistry, "_patched", HookRegistry._patched - {RUN_BATCH})
    monkeypatch.setattr(Scheduler, "run_batch", lambda _scheduler, batch: seen.append(batch))
    HookRegistry.register(RUN_BATCH, lambda *_given: seen.append("the other's"), HookType.AFTER)
    HookRegistry.apply_hooks()
    for _asked_for in range(2):
        hook_scheduler()
    queue = SimpleNamespace(kv_manager=SimpleNamespace(steps=Steps(seen)))
    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: False))
    Scheduler.run_batch(SimpleNamespace(disagg_prefill_bootstrap_queue=queue), batch)
    assert seen == ["ours", batch, "the other's"]


def transfer_queue() -> Any:
    """SGLang's own, as its decoder's scheduler makes it."""
    from sglang.srt.disaggregation.decode import DecodeTransferQueue

    return DecodeTransferQueue(None, None, SimpleNamespace(spec_algorithm=None), None)


@pytest.mark.parametrize("backend", ["kv_messenger", "nixl"])
def test_should_hold_pages_of_aborted_requests_without_a_time_limit_and_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    from sglang.srt import runtime_context
    from sglang.srt.disaggregation import decode
    from sglang.srt.environ import envs

    chosen = SimpleNamespace(disaggregation_transfer_backend=backend, disaggregation_decode_host_receive_threshold=1)
    rank = SimpleNamespace(attn_tp_group=SimpleNamespace(cpu_group=None), tp_rank=0)
    monkeypatch.setattr(runtime_context, "get_disagg", lambda: chosen)
    monkeypatch.setattr(decode, "get_disagg", lambda: chosen)
    monkeypatch.setattr(decode, "get_parallel", lambda: rank)
    limit_seconds = envs.SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT.get()
    with caplog.at_level(logging.INFO, logger="sglang.srt.kv_messenger"):
        queue = transfer_queue()
    ours = backend == "kv_messenger"
    assert queue.deferred_kv_release_timeout == (float("inf") if ours else limit_seconds)
    sentence = f"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT ({limit_seconds} s) does not apply"
    assert (sentence in caplog.text) == ours


def test_should_end_the_start_where_sglang_has_no_such_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute that nothing reads could be set without harm, and pages given out again while they are written."""
    from sglang.srt import runtime_context

    from kv_connector.sglang.registration import never_release_by_time

    chosen = SimpleNamespace(disaggregation_transfer_backend="kv_messenger")
    monkeypatch.setattr(runtime_context, "get_disagg", lambda: chosen)
    with pytest.raises(AssertionError, match="has no deferred_kv_release_timeout any more"):
        never_release_by_time(None, SimpleNamespace(release_limit=30.0))
