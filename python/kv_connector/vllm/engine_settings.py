"""Which of vLLM's options change the KV that an engine computes, as settings that two sides compare. Pure.

Each dataclass of vLLM's configuration has its options in two lists: those that are compared, and those that are
harmless, by the reason. At run time the harmless ones are left out and all others are compared, so that two sides which
differ in an option of a release that these lists do not know refuse each other; a test fails when an option of vLLM is
in neither list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kv_connector.naming.model_settings import HarmlessBy, Settings, of_configuration, of_options, text_of

_LENGTHS = "how much is kept or computed at once"
_PLACES = "where it runs or lies"
_ANSWERS = "what is made of the answers, of which only the decoder makes any"
_FILES = "where files come from; what is in them is compared"
_ROUNDING = "the same sums in another order, as another batch has too"
_LOOKS = "what is logged, measured or named"
_PROMPTS = "what prompts are made of; they are compared token by token"
_PAGES = "compared with the pages, as they were laid out"
_BUILT = "compared as it was resolved or built"
_WEIGHTS = "how weights come into memory; they are compared by samples of their files"


@dataclass(frozen=True, slots=True)
class OptionLists:
    """The options of one of vLLM's dataclasses: what is compared, and what is harmless by its reason."""

    compared: tuple[str, ...] = ()
    harmless: HarmlessBy = field(default_factory=dict)


MODEL = OptionLists(
    compared=(
        "code_revision",
        "convert",
        "disable_sliding_window",
        "dtype",
        "model_class_overrides",
        "quantization",
        "quantization_config",
        "runner",
        "word_embeddings_untied_by_checkpoint",
    ),
    harmless={
        _BUILT: (
            "hf_config",
            "hf_overrides",
            "hf_text_config",
            "is_submodel_config",
            "model",
            "model_impl",
            "trust_remote_code",
        ),
        # Llama 4 alone takes a field of it into its computation, and vLLM writes that into the configuration.
        _ANSWERS: (
            "enable_trace_replay",
            "generation_config",
            "io_processor_plugin",
            "logits_processors",
            "logprobs_mode",
            "max_logprobs",
            "override_generation_config",
            "pooler_config",
            "return_sampling_mask",
            "seed",
            "use_fp64_gumbel",
        ),
        _FILES: (
            "allow_deprecated_quantization",
            "allowed_local_media_path",
            "allowed_media_domains",
            "config_format",
            "hf_config_path",
            "hf_token",
            "model_weights",
            "revision",
        ),
        _LENGTHS: ("max_model_len", "renderer_num_workers", "spec_target_max_model_len"),
        _LOOKS: ("served_model_name",),
        "taken one by one": ("multimodal_config",),
        _PROMPTS: ("enable_prompt_embeds", "skip_tokenizer_init", "tokenizer", "tokenizer_mode", "tokenizer_revision"),
        _PLACES: (
            "enable_cumem_allocator",
            "enable_nccl_comm_suspend",
            "enable_sleep_mode",
            "sleep_mode_backend",
            "sleep_mode_offload_cudagraph",
            "sleep_preserve_parameter_names",
        ),
        _ROUNDING: ("disable_cascade_attn", "enforce_eager"),
    },
)

MULTIMODAL = OptionLists(
    compared=(
        "language_model_only",
        "media_io_kwargs",
        "mm_encoder_attn_dtype",
        "mm_encoder_fp8_scale_path",
        "mm_processor_kwargs",
        "video_pruning_method",
        "video_pruning_rate",
    ),
    harmless={
        "vLLM derives it from the side's role: a decoder takes images without their embeddings, which it looks at no"
        " more": ("allow_missing_mm_embeddings",),
        _LENGTHS: (
            "limit_per_prompt",
            "mm_ipc_gpu_memory_gb",
            "mm_processor_cache_gb",
            "mm_shm_cache_max_object_size_mb",
            "skip_mm_profiling",
        ),
        _PLACES: ("mm_encoder_only", "mm_encoder_tp_mode", "mm_processor_cache_type", "mm_tensor_ipc"),
        _PROMPTS: ("enable_mm_embeds", "interleave_mm_strings", "mm_hasher_algorithm"),
        _ROUNDING: ("mm_device_do_normalize", "mm_encoder_attn_backend"),
        _LOOKS: ("mm_encoder_fp8_scale_save_margin", "mm_encoder_fp8_scale_save_path"),
    },
)

CACHE = OptionLists(
    compared=("kv_cache_dtype_skip_layers", "sliding_window"),
    harmless={
        _PAGES: (
            "block_size",
            "cache_dtype",
            "effective_attention_block_size",
            "kv_cache_layout",
            "mamba_block_size",
            "mamba_cache_dtype",
            "mamba_cache_mode",
            "mamba_page_size_padded",
            "mamba_ssm_cache_dtype",
            "replayssm_buffer_len",
            "skip_page_size_padded",
            "user_specified_block_size",
            "_block_size_resolved",
        ),
        _LENGTHS: (
            "gpu_memory_utilization",
            "kv_cache_max_concurrency",
            "kv_cache_memory_bytes",
            "kv_cache_size_tokens",
            "num_cpu_blocks",
            "num_gpu_blocks",
            "num_gpu_blocks_override",
        ),
        "what is kept of earlier prompts": (
            "cache_hit_alignment_tokens",
            "enable_mamba_shared_prefix_checkpoint",
            "enable_prefix_caching",
            "hash_block_size",
            "kv_offloading_backend",
            "kv_offloading_size",
            "prefix_cache_retention_interval",
            "prefix_caching_hash_algo",
            "prefix_match_unit",
        ),
        "which layers without KV of their own a prefill may leave out": (
            "kv_sharing_fast_prefill",
            "swa_bounded_replay",
        ),
        _BUILT: ("is_attention_free",),
        "another kernel for steps that no prompt is computed by": ("use_kda_recoverssm", "use_replayssm"),
    },
)

ATTENTION = OptionLists(
    compared=(
        "disable_flashinfer_q_quantization",
        "indexer_kv_dtype",
        "indexer_sparse_logits",
        "use_non_causal",
        "use_prefill_query_quantization",
    ),
    harmless={
        "another kernel for the same attention; how it packs pages is compared": (
            "backend",
            "backend_per_kind",
            "flash_attn_version",
            "mla_prefill_backend",
            "minimax_m3_msa_decode_backend",
            "sparse_mla_force_mqa",
            "use_trtllm_attention",
        ),
        _ROUNDING: (
            "flash_attn_max_num_splits_for_cuda_graph",
            "flex_attn_block_m",
            "flex_attn_block_n",
            "flex_attn_kv_block_size",
            "flex_attn_q_block_size",
            "tokenspeed_mla_min_split_kv",
            "tq_max_kv_splits_for_cuda_graph",
        ),
        _LENGTHS: ("sparse_mla_prefill_workspace_factor",),
        _PLACES: ("hisparse_config",),
    },
)

LORA = OptionLists(
    compared=("default_mm_loras", "enable_tower_connector_lora", "target_modules"),
    harmless={
        _LENGTHS: ("max_cpu_loras", "max_lora_cls_labels", "max_lora_rank", "max_loras"),
        _PLACES: ("fully_sharded_loras",),
        _ROUNDING: (
            "enable_mixed_moe_lora_format",
            "enable_moe_shared_loras",
            "lora_dtype",
            "specialize_active_lora",
        ),
    },
)

MAMBA = OptionLists(
    compared=("enable_stochastic_rounding", "stochastic_rounding_philox_rounds"),
    harmless={_ROUNDING: ("backend", "ssu_algorithm")},
)

KERNEL = OptionLists(
    compared=("linear_backend", "linear_backend_per_quant", "moe_backend"),
    harmless={
        _ROUNDING: ("ir_op_priority",),
        "how soon a kernel is ready": (
            "enable_cutedsl_warmup",
            "enable_flashinfer_autotune",
            "enable_jit_warmup",
            "enable_rocm_segmented_attn_autotune",
        ),
        "another kernel for steps that no prompt is computed by": ("sparse_indexer_topk_backend",),
    },
)
KERNELS_OF_FP8 = frozenset(
    (
        *("aiter", "auto", "b12x", "batched_triton", "cutlass", "deep_gemm", "deep_gemm_mega_moe"),
        *("flashinfer_b12x", "flashinfer_cudnn", "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm"),
        *("flydsl", "hpc", "torch", "triton"),
    )
)
"""Kernels that compute a checkpoint of FP8 with activations of FP8. Others take activations as they are, or weights in
another format than the checkpoint's."""

LOAD = OptionLists(
    compared=("load_format",),
    harmless={
        _WEIGHTS: (
            "device",
            "download_dir",
            "ignore_patterns",
            "model_loader_extra_config",
            "pt_load_map_location",
            "safetensors_load_strategy",
            "safetensors_prefetch_block_size",
            "safetensors_prefetch_num_threads",
            "use_tqdm_on_load",
        ),
    },
)
FOLDER_FORMATS = frozenset(
    (
        *("auto", "bitsandbytes", "fastsafetensors", "gguf", "hf", "instanttensor", "mistral", "npcache", "pt"),
        *("runai_streamer", "runai_streamer_sharded", "safetensors", "sharded_state"),
    )
)
"""Load formats whose weights are those of the model's folder. Others invent them or have them from elsewhere."""
_SOURCE = "load_config.model_loader_extra_config"
"""Says where a format that is none of these has weights from."""

PARALLEL = OptionLists(
    compared=("worker_cls",),
    harmless={
        "how ranks share the computation: the same sums in another order; pages are compared and cut accordingly": (
            "_allow_auto_resolve_cp_interleave_size",
            "all2all_backend",
            "cp_kv_cache_interleave_size",
            "data_parallel_index",
            "data_parallel_rank",
            "data_parallel_rank_local",
            "data_parallel_size",
            "data_parallel_size_local",
            "dbo_decode_token_threshold",
            "dbo_prefill_token_threshold",
            "dcp_comm_backend",
            "dcp_kv_cache_interleave_size",
            "dcp_q_replicate",
            "decode_context_parallel_size",
            "disable_custom_all_reduce",
            "enable_batch_sharded_sampling",
            "enable_dbo",
            "enable_elastic_ep",
            "enable_ep_weight_filter",
            "enable_eplb",
            "enable_expert_parallel",
            "enable_hc_sp",
            "eplb_config",
            "expert_placement_strategy",
            "is_moe_model",
            "pipeline_parallel_size",
            "prefill_context_parallel_size",
            "tensor_parallel_size",
            "ubatch_size",
        ),
        _PLACES: (
            "_api_process_count",
            "_api_process_rank",
            "_coord_store_port",
            "_data_parallel_master_port_list",
            "assigned_physical_gpu_ids",
            "cpu_distributed_timeout_seconds",
            "data_parallel_backend",
            "data_parallel_external_lb",
            "data_parallel_hybrid_lb",
            "data_parallel_master_ip",
            "data_parallel_master_port",
            "data_parallel_rpc_port",
            "disable_nccl_for_dp_synchronization",
            "distributed_executor_backend",
            "distributed_timeout_seconds",
            "dp_sync_interval",
            "elastic_ep_max_dp_size",
            "enable_fault_tolerance",
            "enable_shm_tensor_arena",
            "fault_tolerance_config",
            "master_addr",
            "master_port",
            "max_parallel_loading_workers",
            "nnodes",
            "node_rank",
            "numa_bind",
            "numa_bind_cpus",
            "numa_bind_nodes",
            "placement_group",
            "rank",
            "ray_runtime_env",
            "ray_workers_use_nsight",
            "world_size",
        ),
        "weights that it changes are counted": ("worker_extension_cls",),
    },
)

ENGINE = OptionLists(
    compared=(
        "additional_config",
        "attention_config",
        "cache_config",
        "diffusion_config",
        "kernel_config",
        "load_config",
        "lora_config",
        "mamba_config",
        "model_config",
        "parallel_config",
    ),
    harmless={
        "a draft with KV is compared by its name and its configuration, one without has no KV": ("speculative_config",),
        _BUILT: ("quant_config",),
        _LENGTHS: ("scheduler_config", "shutdown_timeout"),
        _PLACES: ("device_config", "engram_config", "offload_config", "ec_transfer_config", "ec_manager_config"),
        _ROUNDING: ("compilation_config", "optimization_level", "performance_mode"),
        _ANSWERS: (
            "aux_output_config",
            "reasoning_config",
            "structured_outputs_config",
            "watermark_config",
        ),
        _LOOKS: ("instance_id", "kv_events_config", "logging_config", "observability_config", "profiler_config"),
        "the connector's own, which has its own checks": ("kv_transfer_config",),
        "weights that came later are part of what names a prompt": ("weight_transfer_config",),
    },
)

LISTS: Mapping[str, OptionLists] = {
    "model_config": MODEL,
    "cache_config": CACHE,
    "parallel_config": PARALLEL,
    "load_config": LOAD,
    "attention_config": ATTENTION,
    "kernel_config": KERNEL,
    "lora_config": LORA,
    "mamba_config": MAMBA,
}
"""The lists of the parts of vLLM's configuration whose options are looked at one by one, by the part's name."""


def of_engine(vllm_config: Any) -> Settings:
    """The settings of vLLM's options; a part that no list takes one by one is compared as a whole."""
    without_parts: HarmlessBy = {**ENGINE.harmless, "taken one by one": tuple(LISTS)}
    settings = of_options("vllm_config", vllm_config, without_parts)
    for part, lists in LISTS.items():
        options = getattr(vllm_config, part, None)
        if options is not None:
            settings.update(of_options(part, options, lists.harmless))
    images = getattr(vllm_config.model_config, "multimodal_config", None)
    if images is not None:
        settings.update(of_options("multimodal_config", images, MULTIMODAL.harmless))
    load = getattr(vllm_config, "load_config", None)
    load_format = getattr(load, "load_format", None)
    if load_format is not None and str(load_format) not in FOLDER_FORMATS:
        settings[_SOURCE] = text_of(getattr(load, "model_loader_extra_config", None))
    quantization = getattr(vllm_config.model_config, "quantization", None)
    return {name: value for name, value in settings.items() if not _is_default(name, value, quantization)}


def _is_default(name: str, value: str, quantization: str | None) -> bool:
    """Whether a value counts as not set: a side without adapters, or with other files, computes the same.

    A kernel decides with which numbers a quantised model is computed; one that is not has no others than its own.
    """
    if name.startswith("kernel_config."):
        return quantization is None or value == "auto" or (quantization == "fp8" and value in KERNELS_OF_FP8)
    return (name.startswith("lora_config.") and value == "false") or (
        name == "load_config.load_format" and value in FOLDER_FORMATS
    )


def of_model(model_config: Any, prefix: str = "") -> Settings:
    """The settings of a model's configuration after all overrides: of its text part, and of the parts beside it.

    A name that both have is the text part's: the layers are built from that.
    """
    text, whole = model_config.hf_text_config, getattr(model_config, "hf_config", None)
    settings = {f"{prefix}architecture": text_of(getattr(model_config, "architecture", None) or "unknown")}
    settings.update(of_configuration(text, prefix=prefix, without=_CLASSES))
    if whole is None or whole is text:
        return settings
    beside = of_configuration(whole, prefix=prefix, without=(*_CLASSES, *_TEXT_PARTS))
    return {**settings, **{name: value for name, value in beside.items() if name not in settings}}


_CLASSES = ("architectures",)
"""What a file says of the model's class; the class that vLLM took is compared."""
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
