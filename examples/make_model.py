"""Creates tiny models with random weights that have all real mechanisms (layers, grouped heads, pages) but run fast.

The weights have a fixed seed and a wide distribution (``initializer_range`` 0.2), so that greedy tokens vary with the
prompt and a wrong page shows in the tokens. Run in the engine environment:

    environment run engine -- examples/make_model.py [FOLDER]
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

RECIPE = 2  # increased when the code below makes a different model from the same numbers


@dataclass(frozen=True)
class TinyModel:
    family: ClassVar[str] = "llama"
    layer_count: int = 4
    hidden_size: int = 512
    head_count: int = 8
    kv_head_count: int = 4
    head_dim: int = 64
    vocabulary_size: int = 512
    positions_max: int = 4096
    initializer_range: float = 0.2
    seed: int = 20

    def config(self) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(
            intermediate_size=2 * self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            head_dim=self.head_dim,
            **shared_settings(self),
        )


@dataclass(frozen=True)
class TiedLlama(TinyModel):
    """The embedding is the head, so it is in no file twice."""

    family: ClassVar[str] = "llama-tied"

    def config(self) -> Any:
        config = super().config()
        config.tie_word_embeddings = True
        return config


@dataclass(frozen=True)
class TinyLatentModel:
    """A DeepSeek-V2 without experts: its KV is one latent vector per token, replicated on all ranks."""

    family: ClassVar[str] = "deepseek"
    head_size: ClassVar[int] = 64
    layer_count: int = 3
    hidden_size: int = 256
    head_count: int = 4
    latent_size: int = 512  # plus 64 for rotary: the only size that vLLM's CPU kernels support
    vocabulary_size: int = 512
    positions_max: int = 4096
    initializer_range: float = 0.2
    seed: int = 20

    def config(self) -> Any:
        from transformers import DeepseekV2Config

        return DeepseekV2Config(
            intermediate_size=2 * self.hidden_size,
            num_key_value_heads=self.head_count,
            kv_lora_rank=self.latent_size,
            q_lora_rank=None,
            qk_rope_head_dim=64,
            qk_nope_head_dim=self.head_size,
            v_head_dim=self.head_size,
            first_k_dense_replace=self.layer_count,
            **shared_settings(self),
        )


@dataclass(frozen=True)
class TinyWideLatentModel(TinyLatentModel):
    """With the head sizes of DeepSeek's own models, the only ones that prefills on a GPU take."""

    family: ClassVar[str] = "deepseek-wide"
    head_size: ClassVar[int] = 128


@dataclass(frozen=True)
class TinyGrouped:
    """The common part of tiny models with grouped heads, which are the classes below."""

    layer_count: int = 4
    hidden_size: int = 256
    head_count: int = 4
    kv_head_count: int = 2
    head_dim: int = 64
    vocabulary_size: int = 512
    positions_max: int = 4096
    initializer_range: float = 0.2
    seed: int = 20


@dataclass(frozen=True)
class TinyGemma(TinyGrouped):
    """A Gemma 3: five layers with a sliding window, then one that attends to everything."""

    family: ClassVar[str] = "gemma3"
    layer_count: int = 6
    window_tokens: int = 256

    def config(self) -> Any:
        from transformers import Gemma3TextConfig

        return Gemma3TextConfig(
            intermediate_size=2 * self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            head_dim=self.head_dim,
            sliding_window=self.window_tokens,
            query_pre_attn_scalar=self.head_dim,
            **shared_settings(self),
        )


@dataclass(frozen=True)
class TinyGemma4(TinyGrouped):
    """A Gemma 4: three layers with a sliding window, then one that attends to everything; two of each.

    The latter have a different number and size of heads, and their keys are their values. The last two layers have no
    KV of their own: they attend to that of the last earlier layer of their kind.
    """

    family: ClassVar[str] = "gemma4"
    layer_count: int = 8
    shared_layer_count: int = 2
    window_tokens: int = 256
    global_kv_head_count: int = 1
    global_head_dim: int = 256

    def config(self) -> Any:
        from transformers import Gemma4TextConfig

        return Gemma4TextConfig(
            intermediate_size=2 * self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            head_dim=self.head_dim,
            num_global_key_value_heads=self.global_kv_head_count,
            global_head_dim=self.global_head_dim,
            attention_k_eq_v=True,
            num_kv_shared_layers=self.shared_layer_count,
            layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * (self.layer_count // 4),
            sliding_window=self.window_tokens,
            hidden_size_per_layer_input=0,
            vocab_size_per_layer_input=self.vocabulary_size,
            **shared_settings(self),
        )


@dataclass(frozen=True)
class TinyMistral(TinyGrouped):
    """A Mistral of the kind in which every layer has a sliding window."""

    family: ClassVar[str] = "mistral"
    window_tokens: int = 256

    def config(self) -> Any:
        from transformers import MistralConfig

        return MistralConfig(
            intermediate_size=2 * self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            head_dim=self.head_dim,
            sliding_window=self.window_tokens,
            **shared_settings(self),
        )


@dataclass(frozen=True)
class TinyLlama4(TinyGrouped):
    """A Llama 4 without experts: three layers attend to a chunk of the tokens, and one to everything."""

    family: ClassVar[str] = "llama4"
    chunk_tokens: int = 256

    def config(self) -> Any:
        from transformers import Llama4TextConfig

        return Llama4TextConfig(
            intermediate_size=2 * self.hidden_size,
            intermediate_size_mlp=2 * self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            head_dim=self.head_dim,
            attention_chunk_size=self.chunk_tokens,
            interleave_moe_layer_step=self.layer_count + 1,
            **shared_settings(self),
        )


@dataclass(frozen=True)
class TinyGptOss(TinyGrouped):
    """A gpt-oss: alternating layers with and without a window, attention sinks, and experts."""

    family: ClassVar[str] = "gpt-oss"
    window_tokens: int = 128

    def config(self) -> Any:
        from transformers import GptOssConfig

        return GptOssConfig(
            intermediate_size=self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            head_dim=self.head_dim,
            sliding_window=self.window_tokens,
            num_local_experts=4,
            num_experts_per_tok=2,
            **shared_settings(self),
        )


@dataclass(frozen=True)
class TinyQwen3Moe(TinyGrouped):
    """A Qwen3 with experts."""

    family: ClassVar[str] = "qwen3-moe"
    layer_count: int = 3

    def config(self) -> Any:
        from transformers import Qwen3MoeConfig

        return Qwen3MoeConfig(
            intermediate_size=2 * self.hidden_size,
            moe_intermediate_size=self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            head_dim=self.head_dim,
            num_experts=4,
            num_experts_per_tok=2,
            **shared_settings(self),
        )


@dataclass(frozen=True)
class TinyLfm2:
    """An LFM2: short convolutions, which keep the last inputs of a request, and one layer of attention."""

    family: ClassVar[str] = "lfm2"
    layer_count: int = 4
    hidden_size: int = 256
    head_count: int = 4
    kv_head_count: int = 2
    vocabulary_size: int = 512
    positions_max: int = 4096
    initializer_range: float = 0.2
    seed: int = 20

    def config(self) -> Any:
        from transformers import Lfm2Config

        return Lfm2Config(
            intermediate_size=2 * self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            block_dim=self.hidden_size,
            block_ff_dim=2 * self.hidden_size,
            block_multiple_of=32,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=False,
            conv_L_cache=3,
            conv_dim=self.hidden_size,
            conv_dim_out=self.hidden_size,
            layer_types=["conv", "conv", "full_attention", "conv"],
            **shared_settings(self),
        )


@dataclass(frozen=True)
class TinyFalconH1(TinyGrouped):
    """A Falcon-H1: each layer has attention and, in parallel, a Mamba-2 with two state tensors."""

    family: ClassVar[str] = "falcon-h1"
    layer_count: int = 3

    def config(self) -> Any:
        from transformers import FalconH1Config

        return FalconH1Config(
            intermediate_size=2 * self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            head_dim=self.head_dim,
            mamba_d_ssm=self.hidden_size,
            mamba_n_heads=8,
            mamba_d_head=self.hidden_size // 8,
            mamba_n_groups=1,
            mamba_d_state=64,
            mamba_chunk_size=64,
            **shared_settings(self),
        )


Shape = (
    TinyModel
    | TinyLatentModel
    | TinyWideLatentModel
    | TinyGemma
    | TinyGemma4
    | TinyMistral
    | TinyLlama4
    | TinyGptOss
    | TinyQwen3Moe
    | TinyLfm2
    | TinyFalconH1
)


def shared_settings(shape: Shape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layer_count,
        "num_attention_heads": shape.head_count,
        "max_position_embeddings": shape.positions_max,
        "initializer_range": shape.initializer_range,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }


def key_of(shape: Shape) -> str:
    numbers = json.dumps([RECIPE, dataclasses.asdict(shape)])
    return hashlib.sha256(numbers.encode()).hexdigest()[:12]


SPECIAL_WORDS = ("<begin>", "<end>", "<pad>", "<unknown>")  # also matched inside other words, so unlike any of them


def word(token: int) -> str:
    """The word of a token: one word is one token, so texts are equal if their tokens are."""
    return SPECIAL_WORDS[token] if token < len(SPECIAL_WORDS) else f"w{token}"


def tokenizer_of(tokens: Mapping[str, int], **more: object) -> Any:
    """One that takes each word between spaces for a token; the first words are special, as ``word`` names them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(dict(tokens), unk_token=word(3)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=word(0), eos_token=word(1), pad_token=word(2), unk_token=word(3), **more
    )


def write_model(shape: Shape, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(shape.seed)
    AutoModelForCausalLM.from_config(shape.config()).to(torch.float32).save_pretrained(folder)
    tokenizer_of({word(token): token for token in range(shape.vocabulary_size)}).save_pretrained(folder)


def made_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder, which is written if it does not exist; other processes see it whole or not at all."""
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        write(partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster
                raise
    return folder


def cached_model(home: Path, shape: Shape | None = None) -> Path:
    """The model's folder below ``home``; creates the model if it does not exist."""
    wanted = shape or TinyModel()
    folder = home / "models" / f"tiny-{wanted.family}-{key_of(wanted)}"
    return made_once(folder, lambda partial: write_model(wanted, partial))


def main() -> None:
    home = os.environ.get("KV_MESSENGER_CACHE") or Path.home() / ".cache" / "kv-messenger"
    print(cached_model(Path(sys.argv[1] if len(sys.argv) > 1 else home)))


if __name__ == "__main__":
    main()
