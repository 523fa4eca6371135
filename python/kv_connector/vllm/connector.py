"""``KvMessengerConnector``: the class that vLLM loads, by name or by ``kv_connector_module_path``.

One object in the scheduler's process, one in each worker's. It only passes calls on to the two halves, and lets no
exception out once the engine runs: a fault becomes a logged sentence and a failed request, never a dead engine. Two
faults end it: pages that may still be read cannot be given out again, and a messenger was lost (``on_messenger_lost``).
A set-up that cannot work ends the start of the engine instead, with a sentence that names the remedy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from kv_connector._facade import Messenger
from kv_connector._preflight import find_java
from kv_connector.exceptions import KvConnectorError, MessengerError, OptionError
from kv_connector.options import check_options
from kv_connector.vllm.engine_facts import (
    EngineFacts,
    adapters_kept_max,
    digest_of_model,
    read_facts,
    read_options,
    refuse_device,
)
from kv_connector.vllm.fetch_gate import FetchGate
from kv_connector.vllm.kv_groups import longest_request_blocks
from kv_connector.vllm.loaded_adapters import LoadedAdapters
from kv_connector.vllm.metadata import MessengerAddress, StepMetadata, WorkerNews
from kv_connector.vllm.prompts import digest_of
from kv_connector.vllm.rank_start import OpenMessenger, OwnPart, RankStart
from kv_connector.vllm.scheduler_half import SchedulerHalf
from kv_connector.vllm.stats import MessengerPromMetrics, MessengerStats
from kv_connector.vllm.transfer_params import Side
from kv_connector.vllm.vllm_api import (
    CacheHitSource,
    KVConnectorBase,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
    all_ranks_vote,
    hear_of_weights,
    init_logger,
    load_failure_policy,
    outer_of,
    own_device_type,
)
from kv_connector.vllm.weight_changes import WeightChanges, may_change_weights
from kv_connector.vllm.worker_half import WorkerHalf

logger = init_logger("vllm.kv_messenger")

Method = TypeVar("Method", bound=Callable[..., Any])


def guarded(otherwise: Callable[[], object]) -> Callable[[Method], Method]:
    """Makes a method answer ``otherwise()`` when it fails: vLLM ends the engine on any exception of a connector."""

    def guard(method: Method) -> Method:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> object:
            try:
                return method(*args, **kwargs)
            except Exception:
                logger.exception("%s failed; the engine goes on", method.__name__)
                return otherwise()

        return cast("Method", call)

    return guard


class KvMessengerConnector(KVConnectorBase, SupportsHMA):
    """Sends KV from prefillers and receives it on decoders, by the messenger in the worker's process."""

    _cache_hit_source = CacheHitSource.P2P

    open_messenger: OpenMessenger = staticmethod(Messenger.open)
    """How a worker gets its messenger."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        self._caches = kv_cache_config
        self._facts: EngineFacts = read_facts(vllm_config, kv_cache_config)
        self._scheduler: SchedulerHalf | None = None
        self._start: RankStart | None = None
        self._part = OwnPart()
        self._legacy_failed_blocks: set[int] = set()
        groups = self._facts.groups
        if role == KVConnectorRole.SCHEDULER:
            side = Side(self._facts.options.role, groups.tp_size, groups.pp_size, groups.messenger_count)
            longest_blocks = longest_request_blocks(kv_cache_config, vllm_config)
            gate = FetchGate(longest_blocks, self._facts.options.fetch_limit_seconds)
            self._adapters = LoadedAdapters(adapters_kept_max(vllm_config), logger)
            files = functools.partial(digest_of_model, vllm_config, logger)
            self._weights = WeightChanges(files, self._adapters.forget, logger)
            self._weights.started_with(vllm_config.model_config.model)
            hear_of_weights(may_change_weights, logger)
            self._scheduler = SchedulerHalf(side, self._facts.kv_groups, gate, logger, self._digest_of)
            if self._facts.not_shared_because:
                logger.info("each rank has a messenger of its own: %s", self._facts.not_shared_because)

    # ---- classmethods: called before any object exists, in any process

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """None: pages of every layout that both sides have are transferred, and other connectors may have a wish.

        vLLM asks on every device, when the model is loaded and before it measures how much memory is left for KV: what
        was not refused before ends the start here.
        """
        options = read_options(vllm_config)
        refuse_device(vllm_config.device_config.device_type, options.gpu)
        find_java(options.java_home)
        return None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """No: what a whole graph counts is bounded by the step that it runs in (docs/decisions, 0026).

        It is the only question that comes before the model is loaded: a wrong set-up ends the start here.

        It comes where vLLM may capture whole graphs, on GPUs; elsewhere ``get_required_kvcache_layout`` is the first.
        """
        options = check_options(extra_config or {})
        refuse_device(own_device_type(), options.gpu)
        find_java(options.java_home)
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:  # noqa: ARG003
        """The messenger cannot follow the KV cache to another address."""
        return False

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> MessengerStats:
        """Figures that came from another process."""
        return MessengerStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> MessengerPromMetrics:
        """Figures on vLLM's metrics page."""
        return MessengerPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # ---- worker: start and end

    def _starting(self) -> RankStart:
        if self._start is None:
            self._start = RankStart(self._config, self._facts, self.open_messenger, logger)
        return self._start

    @property
    def _worker(self) -> WorkerHalf | None:
        """None in the scheduler's process, and on ranks whose messenger another rank hosts."""
        return self._part.worker

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        """Puts the KV cache into memory that other processes of this host can map, where that is possible."""
        return self._starting().shareable_allocation()  # type: ignore[no-any-return]

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Opens the messenger over the KV cache; a set-up that cannot work ends the start of the engine here."""
        outer = outer_of(self)
        try:
            self._check_failure_policy(outer)
            self._part = self._starting().take_part(kv_caches)
        except KvConnectorError as fault:
            logger.error("KV Messenger cannot start: %s", fault)
            raise
        self._part.every_rank_votes = all_ranks_vote(outer)

    def _check_failure_policy(self, outer: Any | None) -> None:
        """vLLM has one for all loads: what is said of it inside MultiConnector would be passed over in silence."""
        if outer is None:
            return
        said, heeded = load_failure_policy(self._config), load_failure_policy(outer._vllm_config)
        if said != heeded and said == "recompute":
            raise OptionError(
                f"kv_load_failure_policy is {said!r} at KvMessengerConnector and {heeded!r} around it, expected it"
                " there: vLLM heeds the outer one for the loads of all connectors; set it at MultiConnector"
            )

    @guarded(lambda: None)
    def get_handshake_metadata(self) -> MessengerAddress | None:
        """Where this rank's messenger listens, if it has one; vLLM brings it to the scheduler's object."""
        return self._worker.address() if self._worker is not None else None

    @guarded(lambda: None)
    def shutdown(self) -> None:
        """Ends the messenger, or this rank's part in it."""
        self._part.close()

    # ---- worker: each step

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Before blocks of preempted requests are overwritten.

        The one call whose failure ends the engine: a messenger that can neither be fenced nor closed may still send
        from these blocks, and a decoder would answer with another request's KV.
        """
        if isinstance(kv_connector_metadata, StepMetadata):
            self._part.fence(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Before the forward pass: the messenger learns the chunks here, because start_load_kv comes after it."""
        self._end_without_messenger()
        super().bind_connector_metadata(connector_metadata)
        self._begin(connector_metadata)

    def _end_without_messenger(self) -> None:
        """Ends the engine if its messenger was lost: a healthy one that moves nothing would get the next requests."""
        reason = self._part.lost_because
        if reason and self._facts.options.on_messenger_lost == "exit":
            raise MessengerError(
                f"this engine ends because its messenger was lost ({reason}): start it again, or set on_messenger_lost"
                " to 'stay' to let it go on without moving KV"
            )

    @guarded(lambda: None)
    def _begin(self, connector_metadata: Any) -> None:
        if isinstance(connector_metadata, StepMetadata):
            self._part.begin(connector_metadata)

    def has_connector_metadata(self) -> bool:
        """False switches the hooks of all layers off for a step in which nothing is to be sent.

        While a graph is captured they are on: what they queue then, the graph repeats in each step that it runs in.
        """
        return self._worker is not None and self._worker.wants_layers

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing: fetches started when the metadata was bound."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request is scheduled only when all its KV is there."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Counts the layer."""
        try:
            if self._worker is not None:
                self._worker.layer_complete(layer_name)
        except Exception:
            logger.exception("layer %s was not counted; it leaves at the end of the step", layer_name)

    @guarded(lambda: None)
    def finish_forward(self) -> None:
        """The model's own layers are done, and a drafter's are not, if there is one."""
        if self._worker is not None:
            self._worker.forward_over()

    @guarded(lambda: None)
    def wait_for_save(self) -> None:
        """The forward pass is over; returns at once, because blocks are kept until they are sent."""
        if self._worker is not None:
            self._worker.end()

    @guarded(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:  # noqa: ARG002
        """Requests that were sent, received, or failed since the last step."""
        reports = self._part.collect()
        return KVConnectorTransferResults(
            finished_sending=reports.sent,
            finished_recving=reports.received,
            failed_recving=set(reports.failed),
        )

    @guarded(lambda: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        """The older form of get_transfer_results: failures are told by their blocks."""
        reports = self._part.collect()
        for blocks in reports.failed.values():
            self._legacy_failed_blocks.update(blocks)
        return reports.sent or None, reports.received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Empty, unless the engine asks for results in the older form: it must not hear of a failure twice."""
        blocks, self._legacy_failed_blocks = self._legacy_failed_blocks, set()
        return blocks

    @guarded(lambda: None)
    def get_kv_connector_stats(self) -> MessengerStats | None:
        """Figures for vLLM's log and metrics; the scheduler's object has none."""
        figures = self._worker.figures() if self._worker is not None else None
        return MessengerStats(data=figures) if figures is not None else None

    @guarded(lambda: None)
    def build_connector_worker_meta(self) -> WorkerNews | None:
        """What the scheduler's object must know before it frees the blocks of what was just reported."""
        return self._worker.take_news() if self._worker is not None else None

    # ---- scheduler

    def get_finished_count(self) -> int:
        """How many workers report each request: those that host a messenger, where no connector beside it wants all."""
        return self._facts.groups.messenger_count

    @property
    def _half(self) -> SchedulerHalf:
        if self._scheduler is None:
            raise AssertionError("a scheduler's method was called on a worker's object")
        return self._scheduler

    @guarded(lambda: None)
    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Where blocks are taken from that must wait longer than their request."""
        self._half.bind(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """All messengers' addresses; ends the start of the engine if they are not as many as will be waited for."""
        self._check_addresses(metadata.values())
        expected = self._facts.groups.messenger_count
        if len(metadata) != expected:
            raise AssertionError(f"{len(metadata)} workers host a messenger, expected {expected}")
        self._half.set_addresses(metadata)

    def _check_addresses(self, said: Iterable[object]) -> None:
        """Inside MultiConnector all connectors are told what the first one that has anything to say has said."""
        others = sorted({type(each).__name__ for each in said if not isinstance(each, MessengerAddress)})
        if others and self._facts.options.role != "decoder":
            raise OptionError(
                f"KV Messenger was told {' and '.join(others)} in place of its messengers' addresses, expected those,"
                " because MultiConnector passes on what the first of its connectors says: name KvMessengerConnector"
                " first, or leave the other one out"
            )

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """All messengers' addresses, without pipeline ranks."""
        self.set_xfer_handshake_metadata_pp_aware({(0, rank): address for rank, address in metadata.items()})

    @guarded(lambda: None)
    def on_new_request(self, request: Any) -> None:
        """The request is queued."""
        self._half.queued(request)

    @guarded(lambda: None)
    def on_weights_called(
        self, method: object, args: Sequence[Any], kwargs: Mapping[str, Any], fault: BaseException | None
    ) -> None:
        """The workers were told to do what may change the engine's weights."""
        self._weights.on_called(method, args, kwargs, fault)

    @guarded(lambda: None)
    def on_weights_versioned(self, version: str) -> None:
        """The engine was told which weights it has."""
        self._weights.on_versioned(version)

    @guarded(lambda: None)
    def on_adapter_added(self, adapter: Any) -> None:
        """The workers were given a LoRA adapter."""
        self._adapters.on_added(adapter)

    @guarded(lambda: None)
    def on_adapter_removed(self, number: int) -> None:
        """The workers have dropped a LoRA adapter."""
        self._adapters.on_removed(number)

    def _digest_of(self, request: Any) -> str:
        return digest_of(request, self._weights.name(), self._adapters.identity)

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How much of the prompt will come from a prefiller."""
        return self._half.matched_tokens(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:  # noqa: ARG002
        """A fetch fills the request's own blocks in every group that is transferred."""
        return tuple(self._caches.transfer_group_ids)

    @guarded(lambda: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has its blocks."""
        try:
            self._half.allocated(request, blocks.get_block_ids(), num_external_tokens)
        except Exception:
            if num_external_tokens:
                self._half.refuse(request.request_id)  # else it would wait for ever
            raise

    @guarded(lambda: StepMetadata(step=0))
    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """The step's metadata; vLLM sends it to all workers."""
        return self._half.build(scheduler_output)

    @guarded(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        """What all workers have reported."""
        self._half.reported(
            connector_output.finished_sending or (),
            connector_output.finished_recving or (),
            connector_output.kv_connector_worker_meta,
        )

    @guarded(lambda: (True, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        """For engines with one group of KV caches."""
        return self._half.finished(request)

    @guarded(lambda: (True, None))
    def request_finished_all_groups(
        self,
        request: Any,
        block_ids: tuple[list[int], ...],  # noqa: ARG002
    ) -> tuple[bool, dict[str, Any] | None]:
        """The engine has ended the request; True keeps its blocks until it is reported.

        Should it fail, the blocks are kept: blocks that something may still read or write are never given back.
        """
        return self._half.finished(request)

    @guarded(lambda: False)
    def has_pending_push_work(self) -> bool:
        """Keeps the engine stepping until all that it waits for is reported."""
        return self._half.has_work()

    def reset_cache(self) -> bool:
        """True: nothing is cached here."""
        return True
