"""A few steps of TRL's own AsyncGRPOTrainer on CPU, whose weights KvMessengerWeightTransfer sends: train.py JSON.

Two things of TRL want a CUDA device and are replaced: the attention kernel, by the same sum in plain torch, and the
name of the device, for a metric.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@dataclass(frozen=True)
class Asked:
    """What to train, and where it goes."""

    model: str
    servers: tuple[str, ...]
    """The first one generates."""
    out: str
    """The folder of the trained checkpoint."""
    lora: bool = False
    steps: int = 3


class TorchAttention:
    """In place of flash-attn3."""

    @staticmethod
    def flash_attn_varlen_func(*packed: Any, softmax_scale: float, **_: Any) -> Any:
        """Each segment of queries attends to its own keys, causal from the right lower corner."""
        import torch

        query, key, value, ends_q, ends_k, *_lengths = packed
        parts = []
        for index in range(len(ends_q) - 1):
            of_q, of_k = slice(ends_q[index], ends_q[index + 1]), slice(ends_k[index], ends_k[index + 1])
            one, keys, values = (each.transpose(0, 1) for each in (query[of_q], key[of_k], value[of_k]))
            rows, columns = one.shape[1], keys.shape[1]
            seen = torch.arange(columns)[None, :] <= torch.arange(rows)[:, None] + (columns - rows)
            part = torch.nn.functional.scaled_dot_product_attention(
                one, keys, values, attn_mask=seen, scale=softmax_scale, enable_gqa=True
            )
            parts.append(part.transpose(0, 1))
        return torch.cat(parts)


def reward(completions: Iterable[Any], **_: Any) -> list[float]:
    """How many sevens are in the words, so that there is something to learn."""
    texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [text.count("7") + len(text) / 1000 for text in texts]


def without_cuda() -> None:
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    packing._flash_attn = lambda: TorchAttention
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None


def tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer
    from trl.chat_template_utils import deepseek_r1_distill_template

    words = AutoTokenizer.from_pretrained(model)
    words.chat_template = TEMPLATE
    words.response_template = deepseek_r1_distill_template
    return words


def trainer(asked: Asked, transfer: Any) -> Any:
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    config = AsyncGRPOConfig(
        output_dir=f"{asked.out}.trainer",
        use_cpu=True,
        bf16=False,
        max_steps=asked.steps,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=24,
        token_budget=256,
        learning_rate=1e-3,
        gradient_checkpointing=False,
        router_aux_loss_coef=None,
        save_strategy="no",
        report_to="none",
        vllm_server_base_url=asked.servers[0],
    )
    prompts = [" ".join(f"w{first + offset}" for offset in range(4)) for first in range(5, 25)]
    return AsyncGRPOTrainer(
        model=asked.model,
        processing_class=tokenizer(asked.model),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in prompts]}),
        peft_config=lora() if asked.lora else None,
        weight_transfer=transfer,
    )


def lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=8, lora_alpha=64, target_modules=["q_proj", "v_proj", "down_proj"])


def observed(servers: Iterable[str], state: dict[str, Any]) -> Any:
    """The object under test; ``state`` has afterwards what the model was when it was called last."""
    from kv_connector.weights.trl import KvMessengerWeightTransfer

    transfer = KvMessengerWeightTransfer(list(servers))
    send_weights = transfer.send_weights

    def observe(iterator: Any) -> None:
        tensors = state["model"]().state_dict()
        state["tensors"] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        send_weights(iterator)

    transfer.send_weights = observe
    return transfer


def save(asked: Asked, tensors: dict[str, Any]) -> None:
    """Writes what the model was at the last update as a checkpoint, by transformers alone."""
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(asked.model, dtype="float32")
    named = {name.removeprefix("base_model.model.").replace(".base_layer", ""): each for name, each in tensors.items()}
    plain.load_state_dict({name: each for name, each in named.items() if ".lora_" not in name}, strict=True)
    plain.save_pretrained(asked.out)
    tokens = Path(asked.model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (Path(asked.out) / name).write_bytes((tokens / name).read_bytes())


def main() -> None:
    asked = Asked(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    without_cuda()
    state: dict[str, Any] = {}
    training = trainer(asked, observed(asked.servers, state))
    state["model"] = lambda: training.accelerator.unwrap_model(training.model)
    training.train()
    assert training.state.global_step == asked.steps
    save(asked, state["tensors"])


if __name__ == "__main__":
    main()
