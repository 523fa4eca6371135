"""Names what the pages of attention layers hold by the code that writes them, so that backends which write alike fit.

A backend's name says which kernels read pages. What is in them is decided by the function that writes: where it puts a
token's key and value, and in which number format. Two layers whose pages have one name here hold the same bytes for the
same keys and values in a page of the same layout, size and element type, which groups compare.

Used by the worker's main thread, once, after the model was built. Imports no vLLM. Does not look into kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kv_connector.vllm.vllm_api import PAGE_FORMATS, minor_of, packing_of

NAME = "built.page_bytes"
"""The setting: compared only if both sides have it, and then `page format` may differ (ModelSettings in Java)."""

_BACKENDS = "vllm.v1.attention.backends"
_HEADS, _LATENT = "key|value", "latent|rope"
WRITERS: Mapping[str, str] = {
    f"{_BACKENDS}.flash_attn.FlashAttentionImpl.do_kv_cache_update": _HEADS,
    f"{_BACKENDS}.flashinfer.FlashInferImpl.do_kv_cache_update": _HEADS,
    f"{_BACKENDS}.flex_attention.FlexAttentionImpl.do_kv_cache_update": _HEADS,
    f"{_BACKENDS}.triton_attn.TritonAttentionImpl.do_kv_cache_update": _HEADS,
    "vllm.v1.attention.backend.MLAAttentionImpl.do_kv_cache_update": _LATENT,
}
"""Functions that write a token's key with its value behind it for each head, or its latent vector with its rope part.

`test_page_bytes.py` runs them for every release that has a page format.
"""
_PLAIN = ("auto", "bfloat16", "float16", "float32")
_E4M3 = ("fp8", "fp8_e4m3")
"""Not `fp8_e5m2`, which Triton's writer stores as e4m3."""


def page_bytes(
    attention_layers: Mapping[str, Any], names: Sequence[str], release: str, fp8_format: Callable[[], str]
) -> str:
    """What pages hold, in one text for all layers; "" if that is known of none of them.

    A layer of which it is not known has the name of its backend instead, as in the page format. ``fp8_format`` names
    the platform's, as torch does.
    """
    if minor_of(release) not in PAGE_FORMATS:
        return ""
    layers = [attention_layers.get(name) for name in names]
    known = [_written(layer, fp8_format) for layer in layers]
    if not any(known):
        return ""
    return "+".join(sorted({held or packing_of(layer) for held, layer in zip(known, layers, strict=True)}))


def _written(layer: Any, fp8_format: Callable[[], str]) -> str:
    """What a layer's pages hold; "" if its writer or its number format is not a known one."""
    shape = WRITERS.get(_writer(layer), "")
    if not shape or (shape == _HEADS and not _is_written_in_halves(layer)):
        return ""
    if layer.kv_cache_dtype in _PLAIN:
        return shape
    if layer.kv_cache_dtype in _E4M3 and all(_is_one_number(layer, scale) for scale in ("_k_scale", "_v_scale")):
        return f"{shape} {fp8_format()}"
    return ""


def _writer(layer: Any) -> str:
    """The full name of the function that writes KV, wherever a subclass has it from."""
    written_by = getattr(type(getattr(layer, "impl", None)), "do_kv_cache_update", None)
    return f"{getattr(written_by, '__module__', '')}.{getattr(written_by, '__qualname__', '')}"


def _is_written_in_halves(layer: Any) -> bool:
    """Whether no kernel of attention writes too, and a value is as long as its key."""
    by_kernel = getattr(layer.attn_backend, "forward_includes_kv_cache_update", True)
    return not by_kernel and layer.head_size == layer.head_size_v


def _is_one_number(layer: Any, scale: str) -> bool:
    """Whether a scale is one for the whole layer: one for each head is stored otherwise by some backends."""
    numel = getattr(getattr(layer, scale, None), "numel", None)
    return callable(numel) and numel() == 1
