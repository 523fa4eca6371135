"""The KV manager in SGLang's terms: one for each scheduler process, which hosts the messenger.

SGLang's base class keeps the topology and registers the rank; the messenger moves all bytes and waits for peers.
"""

from __future__ import annotations

import concurrent.futures
import copy
import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

from kv_connector.configuration.options import Options
from kv_connector.exceptions import KvConnectorError, MessengerError
from kv_connector.memory.first_pass import FirstPass
from kv_connector.memory.geometry import ContextRow, Geometry, is_shareable
from kv_connector.memory.layer_counter import LayerCounter
from kv_connector.naming.pair_rules import Check
from kv_connector.naming.prompt_digest import NO_DIGEST
from kv_connector.runtime.facade import Messenger, MessengerPort
from kv_connector.runtime.sleep import WHY_CLOSED, SleepingMessenger, StandIn, reopened
from kv_connector.sglang import engine_facts, geometry, refusals, weight_changes
from kv_connector.sglang.allocations import ALLOCATIONS
from kv_connector.sglang.beside_pages import NO_SLOT, PromptParts
from kv_connector.sglang.client_fields import topology_fault, without_answered
from kv_connector.sglang.device_side import DEVICE
from kv_connector.sglang.exchange import Exchange
from kv_connector.sglang.first_contacts import FirstContacts
from kv_connector.sglang.layerwise import HOOKS, LayerwiseSteps, counted
from kv_connector.sglang.metrics_page import MetricsPage
from kv_connector.sglang.model_pools import ModelPools
from kv_connector.sglang.page_numbers import PageNumbers, PinnedCopies
from kv_connector.sglang.pair_check import PairCheck
from kv_connector.sglang.pair_states import PairStates
from kv_connector.sglang.prefillers import Prefillers, RankPlace, cp_rank_of, dp_rank_of, register_room
from kv_connector.sglang.prefix_pulls import PrefixPulls
from kv_connector.sglang.pull_rules import PullRules, pull_rules
from kv_connector.sglang.pulls import Pull
from kv_connector.sglang.recompute_calls import RecomputeCalls
from kv_connector.sglang.sglang_api import CommonEndpoint, unknown_topology
from kv_connector.sglang.twins import Twins
from kv_connector.sglang.unsettled import Unsettled
from kv_connector.sglang.weight_changes import WEIGHTS

UNFIT_MEMORY_SECONDS = 5.0
"""How long a prefiller that does not match is not asked again."""
SETTLE_LIMIT_SECONDS = 10.0
"""An engine is idle when it changes its role: the resources of its last requests are released in milliseconds."""
BATCHES_IN_FLIGHT_MAX = 2
"""Per pipeline stage: SGLang's overlap scheduler launches one batch while it waits for the result of another."""

logger = logging.getLogger("sglang.srt.kv_messenger")


class OpenMessenger(Protocol):
    """Opens a rank's messenger."""

    def __call__(
        self, options: Options, geometry: Geometry, context_rows: Sequence[ContextRow], *, asks_by_events: bool
    ) -> MessengerPort:
        """See ``Messenger.open``."""


class TransferEndpoint(CommonEndpoint):
    """Opens the rank's messenger and finds those of prefillers. Used by the scheduler's thread only.

    Single requests are the business of ``Sender`` and ``Receiver``.
    """

    supports_deferred_decode_kv_release = True
    supports_role_switch = True
    reports_transfer_latency = True

    open_messenger: OpenMessenger = staticmethod(Messenger.open)
    """Opens the rank's messenger."""

    def __init__(self, args: Any, mode: Any, server_args: Any, is_mla_backend: bool | None = False) -> None:
        from sglang.srt.runtime_context import get_device

        self.exchange: Exchange
        self.metrics_page: MetricsPage | None = None
        self.steps: LayerwiseSteps | None = None
        """A prefiller's forward passes; None if chunks are sent after their pass."""
        self.prefillers = Prefillers()
        self.pair_check: PairCheck | None = None
        """A decoder's, of the KV that it receives."""
        self.recompute_calls: RecomputeCalls
        self.next_prompt_digest = NO_DIGEST
        self.next_prompt_tokens = 0
        self.next_pull: Pull | None = None
        self.prefix_pulls: PrefixPulls | None = None
        """Those of the present messenger, from the scheduler's first round on."""
        self._pull_rules: PullRules
        self._pools: ModelPools
        self._server_args = server_args
        self._exit_when_lost = True
        self._last_token_check: Check = "off"
        self._latent = bool(is_mla_backend or getattr(args, "is_hybrid_mla_backend", False))
        self._mode = mode.value
        self._first_contacts = FirstContacts(lambda question: self.prefillers.run(question))
        self._asked_again: dict[str, concurrent.futures.Future[Any]] = {}
        self._unfit: dict[str, tuple[str, float]] = {}
        self._configured: Options
        """As the user has set them, with the roles that pulls need."""
        self._options: Options | None = None
        """Those of this endpoint's messengers after the first one, which keep its ports."""
        self._stand_in: StandIn | None = None
        """At the messenger's ports while the engine sleeps."""
        device = get_device().device
        for each in engine_facts.modes(self._mode, server_args):
            refusals.refuse_device(device, engine_facts.read_options(each, args).gpu)
            refusals.refuse_unsupported(args, each, latent=self._latent)
        self._device = engine_facts.device_of(args)
        self.page_numbers = PageNumbers(None if self._device is None else PinnedCopies())
        if self._mode == "decode":
            args.prefill_start_layer = HOOKS.first_layer  # SGLang sets it on prefillers only
        super().__init__(args, mode, server_args, is_mla_backend)
        self.server_socket.close(linger=0)  # unused: peers connect to the messenger
        if self._mode == "decode":
            self._open()

    # ---- start

    def register_to_bootstrap(self) -> None:
        """Opens the messenger and registers its address with the bootstrap server."""
        self._open()
        super().register_to_bootstrap()

    def _open(self) -> None:
        try:
            messenger, layer_names = self._open_messenger()
        except KvConnectorError as fault:
            logger.error("KV Messenger cannot start: %s", fault)
            raise
        self.exchange = Exchange(messenger, logger, exit_when_lost=self._exit_when_lost)
        if self._server_args.enable_metrics:
            self.metrics_page = MetricsPage(messenger, self._server_args.served_model_name, self._mode)
            self.metrics_page.start()
        if self._mode == "prefill":
            self._watch_layers(messenger, layer_names)
        else:
            self._watch_pairs()

    def _watch_pairs(self) -> None:
        pairs = PairStates(self._last_token_check, weights=weight_changes.name, logger=logger)
        self.exchange.on_connected = pairs.connected
        key, secret = engine_facts.api_key(self._configured), bool(self._configured.shared_secret)
        self.recompute_calls = RecomputeCalls(key, pairs.hosts, has_secret=secret)
        self.pair_check = PairCheck(
            pairs, self.exchange, self._server_args, window_tokens=self._pools.model.window_tokens, logger=logger
        )

    def _watch_layers(self, messenger: MessengerPort, layer_names: Sequence[str]) -> None:
        if self._pools.leave_late:
            logger.info(
                "chunks leave after their forward pass: SGLang reports only then which pages the model's %s needs",
                " and ".join(self._pools.leave_late),
            )
            return
        missing = HOOKS.missing(layer_names)
        if missing:
            logger.warning(
                "chunks leave after their forward pass, not layer by layer: %d of %d KV buffers belong to layers whose"
                " attention could not be hooked, the first is %s",
                len(missing),
                len(layer_names),
                missing[0],
            )
            return
        address, word = messenger.opened.layer_counter_address, None
        if self._device is not None:
            word = DEVICE.aim(address, layer_names)
            if word is None:
                return
        counter = LayerCounter(address, layer_names, word)
        HOOKS.count_into(counter, layer_names, self.page_numbers)
        twins = Twins(self.kv_args.page_size, BATCHES_IN_FLIGHT_MAX * self.pp_size)
        first_pass = FirstPass(counter, counted(layer_names), "KV buffers", logger) if word is not None else None
        self.steps = LayerwiseSteps(self.exchange, counter, twins, first_pass, self.page_numbers)
        if first_pass is None:
            logger.info("layers leave while the forward pass runs")
        else:
            logger.info("layers leave while forward passes run, once the first on this GPU was counted correctly")

    def _open_messenger(self) -> tuple[MessengerPort, list[str]]:
        facts = engine_facts.read(self._server_args, self.kv_args, self._mode)
        metadata = geometry.metadata_buffers(self.kv_args)
        place = geometry.Place(self.attn_tp_size, self.attn_tp_rank, self.pp_size, self.pp_rank)
        self._pools = ModelPools.of(self.kv_args, facts, place, latent=self._latent, window_tokens=HOOKS.window_tokens)
        described = geometry.describe(
            self._pools.pools,
            model=facts.model,
            place=place,
            allocations=ALLOCATIONS if self._device is None else DEVICE.allocations(self._device),
            device=self._device,
        )
        described["weightsDigest"] = facts.weights_digest
        described["settings"] = facts.settings
        described["settingsMayDiffer"] = facts.options.settings_may_differ
        WEIGHTS.started_with(facts.loaded_digest)
        names = [layer["name"] for layer in described["ranks"][0]["layers"]]
        self._exit_when_lost = facts.options.on_messenger_lost == "exit"
        self._last_token_check = engine_facts.check_of(
            facts.options.last_token_check, latent=self._latent, on_cpu=self._device is None
        )
        rules = self._pull_rules = pull_rules(
            facts.options, self._server_args, self._mode, len(described["groups"]), self._last_token_check, logger
        )
        self._configured = rules.opening(facts.options)
        rows = geometry.context_rows(metadata, ALLOCATIONS)
        messenger = reopened(
            self._options,
            self._configured,
            lambda options: self.open_messenger(options, described, rows, asks_by_events=rules.offers),
            logger,
        )
        if self._device is not None:
            logger.warning(
                "gpu is 'unproven': this engine computes on a GPU, where KV Messenger has run with SGLang on one H100"
                " and not with several GPUs, RDMA, or attention other than Triton's (docs/hardware.md)"
            )
        opened, group, memories = messenger.opened, described["groups"][0], described["ranks"][0]["memories"]
        self.local_ip, self.rank_port = opened.control_host, opened.control_port
        logger.info(
            "KV Messenger is open: %s, model %s, weights %s, %d pages of %d tokens in %d buffers, %s, %d metadata rows,"
            " memory %s",
            opened,
            described["model"],
            described["weightsDigest"] or "unknown",
            group["pageCount"],
            group["pageTokens"],
            len(names),
            group["layout"],
            len(metadata),
            "shareable" if all(is_shareable(memory) for memory in memories) else "private",
        )
        return messenger, names

    def prompt_parts(self, page_count: int, prompt_tokens: int, first_token: int, row: int = NO_SLOT) -> PromptParts:
        """What the model's pools hold of a prompt of ``page_count`` pages.

        The decoder already has the tokens before ``first_token``. ``prompt_tokens`` is the prompt's length, which only
        a model with sliding windows needs. ``row`` is the request's in the decoder's table of requests.
        """
        return self._pools.prompt(page_count, prompt_tokens, first_token, row)

    # ---- prefiller

    def place_room(self, bootstrap_addr: str, room: int, dp_rank_is_known: bool) -> str:
        """Lets decoders find the data-parallel rank that computes a room; returns an error message, or ""."""
        from sglang.srt.environ import envs
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        if dp_rank_is_known or parallel.num_dp_ranks == 1:
            return ""
        own = dp_rank_of(self)
        if (
            parallel.load_balance_method != "follow_bootstrap_room"
            or envs.SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK.get()
        ):
            self.prefillers.run(lambda: register_room(bootstrap_addr, room, own))
            return ""
        expected = room % parallel.num_dp_ranks
        if own == expected:
            return ""
        return (
            f"room {room} came to data-parallel rank {own}, expected {expected}, where decoders look for"
            " it: set SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 to allow any"
        )

    def take_prompt_digest(self) -> str:
        """Takes the prompt digest of the request whose sender is being created."""
        digest, self.next_prompt_digest = self.next_prompt_digest, NO_DIGEST
        return digest

    def take_prompt_tokens(self) -> int:
        """Takes the number of tokens of that request's prompt; 0 = unknown."""
        tokens, self.next_prompt_tokens = self.next_prompt_tokens, 0
        return tokens

    def take_pull(self) -> Pull | None:
        """Takes the pull of that request; None if it has none."""
        pull, self.next_pull = self.next_pull, None
        return pull

    def pulls_in(self, scheduler: Any) -> PrefixPulls | None:
        """The pulls of this engine; None while it has no messenger."""
        if self._stand_in is not None or not hasattr(self, "exchange"):
            return None
        if self.prefix_pulls is None:
            self.prefix_pulls = PrefixPulls(
                *(scheduler, self._server_args, self._pull_rules, self.exchange, self._ranks_with_heads, logger)
            )
        return self.prefix_pulls

    def report_stages(self, room: int, state: int) -> None:
        """Reports a room's state on this pipeline stage to the first stage."""
        if self.pp_size > 1:
            self.request_status[room] = state

    def forget_room(self, room: int) -> None:
        """Removes a room on whose state the stages need not agree any more."""
        if self.pp_size > 1:
            self.request_status.pop(room, None)

    def agreed_state(self, room: int, state: int) -> int:
        """The state on which all pipeline stages agree; called on the first. With one stage it is ``state``."""
        return int(self.check_status_pp_consensus(room)) if self.pp_size > 1 else state

    # ---- decoder

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """Whether the prefiller's topology is known; if not, requests it on another thread."""
        if bootstrap_addr in self.prefill_info_table:
            return True
        ask = super().try_ensure_parallel_info
        contact = self._first_contacts.answer(bootstrap_addr, lambda: ask(bootstrap_addr))
        if contact is None:
            return False
        fault = contact.exception()
        if fault is None:  # what it has learnt may have been forgotten since; SGLang calls this again
            return contact.result() and bootstrap_addr in self.prefill_info_table
        for unfit in [name for name, (_, since) in self._unfit.items() if _is_old(since)]:
            self.forget_prefiller(unfit)
        # Raised here, the error would end the scheduler; stored, it fails the requests that name this prefiller.
        self._unfit[bootstrap_addr] = (str(fault), time.monotonic())
        self.prefill_info_table[bootstrap_addr] = unknown_topology()
        return True

    def _resolve_rank_mapping(self, info: Any) -> None:
        """Called by SGLang with each topology that it has requested, before it keeps it; an exception refuses it.

        The ranks that SGLang itself would add are those of its own backends; ``places`` chooses those of this one.
        """
        if fault := topology_fault(info.dp_size, info.attn_tp_size, info.attn_cp_size, info.pp_size):
            raise KvConnectorError(fault)

    def ask_again(self, bootstrap_addr: str) -> concurrent.futures.Future[Any]:
        """Requests a prefiller's topology again, since it may have restarted with another one; None if it has none."""
        question = self._asked_again.get(bootstrap_addr)
        if question is None or question.done():
            self._asked_again = without_answered(self._asked_again)
            question = self._asked_again[bootstrap_addr] = self.prefillers.run(lambda: self._topology(bootstrap_addr))
        return question

    def _topology(self, bootstrap_addr: str) -> Any:
        """Requests the topology as SGLang does, but into a table that the scheduler's thread does not read."""
        beside = copy.copy(self)
        beside.prefill_info_table = {}
        CommonEndpoint.try_ensure_parallel_info(beside, bootstrap_addr)
        return beside.prefill_info_table.get(bootstrap_addr)

    def learn(self, bootstrap_addr: str, topology: Any) -> None:
        """Stores the result of ``ask_again``."""
        self.prefill_info_table[bootstrap_addr] = topology

    def places(self, bootstrap_addr: str, dp_rank: int, room: int) -> list[RankPlace] | str:
        """The prefiller's ranks that send this rank's KV of a room, or an error message."""
        if bootstrap_addr in self._unfit:
            sentence, since = self._unfit[bootstrap_addr]
            if _is_old(since):
                self.forget_prefiller(bootstrap_addr)
            return f"the prefiller at {bootstrap_addr} does not fit: {sentence}"
        info = self.prefill_info_table.get(bootstrap_addr)
        if info is None:
            return f"the prefiller at {bootstrap_addr} is not known any more: send the request again"
        tp_ranks = self._ranks_with_heads(info.attn_tp_size)
        if not tp_ranks:
            heads = " and ".join(str(count) for count in sorted(set(self._pools.kv_head_counts)))
            return (
                f"the prefiller at {bootstrap_addr} has attention TP {info.attn_tp_size}, expected a divisor or a"
                f" multiple of the model's {heads} KV heads: choose another --tp-size"
            )
        cp_rank = cp_rank_of(room, info.dp_size, info.attn_cp_size)
        return [RankPlace(dp_rank, cp_rank, tp_rank, stage) for tp_rank in tp_ranks for stage in range(info.pp_size)]

    def _ranks_with_heads(self, tp_size: int) -> list[int]:
        """Which of an engine's tensor-parallel ranks hold a part of this rank's KV."""
        here = geometry.Place(self.attn_tp_size, self.attn_tp_rank, self.pp_size, self.pp_rank)
        return geometry.ranks_with_heads_of(here, self._pools.kv_head_counts, tp_size)

    def forget_prefiller(self, bootstrap_addr: str) -> None:
        """Drops what is known about a prefiller, so that the next request looks it up again."""
        self._unfit.pop(bootstrap_addr, None)
        self._first_contacts.forget(bootstrap_addr)
        self.prefill_info_table.pop(bootstrap_addr, None)
        self.prefillers.forget(bootstrap_addr)

    def _run_prefill_recompute(self, kv_receiver: Any, prefill_url: str, payload: Any) -> None:
        """In place of SGLang's own, on its threads for recomputes."""
        if fault := self.recompute_calls.ask(prefill_url, payload, self.waiting_timeout):
            self._fail_prefill_recompute(kv_receiver, fault)

    def _fail_prefill_recompute(self, kv_receiver: Any, reason: str) -> None:
        """SGLang's own keeps the reason by the room, where it outlives a request that has ended; for any thread."""
        logger.error("room %s: %s", kv_receiver.bootstrap_room, reason)
        kv_receiver.end_beside(reason)

    def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:  # noqa: ARG002 - SGLang's word
        """Whether nothing can write to the pages of a failed request any more."""
        return self.exchange.is_quiet(bootstrap_room)

    def teardown(self) -> None:
        """Ends this role, so that another endpoint can be created in this process; the JVM keeps running.

        SGLang calls it when the engine is idle, then frees the metadata's memory and reuses that of the KV. So it
        raises MessengerError if KV may still be written: SGLang then accepts no request until it is restarted.
        """
        begun = time.monotonic()
        self._end_pulls()
        unsettled = self.exchange.settle(SETTLE_LIMIT_SECONDS)
        self._refuse_if_held(unsettled, "change its role", "in the role that it is to have")
        self._stop_counting()
        self.close()
        recomputes = getattr(self, "_prefill_recompute_executor", None)  # only a decoder has one
        if recomputes is not None:
            recomputes.shutdown(wait=False)
        logger.info(
            "the messenger of the %s role is closed, the leak check %s, after %.0f ms",
            self._mode,
            "is clean" if unsettled is None else f"found {unsettled}",
            1000 * (time.monotonic() - begun),
        )

    def _refuse_if_held(self, unsettled: Unsettled | None, aim: str, start_again: str) -> None:
        """Raises MessengerError if a request of this engine still holds something."""
        if unsettled is not None and unsettled.of_requests:
            raise MessengerError(
                f"the engine is to {aim} and its requests still hold {unsettled} after {SETTLE_LIMIT_SECONDS:g} s,"
                f" expected nothing: start it again {start_again}"
            )
        if unsettled is not None:
            logger.warning("peers still wait for transfers that this %s will not complete: %s", self._mode, unsettled)

    def _end_pulls(self) -> None:
        """Ends the pulls of a messenger that is to be closed; they hold nothing while SGLang is idle."""
        pulls, self.prefix_pulls = self.prefix_pulls, None
        if pulls is not None:
            pulls.close()

    def _stop_counting(self) -> None:
        HOOKS.stop_counting()
        if self.steps is not None and self.steps.first_pass is not None:
            DEVICE.let_go()
        self.steps = None

    # ---- sleep

    def deregister_buffer_to_engine(self) -> None:
        """Called by SGLang when it is idle, before it gives KV memory back: closes the messenger.

        Raises MessengerError, which ends the engine, if KV may still be written to that memory. SGLang goes on
        scheduling: requests that come meanwhile fail with one sentence.
        """
        if self._stand_in is not None:
            return
        self._end_pulls()
        unsettled = self.exchange.settle(SETTLE_LIMIT_SECONDS, of_peers=False)  # those that wait are told at once
        self._refuse_if_held(unsettled, "give its KV memory back", "and end a peer that hangs")
        self._stop_counting()
        if self.metrics_page is not None:
            self.metrics_page.close()
        opened = self.exchange.opened
        self.exchange.close(WHY_CLOSED)
        self.exchange = Exchange(SleepingMessenger(opened), logger)
        self._stand_in = StandIn(self._configured, opened, logger)
        logger.info("this engine sleeps: its messenger is closed, and peers are refused until it wakes up")

    def register_buffer_to_engine(self) -> None:
        """Called by SGLang when its KV memory is there again: opens another messenger, at the same ports."""
        if self._stand_in is None:
            return
        self.exchange.settle(SETTLE_LIMIT_SECONDS)  # so that each request of the sleep knows of its end
        stand_in, self._stand_in = self._stand_in, None
        stand_in.close()
        self._options = stand_in.options
        known_port = self.rank_port
        self._open()
        if self._mode == "prefill" and self.rank_port != known_port:
            super().register_to_bootstrap()

    def close(self) -> None:
        """Closes the messenger and everything that uses it."""
        if self._stand_in is not None:
            self._stand_in.close()
        self.prefillers.close()
        if self.metrics_page is not None:
            self.metrics_page.close()
        self.exchange.close()
        if self._mode == "prefill" and self.pp_size > 1:
            self.request_status.close()
        self._zmq_ctx.destroy(linger=0)


def _is_old(unfit_since_seconds: float) -> bool:
    return time.monotonic() - unfit_since_seconds > UNFIT_MEMORY_SECONDS
