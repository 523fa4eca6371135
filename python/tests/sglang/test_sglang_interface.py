"""What the backend needs of SGLang's private interface, and which of SGLang's pools it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


def test_should_say_which_private_interface_of_sglang_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.disaggregation.common.conn import CommonKVSender

    from kv_connector import OptionError
    from kv_connector.sglang import sglang_api

    sglang_api.check()
    monkeypatch.setattr(CommonKVSender, "send", lambda self, pages: None)  # noqa: ARG005
    with pytest.raises(OptionError, match=r"CommonKVSender\.send\(self, pages\), expected .* made for SGLang 0\.5\.23"):
        sglang_api.check()


def test_should_say_which_private_attribute_of_sglang_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.disaggregation.decode import DecodeTransferQueue

    from kv_connector import OptionError
    from kv_connector.sglang import sglang_api

    def without(self: Any) -> None:
        self.release_timeout = 30.0

    monkeypatch.setattr(DecodeTransferQueue, "__init__", without)
    with pytest.raises(OptionError, match=r"DecodeTransferQueue.__init__ without self.deferred_kv_release_timeout"):
        sglang_api.check()


def test_should_say_which_hook_was_not_put_in_place(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins.hook_registry import HookRegistry

    from kv_connector import OptionError
    from kv_connector.sglang.registration import hook_scheduler

    assert pair.prefiller.endpoint.steps is None, "an endpoint has been opened, and with it the hooks are in place"
    hooked = Scheduler.run_batch
    hook_scheduler()
    assert Scheduler.run_batch is hooked, "hooked once"
    target = "sglang.srt.managers.scheduler.Scheduler.run_batch"
    monkeypatch.setattr(HookRegistry, "_patched", HookRegistry._patched - {target})
    monkeypatch.delattr(Scheduler, "run_batch")
    with pytest.raises(OptionError, match=r"has not let a plugin hook .*Scheduler\.run_batch"):
        hook_scheduler()


def test_should_refuse_what_was_not_shown_of_pools_beside_the_pages(pair: Pair) -> None:
    from one_process import RankInEngine, kv_args
    from sglang.srt.runtime_context import get_disagg, get_parallel

    from kv_connector import OptionError
    from kv_connector.sglang.engine_facts import refuse_unsupported

    args = kv_args("decode", pair.decoder.pool, pair.decoder.metadata, RankInEngine())
    for kinds in ([], ["swa"], ["dsa"], ["mamba"]):
        args.state_types = kinds
        refuse_unsupported(args, "decode")
    with (
        get_parallel().override(pp_size=2),
        pytest.raises(OptionError, match=r"--pp-size is 2, expected 1: a model that keeps mamba beside its KV pages"),
    ):
        refuse_unsupported(args, "prefill")
    with (
        get_disagg().override(disaggregation_decode_enable_radix_cache=True),
        pytest.raises(
            OptionError, match=r"decode-enable-radix-cache is True, expected False: a model that keeps mamba"
        ),
    ):
        refuse_unsupported(args, "decode")
    args.num_draft_entries = 2
    with pytest.raises(OptionError, match=r"the number of a draft's KV buffers is 2, expected 0: a model that keeps"):
        refuse_unsupported(args, "decode")
    for kinds in (["swa", "mamba"], ["dsa", "dsa_tail"], ["minimax_index_k"]):
        args.state_types = kinds
        with pytest.raises(
            OptionError, match=rf"state of the kinds {', '.join(kinds)} .*, or one of swa, mamba, dsa alone"
        ):
            refuse_unsupported(args, "decode")
