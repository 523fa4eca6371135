"""SGLang's base classes, and the check that they are those for which this backend was made."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kv_connector.configuration import releases
from kv_connector.exceptions import OptionError
from kv_connector.sglang import loaded_adapters, weight_changes

logger = logging.getLogger("sglang.srt.kv_messenger")

KNOWN_VERSIONS = releases.SGLANG

if TYPE_CHECKING:

    class CommonEndpoint:
        """SGLang's base class of KV managers."""

        kv_args: Any
        local_ip: str
        rank_port: int
        server_socket: Any
        _zmq_ctx: Any
        attn_tp_size: int
        attn_tp_rank: int
        attn_cp_size: int
        attn_cp_rank: int
        attn_dp_rank: int
        system_dp_size: int
        system_dp_rank: int
        dcp_size: int
        pp_size: int
        pp_rank: int
        prefill_info_table: dict[str, Any]
        request_status: Any
        """On a prefiller with pipeline stages a PPConsensusStore, which is replicated to the first stage."""
        waiting_timeout: float
        bootstrap_timeout: float
        enable_deferred_decode_kv_release: bool

        def __init__(self, args: Any, mode: Any, server_args: Any, is_mla_backend: bool | None = False) -> None: ...
        def register_to_bootstrap(self) -> None:
            """Registers this rank's address with the bootstrap server."""

        def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
            """Requests a prefiller's topology; blocks."""

        def _resolve_rank_mapping(self, info: Any) -> None:
            """Adds to a topology which of its ranks have what this rank needs."""

        def check_status_pp_consensus(self, bootstrap_room: int) -> int:
            """The lowest state of a room over all pipeline stages; called on the first only."""

    class CommonKVBootstrapServer:
        """The HTTP registry of a prefiller's ranks."""

    class BaseKVSender:
        """SGLang's base class of senders."""

    class BaseKVReceiver:
        """SGLang's base class of receivers."""

    class KVPoll:
        """The states of a transfer; ranks agree on the lowest."""

        Failed = 0
        Bootstrapping = 1
        WaitingForInput = 2
        Transferring = 3
        Success = 4

    KVTransferMetric: Any
    KVTransferError: Any
    PrefillServerInfo: Any

else:
    from sglang.srt.disaggregation.base.conn import BaseKVReceiver, BaseKVSender, KVPoll, KVTransferMetric
    from sglang.srt.disaggregation.common.conn import (
        CommonKVBootstrapServer,
        KVTransferError,
        PrefillServerInfo,
    )
    from sglang.srt.disaggregation.common.conn import (
        CommonKVManager as CommonEndpoint,
    )

__all__ = [
    "BaseKVReceiver",
    "BaseKVSender",
    "CommonEndpoint",
    "CommonKVBootstrapServer",
    "KVPoll",
    "KVTransferError",
    "KVTransferMetric",
    "PrefillServerInfo",
    "check",
    "require_hooked",
]

_DISAGGREGATION = "sglang.srt.disaggregation"
_LAYERS = "sglang.srt.model_executor.model_runner_components.layer_setup"
_STAGES = "sglang.srt.managers.scheduler_pp_mixin.SchedulerPPMixin"
_WEIGHT_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_TREE_CORE = "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface.UnifiedTreeCoreInterface"
_RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
_SIGNATURES = (
    (
        f"{_DISAGGREGATION}.common.conn.CommonKVManager.__init__",
        "self, args, disaggregation_mode, server_args, is_mla_backend",
    ),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.register_to_bootstrap", "self"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.teardown", "self"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.try_ensure_parallel_info", "self, bootstrap_addr"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager._resolve_rank_mapping", "self, info"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.check_status_pp_consensus", "self, bootstrap_room"),
    (f"{_DISAGGREGATION}.pp_consensus_store.PPConsensusStore.pop", "self, key, default"),
    (f"{_DISAGGREGATION}.pp_consensus_store.PPConsensusStore.collect", "self, key"),
    (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue.pop_bootstrapped", "self"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.is_abort_release_safe", "self, bootstrap_room, required_acks"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.clear_deferred_abort_state", "self, bootstrap_room"),
    (
        f"{_DISAGGREGATION}.common.conn.KVTransferError.__init__",
        "self, bootstrap_room, failure_reason, is_from_another_rank",
    ),
    (
        f"{_DISAGGREGATION}.common.conn.CommonKVSender.__init__",
        "self, mgr, bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank",
    ),
    (f"{_DISAGGREGATION}.common.conn.CommonKVSender.init", "self, num_kv_indices, aux_index"),
    (
        f"{_DISAGGREGATION}.common.conn.CommonKVSender.send",
        "self, kv_indices, state_indices, num_kv_tokens, indices_event",
    ),
    (f"{_DISAGGREGATION}.common.conn.CommonKVReceiver.__init__", "self, mgr, bootstrap_addr, bootstrap_room"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVReceiver.init", "self, prefill_dp_rank"),
    (
        f"{_DISAGGREGATION}.common.conn.CommonKVReceiver.send_metadata",
        "self, kv_indices, aux_index, state_indices, decode_prefix_len, destination, device_kv_indices",
    ),
    (f"{_DISAGGREGATION}.common.conn.CommonKVReceiver.ensure_abort_notified", "self, force_arm"),
    (f"{_DISAGGREGATION}.decode.DecodeTransferQueue.resolve_deferred_releases", "self"),
    (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue.add", "self, req, num_kv_heads"),
    (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue.create_sender", "self, req, num_kv_heads"),
    (f"{_DISAGGREGATION}.decode.DecodePreallocQueue.add", "self, req, is_retracted, is_rebootstrap"),
    (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue.release_memory_occupation", "self"),
    (
        f"{_DISAGGREGATION}.decode.DecodePreallocQueue._send_kv_metadata",
        "self, decode_req, kv_indices, page_size, state_indices, metadata_kwargs",
    ),
    (f"{_DISAGGREGATION}.decode.DecodePreallocQueue._submit_prefill_recompute", "self, decode_req"),
    (
        f"{_DISAGGREGATION}.decode.DecodePreallocQueue._update_handshake_waiters",
        "self, rids_to_check, pp_good_rids, pp_bad_rids",
    ),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.submit_prefill_recompute", "self, kv_receiver, payload"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager._fail_prefill_recompute", "self, kv_receiver, reason"),
    (
        f"{_DISAGGREGATION}.common.conn.CommonKVManager._run_prefill_recompute",
        "self, kv_receiver, prefill_url, payload",
    ),
    ("sglang.srt.managers.schedule_batch.Req.build_rebootstrap_payload", "self"),
    ("sglang.srt.managers.schedule_batch.Req.set_finish_with_abort", "self, error_msg, status_code, err_type"),
    (f"{_DISAGGREGATION}.decode.SchedulerDisaggregationDecodeMixin._verify_kv_checksums", "self, batch"),
    ("sglang.srt.managers.scheduler.Scheduler.run_batch", "self, batch, pp_proxy_tensors"),
    ("sglang.srt.managers.scheduler.Scheduler.is_fully_idle", "self, for_health_check, ignore_waiting"),
    ("sglang.srt.managers.scheduler.Scheduler.flush_cache", "self, empty_cache"),
    (
        f"{_DISAGGREGATION}.decode.DecodePreallocQueue.pop_preallocated",
        "self, rids_to_check, pp_good_rids, pp_bad_rids",
    ),
    (f"{_RECEIVER}._broadcast_reqs_across_ranks", "self, recv_reqs, local_reqs"),
    (f"{_TREE}.match_prefix", "self, params"),
    (f"{_TREE_CORE}.match_full_device_prefix", "self, key"),
    (f"{_TREE}.insert", "self, params"),
    (f"{_TREE}.lock", "self, node_id, skip_lock_components"),
    (f"{_TREE}.unlock", "self, lock"),
    (f"{_TREE}.path_device_indices", "self, node"),
    ("sglang.srt.mem_cache.common.evict_from_tree_cache", "tree_cache, num_tokens"),
    ("sglang.srt.mem_cache.radix_cache.RadixKey.__init__", "self, token_ids, extra_key, is_bigram, limit, cache_salt"),
    *((source, "self, recv_req") for source in (*weight_changes.SOURCES, weight_changes.END_OF_UPDATE)),
    (loaded_adapters.FROM_FILES, "self, lora_ref"),
    (loaded_adapters.FROM_TENSORS, "self, lora_ref, tensors, config_dict, added_tokens_config"),
    ("sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len", "self, input_len"),
    (f"{_DISAGGREGATION}.utils.get_kv_class", "transfer_backend, class_type"),
    (f"{_DISAGGREGATION}.utils.get_kv_transfer_buf_infos", "pool"),
    (f"{_DISAGGREGATION}.utils.is_mla_backend", "target_kv_pool"),
    (
        f"{_DISAGGREGATION}.utils.setup_state_kv_args",
        "kv_args, token_to_kv_pool, draft_token_to_kv_pool, total_kv_layers, req_to_token_pool",
    ),
    (f"{_STAGES}._pp_pd_get_decode_transferred_ids", "self"),
    (f"{_STAGES}.process_decode_transfer_queue", "self, release_rids"),
    (f"{_STAGES}.get_rids", "self, req_queue, is_send, poll_statuses_group"),
    ("sglang.srt.configs.hybrid_arch.mambaish_config", "model_config"),
    (
        "sglang.srt.model_executor.model_runner.ModelRunner.alloc_memory_pool",
        "self, memory_pool_config, draft_parallel_layout",
    ),
    ("sglang.srt.mem_cache.memory_pool.MambaPool.get_contiguous_buf_infos", "self"),
    ("sglang.srt.mem_cache.memory_pool.MambaPool._iter_transfer_state_entries", "self"),
)

_EARLIER_SIGNATURES = {
    f"{_DISAGGREGATION}.common.conn.CommonKVSender.send": "self, kv_indices, state_indices, num_kv_tokens",
    f"{_DISAGGREGATION}.common.conn.CommonKVReceiver.send_metadata": (
        "self, kv_indices, aux_index, state_indices, decode_prefix_len, destination"
    ),
    "sglang.srt.model_executor.model_runner.ModelRunner.alloc_memory_pool": "self, memory_pool_config",
}
"""Those of 0.5.22 where they differ: what SGLang does not pass there has a default in this backend."""

_ATTRIBUTES = (
    (f"{_DISAGGREGATION}.decode.DecodeTransferQueue.__init__", "self.deferred_kv_release_timeout"),
    (f"{_DISAGGREGATION}.decode.DecodePreallocQueue.__init__", "self.num_reserved_decode_tokens"),
    (f"{_DISAGGREGATION}.prefill.SchedulerDisaggregationPrefillMixin.maybe_send_cached_prefix_chunk", "_early_send"),
    (f"{_DISAGGREGATION}.prefill.SchedulerDisaggregationPrefillMixin._send_kv_chunk", "extend_end"),
    (f"{_DISAGGREGATION}.prefill.SchedulerDisaggregationPrefillMixin._send_kv_chunk", "kv.req_pool_idx"),
    (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue.create_sender", "pending_bootstrap"),
    (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue.add", "is_unadmitted_reject(req)"),
    (f"{_DISAGGREGATION}.decode.DecodePreallocQueue.add", "is_unadmitted_reject(req)"),
    (f"{_DISAGGREGATION}.decode.DecodePreallocQueue._update_handshake_waiters", "prepare_abort("),
    (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue.__init__", "self.metadata_buffers = metadata_buffers"),
    (f"{_DISAGGREGATION}.decode.DecodePreallocQueue.__init__", "self.metadata_buffers = metadata_buffers"),
    (f"{_DISAGGREGATION}.utils.MetadataBuffers.set_buf", "self.output_top_logprobs_val.shape[1]"),
    ("sglang.srt.managers.schedule_batch.Req.__init__", "top_logprobs_num=top_logprobs_num"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.__init__", "_zmq_ctx"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.try_ensure_parallel_info", "self._resolve_rank_mapping(info)"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.__init__", "self._prefill_recompute_executor"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.submit_prefill_recompute", "self._run_prefill_recompute, kv_"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.submit_prefill_recompute", "self._fail_prefill_recompute("),
    ("sglang.srt.managers.scheduler.Scheduler.run_batch", "maybe_send_cached_prefix_chunk"),
    ("sglang.srt.managers.scheduler.Scheduler.run_batch", "self.enable_overlap"),
    ("sglang.srt.managers.scheduler.Scheduler.run_batch", "self.forward_stream"),
    ("sglang.srt.managers.scheduler.Scheduler.run_batch", "self.device_module"),
    ("sglang.srt.managers.scheduler.Scheduler.flush_cache", "self.is_fully_idle(ignore_waiting"),
    ("sglang.srt.managers.scheduler.Scheduler.__init__", "self.init_disaggregation()"),
    (f"{_TREE}.__init__", "self.tree_components"),
    (f"{_TREE}.__init__", "self.linker"),
    ("sglang.srt.managers.schedule_batch.Req.__init__", "self.prefix_len"),
    ("sglang.srt.managers.schedule_batch.Req.__init__", "self.cache_salt"),
    ("sglang.srt.managers.schedule_batch.Req.__init__", "self.session ="),
    ("sglang.srt.managers.scheduler.Scheduler.flush_cache", "self._engine_paused"),
    ("sglang.srt.managers.schedule_batch.Req.__init__", "self.positional_embed_overrides"),
    ("sglang.srt.mem_cache.common.release_kv_cache", "req.skip_radix_cache_insert"),
    (f"{weight_changes.UPDATER}.flush_cache_after_weight_update", weight_changes.NOT_FLUSHED),
    *((source, "recv_req.weight_version") for source in weight_changes.SOURCES),
    (weight_changes.END_OF_UPDATE, "self._session.loaded_weights"),
    ("sglang.srt.lora.lora_manager.LoRAManager.init_lora_adapters", "self._load_lora_adapter("),
    ("sglang.srt.lora.lora_manager.LoRAManager.load_lora_adapter", "self._load_lora_adapter("),
    ("sglang.srt.model_executor.model_runner.ModelRunner.__init__", "self.is_draft_worker"),
    ("sglang.srt.model_executor.model_runner.ModelRunner.load_model", "self.sliding_window_size"),
    (f"{_LAYERS}._resolve_pp_layer_range", 'getattr(model, "start_layer", 0)'),
    (f"{_STAGES}._pp_pd_get_decode_transferred_ids", "self._pp_recv_pyobj_from_prev_stage()"),
    (f"{_STAGES}.event_loop_pp_disagg_decode", "self.process_decode_transfer_queue("),
    (f"{_DISAGGREGATION}.prefill.SchedulerDisaggregationPrefillMixin._send_kv_chunk", "self.sliding_window_size"),
)
"""Functions of SGLang and the text that their source must contain, mostly attributes that the backend reads or sets:
setting an attribute that SGLang no longer uses would raise nothing and corrupt KV."""

_NAMES = (
    f"{_DISAGGREGATION}.utils.FAKE_BOOTSTRAP_HOST",
    f"{_DISAGGREGATION}.utils.get_kv_transfer_buf_infos",
    f"{_DISAGGREGATION}.utils.is_aborted",
    f"{_DISAGGREGATION}.utils.is_mla_backend",
    f"{_DISAGGREGATION}.utils.is_unadmitted_reject",
    f"{_DISAGGREGATION}.utils.prepare_abort",
    f"{_DISAGGREGATION}.utils.setup_state_kv_args",
    "sglang.srt.configs.hybrid_arch.mambaish_config",
    "sglang.srt.configs.model_config.AttentionArch",
    "sglang.srt.configs.model_config.ModelConfig",
    "sglang.srt.constants.GPU_MEMORY_TYPE_WEIGHTS",
    "sglang.srt.distributed.utils.get_pp_indices",
    "sglang.srt.environ.envs",
    "sglang.srt.layers.radix_attention.RadixAttention",
    "sglang.srt.managers.overlap_utils.resolve_forward_inputs",
    "sglang.srt.managers.schedule_batch.FINISH_ABORT",
    "sglang.srt.managers.schedule_batch.Req",
    "sglang.srt.managers.schedule_batch.ScheduleBatch",
    "sglang.srt.mem_cache.base_prefix_cache.InsertParams",
    "sglang.srt.mem_cache.base_prefix_cache.MatchPrefixParams",
    "sglang.srt.mem_cache.common.evict_from_tree_cache",
    "sglang.srt.mem_cache.common.release_kv_cache",
    "sglang.srt.mem_cache.radix_cache.RadixKey",
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache",
    "sglang.srt.observability.trace.TraceReqContext",
    "sglang.srt.plugins.hook_registry.HookRegistry",
    "sglang.srt.plugins.hook_registry.HookType",
    "sglang.srt.runtime_context.get_device",
    "sglang.srt.runtime_context.get_disagg",
    "sglang.srt.runtime_context.get_exec",
    "sglang.srt.runtime_context.get_memory",
    "sglang.srt.runtime_context.get_observability",
    "sglang.srt.runtime_context.get_parallel",
    "sglang.srt.runtime_context.get_serving",
    "sglang.srt.runtime_context.get_spec",
    "sglang.srt.sampling.sampling_params.SamplingParams",
)
"""What is imported where it is used, which may be in the middle of a request: a test compares this with the sources."""

_WEIGHTS_NAMES = (
    "sglang.srt.managers.io_struct.InitWeightsUpdateGroupReqOutput",
    "sglang.srt.managers.io_struct.UpdateWeightsFromTensorReqOutput",
    f"{_WEIGHT_UPDATER}._unsupported_derived_weight_cache_error",
    "sglang.srt.model_loader.loader.DefaultModelLoader",
    "sglang.srt.model_loader.utils.set_default_torch_dtype",
    "sglang.srt.runtime_context.get_model",
)
"""What weights from outside need besides: a server starts without."""


def unknown_topology() -> Any:
    """Stands for the topology of a prefiller that does not fit, so that its requests reach what fails them."""
    return PrefillServerInfo(
        attn_tp_size=1,
        attn_cp_size=1,
        dp_size=1,
        pp_size=1,
        page_size=None,
        kv_cache_dtype=None,
        follow_bootstrap_room=True,
    )


def lack_for_weights() -> str:
    """What this SGLang lacks for weights from outside; "" if nothing."""
    lacking = [path for path in _WEIGHTS_NAMES if _resolve(path) is None]
    return f"SGLang {importlib.metadata.version('sglang')} has no {lacking[0]}" if lacking else ""


def check() -> None:
    """Raises if SGLang's private interfaces are not those for which this backend was made."""
    installed = importlib.metadata.version("sglang")
    if installed not in KNOWN_VERSIONS:
        logger.warning("SGLang %s was not tested with KV Messenger; %s was", installed, ", ".join(KNOWN_VERSIONS))
    for path, expected in _SIGNATURES:
        seen = _parameters(path)
        if seen not in (expected, _EARLIER_SIGNATURES.get(path)):
            raise _unknown(f"has {path}({seen}), expected ({expected})")
    for path in _NAMES:
        if _resolve(path) is None:
            raise _unknown(f"has no {path}")
    for path, attribute in _ATTRIBUTES:
        function = _resolve(path)
        if function is None or attribute not in inspect.getsource(inspect.unwrap(function)):
            raise _unknown(f"has {path} without {attribute}")


def require_hooked(targets: Iterable[str]) -> None:
    """Raises if a hook could not be installed, which SGLang itself only logs."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    for target in targets:
        if target not in HookRegistry._patched:
            raise _unknown(f"has not let a plugin hook {target}")


def _unknown(what: str) -> OptionError:
    return OptionError(
        f"SGLang {importlib.metadata.version('sglang')} {what}: the backend kv_messenger was made for SGLang"
        f" {', '.join(KNOWN_VERSIONS)}; install one of these"
    )


def _parameters(path: str) -> str:
    function = _resolve(path)
    return "missing" if function is None else ", ".join(inspect.signature(inspect.unwrap(function)).parameters)


def _resolve(path: str) -> Any:
    parts = path.split(".")
    depth = next(i for i, part in enumerate(parts) if part[0].isupper() or i == len(parts) - 1)
    try:
        found: Any = importlib.import_module(".".join(parts[:depth]))
        for name in parts[depth:]:
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found
