"""The connector in the scheduler's process: translates the scheduler's decisions into the step's metadata.

It owns no thread, no socket and no JVM, and is called by the engine core's thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kv_connector.runtime.commands import Announce, Decline, Expect, PrefillEnded
from kv_connector.vllm import prefill_chunks, rejections
from kv_connector.vllm.absent_media import AbsentMedia
from kv_connector.vllm.beginnings import fitting, loaded, part_of
from kv_connector.vllm.coming_to_rest import ComingToRest
from kv_connector.vllm.ended_prefills import EndedPrefills
from kv_connector.vllm.fetch_gate import FetchGate
from kv_connector.vllm.fetch_names import FetchNames
from kv_connector.vllm.kv_groups import KvGroup, transferred_blocks, transferred_tokens
from kv_connector.vllm.messenger_commands import prefillers
from kv_connector.vllm.metadata import Refusal, StepMetadata, WorkerNews
from kv_connector.vllm.misfits import beyond_token_ids, misfit, stands_for_rejected
from kv_connector.vllm.offers import Offers
from kv_connector.vllm.open_messengers import OpenMessengers
from kv_connector.vllm.pair_proofs import PairProofs, Way
from kv_connector.vllm.planned_fetches import fetch_of, fetches_renamed, shadow_fetch, waiting_outdated
from kv_connector.vllm.preemptions import Preemptions
from kv_connector.vllm.prefill_chunks import FINISHED, Prefill, PrefillChunks, begin_prefill, queue_prefill
from kv_connector.vllm.prefill_names import PrefillNames
from kv_connector.vllm.pull_params import read_carrier
from kv_connector.vllm.pull_rules import PullRules
from kv_connector.vllm.pulls import Pulls
from kv_connector.vllm.quarantine import Quarantine
from kv_connector.vllm.request_name import read_name
from kv_connector.vllm.request_numbers import RequestNumbers, shown
from kv_connector.vllm.scheduled import prompt_tokens, scheduled
from kv_connector.vllm.shadow_fetches import ShadowFetches, held_as
from kv_connector.vllm.transfer_params import Ask, Receive, Refused, Send, Sibling, Side, asking_nothing, read
from kv_connector.vllm.window_blocks import WindowBlocks


class SchedulerHalf:
    """Keeps, for each request with a transfer, what the workers know, and builds the metadata of each step.

    Used by the engine core's thread only. Whether KV has arrived or was sent is decided by the workers.
    """

    def __init__(
        self,
        side: Side,
        groups: Sequence[KvGroup],
        gate: FetchGate,
        logger: logging.Logger,
        digest_of: Callable[[Any], str],
        make_proofs: Callable[[], PairProofs],
        pull_rules: PullRules,
    ) -> None:
        """``make_proofs`` makes the states of pairs in which each one is unproven."""
        self._side = side
        self._make_proofs = make_proofs
        self._proofs = make_proofs()
        self._shadows = ShadowFetches(groups, self._proofs, logger)
        self._digest_of = digest_of  # of a request's prompt and of the weights with which the engine computes it
        self._gate = gate
        self._groups = groups
        self._logger = logger
        self._open = OpenMessengers()
        self._answers_name_source = pull_rules.answers_name_source
        self._block_pool: Any = None
        self._step = 0
        self._prefills: dict[str, Prefill] = {}
        self._ended = EndedPrefills(side.messenger_count)
        self._awaited: dict[str, list[int]] = {}  # blocks to fill, until workers report them as received or failed
        self._names = FetchNames(digest_of)
        self._loading_first: set[str] = set()
        """First choices of ``n`` > 1 until they run; the others wait for the KV that is fetched for the first."""
        self._numbers = RequestNumbers()
        self._quarantine = Quarantine(logger)
        self._window_blocks = WindowBlocks()
        self._absent = AbsentMedia(groups, side, logger)
        self._chunks = PrefillChunks(groups, self._window_blocks, self._numbers)
        sending = self._prefills, self._ended, self._chunks, self._window_blocks, self._numbers
        self._preemptions = Preemptions(*sending, lambda request_id: self._shadows.gone(request_id), logger)
        self._prefill_names = PrefillNames(digest_of, self._numbers, self._ended, logger)
        self._pulls = Pulls(groups, pull_rules, self._numbers, digest_of, side.messenger_count, logger)
        self._offers = Offers(groups, pull_rules, self._numbers, digest_of, logger)
        self.cached = self._offers.cached
        self.rest = ComingToRest(
            self._prefills, self._ended, self._names, gate, self._offers, self._numbers, self._give_up
        )
        self._pending = StepMetadata(step=0)

    # ---- start

    def set_addresses(self, addresses: Mapping[tuple[int, int], object]) -> None:
        """Takes the addresses of all messengers, at the start and whenever the engine has slept."""
        was_open, self._open = bool(self._open.addresses), OpenMessengers.at(addresses)
        if was_open:
            self._begin_anew()
        self._proofs.begin([messenger.compares_last_tokens for messenger in self._open.addresses])
        self._shadows.begin(len(self._open.addresses))
        self._pulls.own = tuple(messenger.address for messenger in self._open.addresses)

    def _begin_anew(self) -> None:
        """Other messengers were opened: no pair is proven any more, and they know of no prefill that is queued."""
        self._pending.tallies += self._proofs.take_tallies()
        self._proofs = self._make_proofs()
        self._shadows = ShadowFetches(self._groups, self._proofs, self._logger)
        self._bind_proofs()
        self._pending.announces = prefill_chunks.announced_again(self._prefills, self._numbers)

    def bind(self, block_pool: Any) -> None:
        """Sets the engine's block pool; called before any request."""
        self._block_pool = block_pool
        self._quarantine.bind(block_pool)
        self._window_blocks.bind(block_pool)
        self._offers.bind(block_pool)
        self._pulls.bind(block_pool)
        self._bind_proofs()
        self._gate.size(len(block_pool.blocks) - 1)  # one block, the null block, is reserved by vLLM

    def _bind_proofs(self) -> None:
        if self._block_pool is not None:
            self._proofs.bind(self._block_pool)
            self._shadows.bind(self._block_pool)

    # ---- a request comes

    def queued(self, request: Any) -> None:
        """The engine has queued the request; it may wait for a long time before it has blocks."""
        request_id = request.request_id
        self._absent.queued(request)
        carrier = read_carrier(request.kv_transfer_params)
        if carrier is not None and not beyond_token_ids(request):  # a messenger's has token ids; a client's may be any
            self._offers.asked(request, carrier)
            return
        ask = self._read(request)
        self._pulls.queued(request, self._pending)
        if isinstance(ask, Send):
            prefill = self._prefills[request_id] = queue_prefill(request, ask, self._digest_of, self._groups)
            number = self._numbers.of(request_id)
            self._pending.announces.append(Announce(number, prefill.name.transfer, prefill.name.digest))
        elif (rejected := stands_for_rejected(request)) or isinstance(ask, Refused):
            self._pending.rejections += rejections.of_queued(request, ask, self._logger, rejected=rejected)
        elif isinstance(ask, Receive):
            self._expect(request, ask)
            if request_id == read_name(request_id).first_choice:
                self._loading_first.add(request_id)

    def _expect(self, request: Any, ask: Receive) -> None:
        transfer = None
        if not ask.decoder_first:
            transfer = self._names.queued(request, ask)
            self._pending.expects[request.request_id] = Expect(*transfer, prefillers(ask.messengers))
        tokens = transferred_tokens(self._groups, part_of(request, ask).num_prompt_tokens)
        self._gate.queued(request.request_id, transfer, transferred_blocks(self._groups, 0, tokens))

    def _read(self, request: Any) -> Ask:
        """What the request asks for."""
        ask = read(request.kv_transfer_params, request.request_id, self._side)
        return fitting(ask, request, self._groups, is_cut=request.request_id in self._prefills)

    def weights_loaded(self) -> None:
        """Prompts that wait may be computed with other weights, or another adapter, than those that name them."""
        self._prefill_names.weights_changed(self._prefills, self._pending)
        for request, ask in waiting_outdated(self._names, self._gate, self._pending):
            self._expect(request, ask)
        for request in fetches_renamed(self._names, self._numbers, self._side.messenger_count, self._pending):
            self._proofs.renamed(request)

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """As ``_matched_tokens``; what can neither be loaded nor computed is a load, which is refused."""
        return self._absent.matched(request, computed_tokens, self._matched_tokens(request, computed_tokens))

    def _matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """(tokens beyond the computed ones that will be loaded, whether asynchronously); changes no state.

        The number is None while the request has to wait. A request that will be refused is admitted like one that will
        be served, because only a failed load ends it with an error. A further choice of ``n`` waits until the first
        one's KV is in the prefix cache, and computes whatever is missing there. A prompt that is not computed yet may
        have to wait until the pool has room (``FetchGate``), and one of an unproven pair for a verdict; or it is
        computed here (``ShadowFetches``).
        """
        ask = self._read(request)
        waits_for_first = isinstance(ask, Sibling) and not ask.sends and ask.first_choice in self._loading_first
        if waits_for_first or self._offers.keeps_waiting(request.request_id):
            return None, False
        if not isinstance(ask, Receive | Refused):
            return self._pulls.matched_tokens(request, computed_tokens, self._shadows)
        if self._gate.why_here(request.request_id):
            return 0, False
        if self._gate.holds_back(request.request_id):
            return None, False
        missing = self._loaded(request, ask) - computed_tokens
        way = self._shadows.way(part_of(request, ask), ask) if missing > 0 and isinstance(ask, Receive) else Way.FETCH
        if way is Way.WAIT:
            return None, False
        return (missing, True) if missing > 0 and way is Way.FETCH else (0, False)

    def _loaded(self, request: Any, ask: Receive | Refused) -> int:
        return loaded(self._groups, request, ask, self._proofs.wants_shared_token, has_drafts=self._side.has_draft_kv)

    def allocated(self, request: Any, block_ids: tuple[list[int], ...], external_tokens: int) -> None:
        """The scheduler has allocated the request's blocks; called again, with 0 tokens, once they are filled."""
        wanted = self._read(request)
        ask = self._absent.asked(request, wanted, external_tokens, self._loaded, self._gate.why_here)
        if ask is not wanted:
            self._decline(request, wanted)
        if isinstance(ask, Send) and request.request_id not in self._prefills:
            self._prefills[request.request_id] = begin_prefill(request, ask, self._digest_of)
        if (prefill := self._prefills.get(request.request_id)) is not None:
            prefill.has_blocks = True
        if not isinstance(ask, Receive | Refused):
            blocks = self._pulls.allocated(request, block_ids, external_tokens, self._pending, self._shadows)
            if blocks is not None:
                self._awaited[request.request_id] = list(blocks)
        else:
            request.kv_transfer_params = asking_nothing(request.kv_transfer_params)
            self._take_in(request, ask, block_ids, external_tokens)
            self._names.forget(request.request_id)

    def _take_in(self, request: Any, ask: Receive | Refused, block_ids: tuple[list[int], ...], tokens: int) -> None:
        """Asks the workers for a fetch or a failure; if nothing is to be loaded, the prompt is computed here."""
        self._pending.expects.pop(request.request_id, None)  # the fetch or decline below replaces it
        if tokens <= 0:  # all is cached, another connector loads it, or the engine wants it computed here
            if isinstance(ask, Refused):
                self._logger.warning("request %s is computed here: %s", shown(request.request_id), ask.reason)
            elif self._begins_shadow(request, ask):
                return
            elif why := self._gate.why_here(request.request_id):
                self._logger.info("request %s is computed here: %s", shown(request.request_id), why)
            self._gate.gone(request.request_id)
            self._decline(request, ask)
            return
        begun = part_of(request, ask)
        end_token = transferred_tokens(self._groups, begun.num_prompt_tokens)
        first_token = max(0, self._loaded(request, ask) - tokens)
        groups = [
            table[group.needed(first_token, end_token)] for group, table in zip(self._groups, block_ids, strict=True)
        ]
        if isinstance(ask, Receive):
            chosen, not_held = self._proofs.chosen(request, ask), self._names.why_not_held(request, ask)
            if isinstance(chosen, Refused):  # also when decoder first: a prefiller that restarted is found by dialling
                self._pending.declines.append(Decline(*self._names.held(request, ask), prefillers(ask.messengers)))
            elif unfit := misfit(begun, chosen, self._groups, first_token, groups, not_held):
                self._decline(request, ask)
                chosen = unfit
            ask = chosen
        if isinstance(ask, Refused):
            self._logger.error("request %s is refused: %s", shown(request.request_id), ask.reason)
        blocks = [block for blocks in groups for block in blocks]
        self._awaited[request.request_id] = blocks
        self._gate.begun(request.request_id)
        if isinstance(ask, Refused):
            self._pending.refusals.append(Refusal(self._numbers.of(request.request_id), blocks))
            return
        number = self._numbers.of(request.request_id)
        fetch = fetch_of(begun, ask, self._names.fetching(request, ask), number, (first_token, end_token), groups)
        self._proofs.fetching(begun, ask, end_token, first_token, blocks)
        self._pending.fetches.append(fetch)

    def _begins_shadow(self, request: Any, ask: Receive | Refused) -> bool:
        """Whether the request, which is computed here, is fetched besides to compare both; no fault harms it."""
        if isinstance(ask, Refused) or self._gate.is_outdated(request.request_id):
            return False
        number = self._numbers.nameless()
        fetch = shadow_fetch(self._shadows, request, ask, number, self._groups, self._names, self._logger)
        if fetch is not None:
            self._gate.begun(request.request_id, held_as=held_as(number))
            self._pending.fetches.append(fetch)
        return fetch is not None

    def _decline(self, request: Any, ask: object) -> None:
        """Tells the prefiller that no fetch will come; otherwise it would keep the pages until its time limit."""
        if isinstance(ask, Receive) and not ask.decoder_first and not stands_for_rejected(request):
            self._pending.declines.append(Decline(*self._names.held(request, ask), prefillers(ask.messengers)))

    def refuse(self, request_id: str) -> None:
        """Fails a request that waits for a load, after an error on this side."""
        number = self._numbers.of(request_id)
        if not any(fetch.request == number for fetch in self._pending.fetches):
            self._pending.expects.pop(request_id, None)
            self._awaited[request_id] = []
            self._pending.refusals.append(Refusal(number, []))

    # ---- a step

    def build(self, scheduler_output: Any) -> StepMetadata:
        """The step's metadata: everything that the workers do not know yet, and this step's chunks."""
        self._step += 1
        meta, self._pending = self._pending, StepMetadata(step=0)
        self._preemptions.take(scheduler_output.preempted_req_ids or (), meta)
        try:
            return self._build(scheduler_output, meta)
        except Exception:  # the workers must know the rest, and have to fence in this step
            self._logger.exception("nothing of step %d is sent, which could not be described", self._step)
            self._pending = replace(meta, preempted=[], proofs=[], shadow_proofs=[])
            self._send_none(scheduler_output, self._pending)
            computes = scheduler_output.total_num_scheduled_tokens > 0
            return StepMetadata(self._step, computes=computes, preempted=meta.preempted)

    def _build(self, scheduler_output: Any, meta: StepMetadata) -> StepMetadata:
        self._loading_first.difference_update(scheduler_output.num_scheduled_tokens)
        meta.step = self._step
        meta.layers_are_right = self._open.counted_right == self._side.messenger_count
        meta.computes = scheduler_output.total_num_scheduled_tokens > 0
        meta.pull_reports = self._pulls.take_reports()
        self._offers.step_begins(meta)
        self._pulls.rate.step_begins(meta, prompt_tokens(scheduler_output))
        prefill_chunks.report(self._prefills, self._numbers, meta.announces)
        self.rest.step(meta)
        meta.tallies += self._proofs.take_tallies()
        try:
            self._plan_chunks(scheduler_output, meta)
        except Exception:
            self._logger.exception("no chunk of this step is sent: it could not be planned")
            self._send_none(scheduler_output, meta)
        meta.shadow_proofs, meta.abandoned = self._shadows.due(), meta.abandoned + self._shadows.take_abandoned()
        meta.names = self._numbers.take_new()
        return meta

    def _plan_chunks(self, scheduler_output: Any, meta: StepMetadata) -> None:
        for request_id, group_blocks, whole_table, first_token in scheduled(scheduler_output):
            count = scheduler_output.num_scheduled_tokens[request_id]
            self._shadows.scheduled(request_id, group_blocks, whole_table, first_token, count)
            if whole_table:
                meta.proofs += self._proofs.planned(request_id, group_blocks, first_token, count)
            prefill = self._prefills.get(request_id)
            if prefill is None or prefill.given_up:
                continue
            try:
                tokens = group_blocks, whole_table, first_token, first_token + count
                is_named = self._prefill_names.settled(request_id, prefill, meta, whole_table=whole_table)
                chunk = self._chunks.plan(request_id, prefill, *tokens) if is_named else None
            except Exception:
                self._logger.exception("request %s is not sent: its chunk could not be planned", shown(request_id))
                is_named, chunk = False, None
            if not is_named:
                self._give_up(request_id, prefill, meta)
            elif chunk is not None:
                meta.chunks.append(chunk)

    def _send_none(self, scheduler_output: Any, meta: StepMetadata) -> None:
        """Gives up all prefills of a step: what was planned of them before something failed is lost."""
        meta.chunks.clear()
        for request_id in scheduler_output.num_scheduled_tokens:
            if (prefill := self._prefills.get(request_id)) is not None and not prefill.given_up:
                self._give_up(request_id, prefill, meta)

    def _give_up(self, request_id: str, prefill: Prefill, meta: StepMetadata) -> None:
        """Stops sending a request that continues in the engine: its decoder is told, its end releases its blocks."""
        self._prefill_names.end_others(prefill, "failed", meta)
        if prefill.reported:
            prefill.given_up = True
            meta.given_up.append(self._numbers.of(request_id))
        else:
            del self._prefills[request_id]

    # ---- a request ends

    def finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """(whether the blocks must be kept, kv_transfer_params of the response)."""
        kept, answer = self._finished(request)
        if self._answers_name_source and request.status.name in FINISHED:
            answer = {**(answer or {}), **self._open.source()} or None
        return kept, answer

    def _finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        request_id = request.request_id
        self._loading_first.discard(request_id)
        self._offers.gone(request_id)
        self._proofs.gone(request_id)
        self._shadows.gone(request_id)
        if request.status.name == "FINISHED_ABORTED":
            self._shadows.aborted(request_id)
        self._pulls.gone(request_id, self._pending)
        prefill = self._prefills.pop(request_id, None)
        if prefill is not None:
            self._prefill_names.end_others(prefill, "aborted", self._pending)
        is_loading = request_id in self._awaited
        if is_loading:  # its workers report it once, when the load is over and nothing reads its pages
            self._names.fetched(request_id)
            self._pending.abandoned.append(self._numbers.of(request_id))
        if prefill is not None and (self._is_known(request_id, prefill) or not is_loading):
            return self._finished_prefill(request, prefill)
        if is_loading:
            return True, None
        self._pending.expects.pop(request_id, None)
        self._gate.gone(request_id)
        ask = self._read(request)
        if isinstance(ask, Sibling) and ask.sends and request.status.name in FINISHED:  # the last choice's is answered
            return False, self._open.answer(ask.base, request_id, request.num_prompt_tokens, self._side, self._logger)
        self._decline(request, ask)  # only if it still asks for a load: it ended before it had blocks
        self._names.forget(request_id)
        return False, None

    def _finished_prefill(self, request: Any, prefill: Prefill) -> tuple[bool, dict[str, Any] | None]:
        """Has the workers tell the decoder how the prefill ended, even without a chunk, and report when it is sent."""
        request_id = request.request_id
        number = self._numbers.of(request_id)
        if not self._is_known(request_id, prefill):
            self._numbers.forget(request_id)
            return False, None
        outcome = prefill.outcome(request.status.name)
        self._pending.prefill_ends.append(PrefillEnded(number, outcome))
        is_fetched = request_id in self._awaited
        if is_fetched or prefill.is_unread:  # the report of a load, perhaps another connector's, frees it: the only one
            self._ended.end_quietly(number)
            if not is_fetched:
                self._pending.unreported.append(number)
                self._numbers.forget(request_id)
            return is_fetched, None
        self._ended.hold(request_id, is_granted=number in prefill.granted)
        if outcome != "finished":
            return True, None
        named = prefill.name.base, request_id, prefill.named_tokens
        return True, self._open.answer(*named, self._side, self._logger, prefill.name.digest)

    def _is_known(self, request_id: str, prefill: Prefill) -> bool:
        """Whether the workers know it, or will with the next step."""
        return prefill.reported or self._numbers.of(request_id) in [each.request for each in self._pending.announces]

    def reported(self, sent: Iterable[str], received: Iterable[str], news: object = None) -> None:
        """A step is over: takes the requests that all workers have reported; the engine frees their blocks after it."""
        try:
            if isinstance(news, WorkerNews):
                self._take(news)
        finally:
            for request_id in sent:
                self._ended.sent(request_id)
                self._window_blocks.let_go(request_id)
                self._numbers.forget(request_id)
            for request_id in received:
                self._loaded_or_failed(request_id)

    def _take(self, news: WorkerNews) -> None:
        for number in news.taken_in:  # first: the engine frees these blocks next
            if not self._shadows.may_be_written(number):
                name = self._numbers.name(number)
                self._quarantine.take_in(number, name, self._awaited[name])
        for number in news.let_go:
            if not self._shadows.let_go(number):
                self._quarantine.let_go(number)
        for step in news.steps_over:
            self._offers.step_over(step)
            self._pulls.rate.step_over(step)
        for number in self._shadows.reported(news.arrived, news.shadows_failed, news.shadows_proved):
            self._gate.gone(held_as(number))
        self._gate.computed(news.computed)
        self._open.counted_right += news.counted_right
        self.rest.granted(news.granted)
        self._pulls.offered(news.offered, self._pending)
        arrived = [self._numbers.name(number) for number in news.arrived]
        self._pulls.arrived(arrived)
        self.on_released(news.released)
        moved = {self._numbers.name(number): messengers for number, messengers in news.moved.items()}
        self._proofs.reported(connected=news.connected, moved=moved, arrived=arrived, proved=news.proved)

    def _loaded_or_failed(self, request_id: str) -> None:
        self._awaited.pop(request_id, None)
        self._names.fetched(request_id)
        self._gate.gone(request_id)
        self._pulls.loaded(request_id)
        if (number := self._numbers.of(request_id)) in self._pending.abandoned and not self._ended.is_quiet(number):
            self._pending.abandoned.remove(number)
        if request_id in self._prefills:  # loaded, by this or another connector, and to be sent on: no end
            self._numbers.renew(request_id)
        else:
            self._numbers.forget(request_id)

    def on_released(self, numbers: Iterable[str]) -> None:
        """At a messenger nothing reads the pages of these offers, and of these ended prefills, any more."""
        self._offers.released(self._ended.released(numbers))

    def weights_changed(self) -> None:
        """What is offered, and what is pulled, is of the weights before."""
        self._pulls.weights_changed(self._pending)
        self._offers.withdraw(self._pending)

    def before_cache_reset(self) -> bool:
        """Ends what holds blocks beside requests; returns whether blocks are still held for offers."""
        self._shadows.drop_uncomputed()
        self._offers.withdraw(self._pending)
        return self._offers.has_work()

    def has_work(self) -> bool:
        """Whether the engine must go on stepping even if it has no request left."""
        parts = self._ended, self._offers, self._shadows
        return self._pending.needs_step() or any(part.has_work() for part in parts)

    def is_idle(self) -> bool:
        """Whether no state is left; for leak checks at rest."""
        pending = self._pending.fetches or self._pending.expects or self._names
        remembered = self._prefills or self._awaited or self._loading_first or pending
        kept = (self._quarantine, self._window_blocks, self._gate, self._proofs, self._shadows, self._numbers)
        of_pulls = (self._pulls, self._offers, self._ended)
        return not (remembered or self.has_work()) and all(each.is_empty() for each in (*kept, *of_pulls))
