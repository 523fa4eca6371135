"""What vLLM's compiled extensions give to a Llama with Triton's attention, in torch.

vLLM's CUDA wheel is too large to carry. Its attention, its sampling and its writing of KV are Triton's, and so are part
of its Python; of the extensions there remain two views of memory, two norms and an activation. Any other operator is
missing, and says so where it is called. In the extensions' places a packed vLLM has modules that import this one.
"""

from __future__ import annotations

from typing import Any

import torch

ABSENT = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_group_gemm_supported",
    "cutlass_scaled_mm_supports_fp4",
)
"""Questions whether kernels of number formats fit the device, which vLLM asks at import."""
NAMED = (
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    "fused_qk_norm_rope",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_static_fp8_quant",
    "rotary_embedding",
    "silu_and_mul_per_block_quant",
    "silu_and_mul_quant",
    "static_scaled_fp8_quant",
)
"""Those that the passes over a compiled graph name, and look for, when they are imported."""
DEFINITIONS = (
    "get_cuda_view_from_cpu_tensor(Tensor cpu_tensor) -> Tensor",
    "weak_ref_tensor(Tensor input) -> Tensor",
    "rms_norm(Tensor(a!) result, Tensor input, Tensor? weight, float epsilon) -> ()",
    "fused_add_rms_norm(Tensor(a!) input, Tensor(b!) residual, Tensor? weight, float epsilon) -> ()",
    "silu_and_mul(Tensor(a!) result, Tensor input) -> ()",
)


def register() -> torch.library.Library:
    """What is returned has to be kept as long as the operators are to exist."""
    library = torch.library.Library("_C", "DEF")
    for definition in DEFINITIONS:
        library.define(definition)
    for name in NAMED:
        library.define(f"{name}() -> ()")
    for question in ABSENT:
        library.define(f"{question}(int capability) -> bool")
        library.impl(question, lambda capability: False, "CompositeExplicitAutograd")
    library.impl("get_cuda_view_from_cpu_tensor", device_view, "CPU")
    library.impl("weak_ref_tensor", itself, "CompositeExplicitAutograd")
    library.impl("rms_norm", rms_norm, "CompositeExplicitAutograd")
    library.impl("fused_add_rms_norm", fused_add_rms_norm, "CompositeExplicitAutograd")
    library.impl("silu_and_mul", silu_and_mul, "CompositeExplicitAutograd")
    return library


class _PageLocked:
    """Host memory as the device sees it, at the same address; owns the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        length_bytes = tensor.numel() * tensor.element_size()
        described = {"shape": (length_bytes,), "typestr": "|i1", "data": (tensor.data_ptr(), False), "version": 3}
        self.__cuda_array_interface__ = described


def device_view(cpu_tensor: torch.Tensor) -> torch.Tensor:
    if cpu_tensor.numel() == 0:
        return torch.empty(cpu_tensor.shape, dtype=cpu_tensor.dtype, device="cuda")
    if not cpu_tensor.is_contiguous():
        raise NotImplementedError(f"a view of a tensor with strides {cpu_tensor.stride()}, only of contiguous ones")
    seen: Any = torch.as_tensor(_PageLocked(cpu_tensor), device="cuda")
    viewed: torch.Tensor = seen.view(cpu_tensor.dtype).view(cpu_tensor.shape)
    return viewed


def itself(tensor: torch.Tensor) -> torch.Tensor:
    """A strong reference, so that graphs share less memory."""
    return tensor.view_as(tensor)


def normed(states: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    wide = states.float()
    scaled = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(states.dtype)
    return scaled if weight is None else scaled * weight


def rms_norm(result: torch.Tensor, states: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> None:
    result.copy_(normed(states, weight, epsilon))


def fused_add_rms_norm(
    states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> None:
    residual.add_(states)
    states.copy_(normed(residual, weight, epsilon))


def silu_and_mul(result: torch.Tensor, states: torch.Tensor) -> None:
    gate, factor = states.chunk(2, dim=-1)
    result.copy_(torch.nn.functional.silu(gate) * factor)
