"""Tiny models with drafts that guess some tokens right and others not, which depends on all that they attend to.

A draft of random weights of its own would guess nothing. These have the model's weights, with a little noise.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from make_model import TinyModel, cached_model, write_model

RECIPE: Final = 4  # goes up when the code below makes other weights
NOISE: Final = 0.02
SEED: Final = 5
WEIGHTS: Final = "model.safetensors"
EMBEDDING: Final = "model.embed_tokens.weight"
LAYER: Final = "model.layers.0."
SHARPNESS: Final = 3.0


@dataclass(frozen=True)
class Drafted:
    """A model, and how vLLM is to guess its tokens."""

    model: Path
    method: str
    more: Mapping[str, Any]
    has_kv: bool = True

    def speculative_config(self, guesses: int) -> str:
        return json.dumps({"method": self.method, "num_speculative_tokens": guesses} | dict(self.more))


def ngram(home: Path) -> Drafted:
    """No draft: words are guessed that once came behind the last one."""
    return Drafted(cached_model(home), "ngram", {"prompt_lookup_min": 1, "prompt_lookup_max": 2}, has_kv=False)


def draft_model(home: Path) -> Drafted:
    """A model and another that has each of its KV heads twice, so that the layers of the two have other numbers."""

    def disturbed(weights: dict[str, Any]) -> dict[str, Any]:
        return {name: _disturbed(_heads_twice(name, weight)) for name, weight in weights.items()}

    model, heads = cached_model(home), {"num_key_value_heads": 2 * TinyModel.kv_head_count}
    return Drafted(model, "draft_model", {"model": str(_draft_of(home, model, "draft", disturbed, heads))})


def _heads_twice(name: str, weight: Any) -> Any:
    if not name.endswith(("k_proj.weight", "v_proj.weight")):
        return weight
    by_head = weight.reshape(TinyModel.kv_head_count, TinyModel.head_dim, -1)
    return by_head.repeat_interleave(2, dim=0).reshape(2 * weight.shape[0], -1)


def eagle(home: Path) -> Drafted:
    """A model of one layer, and a head with that layer.

    The head has no norm before its attention, so the model's tokens are of length one already. Of the model's hidden
    states it takes nothing. So it guesses as the model does, but for the first token, which no EAGLE attends to.
    """

    def write_target(folder: Path) -> None:
        write_model(TinyModel(layer_count=1), folder)
        weights = _weights_of(folder)
        weights[EMBEDDING] = _of_length_one(weights[EMBEDDING])
        _save(folder, weights)

    model = _made_once(home, "tiny-llama-normed", write_target)

    def head(weights: dict[str, Any]) -> dict[str, Any]:
        import torch

        size = weights[EMBEDDING].shape[1]
        layer = {
            name.removeprefix("model."): _disturbed(weight)
            for name, weight in weights.items()
            if name.startswith(LAYER) and "input_layernorm" not in name
        }
        return {**layer, "fc.weight": torch.eye(size, 2 * size)}

    return Drafted(model, "eagle", {"model": str(_draft_of(home, model, "eagle", head))})


def eagle3(home: Path) -> Drafted:
    """A model of one layer, and a head with two: the first hands each token to the second, which is that layer.

    In the first every token attends to itself only, sharply. Of the model's hidden states the head takes nothing.
    """

    def write_target(folder: Path) -> None:
        write_model(TinyModel(layer_count=1, kv_head_count=TinyModel.head_count), folder)

    model = _made_once(home, "tiny-llama-even", write_target)

    def head(weights: dict[str, Any]) -> dict[str, Any]:
        import torch

        size = weights[EMBEDDING].shape[1]
        return {
            **_handing_on(weights, size),
            **{
                name.replace(LAYER, "layers.1."): _disturbed(w) for name, w in weights.items() if name.startswith(LAYER)
            },
            "layers.1.hidden_norm.weight": torch.ones(size),
            "norm.weight": weights["model.norm.weight"],
            "lm_head.weight": weights["lm_head.weight"],
            "fc.weight": torch.zeros(size, size),
        }

    config = {
        "num_hidden_layers": 2,
        "draft_vocab_size": _config_of(model)["vocab_size"],
        "eagle_aux_hidden_state_layer_ids": [1],
        "num_aux_hidden_states": 1,
    }
    return Drafted(model, "eagle3", {"model": str(_draft_of(home, model, "eagle3", head, config))})


def mtp(home: Path) -> Drafted:
    """A MiMo of one layer, and its module of multi-token prediction with that layer.

    As for EAGLE the model's tokens are of length one already, and of its hidden states the module takes nothing. Its
    first token's embedding is masked by the module itself.
    """

    def write(folder: Path) -> None:
        write_model(TinyModel(layer_count=1), folder)
        weights = _weights_of(folder)
        weights[EMBEDDING] = _of_length_one(weights[EMBEDDING])
        weights |= _biases(weights)
        _save(folder, weights | _module_of(weights))
        config = _config_of(folder) | {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
        (folder / "config.json").write_text(json.dumps(config))

    return Drafted(_made_once(home, "tiny-mimo", write), "mtp", {})


def _biases(weights: dict[str, Any]) -> dict[str, Any]:
    """Of what makes queries, keys and values: a MiMo has them and a Llama has not."""
    import torch

    made = [name for name in weights if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]
    return {name.replace("weight", "bias"): torch.zeros(len(weights[name])) for name in made}


def _module_of(weights: dict[str, Any]) -> dict[str, Any]:
    import torch

    prefix, size = "model.mtp_layers.0.", weights[EMBEDDING].shape[1]
    layer = {name.replace(LAYER, prefix): _disturbed(w) for name, w in weights.items() if name.startswith(LAYER)}
    return layer | {
        f"{prefix}token_layernorm.weight": torch.ones(size),
        f"{prefix}hidden_layernorm.weight": torch.ones(size),
        f"{prefix}input_proj.weight": torch.cat([torch.zeros(size, size), torch.eye(size)], 1),
        f"{prefix}final_layernorm.weight": weights["model.norm.weight"],
    }


def _handing_on(weights: dict[str, Any], size: int) -> dict[str, Any]:
    """The first layer of an EAGLE-3 head, which takes tokens and hidden states side by side."""
    import torch

    nothing, itself = torch.zeros(size, size), torch.eye(size)
    of_layer = {name.removeprefix("model."): weight for name, weight in weights.items() if name.startswith(LAYER)}
    return {
        **{name: torch.zeros_like(weight) if "mlp" in name else weight for name, weight in of_layer.items()},
        **{f"layers.0.self_attn.{part}_proj.weight": torch.cat([SHARPNESS * itself, nothing], 1) for part in "qk"},
        "layers.0.self_attn.v_proj.weight": torch.cat([itself, nothing], 1),
        "layers.0.self_attn.o_proj.weight": weights[EMBEDDING].std() * itself,
        "layers.0.hidden_norm.weight": torch.ones(size),
    }


def _draft_of(
    home: Path,
    model: Path,
    kind: str,
    made_of: Callable[[dict[str, Any]], dict[str, Any]],
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A model like `model`, with what is made of its weights, and where `config` says otherwise."""

    def write(folder: Path) -> None:
        shutil.copytree(model, folder)
        _save(folder, made_of(_weights_of(model)))
        (folder / "config.json").write_text(json.dumps(_config_of(model) | dict(config or {})))

    return _made_once(home, f"{model.name}-{kind}", write)


def _made_once(home: Path, name: str, write: Callable[[Path], None]) -> Path:
    folder = home / "models" / f"{name}-{RECIPE}"
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        write(partial)
        partial.rename(folder)
    return folder


def _config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def _weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / WEIGHTS))


def _save(folder: Path, weights: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file({name: weight.clone() for name, weight in weights.items()}, folder / WEIGHTS, metadata={"format": "pt"})


def _of_length_one(embedding: Any) -> Any:
    """A norm leaves these tokens as they are."""
    return embedding / embedding.square().mean(-1, keepdim=True).sqrt()


def _disturbed(weight: Any) -> Any:
    import torch

    if weight.dim() == 1:
        return weight
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(SEED))
    return weight + NOISE * weight.std() * noise
