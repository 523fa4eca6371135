"""What the backend needs of SGLang's private interface, and which of SGLang's pools it refuses."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
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
    with pytest.raises(
        OptionError, match=r"CommonKVSender\.send\(self, pages\), expected .* made for SGLang 0\.5\.22, 0\.5\.23"
    ):
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


def test_should_say_which_name_of_sglang_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.disaggregation import utils

    from kv_connector import OptionError
    from kv_connector.sglang import sglang_api

    monkeypatch.delattr(utils, "prepare_abort")
    with pytest.raises(OptionError, match=r"has no sglang\.srt\.disaggregation\.utils\.prepare_abort: the backend"):
        sglang_api.check()


def test_should_check_at_the_start_all_names_that_it_imports_later() -> None:
    from kv_connector.sglang import sglang_api

    imported: set[str] = set()
    for source in Path(sglang_api.__file__).parent.glob("*.py"):
        functions = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.FunctionDef)]
        for statement in (node for function in functions for node in ast.walk(function)):
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("sglang."):
                imported |= {f"{statement.module}.{name.name}" for name in statement.names}
    modules = {
        *("sglang.srt.arg_groups.choices", "sglang.srt.arg_groups.resolution_hooks", "sglang.srt.disaggregation.utils")
    }
    divided_pages = "sglang.srt.arg_groups.overrides.declare_resolution"  # without it SGLang refuses their option
    optional = {*sglang_api._WEIGHTS_NAMES, divided_pages}
    assert imported - modules == {*sglang_api._NAMES, *optional}


@pytest.mark.parametrize("route", ["answer", "load"])
def test_should_leave_weights_to_a_release_that_lacks_what_they_need(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, route: str
) -> None:
    from kv_connector.sglang import sglang_api
    from kv_connector.sglang.weight_hooks import SchedulersWeights
    from kv_connector.weights.routes import BACKEND, SGLANG_LOADER

    assert sglang_api.lack_for_weights() == ""
    monkeypatch.setattr(sglang_api, "_WEIGHTS_NAMES", (*sglang_api._WEIGHTS_NAMES, "sglang.srt.gone.Name"))
    request = SimpleNamespace(backend=BACKEND, load_format=SGLANG_LOADER)
    hook = getattr(SchedulersWeights(), route)
    assert hook(lambda _updater, given: (given, "SGLang's own"), None, request) == (request, "SGLang's own")
    assert "weights from outside are left to SGLang" in caplog.text
    assert "has no sglang.srt.gone.Name" in caplog.text


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


def test_should_serve_or_refuse_each_kind_of_pool_that_sglang_has_by_its_name(pair: Pair) -> None:
    from one_process import RankInEngine, kv_args
    from sglang.srt.disaggregation.base.conn import StateType

    from kv_connector import OptionError
    from kv_connector.sglang.pool_kinds import KINDS, REFUSED
    from kv_connector.sglang.refusals import refuse_unsupported

    kinds = {kind.value for kind in StateType}
    assert KINDS.keys() <= kinds <= KINDS.keys() | REFUSED.keys(), "0.5.22 lacks one of those that are refused"
    assert not KINDS.keys() & REFUSED.keys()
    args = kv_args("decode", pair.decoder.pool, pair.decoder.metadata, RankInEngine())
    args.num_draft_entries = 2
    args.state_types = [StateType(kind) for kind in KINDS]
    for mode in ("prefill", "decode"):
        refuse_unsupported(args, mode)
    for kind, why in {**REFUSED, "of tomorrow": "this kind is not known"}.items():
        args.state_types = ["swa", kind]
        with pytest.raises(OptionError, match=rf"the model keeps '{kind}' beside its KV pages, .*: {why}; serve"):
            refuse_unsupported(args, "decode")


def test_should_serve_deepseek_v4_and_refuse_what_its_pools_are_not_served_with(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from one_process import RankInEngine, kv_args
    from sglang.srt.runtime_context import get_disagg, get_parallel, get_spec

    from kv_connector import OptionError
    from kv_connector.sglang.compressed_pools import COMPRESSED_KINDS
    from kv_connector.sglang.refusals import refuse_unsupported

    args = kv_args("decode", pair.decoder.pool, pair.decoder.metadata, RankInEngine())
    args.state_types, args.mla_compression_ratios = ["swa", "c128_state"], [0, 4, 128]
    for mode in ("prefill", "decode"):
        refuse_unsupported(args, mode)
    with get_parallel().override(pp_size=2), pytest.raises(OptionError, match=r"--pp-size is 2, expected 1: .*V4"):
        refuse_unsupported(args, "prefill")
    with (
        get_spec().override(speculative_algorithm="EAGLE"),
        pytest.raises(OptionError, match=r"--speculative-algorithm is 'EAGLE', expected None: .*DeepSeek-V4"),
    ):
        refuse_unsupported(args, "prefill")
    with (
        get_disagg().override(disaggregation_decode_enable_radix_cache=True),
        pytest.raises(OptionError, match=r"enable-radix-cache is True, expected False: .* keeps c128_state"),
    ):
        refuse_unsupported(args, "decode")
    with monkeypatch.context() as patch:
        patch.setenv("SGLANG_OPT_USE_ONLINE_COMPRESS", "1")
        with pytest.raises(OptionError, match=r"SGLANG_OPT_USE_ONLINE_COMPRESS is True, expected False: .*DeepSeek-V4"):
            refuse_unsupported(args, "prefill")
    with pytest.raises(OptionError, match="says no length of the windows of a model whose layers compress"):
        COMPRESSED_KINDS["swa"].pools(SimpleNamespace(), SimpleNamespace(window_tokens=0))  # type: ignore[arg-type]
    args.state_types = ["swa_ring"]
    with pytest.raises(OptionError, match=r"keeps 'swa_ring' beside its KV pages, .*, and of DeepSeek-V4 on AMD alone"):
        refuse_unsupported(args, "prefill")
    args.state_types, args.mla_compression_ratios = ["swa"], [0, 1, 2]
    with pytest.raises(OptionError, match=r"compress \[1, 2\] tokens into one, expected \[0, 4, 128\]: .*V4.1"):
        refuse_unsupported(args, "decode")


def test_should_refuse_options_that_a_pool_beside_the_pages_does_not_allow(pair: Pair) -> None:
    from one_process import RankInEngine, kv_args
    from sglang.srt.runtime_context import get_disagg, get_parallel

    from kv_connector import OptionError
    from kv_connector.sglang.refusals import refuse_unsupported

    args = kv_args("decode", pair.decoder.pool, pair.decoder.metadata, RankInEngine())
    with get_parallel().override(pp_size=2):
        args.state_types = ["swa", "mamba", "dsa", "dsa_tail", "block_scale", "block_scale_swa"]
        refuse_unsupported(args, "prefill")
        for kind in ("qsa_pending", "minimax_index_k"):
            args.state_types = ["mamba", kind]
            with pytest.raises(OptionError, match=rf"--pp-size is 2, expected 1: a model that keeps {kind} beside"):
                refuse_unsupported(args, "prefill")
    with get_disagg().override(disaggregation_decode_enable_radix_cache=True):
        args.state_types = ["swa", "dsa", "block_scale"]
        refuse_unsupported(args, "decode")
        for kind in ("mamba", "dsa_tail", "qsa_pending"):
            args.state_types = ["dsa", kind]
            with pytest.raises(OptionError, match=rf"enable-radix-cache is True, expected False: .* keeps {kind}"):
                refuse_unsupported(args, "decode")
            refuse_unsupported(args, "prefill")


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_should_refuse_kv_that_is_kept_on_the_host(pair: Pair, mode: str) -> None:
    from one_process import RankInEngine, kv_args
    from sglang.srt.runtime_context import get_memory

    from kv_connector import OptionError
    from kv_connector.sglang.refusals import refuse_unsupported

    args = kv_args(mode, pair.decoder.pool, pair.decoder.metadata, RankInEngine())
    with (
        get_memory().override(enable_hisparse=True),
        pytest.raises(
            OptionError, match=r"^--enable-hisparse is True, expected False: with it SGLang keeps KV in host"
        ),
    ):
        refuse_unsupported(args, mode)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_should_refuse_pages_that_come_after_the_prefill(pair: Pair, mode: str) -> None:
    from one_process import RankInEngine, kv_args
    from sglang.srt.runtime_context import get_disagg

    from kv_connector import OptionError
    from kv_connector.sglang.refusals import refuse_unsupported

    args = kv_args(mode, pair.decoder.pool, pair.decoder.metadata, RankInEngine())
    with (
        get_disagg().override(disaggregation_decode_allocation_policy="prefill_complete"),
        pytest.raises(OptionError, match=r"allocation-policy is 'prefill_complete', expected 'early': a prefiller"),
    ):
        refuse_unsupported(args, mode)


def test_should_refuse_checksums_on_a_decoder_with_stages(pair: Pair) -> None:
    from one_process import RankInEngine, kv_args
    from sglang.srt.runtime_context import get_disagg, get_parallel

    from kv_connector import OptionError
    from kv_connector.sglang.refusals import refuse_unsupported

    args = kv_args("decode", pair.decoder.pool, pair.decoder.metadata, RankInEngine())
    with get_disagg().override(disaggregation_enable_kv_checksum=True):
        refuse_unsupported(args, "decode")
        with (
            get_parallel().override(pp_size=2),
            pytest.raises(OptionError, match=r"^--disaggregation-enable-kv-checksum is True, expected False: with"),
        ):
            refuse_unsupported(args, "decode")


@pytest.mark.parametrize("algorithm", ["NGRAM", "STANDALONE"])
def test_should_refuse_guesses_that_a_decoder_cannot_begin_with(pair: Pair, algorithm: str) -> None:
    from one_process import RankInEngine, kv_args
    from sglang.srt.runtime_context import get_spec

    from kv_connector import OptionError
    from kv_connector.sglang.refusals import refuse_unsupported

    args = kv_args("decode", pair.decoder.pool, pair.decoder.metadata, RankInEngine())
    with get_spec().override(speculative_algorithm=algorithm):
        refuse_unsupported(args, "prefill")
        with pytest.raises(OptionError, match=f"^--speculative-algorithm is '{algorithm}', expected EAGLE, EAGLE3 or"):
            refuse_unsupported(args, "decode")


@pytest.mark.parametrize(
    ("divided", "named"),
    [
        ({"enable_kv_cache_sharding": True}, "--enable-kv-cache-sharding is True, expected False"),
        ({"attn_dcp_size": 2}, "--dcp-size is 2, expected 1"),
    ],
)
def test_should_refuse_tokens_or_pages_that_are_divided_among_ranks(
    pair: Pair, divided: dict[str, Any], named: str
) -> None:
    from sglang.srt.runtime_context import get_parallel

    from kv_connector import OptionError
    from kv_connector.sglang.refusals import refuse_unsupported

    with get_parallel().override(**divided), pytest.raises(OptionError, match=named):
        refuse_unsupported(pair.prefiller.endpoint.kv_args, "prefill")
