"""One vLLM engine: its own engine core, scheduler and KV cache, with our model runner in place of workers.

The core is driven from outside, one ``step`` at a time. With overlapping steps it plans step n+1 before step n runs, as
vLLM does with asynchronous scheduling; passes still run in order.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine import core as engine_core
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec

from engine_loop.kv_pages import BLOCK_TOKENS, HEADS, LAYERS, TOKENS_ONLY, VOCABULARY, Beside, KvPages
from engine_loop.model_runner import LayerGroup, ModelRunner, Rank
from engine_loop.sleep_mode import PausingCore, SleepingWorkers
from kv_connector import Log, Messenger
from kv_connector.vllm.connector import KvMessengerConnector

engine_core.freeze_gc_heap = lambda: None
"""Here engines come and go; what was imported is frozen once."""

ENCODER_CACHE_TOKENS = 1 << 16
"""The model has no encoder; its scheduler plans the passes of one all the same."""
AVAILABLE_BYTES = 1 << 40
"""More than any pool here; the number of blocks is said instead."""


STATE = -1
"""In place of a layer's window: it keeps one state of all tokens."""


@dataclass(frozen=True)
class Chunk:
    """In place of a layer's window: a token reads those of its chunk only."""

    tokens: int


@dataclass(frozen=True)
class EnginePlan:
    """How one side is set up."""

    name: str
    kv_role: str
    blocks: int
    model_tokens_max: int
    chunk_tokens: int
    requests_max: int = 32
    prefix_caching: bool = True
    overlapping: bool = False
    whole_prompt_must_fit: bool = True
    tp_size: int = 1
    recompute: bool = False
    windows: tuple[int | Chunk, ...] = (0,) * len(LAYERS)
    """How many of the last tokens each layer reads; 0 = all, STATE = one state of all."""
    one_group: bool = False
    """Started with --disable-hybrid-kv-cache-manager: all layers have all pages, whatever they read."""
    state_type: str = "SHORT_CONV"
    """vLLM's name of what computes the states."""
    options: dict[str, Any] = field(default_factory=dict)


class _Pass(Future):  # type: ignore[type-arg]
    """A pass that runs when its result is asked for, after those before it."""

    def __init__(self, executor: LoopExecutor) -> None:
        super().__init__()
        self._executor = executor

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            self._executor.run_next()
        return super().result(timeout)


class _PipelineGroup:
    rank_in_group = 0


class LoopExecutor(SleepingWorkers, Executor):
    """What vLLM's engine core takes for its workers."""

    plan: EnginePlan
    report: Callable[[str, str], None]
    meanwhile: Callable[[str], None]

    def _init_executor(self) -> None:
        self._queue: deque[tuple[Any, _Pass]] = deque()
        self.ranks: list[Rank] = []
        self.messengers: list[Messenger] = []
        self.reported = 0
        """How many requests the workers have reported as sent or received."""

    def collective_rpc(self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, **_: Any) -> Any:  # noqa: ARG002
        if callable(method):
            return [method(rank) for rank in self._as_each_rank()]
        return getattr(self, f"_{method}")(*args, **(kwargs or {}))

    def _start_draft_weight_update(self) -> list[None]:
        return [None] * self.plan.tp_size

    def _finish_weight_update(self) -> list[None]:
        """Of a drafter: the name of the model's own weights stays, by which peers know them."""
        return [None] * self.plan.tp_size

    def _update_weights(self) -> list[None]:
        """The model's own, behind the passes that are queued: they have another name from now on."""
        while self._queue:
            self.run_next()
        return [None] * self.plan.tp_size

    def check_health(self) -> None:
        return

    # ---- start

    def _get_kv_cache_spec(self) -> list[dict[str, Any]]:
        heads = HEADS // self.plan.tp_size
        shape = {"block_size": BLOCK_TOKENS, "num_kv_heads": heads, "head_size": 1, "dtype": torch.float32}
        slot = MambaSpec(
            block_size=self.plan.model_tokens_max,
            shapes=((heads * BLOCK_TOKENS,), (heads, 2 * BLOCK_TOKENS)),
            dtypes=(torch.float32, torch.bfloat16),
            mamba_type=MambaAttentionBackendEnum[self.plan.state_type],
        )

        def spec(window: int | Chunk) -> Any:
            match window:
                case Chunk(tokens):
                    return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=tokens)
                case tokens if tokens == STATE:
                    return slot
                case 0:
                    return FullAttentionSpec(**shape)
                case tokens:
                    return SlidingWindowSpec(**shape, sliding_window=tokens)

        specs = {name: spec(window) for name, window in zip(LAYERS, self.plan.windows, strict=True)}
        return [dict(specs) for _ in range(self.plan.tp_size)]

    def _get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["LBHNC"]] * self.plan.tp_size

    def _set_kv_cache_layout(self, layout_name: str, *_: Any) -> None:
        self.cache_config.kv_cache_layout = layout_name

    def _determine_available_memory(self) -> list[int]:
        return [AVAILABLE_BYTES] * self.plan.tp_size

    def _initialize_from_config(self, configs: Sequence[Any]) -> None:
        parallel_state.get_pp_group = _PipelineGroup
        for tp_rank, config in enumerate(configs):
            parallel_state.get_tensor_model_parallel_rank = lambda rank=tp_rank: rank
            connector = KVConnectorFactory.create_connector(self.vllm_config, KVConnectorRole.WORKER, config)
            connector.open_messenger = self._open
            with connector.get_mem_pool_context() or nullcontext():
                pages = KvPages(config.num_blocks, tp_rank, self.plan.tp_size, self._places(config))
            connector.register_kv_caches(self._registered(pages))
            connector.set_host_xfer_buffer_ops(lambda *_: None)
            self.ranks.append(Rank(pages, connector))
        self.layers = self._layers(configs[0])
        self.runner = ModelRunner(
            self.plan.name, self.vllm_config, self.ranks, self.layers, self.report, self.meanwhile
        )

    def _registered(self, pages: KvPages) -> dict[str, Any]:
        """As vLLM shows them to a connector: a slot of state, of however many tensors, is a row of bytes."""
        return {
            name: tensor.view(torch.int8).reshape(len(tensor), 1, 1, -1) if window == STATE else tensor
            for (name, tensor), window in zip(pages.tensors.items(), self.plan.windows, strict=True)
        }

    def _layers(self, config: Any) -> list[LayerGroup]:
        group_of = {name: at for at, group in enumerate(config.kv_cache_groups) for name in group.layer_names}
        return [
            LayerGroup(group_of[name], chunk_tokens=window.tokens)
            if isinstance(window, Chunk)
            else LayerGroup(group_of[name], max(0, window), state=window == STATE)
            for name, window in zip(LAYERS, self.plan.windows, strict=True)
        ]

    @staticmethod
    def _places(config: Any) -> list[int]:
        """Each layer's place in the allocation, as vLLM decided it."""
        placed = {}
        for tensor in config.kv_cache_tensors:
            first = tensor.offset // tensor.layer_stride
            placed |= {name: first + at for at, name in enumerate(tensor.layers)}
        return [placed[name] for name in LAYERS]

    def _open(self, *arguments: Any, **more: Any) -> Messenger:
        self.messengers.append(Messenger.open(*arguments, **more))
        return self.messengers[-1]

    def _compile_or_warm_up_model(self) -> list[Any]:
        return []

    def _get_kv_connector_handshake_metadata(self) -> list[dict[tuple[int, int], Any]]:
        addresses = [rank.connector.get_handshake_metadata() for rank in self.ranks]
        return [{(0, tp_rank): address} for tp_rank, address in enumerate(addresses) if address is not None]

    def init_kv_output_aggregator(self, connector: Any) -> None:
        self._aggregator = KVOutputAggregator.from_connector(connector, self.plan.tp_size)

    # ---- passes

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        future = _Pass(self)
        self._queue.append((scheduler_output, future))
        return future if non_block else future.result()

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:  # noqa: ARG002
        """The pass that was queued last has its tokens with its own result."""
        future = self._queue[-1][1]
        return future if non_block else future.result()

    def run_next(self) -> None:
        output, future = self._queue.popleft()
        answers = self.runner.execute(output)
        for answer in answers:
            results = answer.kv_connector_output
            self.reported += len(results.finished_sending or ()) + len(results.finished_recving or ())
        future.set_result(self._aggregator.aggregate(answers) if len(answers) > 1 else answers[0])

    def shutdown(self) -> None:
        for rank in self.ranks:
            rank.connector.shutdown()


def _model_folder() -> str:
    folder = Path(tempfile.mkdtemp(prefix="model-"))
    described = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": len(LAYERS),
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(described))
    return str(folder)


_models: dict[int, ModelConfig] = {}
"""By the longest request: a model's configuration takes long to read."""


def _vllm_config(plan: EnginePlan) -> VllmConfig:
    longest = plan.model_tokens_max
    if longest not in _models:
        _models[longest] = ModelConfig(
            model=_model_folder(), skip_tokenizer_init=True, dtype="float32", max_model_len=longest
        )
    config = VllmConfig(
        model_config=_models[longest],
        cache_config=CacheConfig(
            block_size=BLOCK_TOKENS,
            enable_prefix_caching=plan.prefix_caching,
            num_gpu_blocks_override=plan.blocks,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=plan.requests_max,
            max_num_batched_tokens=plan.chunk_tokens,
            max_model_len=longest,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            scheduler_reserve_full_isl=plan.whole_prompt_must_fit,
            disable_hybrid_kv_cache_manager=plan.one_group,
        ),
        parallel_config=ParallelConfig(distributed_executor_backend="uni"),
        kv_transfer_config=KVTransferConfig(
            kv_connector="KvMessengerConnector",
            kv_connector_module_path=KvMessengerConnector.__module__,
            kv_role=plan.kv_role,
            engine_id=plan.name,
            kv_load_failure_policy="recompute" if plan.recompute else "fail",
            kv_connector_extra_config={"listen_port": 0, "metrics_port": -1} | plan.options,
        ),
        device_config=DeviceConfig("cpu"),
    )
    # What vLLM decides for a CPU, or would start processes for; nothing here depends on either.
    config.cache_config.block_size = BLOCK_TOKENS
    config.scheduler_config.async_scheduling = plan.overlapping
    config.parallel_config.tensor_parallel_size = plan.tp_size
    config.compilation_config.static_forward_context = dict.fromkeys(LAYERS)
    return config


def _images(beside: Beside) -> list[MultiModalFeatureSpec] | None:
    """As the API server tells them of content that the engine has seen."""
    features = [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=content,
            mm_position=PlaceholderRange(offset, length),
            mm_hash=content,
        )
        for offset, length, content in beside.images
    ]
    return features or None


def _adapter(beside: Beside) -> LoRARequest | None:
    if not beside.lora:
        return None
    return LoRARequest(
        lora_name=beside.lora, lora_int_id=1 + zlib.crc32(beside.lora.encode()) % 1000, lora_path="/none"
    )


class Engine:
    """An engine core and what its clients and its operator see."""

    def __init__(
        self, plan: EnginePlan, report: Callable[[str, str], None], meanwhile: Callable[[str], None] = lambda _: None
    ) -> None:
        self.plan = plan
        self._report = report
        executor = type("Executor", (LoopExecutor,), {"plan": plan, "report": staticmethod(report)})
        executor.meanwhile = staticmethod(meanwhile)
        self.core = PausingCore(_vllm_config(plan), executor, log_stats=False)
        self.scheduler: Any = self.core.scheduler
        self.executor: Any = self.core.model_executor
        self.scheduler.max_num_encoder_input_tokens = ENCODER_CACHE_TOKENS
        self.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=ENCODER_CACHE_TOKENS)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.pool.engine = self  # for mutants
        self._requests: list[Any] = []
        """All that it has ever had, for their block hashes."""
        self.computed_tokens = 0

    # ---- clients

    def add(self, request_id: str, prompt: Sequence[int], **sampling: Any) -> None:
        """A request arrives; ``transfer`` is its kv_transfer_params."""
        transfer = sampling.pop("transfer")
        priority = sampling.pop("priority", 0)
        beside: Beside = sampling.pop("beside", TOKENS_ONLY)
        if beside != TOKENS_ONLY:
            self.executor.runner.beside[request_id] = beside
        params = SamplingParams(
            temperature=0.0,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
            extra_args={"kv_transfer_params": transfer} if transfer is not None else None,
            **sampling,
        )
        arrived = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            mm_features=_images(beside),
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(len(self._requests)),
            lora_request=_adapter(beside),
            cache_salt=beside.salt or None,
            data_parallel_rank=None,
            priority=priority,
        )
        request, wave = self.core.preprocess_add_request(arrived)
        self._requests.append(request)
        self.core.add_request(request, wave)

    def reject(self, request_id: str, transfer: dict[str, Any]) -> None:
        """The API server has rejected a request; as vLLM tells its connectors, by a request that is aborted at once."""
        arrived = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=[0],
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": dict(transfer)}),
            pooling_params=None,
            arrival_time=float(len(self._requests)),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            abort_immediately=True,
        )
        self.core.add_request(*self.core.preprocess_add_request(arrived))

    def abort(self, request_id: str, *, during_step: bool = False) -> None:
        """The client has gone."""
        if during_step:
            self.core.aborts_queue.put([request_id])
        else:
            self.core.abort_requests([request_id])

    # ---- steps

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_requests() or bool(self.core.batch_queue)

    def step(self) -> list[Any]:
        """One step of the core; what it puts out."""
        outputs, executed = self.core.step_fn()
        self.core.post_step(executed)
        self.computed_tokens += executed
        return [each for group in (outputs or {}).values() for each in group.outputs]

    # ---- at rest

    @property
    def addresses(self) -> list[tuple[str, int]]:
        opened = [(m.opened.control_host, m.opened.control_port) for m in self.executor.messengers]
        return opened or list(self.executor.last_addresses)

    def gauge(self, name: str) -> float:
        return sum(m.stats().gauges.get(f"kv_messenger_{name}", 0.0) for m in self.executor.messengers)

    def held(self) -> str:
        """What is still held although all requests have ended; "" at rest."""
        found = []
        free, total = self.pool.get_num_free_blocks(), self.plan.blocks - 1  # one block is vLLM's null block
        if free != total:
            found.append(f"{total - free} of {total} blocks are not free")
        if self.scheduler.requests:
            states = {name: str(request.status) for name, request in list(self.scheduler.requests.items())[:4]}
            found.append(f"the scheduler has {len(self.scheduler.requests)} requests, such as {states}")
        if self.scheduler.connector.has_pending_push_work():
            found.append("the connector wants more steps")
        for messenger in self.executor.messengers:
            leaks = messenger.leak_check()
            if not leaks.clean:
                found.append(f"a messenger holds {dict(leaks.held)}")
        return f"{self.plan.name}: {', '.join(found)}" if found else ""

    def last_words(self) -> list[str]:
        """What its messengers have logged and the engine has not heard, as it had no reason to step."""
        events = [event for messenger in self.executor.messengers for event in messenger.poll()]
        return [f"{self.plan.name}'s messenger: {event.message}" for event in events if isinstance(event, Log)]

    def check_prefix_cache(self) -> None:
        """Every block that a request could hit holds the KV of the tokens that its hash stands for."""
        right: dict[bytes, tuple[Any, int]] = {}
        for request in self._requests:
            for index, block_hash in enumerate(request.block_hashes):
                right.setdefault(block_hash, (request, index))
        for block in self.pool.blocks:
            if block.block_hash is None:
                continue
            request, index = right[get_block_hash(block.block_hash)]
            tokens = list(request.all_token_ids)[: (index + 1) * BLOCK_TOKENS]
            beside = self.executor.runner.beside.get(request.request_id, TOKENS_ONLY)
            digests = [each[index * BLOCK_TOKENS :] for each in self.executor.runner.digests(tokens, beside)]
            self._check_block(block.block_id, get_group_id(block.block_hash), index, digests)

    def _check_block(self, block: int, group: int, index: int, right: Any) -> None:
        layers = [layer for layer, found in enumerate(self.executor.layers) if found.index == group]
        for rank in self.executor.ranks:
            for layer in layers:
                if rank.pages.wrong_at(layer, [block], 0, right[-1], right[:-1]) is not None:
                    self._report(
                        "wrong page",
                        f"{self.plan.name} has page {block} in its prefix cache as block {index} of a prompt, layer"
                        f" {layer}, which does not hold the KV of its tokens",
                    )
                    return

    def close(self) -> None:
        """Ends both halves of the connector; what else the core would end belongs to the process."""
        self.executor.shutdown()
        self.scheduler.shutdown()
