"""Which configurations of SGLang the backend refuses, each with one sentence; independent of the user's options."""

from __future__ import annotations

from typing import Any

from kv_connector.configuration.options import SGLANG_OPTIONS_VARIABLE
from kv_connector.exceptions import OptionError
from kv_connector.sglang import compressed_pools, page_shares, pool_kinds

_WITHOUT_FIRST_GUESSES = ("NGRAM", "STANDALONE")
"""SGLang's algorithms whose first guesses its decoders neither receive nor can do without."""


def refuse_device(device: str, gpu: str) -> None:
    """Raises OptionError if the device is not supported; ``gpu`` is the value of the option of that name."""
    if device == "cpu" or (device == "cuda" and gpu == "unproven"):
        return
    hint = (
        f"; set gpu to 'unproven' in {SGLANG_OPTIONS_VARIABLE} to try what has run on no GPU with SGLang"
        if device == "cuda"
        else ""
    )
    raise OptionError(
        f"--device is {device!r}, expected 'cpu', because this build of KV Messenger was shown to move KV in host"
        f" memory only{hint}"
    )


def refuse_unsupported(kv_args: Any, mode: str, *, latent: bool = False) -> None:
    """Raises OptionError if the configuration cannot work; ``latent`` is whether each rank computes all KV."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_device, get_disagg, get_memory, get_parallel

    parallel = get_parallel()
    if get_device().device != "cpu":
        _refuse_on_device()
    if mode == "decode":
        _require("--attn-cp-size", parallel.attn_cp_size, 1, "only a prefiller may have context parallelism")
    if parallel.attn_cp_size > 1:
        _refuse_divided_context(kv_args)
    _require("--dcp-size", parallel.attn_dcp_size, 1, "tokens that are divided among ranks are not served")
    _require(
        "--disaggregation-decode-allocation-policy",
        get_disagg().disaggregation_decode_allocation_policy,
        "early",
        "a prefiller computes what a decoder has pages for",
    )
    _require(
        "--enable-hisparse",
        bool(get_memory().enable_hisparse),
        False,
        "with it SGLang keeps KV in host pages that are numbered apart from those of the GPU, and names both",
    )
    _require(
        "SGLANG_DISAGG_STAGING_BUFFER",
        bool(envs.SGLANG_DISAGG_STAGING_BUFFER.get()),
        False,
        "the messenger needs no staging",
    )
    if mode == "decode":
        _refuse_on_decoder()
    kinds = pool_kinds.kinds_beside(kv_args)
    page_shares.refuse_undivided(kinds, mode, latent=latent, switches_roles=get_disagg().enable_pd_role_switch)
    _refuse_beside(kinds, kv_args, mode)


def _refuse_on_decoder() -> None:
    """Raises OptionError for what a decoder's requests would fail with, or SGLang itself."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_disagg, get_parallel, get_spec

    _require(
        "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE",
        bool(envs.SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE.get()),
        True,
        "pages of an aborted request must not be reused while a prefiller may write to them",
    )
    if get_parallel().pp_size > 1:
        _require(
            "--disaggregation-enable-kv-checksum",
            bool(get_disagg().disaggregation_enable_kv_checksum),
            False,
            "with --pp-size above 1, each of a prefiller's stages sends a checksum of its own layers; the option"
            " page_checksum has each page checked",
        )
    algorithm = get_spec().speculative_algorithm
    if algorithm in _WITHOUT_FIRST_GUESSES:
        raise OptionError(
            f"--speculative-algorithm is {algorithm!r}, expected EAGLE, EAGLE3 or NEXTN on a decoder: a prefiller hands"
            " over no first guesses of others, and SGLang's decoder ends with its first request"
        )


def _refuse_divided_context(kv_args: Any) -> None:
    """Raises OptionError if a context-parallel rank may not hold all that is sent, since only one of them sends."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    why = "with --attn-cp-size above 1, each rank must hold all that is sent"
    _require("--enable-dsa-cache-layer-split", bool(parallel.enable_dsa_cache_layer_split), False, why)
    _require("the model's sharing of the CP and TP groups", bool(parallel.enable_cp_tp_group_sharing), False, why)
    if getattr(kv_args, "is_hybrid_mla_backend", False):
        _require("--attn-cp-size", parallel.attn_cp_size, 1, "more are not served with latent KV beside states")


def _refuse_on_device() -> None:
    """Raises OptionError for features of GPUs with which KV would be sent too early."""
    from sglang.srt.runtime_context import get_disagg, get_exec

    in_parts = "a forward pass that is run in parts is over for KV Messenger when the first of them is queued"
    _require("--enable-pdmux", bool(get_disagg().enable_pdmux), False, in_parts)
    _require("--enable-two-batch-overlap", bool(get_exec().overlap.enable_two_batch_overlap), False, in_parts)


def _refuse_beside(kinds: list[str], kv_args: Any, mode: str) -> None:
    """Raises OptionError for pools besides that of full attention that are not served, or not with these options."""
    from sglang.srt.runtime_context import get_disagg, get_parallel

    compressed = compressed_pools.are_compressed(kv_args)
    known = compressed_pools.COMPRESSED_KINDS if compressed else pool_kinds.KINDS
    for kind in kinds:
        if kind not in known:
            why = pool_kinds.REFUSED.get(kind, "this kind is not known")
            raise OptionError(
                f"the model keeps {kind!r} beside its KV pages, expected kinds among {', '.join(known)}:"
                f" {why}; serve another model, or choose another --disaggregation-transfer-backend"
            )
    if compressed:
        _refuse_compressed(kv_args)
    for kind in kinds:
        why = f"a model that keeps {kind} beside its KV pages is not served with it"
        if kind in pool_kinds.WITHOUT_STAGES:
            _require("--pp-size", get_parallel().pp_size, 1, why)
        if kind in pool_kinds.OF_REQUESTS and mode == "decode":
            option = "--disaggregation-decode-enable-radix-cache"
            _require(option, bool(get_disagg().disaggregation_decode_enable_radix_cache), False, why)


def _refuse_compressed(kv_args: Any) -> None:
    """Raises OptionError for what is not served with the pools of DeepSeek-V4."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_parallel, get_spec

    others = sorted(set(kv_args.mla_compression_ratios) - set(compressed_pools.RATIOS))
    if others:
        raise OptionError(
            f"the model's layers compress {others} tokens into one, expected {list(compressed_pools.RATIOS)}: its pool"
            " is that of DeepSeek-V4.1; serve another model, or choose another --disaggregation-transfer-backend"
        )
    why = "it is not served with a model whose layers compress their KV (DeepSeek-V4)"
    _require("--pp-size", get_parallel().pp_size, 1, why)
    _require("--speculative-algorithm", get_spec().speculative_algorithm, None, why)
    _require("SGLANG_OPT_USE_ONLINE_COMPRESS", bool(envs.SGLANG_OPT_USE_ONLINE_COMPRESS.get()), False, why)


def refuse_unnamed_state(model: Any, kinds: list[str]) -> None:
    """Raises OptionError for a model with states that SGLang does not pass to its backends.

    Without its states the decoder's answers would be wrong.
    """
    from sglang.srt.configs.hybrid_arch import mambaish_config

    if mambaish_config(model) is not None and pool_kinds.STATE not in kinds:
        raise OptionError(
            f"the model's layers keep a state, and SGLang names {', '.join(kinds) or 'nothing'} to a backend beside the"
            f" KV pages, expected {pool_kinds.STATE!r} among it: what is not named is not sent; serve this model"
            " without --disaggregation-mode"
        )


def _require(option: str, seen: object, expected: object, why: str) -> None:
    if seen != expected:
        raise OptionError(f"{option} is {seen!r}, expected {expected!r}: {why}")
