"""A checkpoint is sent into a server that has LoRA adapters: afterwards it answers as a plain one of that checkpoint.

An adapter wraps layers, whose parameters then have other names than the checkpoint's tensors. A tied head, two ranks
and answers under way are left out of an ordinary run: `make weight-faults ARGS="-k adapter"`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from make_model import TiedLlama, TinyModel, cached_model
from prompts import cache_home
from server_process import Server, greedy_completion, start_all, words_of
from servers import EngineOptions, engine
from warm_starts import WarmServer
from weights_bed import PROMPTS, SEND_LIMIT_SECONDS, Served, serving
from workload import ANSWER_TOKENS

RANK: Final = 4
ADAPTERS: Final = ("first", "second")
LORA: Final = ("--enable-lora", "--max-loras", "1", "--max-lora-rank", "8")
"""Two adapters take turns in the place of one, so that each is put there anew again and again."""
LONG_TOKENS: Final = 600

Answers = Mapping[str, Sequence[list[str]]]


def made_adapter(folder: Path, shape: TinyModel, seed: int) -> Path:
    """An adapter of all layers that multiply, as PEFT writes it."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    hidden, heads, kv = shape.hidden_size, shape.head_count * shape.head_dim, shape.kv_head_count * shape.head_dim
    sizes = {
        "self_attn.q_proj": (hidden, heads),
        "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv),
        "self_attn.o_proj": (heads, hidden),
        "mlp.gate_proj": (hidden, 2 * hidden),
        "mlp.up_proj": (hidden, 2 * hidden),
        "mlp.down_proj": (2 * hidden, hidden),
    }
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(shape.layer_count):
        for name, (width, height) in sizes.items():
            at = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{at}.lora_A.weight"] = 0.2 * torch.randn(RANK, width, generator=random)
            tensors[f"{at}.lora_B.weight"] = 0.2 * torch.randn(height, RANK, generator=random)
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = [name.rpartition(".")[2] for name in sizes]
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "bias": "none"}), encoding="utf-8")
    return folder


def by(server: Server, name: str, prompt: str, tokens: int = ANSWER_TOKENS) -> list[str]:
    """What a server answers by an adapter, or by none: "".

    One at a time, or adapters alone: beside one that has an adapter, vLLM's CPU computes a request without any as if
    it had that one too (docs/results/2026-11-30-weights.md).
    """
    body: dict[str, Any] = greedy_completion(prompt, tokens)
    return words_of(server.post("/v1/completions", body | ({"model": name} if name else {})))


def answers_of(server: Server) -> Answers:
    return {name: [by(server, name, prompt) for prompt in PROMPTS] for name in ("", *ADAPTERS)}


class Adapted:
    """A server that takes weights, and what plain servers of both checkpoints answer with the same adapters."""

    def __init__(self, shape: TinyModel, tp_size: int, folder: Path, stack: ExitStack) -> None:
        name = f"adapters-{shape.family}-tp{tp_size}"
        self.models = [cached_model(cache_home(), replace(shape, seed=seed)) for seed in (20, 21)]
        places = [made_adapter(folder / name / each, shape, at) for at, each in enumerate(ADAPTERS, start=70)]
        modules = [f"{each}={place}" for each, place in zip(ADAPTERS, places, strict=True)]
        self._arguments = (*LORA, "--lora-modules", *modules)
        self.plain = [self._plain(f"{name}-plain{at}", model, folder) for at, model in enumerate(self.models)]
        self.served = self._served(name, folder, tp_size)
        stack.callback(self.served.server.stop)
        start_all([self.served.server], print)

    def _plain(self, name: str, model: Path, folder: Path) -> Answers:
        options = EngineOptions(model, prefix_caching=True, arguments=self._arguments)
        with engine(name, options, folder, kind=WarmServer) as server:
            server.wait_healthy()
            return answers_of(server)

    def _served(self, name: str, folder: Path, tp_size: int) -> Served:
        old, new = self.models
        return serving(name, folder, model=old, sent=new, tp_size=tp_size, arguments=self._arguments)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((TinyModel(), 1), id="one rank"),
        pytest.param((TiedLlama(), 1), id="tied", marks=pytest.mark.at_length),
        pytest.param((TinyModel(), 2), id="two ranks", marks=pytest.mark.at_length),
    ],
)
def adapted(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[Adapted]:
    with ExitStack() as stack:
        shape, tp_size = request.param
        yield Adapted(shape, tp_size, run_folder, stack)


def test_adapters_are_kept_and_what_they_wrap_is_loaded(adapted: Adapted) -> None:
    old, new = adapted.plain
    server = adapted.served.server
    assert all(old[name] != new[name] for name in old)
    assert len({str(each) for answers in adapted.plain for each in answers.values()}) == 2 * len(old)
    assert answers_of(server) == old
    for folder, expected in ((adapted.models[1], new), (adapted.models[0], old), (adapted.models[1], new)):
        sent = adapted.served.send(folder)
        assert sent.returncode == 0, sent.stderr
        assert answers_of(server) == expected


@pytest.mark.at_length
def test_answers_under_way_by_an_adapter_are_of_the_new_weights_from_the_load_on(adapted: Adapted) -> None:
    old, new = adapted.models
    server = adapted.served.server
    assert adapted.served.send(old).returncode == 0
    plain = {name: by(server, name, PROMPTS[0], LONG_TOKENS) for name in ADAPTERS}
    answered: dict[str, list[str]] = {}
    threads = [
        threading.Thread(
            target=lambda name=name: answered.__setitem__(name, by(server, name, PROMPTS[0], LONG_TOKENS)), daemon=True
        )
        for name in plain
    ]
    for thread in threads:
        thread.start()
    sent = adapted.served.send(new)
    assert sent.returncode == 0, sent.stderr
    for thread in threads:
        thread.join(SEND_LIMIT_SECONDS)
    changed = [name for name, words in answered.items() if words != plain[name]]
    print("changed under way:", changed)
    assert changed, "no answer was under way"
    for name, words in answered.items():
        same = next((at for at, pair in enumerate(zip(words, plain[name], strict=True)) if len(set(pair)) > 1), None)
        if same is not None:
            rest = by(server, name, " ".join([PROMPTS[0], *words[:same]]), len(words) - same)
            assert words[same:] == rest, name
