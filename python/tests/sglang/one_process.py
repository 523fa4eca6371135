"""Both sides of a transfer in one process: SGLang's own pools, metadata buffers, bootstrap server and run-time context,
with the backend's classes between them. No scheduler and no model.
"""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.utils import (
    DisaggregationMode,
    KVClassType,
    MetadataBuffers,
    TransferBackend,
    build_kv_layer_ids,
    get_kv_class,
    get_kv_transfer_buf_infos,
    setup_state_kv_args,
)
from sglang.srt.distributed.utils import get_pp_indices
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
from sglang.srt.server_args import ServerArgs

from kv_connector.sglang.layerwise import HOOKS

PAGE_TOKENS = 16
PAGE_COUNT = 64
LAYER_COUNT = 4
HEAD_COUNT = 4
HEAD_SIZE = 8
LATENT_SIZE = 16
ROPE_SIZE = 8
SLOT_COUNT = 8
WAIT_LIMIT_SECONDS = 900.0

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYER_COUNT,
    "num_attention_heads": 8,
    "num_key_value_heads": HEAD_COUNT,
    "head_dim": HEAD_SIZE,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


_RESERVED: list[socket.socket] = []


def free_port() -> int:
    """A port that no other process is given: bound here until this one ends. A server that asks for it can bind it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _RESERVED.append(holder)
    return int(holder.getsockname()[1])


def publish_arguments(folder: Path, bootstrap_port: int, page_tokens: int = PAGE_TOKENS) -> Any:
    """What the launcher and the scheduler's start would have made known."""
    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    arguments = ServerArgs(
        model_path=str(folder),
        device="cpu",
        dtype="float32",
        disaggregation_mode="prefill",
        disaggregation_transfer_backend="kv_messenger",
        disaggregation_bootstrap_port=bootstrap_port,
        page_size=page_tokens,
        attention_backend="torch_native",
        host="127.0.0.1",
        max_total_tokens=4096,
        disable_cuda_graph=True,
    )
    arguments = arguments.resolve_once() or arguments
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    return arguments


def backend_class(kind: str) -> Any:
    return get_kv_class(TransferBackend("kv_messenger"), KVClassType(kind))


def kv_args(mode: str, pool: Any, metadata: Any, rank: RankInEngine, page_tokens: int = PAGE_TOKENS) -> Any:
    """As the two queues of SGLang fill it."""
    args = backend_class("kvargs")()
    args.engine_rank = rank.tp_rank
    if mode == "prefill":
        args.engine_rank += rank.dp_rank * get_parallel().attn_tp_size
    args.pp_rank = rank.pp_rank
    args.system_dp_rank, args.gpu_id = rank.replica, 0
    if mode == "prefill":  # a decoder's queue does not say it
        args.prefill_start_layer = pool.start_layer
    args.rust_http_port = args.ib_device = None
    args.kv_layout = getattr(pool, "pd_kv_layout", lambda: None)()  # 0.5.22 has none
    args.kv_cache_dtype_str = "bfloat16"
    args.page_size = page_tokens
    draft = getattr(pool, "draft", None)
    described = [get_kv_transfer_buf_infos(pool), draft.get_contiguous_buf_infos() if draft else ([], [], [])]
    args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens = (
        [*own, *more] for own, more in zip(*described, strict=True)
    )
    args.num_draft_entries = len(described[1][0])
    args.kv_layer_ids = build_kv_layer_ids(
        token_to_kv_pool=pool,
        draft_token_to_kv_pool=draft,
        num_draft_entries=args.num_draft_entries,
        num_hidden_layers=LAYER_COUNT,
    )
    args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = metadata.get_buf_infos()
    setup_state_kv_args(args, pool, draft, LAYER_COUNT, req_to_token_pool=getattr(pool, "requests", None))
    return args


@dataclass(frozen=True)
class RankInEngine:
    """Which of an engine's ranks one is."""

    tp_rank: int = 0
    """Among the ranks that share one attention."""
    pp_rank: int = 0
    dp_rank: int = 0
    """Of the attention, where it is data-parallel."""
    cp_rank: int = 0
    """Of the attention, where prompts are split among ranks that then hold all KV."""
    replica: int = 0
    """Of the engine, where it is data-parallel as a whole (``--dp-size``)."""


@dataclass(frozen=True)
class Shape:
    """How one engine is split. Latent KV, of MLA models, is whole on every rank of a pipeline stage."""

    tp_size: int = 1
    """The attention's."""
    latent: bool = False
    pp_size: int = 1
    dp_size: int = 1
    cp_size: int = 1
    page_tokens: int = PAGE_TOKENS
    page_count: int = PAGE_COUNT
    windowed_page_count: int = 0
    """Of the pool of its own that all layers but the last then have: they have a sliding window."""
    windowed_head_count: int = HEAD_COUNT
    replicated: bool = False
    """Whether ``dp_size`` counts replicas of the engine, not ranks of a data-parallel attention."""

    @property
    def attention_dp_size(self) -> int:
        return 1 if self.replicated else self.dp_size

    def ranks(self, dp_rank: int = 0) -> list[RankInEngine]:
        places = itertools.product(range(self.pp_size), range(self.cp_size), range(self.tp_size))
        of_attention, replica = (0, dp_rank) if self.replicated else (dp_rank, 0)
        return [RankInEngine(tp, pp, of_attention, cp, replica) for pp, cp, tp in places]

    def layers_of(self, pp_rank: int) -> range:
        """The stage's part of the model's layers, as SGLang cuts them."""
        return range(*get_pp_indices(LAYER_COUNT, pp_rank, self.pp_size))

    def heads_of(self, tp_rank: int) -> slice:
        """The rank's part of the model's KV heads; ranks beyond their number hold the same ones."""
        if self.latent:
            return slice(0, 1)
        first = tp_rank * HEAD_COUNT // self.tp_size
        return slice(first, first + max(1, HEAD_COUNT // self.tp_size))

    def parallel_of(self, rank: RankInEngine) -> dict[str, Any]:  # noqa: ARG002 - most have nothing more
        """What the run-time context says beyond sizes and ranks."""
        return {}

    def pool_of(self, mode: str, pp_rank: int) -> Any:  # noqa: ARG002 - most are alike on both sides
        return self.pool(pp_rank)

    def pool_on(self, mode: str, rank: RankInEngine) -> Any:
        return self.pool_of(mode, rank.pp_rank)

    def pool(self, pp_rank: int = 0) -> Any:
        slots = self.page_count * self.page_tokens
        layers = self.layers_of(pp_rank)
        held = {"start_layer": layers.start, "end_layer": layers.stop}
        if self.windowed_page_count:
            return SWAKVPool(
                slots,
                self.windowed_page_count * self.page_tokens,
                self.page_tokens,
                torch.bfloat16,
                self.heads_of(0).stop,
                HEAD_SIZE,
                list(layers[:-1]),
                list(layers[-1:]),
                "cpu",
                swa_head_num=self.windowed_head_count,
                swa_head_dim=2 * HEAD_SIZE if self.windowed_head_count != HEAD_COUNT else HEAD_SIZE,
            )
        if self.latent:
            return MLATokenToKVPool(
                slots,
                self.page_tokens,
                torch.bfloat16,
                LATENT_SIZE,
                ROPE_SIZE,
                len(layers),
                "cpu",
                enable_memory_saver=False,
                **held,
            )
        heads = self.heads_of(0).stop
        return MHATokenToKVPool(
            slots, self.page_tokens, torch.bfloat16, heads, HEAD_SIZE, len(layers), "cpu", False, **held
        )


@dataclass
class Side:
    """One rank's pools and endpoint."""

    pool: Any
    metadata: Any
    endpoint: Any
    shape: Shape
    rank: RankInEngine

    @classmethod
    def open(
        cls,
        mode: str,
        arguments: Any,
        shape: Shape | None = None,
        rank: RankInEngine | None = None,
        pp_group: Any = None,
    ) -> Side:
        shape, rank = shape or Shape(), rank or RankInEngine()
        return cls.over(shape.pool_on(mode, rank), mode, arguments, shape, rank, pp_group)

    @classmethod
    def over(cls, pool: Any, mode: str, arguments: Any, shape: Shape, rank: RankInEngine, pp_group: Any = None) -> Side:
        """With the pages that an engine has already; metadata is made anew for each role."""
        metadata = MetadataBuffers(SLOT_COUNT, 64, torch.float32, 1)
        HOOKS.first_layer = pool.start_layer  # as when the rank has loaded its stage of the model
        with as_rank(shape, rank, pp_group):
            endpoint = backend_class("manager")(
                kv_args(mode, pool, metadata, rank, shape.page_tokens),
                DisaggregationMode(mode),
                arguments,
                is_mla_backend=shape.latent,
            )
        return cls(pool, metadata, endpoint, shape, rank)

    def buffers(self) -> list[Any]:
        full = getattr(self.pool, "full_kv_pool", self.pool)
        return list(full.kv_buffer) if self.shape.latent else self._buffers_of(full)

    def windowed_buffers(self) -> list[Any]:
        return self._buffers_of(self.pool.swa_kv_pool)

    @staticmethod
    def _buffers_of(pool: Any) -> list[Any]:
        return [*pool.k_buffer, *pool.v_buffer]

    def buffers_by_name(self) -> dict[str, Any]:
        """Each buffer by its layer's number in the whole model and K or V, whichever stage it is on."""
        layers = self.shape.layers_of(self.rank.pp_rank)
        parts = [""] if self.shape.latent else ["k", "v"]
        names = [f"{layer}{part}" for part in parts for layer in layers]
        return dict(zip(names, self.buffers(), strict=True))

    def page(self, buffer: int, index: int) -> Any:
        tokens = self.shape.page_tokens
        return self.buffers()[buffer][index * tokens : (index + 1) * tokens]

    def all_pages(self, indices: list[int]) -> list[Any]:
        """Of each buffer, a copy of these pages."""
        tokens = self.shape.page_tokens
        return [buffer.unflatten(0, (-1, tokens))[indices] for buffer in self.buffers()]

    def scribble(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for buffer in self.buffers():
            buffer.copy_(torch.randn(buffer.shape, generator=generator))


class OneProcessPipeline:
    """What stands for SGLang's group of pipeline ranks where all of them are opened one after the other."""

    def __init__(self) -> None:
        self._sent: Any = None

    def broadcast_object(self, sent: Any, src: int) -> Any:
        assert src == 0
        self._sent = sent if sent is not None else self._sent
        return self._sent


def as_rank(shape: Shape, rank: RankInEngine, pp_group: Any = None) -> Any:
    """What the run-time context of that rank's scheduler says."""
    world = (rank.dp_rank * shape.cp_size + rank.cp_rank) * shape.tp_size + rank.tp_rank
    sizes = dict.fromkeys(("tp_size", "moe_tp_size"), shape.attention_dp_size * shape.cp_size * shape.tp_size)
    ranks = dict.fromkeys(("tp_rank", "moe_tp_rank"), world)
    attention = {"attn_tp_size": shape.tp_size, "attn_tp_rank": rank.tp_rank}
    context = {"attn_cp_size": shape.cp_size, "attn_cp_rank": rank.cp_rank}
    groups = {"attn_dp_size": shape.attention_dp_size, "attn_dp_rank": rank.dp_rank, "num_dp_ranks": shape.dp_size}
    replicas = {"dp_size": shape.dp_size // shape.attention_dp_size, "dp_rank": rank.replica}
    stage = {"pp_size": shape.pp_size, "pp_rank": rank.pp_rank, "pp_group": pp_group}
    more = shape.parallel_of(rank)
    return get_parallel().override(**sizes, **ranks, **attention, **context, **groups, **replicas, **stage, **more)


class Pair:
    """A prefiller and a decoder that know each other by a bootstrap server."""

    def __init__(self, folder: Path, shape: Shape | None = None, decoder_shape: Shape | None = None) -> None:
        self.port = free_port()
        shape = shape or Shape()
        arguments = self._arguments = publish_arguments(folder, self.port, shape.page_tokens)
        self.bootstrap = backend_class("bootstrap_server")("127.0.0.1", self.port)
        until(lambda: listens(self.port), "the bootstrap server listens")
        self.prefiller = Side.open("prefill", arguments, shape)
        self.decoder = Side.open("decode", arguments, decoder_shape or shape)
        self._rooms = itertools.count(1000)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def next_room(self) -> int:
        return next(self._rooms)

    def sender(self, room: int) -> Any:
        with get_parallel().override(pp_group=None):
            return backend_class("sender")(self.prefiller.endpoint, self.address, room)

    def new_receiver(self, room: int) -> Any:
        return backend_class("receiver")(self.decoder.endpoint, self.address, room)

    def receiver(self, room: int) -> Any:
        """Ready for its metadata."""
        receiver = self.new_receiver(room)
        until(lambda: self.decoder.endpoint.try_ensure_parallel_info(self.address), "the prefiller is known")
        receiver.init(0)
        wait_for(receiver, KVPoll.WaitingForInput)
        return receiver

    def switch_roles(self) -> None:
        """As SGLang does it: all of a role goes but the pages, and the other one is made in the same process."""
        for side in (self.prefiller, self.decoder):
            side.endpoint.teardown()
        source, target = self.decoder, self.prefiller
        self.prefiller = Side.over(source.pool, "prefill", self._arguments, source.shape, source.rank)
        self.decoder = Side.over(target.pool, "decode", self._arguments, target.shape, target.rank)

    def begin(self, room: int, targets: list[int], slot: int, prefix: int = 0) -> tuple[Any, Any]:
        """(sender, receiver) with the decoder's grant given."""
        sender, receiver = self.sender(room), self.receiver(room)
        assert sender.poll() == KVPoll.Bootstrapping
        receiver.send_metadata(pages(*targets), slot, decode_prefix_len=prefix)
        wait_for(sender, KVPoll.WaitingForInput)
        return sender, receiver

    @staticmethod
    def finish(sender: Any, receiver: Any) -> None:
        wait_for(sender, KVPoll.Success)
        wait_for(receiver, KVPoll.Success)
        sender.clear()
        receiver.clear()

    def write_metadata(self, slot: int, room: int, token: int) -> None:
        self.prefiller.metadata.output_ids[slot, 0] = token
        self.prefiller.metadata.bootstrap_room[slot, 0] = room

    def assert_equal_pages(self, sources: list[int], targets: list[int]) -> None:
        sides = ((self.prefiller, sources), (self.decoder, targets))
        for buffer, (here, there) in enumerate(zip(*(side.all_pages(of) for side, of in sides), strict=True)):
            if not torch.equal(here, there):
                wrong = [k for k in range(len(sources)) if not torch.equal(here[k], there[k])]
                raise AssertionError(f"buffer {buffer}: pages at positions {wrong} of {len(sources)} differ")

    def assert_nothing_held(self) -> None:
        for side in (self.prefiller, self.decoder):
            until(lambda side=side: not (side.endpoint.exchange.drain() or side.endpoint.exchange.held()), "all ended")
            until(lambda side=side: side.endpoint.exchange.leak_check().clean, "the messenger holds nothing")

    def close(self) -> None:
        self.decoder.endpoint.close()
        self.prefiller.endpoint.close()
        self.bootstrap.close()


def pages(*indices: int) -> Any:
    return np.array(indices, dtype=np.int32)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_LIMIT_SECONDS:g} s"
        time.sleep(0.001)


def wait_for(polled: Any, expected: int) -> None:
    """Polls as the scheduler does until the state is reached; any other end fails the test with its reason."""
    seen = polled.poll()
    deadline = time.monotonic() + WAIT_LIMIT_SECONDS
    while seen != expected:
        if seen == KVPoll.Failed:
            polled.failure_exception()
        assert seen != KVPoll.Success, f"Success, expected {expected}"
        assert time.monotonic() < deadline, f"still {seen}, expected {expected}"
        time.sleep(0.001)
        seen = polled.poll()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
