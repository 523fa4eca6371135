"""A worker's start: it opens a messenger over its KV cache, or hands its memory to the rank that hosts one.

Used by the worker's main thread, once, while the engine starts. A configuration that cannot work raises
KvConnectorError, which ends the engine's start.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kv_connector.configuration.options import Options
from kv_connector.memory.cuda_driver import CudaDriver
from kv_connector.memory.device_allocation import DeviceAllocation, allocation_to_share
from kv_connector.memory.device_counter import DeviceCounting
from kv_connector.memory.device_memory import DeviceMemories
from kv_connector.memory.first_pass import FirstPass
from kv_connector.memory.geometry import DeviceMemory, Geometry, Group, Memory
from kv_connector.memory.handover import Follower, Lead, meeting_place
from kv_connector.memory.layer_counter import LayerCounter
from kv_connector.memory.votes import Votes
from kv_connector.naming.model_fingerprint import fingerprint
from kv_connector.runtime.facade import LAG_LEAD_ONLY, LAG_NONE, MessengerPort
from kv_connector.vllm import geometry, kv_settings
from kv_connector.vllm.drafts import draft_with_kv, named_with
from kv_connector.vllm.empty_steps import EmptySteps
from kv_connector.vllm.engine_facts import EngineFacts, digest_of_model, options_of_messenger
from kv_connector.vllm.head_counts import HeadCounts
from kv_connector.vllm.kv_groups import GroupPages
from kv_connector.vllm.last_token_proof import StepProofs, proof_layers
from kv_connector.vllm.messenger_limits import Limits
from kv_connector.vllm.metadata import StepMetadata
from kv_connector.vllm.pair_proofs import check_of_engine
from kv_connector.vllm.rank_groups import RankGroup
from kv_connector.vllm.reports import Reports
from kv_connector.vllm.request_numbers import RequestNames
from kv_connector.vllm.submitted_steps import SubmittedSteps
from kv_connector.vllm.vllm_api import attention_packing, own_page_format, own_ranks
from kv_connector.vllm.worker_half import WorkerHalf


class OpenMessenger(Protocol):
    """Opens a messenger over the memory of all its ranks."""

    def __call__(self, options: Options, geometry: Geometry, *, layer_counter_lag: int) -> MessengerPort:
        """Returns the open messenger; raises KvConnectorError."""


@dataclass
class OwnPart:
    """A worker's part in a messenger after its start: it hosts one, alone or as lead of other ranks, or is a follower.

    Used by the worker's main thread only.
    """

    worker: WorkerHalf | None = None
    lead: Lead | None = None
    follower: Follower | None = None
    proofs: StepProofs = field(default_factory=StepProofs)
    counts_proofs: bool = False
    """Whether this messenger's metrics count the engine's comparisons: one of them does."""
    every_rank_votes: bool = False
    """Whether the engine waits for followers too until they report that a request is over."""
    _empty_steps: EmptySteps = field(default_factory=EmptySteps)
    """Used by a follower, as are the names; ``WorkerHalf`` has its own."""
    _names: RequestNames = field(default_factory=RequestNames)
    _step_computes: bool = False

    @property
    def lost_because(self) -> str:
        """Why the messenger in this process was given up; "" while it works, or if another process hosts it."""
        return self.worker.lost_because if self.worker is not None else ""

    def begin(self, meta: StepMetadata) -> None:
        """Passes on the step's metadata, before the forward pass."""
        self.proofs.begin(meta.proofs, meta.shadow_proofs)
        if self.worker is not None:
            if self.counts_proofs:
                self.worker.count(meta.tallies)
            self.worker.begin(meta)
            return
        if self.every_rank_votes:
            self._names.learn(meta.names)
        self._step_computes = meta.computes
        if meta.computes or meta.fetches or meta.prefill_ends:
            self._empty_steps.interrupted()

    def collect(self) -> Reports:
        """The reports since the last call. A follower waits in empty steps as its lead does, and reports the same."""
        if self.worker is not None:
            reports = self.worker.collect()
            if self.every_rank_votes and self.lead is not None:
                self.lead.send_votes(Votes(reports.sent, reports.received))
            return reports.named(self.worker.names)
        if self.follower is None:
            return Reports()
        if not self._step_computes:
            self._wait(self.follower)
        if not self.every_rank_votes:
            return Reports()
        votes = self.follower.take_votes()
        reports = Reports(sent=votes.sent, received=votes.received)  # the lead has reported those that failed
        return reports.named(self._names)

    def _wait(self, follower: Follower) -> None:
        if self.every_rank_votes:
            self._empty_steps.wait(follower.has_heard, follower.pause)
        else:
            self._empty_steps.wait(lambda: False, time.sleep)

    def fence(self, meta: StepMetadata) -> None:
        """Waits until blocks of preempted requests may be overwritten, on this and all other ranks of the messenger."""
        if self.worker is not None:
            self.worker.fence(meta)
        if meta.preempted and self.lead is not None:
            self.lead.notify_fenced(meta.step)
        if meta.preempted and self.follower is not None:
            self.follower.wait_fenced(meta.step)

    def close(self) -> None:
        """Closes all parts; the messenger first, because it accesses the other ranks' memory."""
        for part in (self.worker, self.lead, self.follower):
            if part is not None:
                part.close()


class RankStart:
    """Allocates and describes the KV memory, hands it to the lead rank or opens the messenger. The main thread only."""

    def __init__(
        self, vllm_config: Any, facts: EngineFacts, open_messenger: OpenMessenger, logger: logging.Logger
    ) -> None:
        self._config = vllm_config
        self._facts = facts
        self._open_messenger = open_messenger
        self.cuda_driver: Callable[[], CudaDriver] = CudaDriver
        self.device_counting: Callable[[], DeviceCounting] = DeviceCounting.checked
        self._logger = logger
        self.allocation: Any = None
        """The allocation of the KV cache, if other processes can map it."""

    def shareable_allocation(self) -> Any:
        """A context that allocates the KV cache in memory that peers and the lead rank can map; None if not needed."""
        on_cpu = self._config.device_config.device_type == "cpu"
        mapping = {"cuda", "shm"} if on_cpu else {"cuda"}
        mapped_by_peers = not mapping.isdisjoint(self._facts.options.transports)
        wanted = mapped_by_peers or self._facts.groups.tp_ranks_per_messenger > 1
        if not wanted:
            return None
        try:
            torch = importlib.import_module("torch")
            if on_cpu:
                shareable = importlib.import_module("kv_connector.vllm.shareable_memory")
                self.allocation = shareable.ShareableAllocation(torch, self._logger)
            else:
                self.allocation = allocation_to_share(torch, self.cuda_driver(), self._logger)
        except Exception:
            self._logger.exception("KV memory cannot be shared with other processes: shm is not offered")
        return self.allocation

    def take_part(self, kv_caches: Mapping[str, Any]) -> OwnPart:
        """Opens the messenger if this rank is its lead, or hands the memory to the lead; raises KvConnectorError."""
        tp_rank, pp_rank = own_ranks()
        group = self._facts.groups.of(tp_rank, pp_rank)
        own, pages = self._describe(kv_caches, tp_rank, pp_rank)
        place = meeting_place(self._facts.options.engine_id, group.index)
        proofs = self._step_proofs(kv_caches)
        counts = group.index == 0
        if (pp_rank, tp_rank) != group.lead:
            follower = Follower.hand_over(place, own, self._logger, device_memories=self._device_memories())
            self._logger.info(
                "KV memory was handed to tensor-parallel rank %d, which hosts the messenger", group.lead[1]
            )
            return OwnPart(follower=follower, proofs=proofs)
        if not group.followers:
            return OwnPart(worker=self._open(group, own, pages), proofs=proofs, counts_proofs=counts)
        lead = Lead(place, group.followers, self._logger, self._device_memories())
        try:
            worker = self._open(group, lead.gather(own), pages)
            return OwnPart(worker=worker, lead=lead, proofs=proofs, counts_proofs=counts)
        except BaseException:
            lead.close()
            raise

    def _step_proofs(self, kv_caches: Mapping[str, Any]) -> StepProofs:
        """The comparison of this rank's rows; on any fault none, which no transfer needs."""
        facts = self._facts
        if facts.options.role == "prefiller" or check_of_engine(self._config, facts) == "off":
            return StepProofs()
        try:
            drafted = self._drafted_layers()
            own = [name for name in facts.layer_names if name in kv_caches]
            names = [name for name in own if not self._is_state(name)]
            built = self._config.compilation_config.static_forward_context
            compared = proof_layers(kv_caches, names[: len(names) - drafted], facts.kv_groups, built)
            return StepProofs.over(compared, self._config, self._logger)
        except Exception:
            self._logger.exception("received KV is not compared with this engine's own")
            return StepProofs()

    def _is_state(self, name: str) -> bool:
        return any(group.state and name in group.layer_names for group in self._facts.kv_groups)

    def _drafted_layers(self) -> int:
        """Layers of a draft, which come last: their KV depends on what each side has sampled."""
        draft = draft_with_kv(self._config)
        return 0 if draft is None else int(draft.get_total_num_hidden_layers())

    def _device_memories(self) -> DeviceMemories | None:
        return self.allocation.memories if isinstance(self.allocation, DeviceAllocation) else None

    def _describe(self, kv_caches: Mapping[str, Any], tp_rank: int, pp_rank: int) -> tuple[Geometry, list[GroupPages]]:
        facts = self._facts
        described, pages = geometry.describe(
            kv_caches,
            layer_names=facts.layer_names,
            groups=facts.kv_groups,
            cache_dtype=self._config.cache_config.cache_dtype,
            model=self._model_name(),
            kv_head_counts=HeadCounts.read(self._config.model_config, draft_with_kv(self._config)),
            tp=(tp_rank, facts.groups.tp_size),
            pp=(pp_rank, facts.groups.pp_size),
        )
        if self.allocation is not None:
            for memory in described["ranks"][0]["memories"]:
                place = memory["address"], memory["lengthBytes"]
                if memory["kind"] == "host":
                    memory["memfd"] = self.allocation.memfd_of(*place)
                else:
                    memory["handleKind"] = self.allocation.handle_kind_of(*place)
        return described, pages

    def _packing(self) -> str:
        attention_layers = self._config.compilation_config.static_forward_context
        return f"{attention_packing(attention_layers, self._facts.layer_names)}/{own_page_format()}"

    def _model_name(self) -> str:
        model, model_id = self._config.model_config, self._facts.options.model_id
        named = fingerprint(model.model, model.hf_text_config, self._packing(), model_id=model_id)
        return named_with(named, getattr(self._config, "speculative_config", None), model_id=model_id)

    def _weights_digest(self) -> str:
        """The digest of the weight files; "" with a ``model_id``, by which the user vouches for equal weights."""
        if self._facts.options.model_id:
            return ""
        return digest_of_model(self._config, self._logger, self._config.model_config.model)

    def _counting(self) -> DeviceCounting | None:
        """How layers are counted on a GPU; None on a CPU, and on a decoder, which sends no layer."""
        if self._config.device_config.device_type == "cpu":
            return None
        self._logger.warning(
            "gpu is 'unproven': this engine computes on a GPU, where KV Messenger has run with vLLM on one H100 and not"
            " with several GPUs, RDMA, or attention other than Triton's (docs/hardware.md)"
        )
        return self.device_counting() if self._facts.options.role != "decoder" else None

    def _open(self, group: RankGroup, described: Geometry, pages: list[GroupPages]) -> WorkerHalf:
        facts = self._facts
        counting = self._counting()
        described["weightsDigest"] = self._weights_digest()
        described["settings"] = kv_settings.compared(
            self._config,
            self._packing(),
            model_id=facts.options.model_id,
            stage=(group.lead[0], facts.groups.pp_size),
            logger=self._logger,
        )
        described["settingsMayDiffer"] = facts.options.settings_may_differ
        messenger = self._open_messenger(
            options_of_messenger(facts.options, facts.first_messenger_index + group.index),
            described,
            layer_counter_lag=LAG_LEAD_ONLY if group.followers else LAG_NONE,
        )
        own = next(rank for rank in described["ranks"] if (rank["ppRank"], rank["tpRank"]) == group.lead)
        names = [layer["name"] for layer in own["layers"]]
        opened = messenger.opened
        self._logger.info(
            "KV Messenger is open: %s, model %s, weights %s, %s, %s, memory %s",
            opened,
            described["model"],
            described["weightsDigest"] or "unknown",
            _worded(described["groups"], [layer["groupIndex"] for layer in own["layers"]]),
            "1 rank" if len(described["ranks"]) == 1 else f"{len(described['ranks'])} ranks",
            _reach(own["memories"]),
        )
        word = counting.word(opened.layer_counter_address) if counting is not None else None
        counter, first_pass = LayerCounter(opened.layer_counter_address, names, word), None
        if word is not None:
            self._logger.info("layers leave while forward passes run, once the first on this GPU was counted correctly")
            first_pass = FirstPass(counter, self._counted_layers(names), "layers", self._logger)
        return WorkerHalf(
            messenger,
            lambda submit: SubmittedSteps(submit, counter, names, first_pass, self._logger),
            pages,
            Limits(facts.options.fetch_limit_seconds, facts.options.silence_limit_seconds),
            self._logger,
        )

    def _counted_layers(self, names: Sequence[str]) -> int:
        """The layers that a pass of the model counts: no hook is called for a state, and a draft's layers run later."""
        return sum(not self._is_state(name) for name in names) - self._drafted_layers()


def _reach(memories: Sequence[Memory | DeviceMemory]) -> str:
    """Whether other processes can map the memories, as worded in the log."""
    shareable = [m["memfd"] >= 0 if m["kind"] == "host" else m["handleKind"] != "none" for m in memories]
    return "shareable" if all(shareable) else "private"


def _worded(groups: Sequence[Group], group_of_layers: Sequence[int]) -> str:
    """The pages of each group, as worded in the log."""
    return ", ".join(
        f"{group['pageCount']} pages of {group['pageTokens']} tokens in {group_of_layers.count(index)} layers"
        f"{' with a window of ' + str(group['windowTokens']) if group['windowTokens'] else ''}, {group['layout']}"
        for index, group in enumerate(groups)
    )
