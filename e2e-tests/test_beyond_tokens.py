"""Prompts that are more than token ids: with a LoRA adapter, and with vectors between their words.

The servers compare no received KV (`last_token_check` is off), so that what a prompt is named by is all that keeps KV
of one adapter from another. A decoder that gets no parameters of a transfer is the single vLLM to compare with.
"""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from bed import PREFILL_LEG, Messenger, decode_leg, decoder, messenger, prefiller, start_messengers
from make_model import word
from prompts import random_prompt
from server_process import MODEL_NAME, Server, greedy_completion, words_of

RANK: Final = 8
ANSWER_TOKENS: Final = 12
PROMPT_TOKENS: Final = (33, 64, 129)
VECTORS: Final = 7
SAME: Final = ("sql", "chat")
UNLIKE: Final = {"in-safetensors": "safetensors", "in-bin": "bin", "in-pt": "pt"}
"""Adapters of one name with other weights on each side, by the kind of their file."""
TEMPLATE: Final = (
    "{% for m in messages %}{% for c in m['content'] %}"
    "{{ c['text'] if c['type'] == 'text' else '<prompt_embeds>' }} {% endfor %}{% endfor %}"
)
QUESTION: Final = {"asked_by_transfer": "any", "asked_digest": "0" * 32}
"""The fields by which one engine asks another for a pull."""

Body = dict[str, Any]
Way = Callable[[Messenger, Messenger, Body, Body], dict[str, Any]]


def write_adapter(folder: Path, model: Path, seed: int, kind: str) -> Path:
    """Of the modules from which K and V of later layers follow."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    width = config["hidden_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    drawn, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(config["num_hidden_layers"]):
        for part, count in heads.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}_proj"
            tensors[f"{name}.lora_A.weight"] = 0.3 * torch.randn(RANK, width, generator=drawn)
            tensors[f"{name}.lora_B.weight"] = 0.3 * torch.randn(count * head, RANK, generator=drawn)
    folder.mkdir(parents=True)
    file = folder / f"adapter_model.{kind}"
    save_file(tensors, file) if kind == "safetensors" else torch.save(tensors, file)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": [f"{part}_proj" for part in heads]}
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def arguments(model: Path, folder: Path, side: int) -> tuple[str, ...]:
    """Those of a server; ``side`` tells the two apart."""
    unlike = {name: (10 * side + at, kind) for at, (name, kind) in enumerate(UNLIKE.items(), 1)}
    trained = {name: (at, "safetensors") for at, name in enumerate(SAME, 1)} | unlike
    modules = [
        f"{name}={write_adapter(folder / str(side) / name, model, seed, kind)}"
        for name, (seed, kind) in trained.items()
    ]
    template = folder / f"template-{side}.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    return (
        *("--enable-lora", "--max-loras", "6", "--max-lora-rank", str(RANK), "--lora-modules", *modules),
        *("--enable-prompt-embeds", "--chat-template", str(template), "--chat-template-content-format", "openai"),
    )


@dataclass(frozen=True)
class Pair:
    prefiller: Messenger
    decoder: Messenger


@pytest.fixture(scope="module")
def pair(model: Path, run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("beyond-tokens")
    extra = {"last_token_check": "off"}
    made = [
        messenger(
            side(f"{side.__name__}-beyond", extra=extra, options={"arguments": arguments(model, folder, at)}),
            model,
            run_folder,
        )
        for at, side in enumerate((prefiller, decoder), 1)
    ]
    with ExitStack() as stack:
        start_messengers(stack, made)
        yield Pair(*made)


def asked(server: Server, body: Body, leg: Mapping[str, Any] | None, request: str) -> dict[str, Any]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    return server.post(path, body if leg is None else {**body, "kv_transfer_params": leg}, {"X-Request-Id": request})


def one_by_one(source: Messenger, target: Messenger, sent: Body, wanted: Body) -> dict[str, Any]:
    request = f"one-by-one-{uuid.uuid4()}"
    named = asked(source.server, {**sent, "max_tokens": 1}, PREFILL_LEG, request)["kv_transfer_params"]
    given = {name: named[name] for name in ("remote_engine_id", "remote_prompt_digest")}
    return asked(target.server, wanted, decode_leg(source, request) | given, request)


def at_once(source: Messenger, target: Messenger, sent: Body, wanted: Body) -> dict[str, Any]:
    request = f"at-once-{uuid.uuid4()}"
    with ThreadPoolExecutor(1) as other:
        leg = other.submit(asked, source.server, {**sent, "max_tokens": 1}, PREFILL_LEG, request)
        answer = asked(target.server, wanted, decode_leg(source, request), request)
        leg.result()
        return answer


def alone(target: Messenger, body: Body) -> list[str]:
    """The single vLLM's answer, of blocks that no other prompt has."""
    return answered(asked(target.server, {**body, "cache_salt": uuid.uuid4().hex}, None, str(uuid.uuid4())))


def answered(answer: Mapping[str, Any]) -> list[str]:
    if "choices" in answer and "message" in answer["choices"][0]:
        return str(answer["choices"][0]["message"]["content"]).split()
    return words_of(answer)


def completion(name: str, tokens: int) -> Body:
    return {**greedy_completion(random_prompt(tokens, 5000 + tokens), ANSWER_TOKENS), "model": name}


def chat_with_vectors(tokens: int, width: int) -> Body:
    """Words, then vectors, then as many words again."""
    import torch

    vectors = io.BytesIO()
    torch.save(0.05 * torch.randn(VECTORS, width, generator=torch.Generator().manual_seed(tokens)), vectors)
    text = {"type": "text", "text": " ".join(word(20 + at % 400) for at in range(tokens))}
    between = {"type": "prompt_embeds", "data": base64.b64encode(vectors.getvalue()).decode()}
    body = {**greedy_completion("", ANSWER_TOKENS), "messages": [{"role": "user", "content": [text, between, text]}]}
    return {name: value for name, value in body.items() if name != "prompt"}


@pytest.fixture(scope="module")
def width(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text(encoding="utf-8"))["hidden_size"])


WAYS: Final[tuple[Way, ...]] = (one_by_one, at_once)


@pytest.mark.parametrize("way", WAYS)
def test_should_keep_prompts_of_two_adapters_and_of_none_apart(pair: Pair, way: Way) -> None:
    """The same tokens, one after the other: both sides have prefix caches."""
    bodies = [completion(name, tokens) for tokens in PROMPT_TOKENS for name in (*SAME, MODEL_NAME)]
    right = [alone(pair.decoder, body) for body in bodies]
    assert len({tuple(words) for words in right}) == len(bodies), "the adapters make a difference"
    for _ in range(2):
        assert [answered(way(pair.prefiller, pair.decoder, body, body)) for body in bodies] == right


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("sent", "wanted"), [*((name, name) for name in UNLIKE), ("sql", "chat"), (MODEL_NAME, "sql"), ("sql", MODEL_NAME)]
)
def test_should_use_no_kv_of_another_adapter(pair: Pair, way: Way, sent: str, wanted: str) -> None:
    """Nor of one that has the same name and other weights, in whatever kind of file."""
    answer = way(pair.prefiller, pair.decoder, completion(sent, 64), completion(wanted, 64))
    assert "choices" not in answer, f"answered with KV of {sent}, expected {wanted}: {answer}"
    assert pair.decoder.server.alive()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tokens", [13, 40, 77])
def test_should_move_prompts_with_vectors_between_their_words(pair: Pair, way: Way, tokens: int, width: int) -> None:
    body = chat_with_vectors(tokens, width)
    assert answered(way(pair.prefiller, pair.decoder, body, body)) == alone(pair.decoder, body)


def test_should_take_no_client_for_an_engine_that_asks(pair: Pair, width: int) -> None:
    """What only messengers ask, with each kind of prompt: the engine goes on, and nothing is held for it."""
    for side in (pair.prefiller, pair.decoder):
        plain = completion(MODEL_NAME, 40)
        for body in (plain, completion("sql", 40), chat_with_vectors(20, width)):
            answered(asked(side.server, body, QUESTION, str(uuid.uuid4())))
        assert answered(asked(side.server, plain, None, str(uuid.uuid4()))) == alone(side, plain)


def test_should_hold_nothing_in_the_end(pair: Pair) -> None:
    for side in (pair.prefiller, pair.decoder):
        side.wait_at_rest()
