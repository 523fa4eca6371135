"""``KvMessengerConnector``: the class that vLLM loads, by name or by ``kv_connector_module_path``.

There is one object in the scheduler's process and one in each worker's. It only delegates to the two halves, and no
exception leaves it once the engine runs: a fault is logged and fails a request, it does not end the engine. There are
two exceptions: pages that may still be read cannot be given out again, and a messenger was lost
(``on_messenger_lost``). A configuration that cannot work is an error at the engine's start instead, and the message
names the remedy.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kv_connector.configuration.options import check_options
from kv_connector.exceptions import KvConnectorError, MessengerError, OptionError
from kv_connector.runtime.facade import Messenger
from kv_connector.runtime.preflight import find_java
from kv_connector.vllm.deep_params import TOO_DEEP, kept_from_workers
from kv_connector.vllm.engine_facts import (
    EngineFacts,
    adapters_kept_max,
    digest_of_model,
    read_facts,
    read_options,
    refuse_device,
    refuse_kept_experts,
    refuse_sleep,
    side_of,
)
from kv_connector.vllm.fetch_gate import FetchGate
from kv_connector.vllm.guards import guarded
from kv_connector.vllm.kv_groups import longest_request_blocks
from kv_connector.vllm.last_token_checks import can_stop, check_of_engine
from kv_connector.vllm.loaded_adapters import LoadedAdapters
from kv_connector.vllm.metadata import MessengerAddress, StepMetadata, WorkerNews
from kv_connector.vllm.outer_connector import all_ranks_vote, reach_in_captures, refuse_unheeded_policy
from kv_connector.vllm.own_part import OwnPart
from kv_connector.vllm.pair_proofs import PairProofs
from kv_connector.vllm.prompts import digest_of
from kv_connector.vllm.pull_rules import pull_rules
from kv_connector.vllm.rank_start import OpenMessenger, RankStart
from kv_connector.vllm.request_numbers import shown
from kv_connector.vllm.scheduler_half import SchedulerHalf
from kv_connector.vllm.stats import MessengerPromMetrics, MessengerStats
from kv_connector.vllm.vllm_api import (
    CacheHitSource,
    KVConnectorBase,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
    hear_of_weights,
    ids_are_randomised,
    init_logger,
    load_failure_policy,
    outer_of,
    own_device_type,
    reports_sleep,
    withdraw_offers,
)
from kv_connector.vllm.weight_changes import WeightChanges, may_change_weights
from kv_connector.vllm.worker_half import WorkerHalf

logger = init_logger("vllm.kv_messenger")

HEADS_BEFORE_TOKENS = "LBHNC"
"""vLLM's name of the layout that it also knows as HND."""


class KvMessengerConnector(KVConnectorBase, SupportsHMA):
    """vLLM's interface to the messenger: sends KV on prefillers and receives it on decoders.

    vLLM calls each object from one thread: the engine core's in the scheduler's process, the worker's main thread in a
    worker. It holds no state of requests; ``SchedulerHalf`` and ``WorkerHalf`` do.
    """

    _cache_hit_source = CacheHitSource.P2P

    open_messenger: OpenMessenger = staticmethod(Messenger.open)
    """Opens the worker's messenger."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        self._caches = kv_cache_config
        self._facts: EngineFacts = read_facts(vllm_config, kv_cache_config)
        self._scheduler: SchedulerHalf | None = None
        self._start: RankStart | None = None
        self._part = OwnPart()
        self._failed_blocks: set[int] = set()
        if role == KVConnectorRole.SCHEDULER:
            side = side_of(vllm_config, self._facts, ids_have_suffix=ids_are_randomised())
            longest = longest_request_blocks(kv_cache_config, vllm_config)
            gate = FetchGate(longest, self._facts.options.fetch_limit_seconds)
            self._adapters = LoadedAdapters(adapters_kept_max(vllm_config), logger)
            files = functools.partial(digest_of_model, vllm_config, logger)
            self._weights = WeightChanges(files, self._adapters.forget, logger)
            self._weights.started_with(vllm_config.model_config.model)
            hear_of_weights(may_change_weights, logger)
            make_proofs = functools.partial(
                PairProofs,
                self._facts.kv_groups,
                check_of_engine(vllm_config, self._facts),
                can_stop=can_stop(vllm_config, self._facts.kv_groups, load_failure_policy(vllm_config)),
                weights=self._weights.name,
                adapter_of=self._adapters.identity,
                logger=logger,
            )
            rules = pull_rules(vllm_config, self._facts, load_failure_policy(vllm_config), logger)
            self._scheduler = SchedulerHalf(
                side, self._facts.kv_groups, gate, logger, self._digest_of, make_proofs, rules
            )
            if self._facts.not_shared_because:
                logger.info("each rank has a messenger of its own: %s", self._facts.not_shared_because)

    # ---- classmethods: called before any object exists, in any process

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Heads before tokens on a GPU; None on a CPU, which has no other layout, and for latent KV, without heads.

        Engines with different numbers of ranks then need one write for a page, and not one for each of its tokens.
        vLLM's other connectors give the same name, and MultiConnector compares names.

        vLLM calls this on every device, after the model is loaded and before it measures how much memory is left for
        KV. So a wrong configuration that no earlier check has found raises here.
        """
        options = read_options(vllm_config)
        refuse_device(vllm_config.device_config.device_type, options.gpu)
        refuse_sleep(vllm_config, reports_sleep=reports_sleep())
        refuse_kept_experts(vllm_config, options.role)
        find_java(options.java_home)
        on_a_gpu = vllm_config.device_config.device_type != "cpu"
        return HEADS_BEFORE_TOKENS if on_a_gpu and not vllm_config.model_config.use_mla else None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """False: what a full CUDA graph counts is bounded by the step that replays it (docs/decisions, 0026).

        This is the only call before the model is loaded, so a wrong configuration raises here. vLLM makes it only where
        it may capture full graphs, on GPUs; elsewhere ``get_required_kvcache_layout`` is the first call.
        """
        options = check_options(extra_config or {})
        refuse_device(own_device_type(), options.gpu)
        find_java(options.java_home)
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:  # noqa: ARG003
        """True: the messenger is closed before vLLM unmaps the KV cache, and another one is opened afterwards."""
        return True

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> MessengerStats:
        """Wraps statistics that another process sent."""
        return MessengerStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> MessengerPromMetrics:
        """The metrics on vLLM's metrics page."""
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
        """A context that allocates the KV cache in memory that peers and other ranks can map; None if not needed."""
        return self._starting().shareable_allocation()  # type: ignore[no-any-return]

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Opens the messenger over the KV cache; raises KvConnectorError, which ends the engine's start."""
        outer = outer_of(self)
        try:
            refuse_unheeded_policy(load_failure_policy(self._config), outer and load_failure_policy(outer._vllm_config))
            self._part = self._starting().take_part(kv_caches)
        except KvConnectorError as fault:
            logger.error("KV Messenger cannot start: %s", fault)
            raise
        self._part.every_rank_votes = all_ranks_vote(outer)
        reach_in_captures(outer, self)

    def unregister_kv_caches(self) -> None:
        """Closes the messenger before KV memory goes; peers are told. An exception keeps vLLM from unmapping it."""
        self._part = self._starting().fall_asleep(self._part)

    def restore_kv_caches(self) -> None:
        """Opens a messenger over the KV memory that came back; its address reaches the scheduler's object after it."""
        self._part = self._starting().wake_up(self._part)

    @guarded(lambda: None)
    def get_handshake_metadata(self) -> MessengerAddress | None:
        """The address of this rank's messenger, None if it has none; vLLM passes it to the scheduler's object."""
        if self._worker is None:
            return None
        return dataclasses.replace(self._worker.address(), compares_last_tokens=self._part.proofs.able)

    @guarded(lambda: None)
    def shutdown(self) -> None:
        """Closes the messenger, or this rank's part in it."""
        self._part.close()

    # ---- worker: each step

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Waits until nothing reads the blocks of preempted requests, before they are overwritten.

        A failure of this call ends the engine: a messenger that can neither be fenced nor closed may still send from
        these blocks, and a decoder would generate from another request's KV.
        """
        if isinstance(kv_connector_metadata, StepMetadata):
            self._part.fence(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Passes the chunks to the messenger, which needs them before the forward pass: start_load_kv is too late."""
        self._end_without_messenger()
        super().bind_connector_metadata(connector_metadata)
        self._begin(connector_metadata)

    def _end_without_messenger(self) -> None:
        """Ends the engine if its messenger was lost: it would look healthy, and routers would send it more requests."""
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
        """False switches the layer hooks off for a step that sends nothing.

        They stay on while a CUDA graph is captured: the graph repeats what they queue, in each step that replays it.
        """
        return self._worker is not None and self._worker.wants_layers

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Does nothing: fetches start in ``bind_connector_metadata``."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: a request is scheduled only after all its KV has arrived."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Counts the layer as complete."""
        try:
            if self._worker is not None:
                self._worker.layer_complete(layer_name)
        except Exception:
            logger.exception("layer %s was not counted; it leaves at the end of the step", layer_name)

    @guarded(lambda: None)
    def finish_forward(self) -> None:
        """The model's own layers are done; those of a drafter, if there is one, are not."""
        if self._worker is not None:
            self._worker.forward_over()

    @guarded(lambda: None)
    def wait_for_save(self) -> None:
        """Ends the step. Returns at once: blocks are kept until they are sent."""
        if self._worker is not None:
            self._worker.end()

    @guarded(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:  # noqa: ARG002
        """The requests that were sent, received, or failed since the last call."""
        reports = self._part.collect()
        self._failed_blocks.update(self._part.proofs.end())
        return KVConnectorTransferResults(
            finished_sending=reports.sent,
            finished_recving=reports.received,
            failed_recving=set(reports.failed),
        )

    @guarded(lambda: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        """The older form of ``get_transfer_results``, in which a failure is reported by its blocks."""
        reports = self._part.collect()
        for blocks in reports.failed.values():
            self._failed_blocks.update(blocks)
        self._failed_blocks.update(self._part.proofs.end())
        return reports.sent or None, reports.received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks whose KV this engine computes otherwise; with ``get_finished`` those of failed loads as well.

        A failed load must not be reported twice.
        """
        blocks, self._failed_blocks = self._failed_blocks, set()
        return blocks

    @guarded(lambda: None)
    def get_kv_connector_stats(self) -> MessengerStats | None:
        """Statistics for vLLM's log and metrics; None in the scheduler's process."""
        figures = self._part.figures()
        return MessengerStats(data=figures) if figures is not None else None

    @guarded(lambda: None)
    def build_connector_worker_meta(self) -> WorkerNews | None:
        """News that the scheduler's object needs before it frees the blocks of the requests just reported."""
        news = self._part.take_news()
        proved, shadows_proved = self._part.proofs.take()
        if proved or shadows_proved:
            news = news or WorkerNews()
            news.proved.extend(proved)
            news.shadows_proved.extend(shadows_proved)
        return news

    # ---- scheduler

    def get_finished_count(self) -> int:
        """The number of workers that report each request: those with a messenger. Another connector may require all."""
        return self._facts.groups.messenger_count

    @property
    def _half(self) -> SchedulerHalf:
        if self._scheduler is None:
            raise AssertionError("a scheduler's method was called on a worker's object")
        return self._scheduler

    @guarded(lambda: None)
    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Takes the engine's block pool: some blocks must stay reserved longer than their request."""
        self._half.bind(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Takes the addresses of all messengers; raises if their number is not that of the expected reports."""
        self._check_addresses(metadata.values())
        expected = self._facts.groups.messenger_count
        if len(metadata) != expected:
            raise AssertionError(f"{len(metadata)} workers host a messenger, expected {expected}")
        self._half.set_addresses(metadata)

    def _check_addresses(self, metadata: Iterable[object]) -> None:
        """MultiConnector passes the metadata of the first connector that has any to all of its connectors."""
        others = sorted({type(each).__name__ for each in metadata if not isinstance(each, MessengerAddress)})
        if others and self._facts.options.role != "decoder":
            raise OptionError(
                f"KV Messenger was told {' and '.join(others)} in place of its messengers' addresses, expected those,"
                " because MultiConnector passes on what the first of its connectors says: name KvMessengerConnector"
                " first, or leave the other one out"
            )

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """Takes the addresses of all messengers, by tensor-parallel rank."""
        self.set_xfer_handshake_metadata_pp_aware({(0, rank): address for rank, address in metadata.items()})

    @guarded(lambda: None)
    def on_new_request(self, request: Any) -> None:
        """The request is queued."""
        if kept_from_workers(request):
            logger.warning(TOO_DEEP, shown(request.request_id))
        self._half.queued(request)

    @guarded(lambda: None)
    def on_weights_called(
        self, method: object, args: Sequence[Any], kwargs: Mapping[str, Any], fault: BaseException | None
    ) -> None:
        """The workers were called with a method that may change the engine's weights."""
        self._half.cached.changed()
        self._half.weights_changed()
        self._weights.on_called(method, args, kwargs, fault)
        if self._weights.is_settled:
            self._half.weights_loaded()

    @guarded(lambda: None)
    def on_coming_to_rest(self, finishes: bool) -> None:
        """The engine begins no request any more until it has loaded weights; those under way end first, or freeze."""
        self._half.rest.begin(finishes=finishes)

    @guarded(lambda: None)
    def on_going_on(self) -> None:
        """The engine begins requests again, whether it has loaded weights or not."""
        self._half.rest.end()

    @guarded(lambda: None)
    def on_slept(self, level: int) -> None:
        """The engine sleeps. On a CPU vLLM keeps all its memory."""
        if self._config.device_config.device_type != "cpu":
            self._weights.on_slept(level)
            self._half.cached.changed()

    @guarded(lambda: None)
    def on_weights_versioned(self, version: str) -> None:
        """The engine was given the version of its weights."""
        self._weights.on_versioned(version)
        self._half.weights_loaded()

    @guarded(lambda: None)
    def on_adapter_added(self, adapter: Any) -> None:
        """The workers have loaded a LoRA adapter."""
        self._adapters.on_added(adapter)
        self._half.weights_loaded()

    @guarded(lambda: None)
    def on_adapter_removed(self, number: int) -> None:
        """The workers have dropped a LoRA adapter."""
        self._adapters.on_removed(number)
        self._half.weights_loaded()

    def _digest_of(self, request: Any) -> str:
        return digest_of(request, self._weights.name(), self._adapters.identity)

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens of the prompt will come from a prefiller, and whether they are loaded asynchronously."""
        return self._half.matched_tokens(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:  # noqa: ARG002
        """All groups that are transferred: a fetch fills the request's own blocks in each."""
        return tuple(self._caches.transfer_group_ids)

    @guarded(lambda: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has its blocks."""
        self._half.cached.filled()
        try:
            self._half.allocated(request, blocks.get_block_ids(), num_external_tokens)
        except Exception:
            if num_external_tokens:
                self._half.refuse(request.request_id)  # otherwise it would wait forever
            raise

    @guarded(lambda: StepMetadata(step=0))
    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """The step's metadata, which vLLM sends to all workers."""
        return self._half.build(scheduler_output)

    @guarded(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        """Takes what all workers have reported."""
        self._half.reported(
            connector_output.finished_sending or (),
            connector_output.finished_recving or (),
            connector_output.kv_connector_worker_meta,
        )

    @guarded(lambda: (True, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        """``request_finished_all_groups`` for engines with one group of KV caches."""
        return self._half.finished(request)

    @guarded(lambda: (True, None))
    def request_finished_all_groups(
        self,
        request: Any,
        block_ids: tuple[list[int], ...],  # noqa: ARG002
    ) -> tuple[bool, dict[str, Any] | None]:
        """(whether the request's blocks are kept until it is reported, kv_transfer_params of its response).

        If it fails, the blocks are kept: blocks that may still be read or written are never freed.
        """
        return self._half.finished(request)

    @guarded(lambda: False)
    def has_pending_push_work(self) -> bool:
        """Whether the engine must go on stepping, because reports are outstanding."""
        return self._half.has_work()

    @guarded(lambda: None)
    def before_cache_reset(self, call_workers: Callable[[Callable[[Any], list[str]]], Iterable[list[str]]]) -> None:
        """The prefix cache is about to be emptied, which fails while blocks are held for engines that ask for them."""
        if self._half.before_cache_reset():
            self._half.on_released([number for numbers in call_workers(withdraw_offers) for number in numbers])

    @guarded(lambda: None)
    def on_cache_reset(self) -> None:
        """The prefix cache is empty."""
        self._half.cached.emptied()

    def withdraw_offers(self) -> list[str]:
        """Ends the offers of this worker's messenger that no engine is fetching; returns those that are released."""
        return self._worker.withdraw_offers() if self._worker is not None else []

    def reset_cache(self) -> bool:
        """True: there is no cache to reset."""
        return True
