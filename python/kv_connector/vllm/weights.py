"""vLLM's worker half of weights: what has landed beside the serving is loaded in one call, between two steps.

An exception of one rank would leave the other ranks' answers in vLLM's queues, and shift all later ones. So none leaves
this module: what came of an update, the messenger tells the sender.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from kv_connector.configuration.weights_options import parse_weights_options
from kv_connector.naming.weights_digest import folder_of
from kv_connector.vllm import CONNECTOR_NAME
from kv_connector.vllm.packed_layers import not_loadable_again
from kv_connector.vllm.reloaded_names import names_lost, unfit_architecture
from kv_connector.vllm.tied_layers import prepare_tied_layers
from kv_connector.vllm.weights_api import (
    UnquantizedEmbeddingMethod,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
    finalize_layerwise_reload,
    get_layerwise_info,
    get_world_group,
    initialize_layerwise_reload,
)
from kv_connector.weights.decision import TORN_EXIT, Decision
from kv_connector.weights.landed_tensors import MappedLandings
from kv_connector.weights.served import ServedCheckpoint
from kv_connector.weights.shares import Share
from kv_connector.weights.shares_host import SharesHost

logger = logging.getLogger("vllm.kv_messenger")
NOT_LOADED = (0, 0, "")
_Body = TypeVar("_Body", "InitInfo", "UpdateInfo")


@dataclass
class InitInfo(WeightTransferInitInfo):
    """The body of ``/init_weight_transfer_engine``."""

    sender: str = ""
    """``HOST:PORT`` of the sender's messenger."""
    ticket: str = ""
    names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    split: list[bool] = field(default_factory=list)
    """Whether each tensor is split among the trainer's ranks; empty where one rank sends all."""
    rank: int = 0
    """The sender's, of the trainer's ``rank_count`` ones that send."""
    rank_count: int = 1


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The body of ``/update_weights``."""

    update_id: int = 0
    at_rest: bool = False
    """Whether the engine rests until the update has ended: the engine core says so, ``weights_at_rest``."""
    refusal: str = ""
    """Why nothing may be loaded, by the engine core."""


class KvMessengerWeightEngine(WeightTransferEngine):
    """Loads whole tensors from the host's landings, on every rank. The first rank has the messengers."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        """Raises OptionError at the server's start, not later."""
        super().__init__(config, vllm_config, device, model)
        options = parse_weights_options(
            _given(vllm_config), sends=False, engine_id=f"vllm-weights-{os.getpid()}", environment=os.environ
        )
        self._host = SharesHost(options, logger)
        self._served = ServedCheckpoint()
        self._landings = MappedLandings()
        self.loaded = NOT_LOADED
        """The id, the version and the name of the last update; NOT_LOADED where this rank has not loaded it."""

    def parse_init_info(self, init_dict: dict[str, Any]) -> InitInfo:
        """The typed body; an empty one for a body of another form, which is logged."""
        return _typed(InitInfo, init_dict)

    def parse_update_info(self, update_dict: dict[str, Any]) -> UpdateInfo:
        """The typed body; an empty one for a body of another form, which is logged."""
        return _typed(UpdateInfo, update_dict)

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Has the first rank dial the sender, beside the serving."""
        try:
            if get_world_group().rank_in_group == 0:
                share = Share.announced(vars(init_info))
                self._host.dial(init_info.sender, init_info.ticket, share, self._unfit(share))
        except Exception as fault:
            logger.error("the sender of weights at %.200r is not dialled: %s", init_info.sender, fault)

    def start_weight_update(self) -> None:
        """Nothing: a sender that dies behind it leaves an engine that serves."""

    def finish_weight_update(self) -> None:
        """Nothing: ``update_weights`` has done all."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads the landing on every rank, or changes nothing. A worker that has loaded half of it ends.

        So does one that does not hear the other ranks: they may have loaded what it has not.
        """
        info = self.parse_update_info(update_info)
        try:
            self._load_together(info)
        except Exception as fault:
            logger.exception("update %s of the weights was not agreed upon by all ranks", info.update_id)
            self._end_torn(info.update_id, f"a rank does not hear the others: {type(fault).__name__}: {fault}")

    def _load_together(self, info: UpdateInfo) -> None:
        """Raises what a collective of the ranks raises, and nothing else."""
        self.loaded = NOT_LOADED
        group = get_world_group()
        first = group.rank_in_group == 0
        decision = self._decided(info) if first else Decision("")
        decision = group.broadcast_object(decision, src=0)
        reasons = [decision.reason]
        if not decision.reason:
            mapped = self._landings.map(decision, group.rank_in_group, tied=first and self._served.tied)
            reasons = [each for each in _gathered(group, mapped) if each]
        if not reasons:
            torn = [each for each in _gathered(group, self._load(decision)) if each]
            if torn:
                self._end_torn(info.update_id, torn[0])
            self.loaded = (info.update_id, decision.version, decision.name)
        else:
            logger.error("weights of update %s are not loaded: %s", info.update_id, reasons[0])
        if first:
            self._host.applied(info.update_id, reasons[0] if reasons else "")

    def status(self) -> dict[str, object]:
        """What a user sees of this rank's weights, as JSON."""
        try:
            return self._host.status()
        except Exception as fault:
            return {"landing": f"not known: {fault}"}

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Nothing: weights are received beside the serving."""

    def shutdown(self) -> None:
        """Nothing: senders come and go, and what the engine serves stays newer than what it refuses.

        The messenger ends with its process.
        """

    def _unfit(self, share: Share) -> str:
        """Why these tensors cannot be loaded here; "" if nothing speaks against them."""
        parallel = self.vllm_config.parallel_config
        if parallel.data_parallel_size > 1 or getattr(parallel, "nnodes", 1) > 1:
            return (
                f"this server has {parallel.data_parallel_size} data-parallel engines on"
                f" {getattr(parallel, 'nnodes', 1)} hosts, expected one engine on one host: name each server by its own"
            )
        if self.device.type == "cpu" and (packed := not_loadable_again(self.model)):
            return packed
        if unfit := unfit_architecture(getattr(self.model_config.hf_config, "architectures", None)):
            return unfit
        config, downloads = self.model_config, self.vllm_config.load_config.download_dir
        return self._served.unfit(
            share,
            lambda: folder_of(config.model, config.revision, downloads),
            tied=getattr(config.hf_text_config, "tie_word_embeddings", False),
        )

    def _decided(self, info: UpdateInfo) -> Decision:
        """Asks the messengers, whose landings are the engine's from then on, until they are told what came of it."""
        refusal = info.refusal
        if not refusal and not info.at_rest:
            refusal = (
                "this server's engine core does not rest meanwhile: it runs another release of vLLM than 0.32, 0.33"
            )
        return self._host.decide(info.update_id, self._served.manifest, refusal)

    def _load(self, decision: Decision) -> str:
        """Loads all tensors; returns the fault, after which this rank's weights are of neither version.

        The default device is that of an engine's start: layers that keep tensors in the host's memory make them anew.
        """
        import torch

        try:
            with torch.no_grad():
                initialize_layerwise_reload(self.model)
                names = self.model.load_weights(self._landings.tensors(decision))
                if lost := names_lost(self.model, names, get_layerwise_info):
                    return f"{len(lost)} tensors of this model are written past vLLM's reload, as {lost[0]}"
                finalize_layerwise_reload(self.model, self.model_config)
                prepare_tied_layers(self.model, UnquantizedEmbeddingMethod)
                self._landings.part_from(self.model)
            if self.device.type != "cpu":
                torch.accelerator.synchronize()
        except Exception as fault:
            logger.exception("the weights that have landed could not be loaded")
            return f"{type(fault).__name__}: {fault}"
        return ""

    def _end_torn(self, update_id: int, reason: str) -> NoReturn:
        sentence = f"ends because weights may be loaded in part ({reason}) and its answers be of neither version"
        logger.critical(
            "this engine %s: start it again, and send weights of its model (update %d)", sentence, update_id
        )
        try:
            self._host.close(sentence)
        finally:
            os._exit(TORN_EXIT)


def _typed(kind: type[_Body], given: Mapping[str, Any]) -> _Body:
    try:
        return kind(**given)
    except TypeError as other:
        logger.error("a request about weights is not KV Messenger's, and changes nothing: %s", other)
        return kind()


def _gathered(group: Any, own: str) -> list[str]:
    """What every rank says, by rank."""
    import torch

    if group.world_size == 1:
        return [own]
    gathered: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(gathered, own, group=group.cpu_group)
    return gathered


def _given(vllm_config: Any) -> Mapping[str, object]:
    """The options in the server's configuration, where it has this package's connector; variables count besides."""
    transfer = vllm_config.kv_transfer_config
    if transfer is None or transfer.kv_connector != CONNECTOR_NAME:
        return {}
    return transfer.kv_connector_extra_config or {}
