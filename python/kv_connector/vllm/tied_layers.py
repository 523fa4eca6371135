"""Layers that share a parameter with an earlier one, as a head that is tied to the embedding. Imports no vLLM."""

from __future__ import annotations

from typing import Any


def prepare_tied_layers(model: Any, method: type) -> None:
    """Has each such layer of this quantization method prepare its parameter anew; ``method`` keeps what it prepares.

    vLLM's reload prepares the layer by whose name a tensor is loaded, and puts the other ones back as they were. On a
    CPU a tied head multiplies by a packed copy of its own, which would stay that of the weights before.
    """
    seen: set[int] = set()
    for layer in model.modules():
        own = {id(parameter) for parameter in layer.parameters(recurse=False)}
        if own & seen and isinstance(getattr(layer, "quant_method", None), method):
            layer.quant_method.process_weights_after_loading(layer)
        seen |= own
