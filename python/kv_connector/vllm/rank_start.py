"""A worker's start: it opens a messenger over its KV cache, or hands its memory to the rank that hosts one.

Used by the worker's main thread, once, while the engine starts. A configuration that cannot work raises
KvConnectorError, which ends the engine's start.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kv_connector.configuration.options import Options
from kv_connector.memory.cuda_driver import CudaDriver, CudaError
from kv_connector.memory.device_allocation import DeviceAllocation, allocation_to_share
from kv_connector.memory.device_counter import DeviceCounting
from kv_connector.memory.device_memory import DeviceMemories
from kv_connector.memory.device_word import DeviceWord
from kv_connector.memory.first_pass import FirstPass
from kv_connector.memory.geometry import DeviceMemory, Geometry, Group, Memory
from kv_connector.memory.handover import Follower, Lead, meeting_place
from kv_connector.memory.layer_counter import LayerCounter
from kv_connector.memory.waited_word import WaitedWord, wait_for_stream
from kv_connector.naming.model_fingerprint import fingerprint
from kv_connector.runtime.facade import LAG_LEAD_ONLY, LAG_NONE, MessengerPort, Opened
from kv_connector.runtime.sleep import StandIn, reopened
from kv_connector.vllm import geometry, kv_settings
from kv_connector.vllm.drafts import draft_with_kv, named_with
from kv_connector.vllm.engine_facts import EngineFacts, digest_of_model, options_of_messenger
from kv_connector.vllm.head_counts import HeadCounts
from kv_connector.vllm.kv_groups import GroupPages
from kv_connector.vllm.last_token_checks import check_of_engine
from kv_connector.vllm.last_token_proof import StepProofs, proof_layers
from kv_connector.vllm.messenger_limits import Limits
from kv_connector.vllm.own_part import OwnPart
from kv_connector.vllm.page_bytes import page_bytes
from kv_connector.vllm.rank_groups import RankGroup
from kv_connector.vllm.sleep import SleepingPart
from kv_connector.vllm.submitted_steps import SubmittedSteps
from kv_connector.vllm.vllm_api import attention_packing, own_fp8_format, own_page_format, own_ranks, own_release
from kv_connector.vllm.worker_half import WorkerHalf


class OpenMessenger(Protocol):
    """Opens a messenger over the memory of all its ranks."""

    def __call__(self, options: Options, geometry: Geometry, *, layer_counter_lag: int) -> MessengerPort:
        """Returns the open messenger; raises KvConnectorError."""


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
        self.wait_for_device: Callable[[], None] = wait_for_stream
        self._logger = logger
        self.allocation: Any = None
        """The allocation of the KV cache, if other processes can map it."""
        self.make_stand_in: Callable[[Options, Opened, logging.Logger], StandIn] = StandIn
        self._kv_caches: Mapping[str, Any] = {}
        self._digest: str | None = None
        self._word: DeviceWord | None = None
        """Counts layers on a GPU; captured graphs have it for as long as the process lives."""

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
        self._kv_caches = kv_caches
        return self._take_part(None)

    def fall_asleep(self, part: OwnPart) -> OwnPart:
        """Ends the part of an engine that has no transfer under way, and gives back the memory allocated here.

        Raises KvConnectorError if the memory may still be accessed; then the engine must not sleep.
        """
        if part.is_asleep or (part.worker is None and part.follower is None):
            return part
        asleep = SleepingPart.after(part, self._stand_in, self._logger)
        if self._word is not None:
            self._word.let_go()
        if isinstance(self.allocation, DeviceAllocation):
            self.allocation.memories.release()
        self._logger.info("this engine sleeps: its messenger is closed, and peers are refused until it wakes up")
        return asleep

    def wake_up(self, part: OwnPart) -> OwnPart:
        """Takes part as at the start, in memory that is there again; raises KvConnectorError."""
        if not isinstance(part, SleepingPart):
            return part
        if isinstance(self.allocation, DeviceAllocation):
            self.allocation.memories.restore()
        part.close()
        woken = self._take_part(part.stand_in.options if part.stand_in is not None else None)
        woken.take_over(part.left)
        return woken

    def _stand_in(self, opened: Opened) -> StandIn:
        group = self._facts.groups.of(*own_ranks())
        return self.make_stand_in(self._options_of(group), opened, self._logger)

    def _options_of(self, group: RankGroup) -> Options:
        return options_of_messenger(self._facts.options, self._facts.first_messenger_index + group.index)

    def _take_part(self, options: Options | None) -> OwnPart:
        """``options``: those of an earlier messenger of this rank, with its ports; None if there was none."""
        kv_caches = self._kv_caches
        tp_rank, pp_rank = own_ranks()
        group = self._facts.groups.of(tp_rank, pp_rank)
        own, pages = self._describe(kv_caches, tp_rank, pp_rank)
        place = meeting_place(self._facts.options.engine_id, group.index)
        proofs = self._step_proofs(kv_caches)
        if (pp_rank, tp_rank) != group.lead:
            follower = Follower.hand_over(place, own, self._logger, device_memories=self._device_memories())
            self._logger.info(
                "KV memory was handed to tensor-parallel rank %d, which hosts the messenger", group.lead[1]
            )
            return OwnPart(follower=follower, proofs=proofs)
        if not group.followers:
            return OwnPart(worker=self._open(group, own, pages, options), proofs=proofs)
        lead = Lead(place, group.followers, self._logger, self._device_memories())
        try:
            worker = self._open(group, lead.gather(own), pages, options)
            return OwnPart(worker=worker, lead=lead, proofs=proofs)
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

    def _written(self) -> str:
        """What pages hold; "" if it is not known, and on any fault, because a start must not fail for a comparison."""
        built = self._config.compilation_config.static_forward_context
        try:
            held = page_bytes(built, self._facts.layer_names, own_release(), own_fp8_format)
        except Exception:
            self._logger.warning("what pages hold is compared with peers by the backends' names", exc_info=True)
            return ""
        return f"{held}/{own_page_format()}" if held else ""

    def _model_name(self) -> str:
        model, model_id = self._config.model_config, self._facts.options.model_id
        named = fingerprint(model.model, model.hf_text_config, self._packing(), model_id=model_id)
        return named_with(named, getattr(self._config, "speculative_config", None), model_id=model_id)

    def _weights_digest(self) -> str:
        """The digest of the weight files; "" with a ``model_id``, by which the user vouches for equal weights.

        It is that of the start: files may be replaced while the engine keeps its weights, and weights that come later
        are named by the scheduler's half.
        """
        if self._facts.options.model_id:
            return ""
        if self._digest is None:
            self._digest = digest_of_model(self._config, self._logger, self._config.model_config.model)
        return self._digest

    def _is_on_cpu(self) -> bool:
        return bool(self._config.device_config.device_type == "cpu")

    def _counting(self) -> DeviceCounting | None:
        """How layers are counted on a GPU; None on a CPU, on a decoder, which sends no layer, and if the GPU cannot."""
        if self._is_on_cpu():
            return None
        self._logger.warning(
            "gpu is 'unproven': this engine computes on a GPU, where KV Messenger has run with vLLM on one H100 and not"
            " with several GPUs, RDMA, or attention other than Triton's (docs/hardware.md)"
        )
        if self._facts.options.role == "decoder":
            return None
        try:
            return self.device_counting()
        except CudaError as fault:
            self._say_that_layers_wait(fault)
            return None

    def _say_that_layers_wait(self, fault: CudaError) -> None:
        self._logger.warning("layers leave when their forward pass is over, because this GPU cannot count: %s", fault)

    def _open(
        self, group: RankGroup, described: Geometry, pages: list[GroupPages], options: Options | None
    ) -> WorkerHalf:
        facts = self._facts
        counting = self._counting()
        described["weightsDigest"] = self._weights_digest()
        described["settings"] = kv_settings.compared(
            self._config,
            self._packing(),
            self._written(),
            model_id=facts.options.model_id,
            stage=(group.lead[0], facts.groups.pp_size),
            logger=self._logger,
        )
        described["settingsMayDiffer"] = facts.options.settings_may_differ
        lag = LAG_LEAD_ONLY if group.followers else LAG_NONE
        messenger = reopened(
            options,
            self._options_of(group),
            lambda each: self._open_messenger(each, described, layer_counter_lag=lag),
            self._logger,
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
        counter, first_pass = self._counter(counting, opened.layer_counter_address, names)
        return WorkerHalf(
            messenger,
            lambda submit: SubmittedSteps(submit, counter, names, first_pass, self._logger),
            pages,
            Limits(facts.options.fetch_limit_seconds, facts.options.silence_limit_seconds),
            self._logger,
            is_first=group.index == 0,
        )

    def _counter(
        self, counting: DeviceCounting | None, address: int, names: Sequence[str]
    ) -> tuple[LayerCounter, FirstPass | None]:
        """The counter of these layers, and on a GPU that sends some the check of its first pass."""
        word = self._aimed_word(counting, address)
        if word is None and (self._is_on_cpu() or self._facts.options.role == "decoder"):
            return LayerCounter(address, names), None
        counter = LayerCounter(address, names, word or WaitedWord(address, self.wait_for_device))
        first_pass = FirstPass(counter, self._counted_layers(names), "layers", self._logger)
        if word is None:
            first_pass.is_due = False
        else:
            self._logger.info("layers leave while forward passes run, once the first on this GPU was counted correctly")
        return counter, first_pass

    def _aimed_word(self, counting: DeviceCounting | None, address: int) -> DeviceWord | None:
        """The word that counts on a GPU: always the same one, because captured graphs increment it."""
        if counting is None:
            return None
        try:
            if self._word is None:
                self._word = counting.word(address)
            else:
                self._word.aim(address)
        except CudaError as fault:
            self._say_that_layers_wait(fault)
            return None
        return self._word

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
