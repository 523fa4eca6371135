"""An engine that computes nothing, and calls a connector in the order in which vLLM does.

Its scheduler is small but has vLLM's habits that matter: blocks of a request are given back when it ends unless the
connector holds them, an unknown request in a report is an assertion that would end the engine, and the worker sees
metadata only after it was pickled. Blocks are checked: nothing is given out while a reader or writer may touch it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from release import Release, Status
from simulated_messenger import SimulatedMessenger, SimulatedStandIn
from simulated_requests import BLOCK_TOKENS, SimulatedBlockPool, SimulatedRequest
from simulated_tensor import SimulatedTensor

LAYERS = tuple(f"model.layers.{index}.self_attn.attn" for index in range(4))
HEADS = 4
CONTENT = 128
MODEL_TOKENS_MAX = 4096
STORAGE_ADDRESS = 1 << 32


def tensors(
    block_count: int,
    page_tokens: int = BLOCK_TOKENS,
    block_tokens: int = BLOCK_TOKENS,
    layers: Sequence[str] = LAYERS,
    heads: int = HEADS,
    storage_address: int = STORAGE_ADDRESS,
) -> dict[str, SimulatedTensor]:
    """KV of all layers in one storage, heads outermost in a page."""
    pages = block_count * block_tokens // page_tokens
    page = heads * page_tokens * CONTENT
    length = len(layers) * pages * page * 4
    storage = SimpleNamespace(data_ptr=lambda: storage_address, nbytes=lambda: length)
    return {
        name: SimulatedTensor(
            shape=(pages, heads, page_tokens, CONTENT),
            strides=(page, page_tokens * CONTENT, CONTENT, 1),
            address=storage_address + index * pages * page * 4,
            storage=storage,
        )
        for index, name in enumerate(layers)
    }


def config(kv_role: str, layers: Sequence[str] = LAYERS, **more: Any) -> SimpleNamespace:
    """As much of a VllmConfig as the connector reads."""
    transfer = SimpleNamespace(
        kv_role=kv_role,
        engine_id=f"engine-{kv_role}",
        kv_port=14579,
        kv_connector_extra_config=more.pop("extra", {"transports": ["tcp"]}),
        is_kv_producer=kv_role != "kv_consumer",
    )
    return SimpleNamespace(
        kv_transfer_config=transfer,
        parallel_config=SimpleNamespace(
            **{
                "tensor_parallel_size": 1,
                "pipeline_parallel_size": 1,
                "local_world_size": 1,
                "distributed_executor_backend": "uni",
                **more,
            }
        ),
        compilation_config=SimpleNamespace(static_forward_context={name: SimpleNamespace() for name in layers}),
        device_config=SimpleNamespace(device_type="cpu"),
        cache_config=SimpleNamespace(cache_dtype="auto", enable_prefix_caching=True),
        aux_output_config=SimpleNamespace(enabled=False),
        load_config=SimpleNamespace(load_format="dummy", download_dir=None),
        model_config=SimpleNamespace(
            model="/models/tiny",
            revision=None,
            hf_text_config=SimpleNamespace(),
            get_total_num_kv_heads=lambda: HEADS,
            use_mla=False,
            max_model_len=MODEL_TOKENS_MAX,
        ),
    )


@dataclass
class FullAttentionSpec:
    block_size: int = BLOCK_TOKENS
    page_size_bytes: int = 1
    non_causal: bool = False

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        return -(-int(vllm_config.model_config.max_model_len) // self.block_size)


def caches(layer_names: Sequence[str] = LAYERS, spec: object = None) -> SimpleNamespace:
    """As much of a KVCacheConfig as the connector reads."""
    group = SimpleNamespace(layer_names=list(layer_names), kv_cache_spec=spec or FullAttentionSpec())
    return SimpleNamespace(kv_cache_groups=[group], transfer_group_ids=(0,))


class SimulatedEngine:
    def __init__(
        self,
        release: Release,
        kv_role: str,
        *,
        chunk_tokens: int = 256,
        block_count: int = 64,
        recompute: bool = False,
        page_tokens: int = BLOCK_TOKENS,
        legacy_results: bool = False,
        block_tokens: int = BLOCK_TOKENS,
        layers: Sequence[str] = LAYERS,
        extra: Mapping[str, Any] | None = None,
        model_tokens_max: int = MODEL_TOKENS_MAX,
        speculative: Any = None,
        non_causal: bool = False,
    ) -> None:
        self.release = release
        self.chunk_tokens = chunk_tokens
        self.block_tokens = block_tokens
        self.recompute = recompute
        self.legacy_results = legacy_results
        self.page_tokens = page_tokens
        self.requests: dict[str, SimulatedRequest] = {}
        self.waiting: list[SimulatedRequest] = []
        self.running: list[SimulatedRequest] = []
        self.answers: dict[str, Any] = {}
        self.ended: dict[str, Status] = {}
        self.pool = self._make_pool(block_count)
        self.block_count = block_count
        self.received: set[str] = set()
        self.failed: set[str] = set()
        self.preempted: set[str] = set()
        self.finished_ids: set[str] = set()
        self.hooked_layers: list[str] = list(layers)
        self.forward_fails = False
        self.paused = False
        role = release.base.KVConnectorRole
        vllm_config = config(kv_role, layers, extra={"transports": ["tcp"], **(extra or {})})
        vllm_config.model_config.max_model_len = model_tokens_max
        vllm_config.speculative_config = speculative
        vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute" if recompute else "fail"
        kv_cache_config = caches(layers, FullAttentionSpec(block_tokens, non_causal=non_causal))
        self.messengers: list[SimulatedMessenger] = []
        self.worker, self.own_worker = self._connector(vllm_config, role.WORKER, kv_cache_config)
        self.own_worker.open_messenger = self._open_messenger
        assert self.worker.get_mem_pool_context() is None
        self.worker.register_kv_caches(tensors(block_count, page_tokens, block_tokens, layers))
        self.worker.set_host_xfer_buffer_ops(lambda *_: None)
        self.scheduler, self.own_scheduler = self._connector(vllm_config, role.SCHEDULER, kv_cache_config)
        self.scheduler.bind_kv_cache_manager(SimpleNamespace(block_pool=self.pool))
        assert self.own_scheduler.get_finished_count() == 1
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): pickled(self.worker.get_handshake_metadata())})

    @property
    def is_prefiller(self) -> bool:
        return bool(self.own_worker._facts.options.role == "prefiller")

    def _connector(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> tuple[Any, Any]:
        """(What the engine calls, ours)."""
        made = self.release.connector.KvMessengerConnector(vllm_config, role, kv_cache_config)
        return made, made

    def _make_pool(self, block_count: int) -> Any:
        return SimulatedBlockPool(block_count)

    @property
    def free_blocks(self) -> list[int]:
        return self.pool.free

    def _open_messenger(self, options: Any, geometry: Any, *, layer_counter_lag: int) -> SimulatedMessenger:
        assert layer_counter_lag == 0
        opened = SimulatedMessenger(options, geometry)
        if self.messengers:
            opened.by_name = self.messenger.by_name
        self.messengers.append(opened)
        return opened

    @property
    def messenger(self) -> SimulatedMessenger:
        return self.messengers[-1]

    # ---- sleep

    def sleep(self) -> None:
        """As vLLM 0.33 does once nothing is under way, to its workers; queued requests stay queued."""
        start = self.own_worker._starting()
        start.make_stand_in = SimulatedStandIn
        self.paused = True
        self.worker.unregister_kv_caches()

    def wake(self) -> None:
        """Memory first, then the addresses of the messengers, then the queue."""
        self.worker.restore_kv_caches()
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): pickled(self.worker.get_handshake_metadata())})
        self.paused = False

    # ---- what clients do

    def compare_last_tokens(self, judge: Any) -> None:
        """As if the ranks had tensors with numbers: ``judge`` has the methods of ``LastTokenProof``."""
        proofs = self.own_worker._part.proofs
        proofs._judge = judge
        judge.proved = self.release.metadata.Proved
        assert proofs.able
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): pickled(self.worker.get_handshake_metadata())})

    def add(
        self,
        request_id: str,
        prompt_tokens: int,
        params: Any,
        *,
        max_tokens: int = 1,
        cached: int = 0,
        lora: Any = None,
    ) -> None:
        request = SimulatedRequest(request_id, prompt_tokens, params, max_tokens, cached, lora_request=lora)
        assert request_id not in self.requests
        self.requests[request_id] = request
        self.waiting.append(request)
        self.scheduler.on_new_request(request)

    def add_ended(self, request_id: str, params: Any) -> None:
        """As vLLM tells connectors of a request that it does not let in."""
        request = SimulatedRequest(request_id, 1, params, 1, 0, abort_immediately=True)
        self.requests[request_id] = request
        self.waiting.append(request)
        self.scheduler.on_new_request(request)
        self.abort(request_id)

    def abort(self, request_id: str) -> None:
        self._finish(self.requests[request_id], Status.FINISHED_ABORTED)

    # ---- what the scheduler does by itself

    def preempt(self, request_id: str, cached_when_resumed: int = 0) -> None:
        """Takes a running request's blocks; it is resumed by the next step that has room."""
        request = self.requests[request_id]
        self.running.remove(request)
        self._free(request)
        request.cached_tokens = cached_when_resumed
        request.num_computed_tokens = 0
        request.status = Status.PREEMPTED
        request.was_scheduled = False
        self.preempted.add(request_id)
        self.waiting.insert(0, request)

    def has_work(self) -> bool:
        return bool(self.requests or self.finished_ids or self.scheduler.has_pending_push_work())

    def step(self) -> None:
        output = self._schedule()
        output.kv_connector_metadata = self.scheduler.build_connector_meta(output)
        self.messenger.learn(output.kv_connector_metadata)
        results = self._execute(output)
        self._update(output, results)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def at_rest(self) -> bool:
        """Everything is free, on all sides."""
        return (
            not self.has_work()
            and len(self.free_blocks) == self.block_count
            and self.own_scheduler._half.is_idle()
            and not self.own_worker._worker.held()
            and self.messenger.leak_check().clean
        )

    def _schedule(self) -> Any:
        budget, scheduled, new, cached = 0 if self.paused else self.chunk_tokens, {}, [], []
        for request in list(self.running):
            count = min(budget, request.num_tokens - request.num_computed_tokens)
            if count:
                budget -= count
                delta = self._allocate(request, request.num_computed_tokens + count)
                cached.append((request, delta, False))
                scheduled[request.request_id] = count
        for request in list(self.waiting):
            if budget and self._admit(request):
                count = min(budget, request.num_tokens - request.num_computed_tokens)
                budget -= count
                self._allocate(request, request.num_computed_tokens + count)
                scheduled[request.request_id] = count
                resumed = request.has_run
                request.status, request.was_scheduled, request.has_run = Status.RUNNING, True, True
                self.waiting.remove(request)
                self.running.append(request)
                (cached.append((request, list(request.blocks), True)) if resumed else new.append(request))
        return self._output(scheduled, new, cached)

    def _admit(self, request: SimulatedRequest) -> bool:
        """Whether the request may be scheduled in this step."""
        if request.status == Status.WAITING_FOR_REMOTE_KVS:
            if request.request_id not in self.received:
                return False
            self.received.discard(request.request_id)
            if request.request_id in self.failed:
                self.failed.discard(request.request_id)
                request.num_computed_tokens = 0
                request.status = Status.WAITING
                self._free(request)
                return self._admit(request)  # like a new one: what is kept out of use may leave it no room
            request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
            request.status = Status.WAITING
        external, is_async = 0, False
        if request.num_computed_tokens == 0:
            asked = [self.scheduler.get_num_new_matched_tokens(request, request.cached_tokens) for _ in range(2)]
            assert asked[0] == asked[1], "asking changes something"
            external, is_async = (0, False) if request.skip_reading_prefix_cache else asked[0]
            if external is None:
                return False
            request.num_computed_tokens = 0 if request.skip_reading_prefix_cache else request.cached_tokens
        assert request.num_computed_tokens + external <= request.num_tokens
        upto = request.num_computed_tokens + external
        self._allocate(request, upto if is_async else min(upto + self.chunk_tokens, request.num_tokens))
        self.scheduler.update_state_after_alloc(
            request, SimpleNamespace(get_block_ids=lambda: (list(request.blocks),)), external
        )
        if is_async:
            assert external > 0
            assert self.scheduler.get_loaded_kv_cache_group_ids(request) == (0,)
            request.status, request.num_computed_tokens = Status.WAITING_FOR_REMOTE_KVS, upto
        return not is_async

    def _output(self, scheduled: dict[str, int], new: Iterable[Any], cached: Sequence[tuple[Any, Any, bool]]) -> Any:
        types = self.release.output
        preempted, self.preempted = self.preempted, set()
        finished, self.finished_ids = self.finished_ids, set()
        return types.SchedulerOutput(
            scheduled_new_reqs=[
                types.NewRequestData(
                    req_id=request.request_id,
                    prompt_token_ids=request.prompt_token_ids,
                    mm_features=[],
                    sampling_params=None,
                    pooling_params=None,
                    block_ids=(list(request.blocks),),
                    num_computed_tokens=request.num_computed_tokens,
                    lora_request=None,
                )
                for request in new
            ],
            scheduled_cached_reqs=types.CachedRequestData(
                req_ids=[request.request_id for request, _, _ in cached],
                resumed_req_ids={request.request_id for request, _, resumed in cached if resumed},
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=[(blocks,) if blocks else None for _, blocks, _ in cached],
                num_computed_tokens=[request.num_computed_tokens for request, _, _ in cached],
                num_output_tokens=[request.output_tokens for request, _, _ in cached],
            ),
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            finished_req_ids=finished,
            free_encoder_mm_hashes=[],
            preempted_req_ids=preempted,
        )

    def _execute(self, output: Any) -> Any:
        """The worker's side of a step, as KVConnectorModelRunnerMixin orders it."""
        meta = pickled(output.kv_connector_metadata)
        self.worker.handle_preemptions(meta)
        self.worker.bind_connector_metadata(meta)
        try:
            if output.total_num_scheduled_tokens:
                for layer in self.hooked_layers:
                    self._hook(layer)
                if self.forward_fails:
                    raise RuntimeError("the forward pass failed")
        finally:
            self._end_forward()
        return self._results(output)

    def _hook(self, layer: str) -> None:
        """What surrounds a layer in the forward pass."""
        if self.worker.has_connector_metadata():
            self.worker.wait_for_layer_load(layer)
            self.worker.save_kv_layer(layer, None, None)

    def _end_forward(self) -> None:
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()

    def _results(self, output: Any) -> Any:
        """What the worker reports after a step."""
        worker = self.worker
        if self.legacy_results:
            sent, received = worker.get_finished(output.finished_req_ids)
            results = SimpleNamespace(
                finished_sending=sent or set(), finished_recving=received or set(), failed_recving=set()
            )
        else:
            results = worker.get_transfer_results(output.finished_req_ids)
        invalid = worker.get_block_ids_with_load_errors()
        stats = worker.get_kv_connector_stats()
        assert stats is None or not stats.is_empty()
        worker.get_kv_connector_kv_cache_events()
        meta = pickled(worker.build_connector_worker_meta())
        worker.clear_connector_metadata()
        return SimpleNamespace(
            finished_sending=results.finished_sending or None,
            finished_recving=results.finished_recving or None,
            failed_recving=results.failed_recving,
            invalid_block_ids=invalid,
            kv_connector_worker_meta=meta,
            stats=stats,
        )

    def _update(self, output: Any, results: Any) -> None:
        failing = {r for r in results.failed_recving if self._waits_for_kv(r)}
        assert results.failed_recving <= (results.finished_recving or set())
        for request in self.requests.values():
            loaded = self._waits_for_kv(request.request_id) or request.status == Status.RUNNING
            if loaded and set(request.blocks) & results.invalid_block_ids:
                assert request.request_id not in failing, "one failure is told in two ways"
                failing.add(request.request_id)
        for request_id, count in output.num_scheduled_tokens.items():
            request = self.requests.get(request_id)
            if request is None or request.is_finished or not request.was_scheduled or request_id in failing:
                continue
            request.num_computed_tokens += count
            if request.num_computed_tokens == request.num_tokens:
                request.output_tokens += 1
                if request.output_tokens == request.max_tokens:
                    self._finish(request, Status.FINISHED_LENGTH_CAPPED)
        for request_id in failing:
            if self.recompute:
                self.failed.add(request_id)
            else:
                self._finish(self.requests[request_id], Status.FINISHED_ERROR)
        self.scheduler.update_connector_output(results)
        for request_id in results.finished_recving or ():
            assert request_id in self.requests, "an unknown request was reported as received"
            if self._waits_for_kv(request_id):
                self.received.add(request_id)
            else:
                assert self.requests[request_id].is_finished
                self._free(self.requests.pop(request_id))
        for request_id in results.finished_sending or ():
            assert request_id in self.requests, "an unknown request was reported as sent"
            self._free(self.requests.pop(request_id))

    def _waits_for_kv(self, request_id: str) -> bool:
        request = self.requests.get(request_id)
        return request is not None and request.status == Status.WAITING_FOR_REMOTE_KVS

    def _finish(self, request: SimulatedRequest, status: Status) -> None:
        hold = request.status == Status.WAITING_FOR_REMOTE_KVS and request.request_id not in self.received
        self.received.discard(request.request_id)
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        request.status = status
        held, answer = self.scheduler.request_finished_all_groups(request, (list(request.blocks),))
        self.ended[request.request_id] = status
        self.answers[request.request_id] = answer
        self.finished_ids.add(request.request_id)
        if not (hold or held):
            self._free(self.requests.pop(request.request_id))

    def _allocate(self, request: SimulatedRequest, tokens: int) -> list[int]:
        missing = -(-tokens // self.block_tokens) - len(request.blocks)
        added = self.pool.take(missing)
        request.blocks += added
        return added

    def _free(self, request: SimulatedRequest) -> None:
        self.pool.free_blocks(reversed(request.blocks))
        request.blocks = []


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def remote_decode(**more: Any) -> dict[str, Any]:
    """What a router sends to a prefiller."""
    empty = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    return {"do_remote_decode": True, "do_remote_prefill": False, **empty, **more}


def remote_prefill(answer: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """What a router sends to a decoder."""
    prefiller = answer or {"remote_engine_id": "engine-kv_producer", "remote_host": "127.0.0.1", "remote_port": 14579}
    return {**prefiller, "do_remote_prefill": True, "do_remote_decode": False, **more}
