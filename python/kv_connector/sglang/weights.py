"""A scheduler's half of weights: what has landed beside the serving is loaded in one call, between two batches.

SGLang's own update is three calls, of which the first restores packed weights and the last packs them again: a trainer
that dies between them leaves an open session, and weights of neither form. Here all of it is one call, which empties
the cache before it loads, so that no KV of the weights before is left. Used by the scheduler's thread only.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any, NoReturn

from kv_connector.configuration.weights_options import parse_weights_options
from kv_connector.exceptions import OptionError, WeightsError
from kv_connector.naming.weights_digest import folder_of
from kv_connector.sglang import weight_changes
from kv_connector.sglang.engine_facts import options_given
from kv_connector.weights.decision import TORN_EXIT, Decision
from kv_connector.weights.landed_tensors import MappedLandings
from kv_connector.weights.routes import ANNOUNCED, BUSY, SGLANG_LOADER, STATUS
from kv_connector.weights.served import ServedCheckpoint
from kv_connector.weights.shares import Share
from kv_connector.weights.shares_host import SharesHost

logger = logging.getLogger("sglang.srt.kv_messenger")
_AMX = "use_intel_amx_backend"
"""SGLang's mark of a layer whose weights it has packed, and cannot restore."""


def load_landed(_model: Any, _named_tensors: Any) -> None:
    """What ``--custom-weight-loader`` names: a server that takes weights. SGLang itself never gets to call it."""
    raise WeightsError(
        "this process has not loaded the plug-in kv_messenger, which loads what has landed: let SGLANG_PLUGINS name it"
    )


class LandedWeights:
    """Takes weights for one scheduler. The first rank has the messenger, the others map its landing."""

    def __init__(self, updater: Any) -> None:
        """``updater`` is SGLang's."""
        from sglang.srt.runtime_context import get_parallel

        self._updater = updater
        self._rank: int = get_parallel().tp_rank
        self._host: SharesHost | None = None
        self._refusal = ""
        """Why the first rank takes no weights; the others ask it, so that all of them load or none does."""
        if self._rank == 0:
            try:
                self._host = _opened_host()
            except OptionError as wrong:
                self._refusal = str(wrong)
        self._served = ServedCheckpoint()
        self._landings = MappedLandings()

    def answer(self, question: str) -> tuple[bool, str]:
        """Whether a question of the route is answered, and the message. Has the first rank dial an announced sender."""
        if self._host is None:
            return not self._refusal, self._refusal
        try:
            asked = json.loads(question)
            if STATUS in asked:
                return True, json.dumps(self._host.status())
            given = asked[ANNOUNCED]
            share = Share.announced(given)
            self._host.dial(given["sender"], given["ticket"], share, self._unfit(share))
        except Exception as fault:  # it would end the scheduler
            return False, f"a question about weights is not answered: {type(fault).__name__}: {fault}"
        return True, ""

    def load(self, update: Any) -> tuple[bool, str]:
        """Loads the landing on every rank, or changes nothing. Returns whether, and the reason.

        A scheduler that has loaded half of it ends, and so does one that does not hear the other ranks.
        """
        try:
            update_id = int(json.loads(update.serialized_named_tensors[0])["update_id"])
        except Exception as fault:  # it would end the scheduler
            return False, f"the update names no landing: {type(fault).__name__}: {fault}"
        try:
            hindrance = self._first(self._refusal or self._busy())
            if hindrance:
                return False, hindrance
            decision, reason = self._load_together(update_id, str(update.weight_version))
        except Exception as fault:
            logger.exception("update %d of the weights was not agreed upon by all ranks", update_id)
            self._end_torn(update_id, f"a rank does not hear the others: {type(fault).__name__}: {fault}")
        if reason:
            logger.error("weights of update %d are not loaded: %s", update_id, reason)
        else:
            self._updater.record_weight_version_after_update(str(decision.version))
            weight_changes.WEIGHTS.on_landed(decision.name, str(decision.version))
        if self._host is not None:
            self._host.applied(update_id, reason)
        return not reason, reason or f"version {decision.version} of the weights is served"

    def _load_together(self, update_id: int, named: str) -> tuple[Decision, str]:
        """What was decided, and why nothing was loaded, else "". Raises what a collective raises, and nothing else."""
        decision = self._of_first_rank(self._decided(update_id, named) if self._rank == 0 else None)
        reason = decision.reason or self._first(self._mapped(decision)) or self._first(self._empty_cache())
        if not reason and (torn := self._first(self._load(decision))):
            self._end_torn(update_id, torn)
        return decision, reason

    def _mapped(self, decision: Decision) -> str:
        """Why this rank cannot load what has landed; the first one compares a tied head for all."""
        return self._landings.map(decision, self._rank, tied=self._rank == 0 and self._served.tied)

    def _busy(self) -> str:
        """Requests whose clients have left are not waited for by the route, and end within some steps."""
        paused = getattr(self._updater.scheduler, "_engine_paused", False)
        return "" if self._updater.is_fully_idle(ignore_waiting=paused) else f"{BUSY}: ask again when they have ended"

    def _decided(self, update_id: int, named: str) -> Decision:
        """Asks the messengers, whose landings are the engine's from then on, until they are told what came of it."""
        assert self._host is not None
        return self._host.decide(update_id, self._served.manifest, named=named)

    def _empty_cache(self) -> str:
        """Nothing is computed from here to the end of the load, so that nothing of the old weights comes in again."""
        try:
            if self._updater.flush_cache(empty_cache=False):
                return ""
        except Exception as fault:
            return f"KV of the weights before could not be given up: {type(fault).__name__}: {fault}"
        return "KV of the weights before is held, as by a transfer: send again when it has ended"

    def _load(self, decision: Decision) -> str:
        """Loads all tensors; returns the fault, after which this rank's weights are of neither version."""
        import torch
        from sglang.srt.model_loader.loader import DefaultModelLoader
        from sglang.srt.model_loader.utils import set_default_torch_dtype

        try:
            runner = self._updater.tp_worker.model_runner
            device = torch.device(runner.device)
            with set_default_torch_dtype(runner.model_config.dtype):
                DefaultModelLoader.restore_weights_before_loading(runner.model, device)
                tensors = self._landings.tensors(decision)
                DefaultModelLoader.load_weights_and_postprocess(runner.model, tensors, device)
            self._landings.part_from(runner.model)
            if device.type != "cpu":
                torch.get_device_module(device).synchronize()
        except Exception as fault:
            logger.exception("the weights that have landed could not be loaded")
            return f"{type(fault).__name__}: {fault}"
        return ""

    def _unfit(self, share: Share) -> str:
        """Why these tensors cannot be loaded here; "" if nothing speaks against them."""
        from sglang.srt.runtime_context import get_model, get_parallel

        parallel, runner = get_parallel(), self._updater.tp_worker.model_runner
        if parallel.dp_size > 1 or parallel.pp_size > 1 or parallel.nnodes > 1:
            return (
                f"this server has {parallel.dp_size} data-parallel engines and {parallel.pp_size} pipeline stages on"
                f" {parallel.nnodes} hosts, expected one engine of one stage on one host"
            )
        if get_model().weight_cache_mode != "off":
            return "this server shares its weights with others (--weight-cache-mode), expected off: start it with that"
        if self._updater.scheduler.enable_hicache_storage:
            return (
                "this server keeps KV in a store (--hicache-storage-backend), which is not named by its weights and"
                " would outlast them: start it without"
            )
        return _not_loadable_again(runner.model) or self._other_tensors(share, runner.model_config)

    def _other_tensors(self, share: Share, config: Any) -> str:
        from sglang.srt.runtime_context import get_model

        return self._served.unfit(
            share,
            lambda: folder_of(config.model_path, config.revision, get_model().download_dir),
            tied=getattr(config.hf_text_config, "tie_word_embeddings", False),
        )

    def _of_first_rank(self, own: Decision | None) -> Decision:
        """What the first rank has decided."""
        import torch

        group = self._updater.tp_cpu_group
        given: list[Any] = [own]
        torch.distributed.broadcast_object_list(given, src=torch.distributed.get_global_rank(group, 0), group=group)
        decision: Decision = given[0]
        return decision

    def _first(self, own: str) -> str:
        """The first reason that a rank has, by rank; "" if none has one."""
        import torch

        group = self._updater.tp_cpu_group
        reasons: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(reasons, own, group=group)
        return next((reason for reason in reasons if reason), "")

    def _end_torn(self, update_id: int, reason: str) -> NoReturn:
        sentence = f"ends because weights may be loaded in part ({reason}) and its answers be of neither version"
        logger.critical(
            "this engine %s: start it again, and send weights of its model (update %d)", sentence, update_id
        )
        try:
            if self._host is not None:
                self._host.close(sentence)
        finally:
            os._exit(TORN_EXIT)


def _opened_host() -> SharesHost:
    """The first rank's side of weights; raises OptionError."""
    options = parse_weights_options(
        options_given(), sends=False, engine_id=f"sglang-weights-{os.getpid()}", environment=os.environ
    )
    return SharesHost(options, logger)


def _not_loadable_again(model: Any) -> str:
    """Which of the model's layers cannot take other weights; "" if all can."""
    from sglang.srt.model_executor.model_runner_components.weight_updater import (
        _unsupported_derived_weight_cache_error,
    )

    for name, module in model.named_modules():
        if getattr(module, _AMX, False):
            return f"layer {name} is packed for AMX, which SGLang cannot undo: weights of this server cannot be changed"
    return _unsupported_derived_weight_cache_error(model) or ""


def takes_weights(model_settings: Any) -> bool:
    """Whether the server was started so."""
    return SGLANG_LOADER in (model_settings.custom_weight_loader or ())


def missing_loader() -> str:
    """What such a server answers."""
    return f"this server takes no weights: start it with --custom-weight-loader {SGLANG_LOADER}"
