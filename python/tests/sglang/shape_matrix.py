"""Engines of every shape over one family of pools, each opened once, and prompts between any two of them.

What each rank must have is cut from one whole model; buffers and lengths of items are read from SGLang's description.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid import ATTENTION_LAYERS, STATE_LAYERS
from one_process import (
    HEAD_COUNT,
    Shape,
    Side,
    backend_class,
    free_port,
    listens,
    pages,
    publish_arguments,
    until,
)
from several_pools import (
    DRAFT_HEADS,
    FEW_HEADS,
    GATED_INPUTS,
    KIMI_INPUTS,
    LATENT,
    PAGE_TOKENS_OF,
    SPARSE_LAYERS,
    STATE_HEADS,
    WINDOW_TOKENS,
    Request,
    SeveralPools,
    among,
    items_of,
    scribble,
)
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.disaggregation.base.conn import KVPoll
from sharded import ShardedPair

from kv_connector import KvConnectorError
from kv_connector.sglang import engine_facts
from kv_connector.sglang.layerwise import HOOKS
from kv_connector.sglang.sglang_api import KVTransferError

Size = tuple[int, int]
"""TP and PP."""

_ROOMS = itertools.count(5000)
_WITH_KEYS: Mapping[str, list[int]] = {"index": [0, 2, 3]}
"""Layers that do not reuse the selection of another one; of hybrid pools it is the first with attention."""


@dataclass(frozen=True)
class Part:
    """One buffer of one rank: items, rows in each, and behind these what ranks divide."""

    kind: str
    items: Any
    along: tuple[int, ...]
    """How much lies there over all ranks, of each thing that is divided by itself; () = every rank has all of it."""

    def own(self, whole: Any, side: Side) -> Any:
        """This rank's part of what all ranks have."""
        if not self.along:
            return whole
        divided = whole.split(list(self.along), dim=2)
        return torch.cat([one[:, :, _own_range(one.shape[2], side)] for one in divided], dim=2)


def _own_range(count: int, side: Side) -> slice:
    first = side.rank.tp_rank * count // side.shape.tp_size
    return slice(first, first + max(1, count // side.shape.tp_size))


def parts_of(side: Side) -> dict[str, Part]:
    """What a rank holds, by names that are the same on every rank and stage."""
    parts = {}
    for kind, buffers in items_of(side).items():
        by_kind = side.shape.model == "compressed"  # its buffers are not listed by layer
        layers = [*range(len(buffers))] if by_kind else _layers(kind, side) if buffers else []
        for number, buffer in enumerate(buffers):
            place, at = divmod(number, len(layers))
            rows, along = _division(kind, place, side.shape)
            own = sum(max(1, count // side.shape.tp_size) for count in along) or 1
            parts[f"{kind}, layer {layers[at]}, {place}"] = Part(kind, buffer.view(len(buffer), rows, own, -1), along)
    return parts


def _layers(kind: str, side: Side) -> list[int | str]:
    """Of which layers of the whole model a stage has buffers of a kind, in SGLang's order."""
    shape, own = side.shape, side.shape.layers_of(side.rank.pp_rank)
    model = shape.model
    if kind == "draft":
        return ["draft"]
    if kind in ("swa", "block_scale_swa", "mamba"):
        return [*among(STATE_LAYERS, own)]
    if kind == "minimax_dense_kv":
        return [0]
    of_kv = own
    if "sparse" in model:
        of_kv = among(SPARSE_LAYERS, own)
    elif any(name in model for name in ("windows", "states", "gated", "kimi", "convolutions")):
        of_kv = among(ATTENTION_LAYERS, own)
    if kind in ("dsa", "dsa_tail"):
        drafts = ["draft"] if shape.draft == "index" and side.rank.pp_rank == shape.pp_size - 1 else []
        return [*among(_WITH_KEYS.get(model, ATTENTION_LAYERS[:1]), own), *drafts]
    return [*of_kv, *(["positions"] if kind == "qsa_pending" else [])]


def _division(kind: str, place: int, shape: Any) -> tuple[int, tuple[int, ...]]:
    """(rows, what ranks divide) of an item; ``place`` tells K from V, or the tensors of a state."""
    by_token = shape.page_tokens
    if shape.model == "compressed":
        return 1, ()
    if kind == "draft" and shape.draft == "heads":
        return by_token, (DRAFT_HEADS,)
    if kind == "swa":
        return by_token, (FEW_HEADS if shape.model == "windows of few heads" else HEAD_COUNT,)
    if kind in ("kv", "minimax_dense_kv", "block_scale", "block_scale_swa") and not shape.latent:
        return by_token, (FEW_HEADS if shape.model == "few heads" else HEAD_COUNT,)
    if kind == "mamba":
        return _division_of_state(place, shape)
    return 1, ()


def _division_of_state(place: int, shape: Any) -> tuple[int, tuple[int, ...]]:
    if "gated" not in shape.model and "kimi" not in shape.model:
        return 1, (shape.tp_size,)  # not said: each rank has a part of its own
    if place == 1:
        return 1, (STATE_HEADS,)
    return (3, KIMI_INPUTS) if "kimi" in shape.model else (1, GATED_INPUTS)


class Engine:
    """All ranks of an engine of one shape in one role."""

    def __init__(self, mode: str, shape: Shape, folder: Path) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.bootstrap: Any = None
        self.sides: list[Side] = []
        self.refused = ""
        """Why it does not start."""
        arguments = publish_arguments(folder, port, shape.page_tokens)
        if mode == "prefill":
            self.bootstrap = backend_class("bootstrap_server")("127.0.0.1", port)
            until(lambda: listens(port), "the bootstrap server listens")
        try:
            self.sides = ShardedPair.opened(mode, arguments, shape, 0)
        except KvConnectorError as fault:
            self.refused = str(fault)
            return
        self.parts = [parts_of(side) for side in self.sides]
        self.whole: dict[str, Any] = {}
        if mode == "prefill":
            self._scribble()

    def _scribble(self) -> None:
        """Its ranks hold their parts of one and the same model's memory."""
        generator = torch.Generator().manual_seed(3)
        for side, parts in zip(self.sides, self.parts, strict=True):
            for name, part in parts.items():
                if name not in self.whole:
                    count, rows, own, length = part.items.shape
                    size = (count, rows, sum(part.along) or own, length)
                    self.whole[name] = torch.randint(256, size, dtype=torch.uint8, generator=generator)
                part.items.copy_(part.own(self.whole[name], side))

    def names(self) -> set[str]:
        return {name for parts in self.parts for name in parts}

    def close(self) -> None:
        for side in self.sides:
            side.endpoint.close()
        if self.bootstrap is not None:
            self.bootstrap.close()


class MatrixPair(ShardedPair):
    """A prefiller and a decoder among engines that are open."""

    def __init__(self, prefill: Engine, decode: Engine) -> None:
        self.prefill, self.decode = prefill, decode
        self.prefill_groups, self.decode_groups = [prefill.sides], [decode.sides]
        self.choose(0, 0)
        self.address = prefill.address
        self._rooms = _ROOMS

    def move_prompt(self, tokens: int, seed: int) -> None:
        """Moves a prompt, in two chunks where it has several pages, and compares all memory of the decoder."""
        for number, side in enumerate(self.decoders):
            scribble(side, seed + number)
        before = [{name: part.items.clone() for name, part in parts.items()} for parts in self.decode.parts]
        here, there = self._requests(tokens, seed)
        room, senders, receivers = self._begin_prompt(tokens, there)
        self.wait_until_stages_agree(senders)
        for side, sender, request in zip(self.prefillers, senders, here, strict=True):
            sender.init(len(request.pages), 3)
            if len(request.pages) > 1:
                sender.send(pages(*request.pages[:-1]))
            side.metadata.output_ids[3, 0], side.metadata.bootstrap_room[3, 0] = 9, room
            sender.send(pages(*request.pages[-1:]), request.indices)
        self.finish(senders, receivers)
        self.assert_metadata(room)
        self._assert_moved(tokens, here[0], there, before)

    def _requests(self, tokens: int, seed: int) -> tuple[list[Request], list[Request]]:
        here = [Request(side, tokens, seed) for side in self.prefillers]
        return here, [Request(side, tokens, seed + 1) for side in self.decoders]

    def _begin_prompt(self, tokens: int, there: Sequence[Request]) -> tuple[int, list[Any], list[Any]]:
        """As ``begin``, with the indices of all pools; ranks of the prefiller know the prompt's length."""
        for side in self.prefillers:
            side.endpoint.next_prompt_tokens = tokens
        room, senders, receivers = self.begin(None)
        for receiver, request in zip(receivers, there, strict=True):
            receiver.prompt_tokens, receiver.request_row = tokens, request.row
            receiver.send_metadata(pages(*request.pages), 6, request.indices)
        return room, senders, receivers

    def refusals(self, tokens: int) -> list[str]:
        """Why the decoder's ranks do not receive a prompt from this prefiller."""
        room, sentences = next(self._rooms), []
        _here, there = self._requests(tokens, 1)
        senders, receivers = self.senders(room), []
        for side, request in zip(self.decoders, there, strict=True):
            receiver = backend_class("receiver")(side.endpoint, self.address, room)
            until(lambda e=side.endpoint: e.try_ensure_parallel_info(self.address), "the prefiller is known")
            receiver.init(0)
            until(lambda r=receiver: r.poll() in (KVPoll.WaitingForInput, KVPoll.Failed), "it has begun")
            if receiver.poll() != KVPoll.Failed:
                receiver.prompt_tokens, receiver.request_row = tokens, request.row
                receiver.send_metadata(pages(*request.pages), 6, request.indices)
            receivers.append(receiver)
        for receiver in receivers:
            until(lambda r=receiver: r.poll() == KVPoll.Failed, "the fetch has failed")
            with pytest.raises(KVTransferError) as refused:
                receiver.failure_exception()
            sentences.append(str(refused.value))
        for end in (*senders, *receivers):
            end.abort()
            end.clear()
        return sentences

    def _assert_moved(
        self, tokens: int, here: Request, there: Sequence[Request], before: Sequence[Mapping[str, Any]]
    ) -> None:
        """Each item of the prompt is the rank's part of the whole model's, and all others are as they were."""
        assert self.decode.names() == self.prefill.names()
        for side, parts, request, was in zip(self.decoders, self.decode.parts, there, before, strict=True):
            sources, targets = here.items(), request.items()
            for name, part in parts.items():
                sent = part.own(self.prefill.whole[name], side)[sources[part.kind]]
                arrived = part.items[targets[part.kind]]
                if "windows" in side.shape.model and part.items.shape[1] == side.shape.page_tokens:
                    count = side.shape.page_tokens  # tokens are counted: those behind the prompt are not part of it
                    end = tokens - (tokens - 1) // count * count
                    sent[-1, end:] = arrived[-1, end:]
                assert torch.equal(sent, arrived), (side.rank, name)
                others = [item for item in range(len(part.items)) if item not in (*targets[part.kind], 0)]
                assert torch.equal(was[name][others], part.items[others]), (side.rank, name, "items of others")


class Matrix:
    """The engines of one family of pools after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._family: tuple[str, str] | None = None
        self._engines: dict[tuple[str, Size], Engine] = {}
        self._patch = pytest.MonkeyPatch()

    def engine(self, mode: str, model: str, draft: str, size: Size) -> Engine:
        """That engine, which is opened when it is first asked for."""
        if self._family != (model, draft):
            self.close()
            self._family = (model, draft)
            _configure(self._patch, model, draft)
        if (mode, size) not in self._engines:
            page_tokens = PAGE_TOKENS_OF.get(model, (16,))[0]
            of_states = {"state_size": 0} if model == "convolutions" else {}
            shape = SeveralPools(
                tp_size=size[0],
                pp_size=size[1],
                latent=model in LATENT,
                page_tokens=page_tokens,
                model=model,
                draft=draft,
                **of_states,
            )
            self._engines[mode, size] = Engine(mode, shape, self._folder)
        return self._engines[mode, size]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()
        self._family = None
        self._patch.undo()


def _configure(patch: pytest.MonkeyPatch, model: str, draft: str) -> None:
    """What the model's configuration says of its layers and heads, and that of its draft."""
    drafts = {"none": None, "heads": engine_facts.Draft(latent=False, kv_head_count=DRAFT_HEADS)}
    described = drafts.get(draft, engine_facts.Draft(latent=True, kv_head_count=1))
    read: Callable[..., Any] = ModelConfig.from_server_args
    made: list[Any] = []

    def configured(*args: Any, **named: Any) -> Any:
        """The same for all ranks, read once."""
        if not made:
            config = read(*args, **named)
            if "windows" in model:
                config.full_attention_layer_ids, config.swa_attention_layer_ids = ATTENTION_LAYERS, STATE_LAYERS
            if model == "windows of few heads":
                config.get_swa_num_kv_heads = lambda _ranks: FEW_HEADS
            if model == "few heads":
                config.get_total_num_kv_heads = lambda: FEW_HEADS
            made.append(config)
        return made[0]

    patch.setattr(HOOKS, "window_tokens", WINDOW_TOKENS)
    patch.setattr(engine_facts, "draft_of", lambda _: described)
    patch.setattr(ModelConfig, "from_server_args", configured)
