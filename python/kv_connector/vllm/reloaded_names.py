"""Tensors that a model's loader writes past vLLM's reload, so that the weights before would stay. Imports no vLLM.

Meanwhile parameters are on torch's meta device, where a copy does nothing. vLLM keeps what is given to a parameter's
``weight_loader``, and puts a layer back as it was that was given nothing, with a warning. Loaders that copy into a
parameter by themselves (experts of gpt-oss in bfloat16, attention sinks) are such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

ARCHITECTURES_LOST = frozenset({"GptOssForCausalLM"})
"""Those of which it is known before anything is loaded."""


def unfit_architecture(architectures: Iterable[str] | None) -> str:
    """Why a model with these classes cannot be loaded again; "" if nothing is known against it."""
    for name in ARCHITECTURES_LOST.intersection(architectures or ()):
        return (
            f"this server's model is a {name}, whose loader writes tensors past vLLM's reload, so that they"
            " would stay as they are: start the server again from the new checkpoint"
        )
    return ""


def names_lost(model: Any, names: Iterable[str] | None, info_of: Callable[[Any], Any]) -> list[str]:
    """Those of the names, which the model's loader says it has loaded, that vLLM's reload has nothing of; sorted.

    :param names: of parameters; None where the loader says nothing
    :param info_of: vLLM's notes on the reload of a layer
    """
    lost = []
    for name in set(names or ()):
        layer, parameter = _owner(model, name)
        if layer is None or parameter not in dict(layer.named_parameters(recurse=False)):
            continue  # a name of the checkpoint, or of what is no parameter
        info = info_of(layer)
        if info.can_load() and parameter not in {given for given, _ in info.loaded_weights}:
            lost.append(name)
    return sorted(lost)


def _owner(model: Any, name: str) -> tuple[Any, str]:
    path, _, parameter = name.rpartition(".")
    try:
        return model.get_submodule(path), parameter
    except AttributeError:
        return None, parameter
