"""Hooks of a scheduler come late, when the backend is asked for; other plug-ins' may be there already."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

RUN_BATCH = "sglang.srt.managers.scheduler.Scheduler.run_batch"


class Steps:
    """What an endpoint runs its forward passes in."""

    twins = None

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
    Scheduler.run_batch(SimpleNamespace(disagg_prefill_bootstrap_queue=queue), "a batch")
    assert seen == ["ours", "a batch", "the other's"]
