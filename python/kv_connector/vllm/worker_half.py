"""The connector in a worker's process: passes the step's metadata to the messenger, and its events to the engine.

Called by the worker's main thread only. It blocks on a transfer only in the fence before pages are overwritten.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, TypeVar

from kv_connector.configuration.messenger_addresses import Address
from kv_connector.exceptions import MessengerError
from kv_connector.runtime.client import MessengerClient
from kv_connector.runtime.commands import Abandon, Command, Decline, Expect, ReportEnd
from kv_connector.runtime.facade import (
    Arrived,
    Connected,
    Disconnected,
    Event,
    Failed,
    Granted,
    Log,
    MessengerPort,
    Offered,
    Opened,
    Prefilled,
    Quarantined,
    Released,
    Timeline,
    write_to_log,
)
from kv_connector.vllm.empty_steps import EmptySteps
from kv_connector.vllm.ended_loading import EndedLoading
from kv_connector.vllm.engine_figures import EngineFigures
from kv_connector.vllm.kv_groups import GroupPages
from kv_connector.vllm.left_over import LeftOver
from kv_connector.vllm.messenger_commands import comparison_command, fetch_command
from kv_connector.vllm.messenger_limits import Limits
from kv_connector.vllm.metadata import (
    Chunk,
    Fetch,
    MessengerAddress,
    Refusal,
    Renamed,
    StepMetadata,
    Transfer,
    WorkerNews,
)
from kv_connector.vllm.open_fetch import OUTDATED, OpenFetch
from kv_connector.vllm.outgoing_prefills import OutgoingPrefills
from kv_connector.vllm.proof_messages import ProofTally
from kv_connector.vllm.reports import Reports
from kv_connector.vllm.request_numbers import RequestNames
from kv_connector.vllm.submitted_steps import StepEnd, SubmittedSteps
from kv_connector.vllm.worker_pulls import WorkerPulls

POLL_FAILURES_MAX = 3
"""The number of consecutive failed polls after which the messenger is lost; one may be due to a single event."""

Item = TypeVar("Item")


class WorkerHalf:
    """One messenger's side of all transfers. Each request is reported exactly once, whatever fails."""

    def __init__(
        self,
        messenger: MessengerPort,
        make_steps: Callable[[Callable[[Command], bool]], SubmittedSteps],
        groups: Sequence[GroupPages],
        limits: Limits,
        logger: logging.Logger,
        now_seconds: Callable[[], float] = time.monotonic,
        *,
        is_first: bool = True,
    ) -> None:
        """``make_steps`` is called with the function that submits one command to the messenger.

        ``is_first``: whether it is the first of the engine's messengers, which asks and counts for the engine.
        """
        self._is_first = is_first
        self._messenger = messenger
        self._client = MessengerClient(messenger, logger, self._on_lost, POLL_FAILURES_MAX)
        self._steps = make_steps(self._client.submit)
        self._groups = groups
        self._limits = limits
        self._now_seconds = now_seconds
        self._logger = logger
        self.names = RequestNames()
        """What the engine calls the requests; everything else here knows them by number."""

        self._empty_steps = EmptySteps()
        self._step_computes = False
        self._reported_step = 0
        self._open_step: StepMetadata | None = None
        """The step whose forward pass is running, if it has chunks."""
        self._reported_counted_right = False
        self._prefills = OutgoingPrefills(
            self._client,
            self.names,
            limits.unheard_seconds,
            on_sent=self._on_sent,
            logger=logger,
            now_seconds=now_seconds,
        )
        self._fetching: dict[str, OpenFetch] = {}
        self._ended_loading = EndedLoading()
        self._expected: set[Transfer] = set()
        """Transfers of queued requests, until the messenger reports that they are computed."""
        self._quarantined: dict[str, float] = {}
        """Requests that were reported as failed while their blocks may still be written to, and when the messenger is
        asked again whether they are."""
        self._reports = Reports()
        self._news = WorkerNews()
        self._figures = EngineFigures(messenger)
        self._pulls = WorkerPulls(self._client, groups, is_first=is_first)

    # ---- a step begins

    def fence(self, meta: StepMetadata) -> None:
        """Returns when nothing reads the blocks of preempted requests, which are overwritten next.

        Raises MessengerError if the messenger can neither be fenced nor closed.
        """
        self._prefills.fence(meta.preempted)

    def begin(self, meta: StepMetadata) -> None:
        """Submits everything that is new to the messenger, before the forward pass starts."""
        self.names.learn(meta.names)
        self._step_computes, self._reported_step = meta.computes, meta.step if meta.reports_end else 0
        if meta.fetches or meta.prefill_ends or meta.asks or meta.offers:
            self._empty_steps.interrupted()
        self._each(meta.announces, self._prefills.announce)
        self._each(meta.given_up, self._prefills.give_up)
        self._each(meta.refusals, self._refuse, self._fail_broken)
        self._each(meta.fetches, self._fetch, self._fail_broken)
        self._each(meta.renamed.values(), self._rename)
        self._end_prefills(meta)
        self._each(meta.expects.values(), self._expect)
        self._each(meta.declines, self._decline)
        self._each((*meta.rejections, *(meta.pull_reports if self._is_first else ())), self._client.submit)
        self._each(meta.abandoned, self._abandon)
        self._each(meta.asks, lambda ask: self._pulls.ask(ask, self._news))
        self._each(meta.withdrawn, self._pulls.withdraw)
        self._each(meta.offers, lambda offer: self._pulls.offer(offer, self._news, self._now_seconds()))
        chunks = [chunk for chunk in meta.chunks if not self._prefills.is_given_up(chunk.request)]
        if chunks and not self.lost_because:
            self._begin_chunks(meta, chunks)

    def _each(
        self, items: Iterable[Item], send: Callable[[Item], object], otherwise: Callable[[Item], None] | None = None
    ) -> None:
        """Calls ``send`` for each item; an error affects the request of that item only."""
        for item in items:
            try:
                send(item)
            except Exception:
                self._logger.exception("the messenger could not be told of %.200s", item)
                if otherwise is not None:
                    otherwise(item)

    def _end_prefills(self, meta: StepMetadata) -> None:
        loading = set(meta.abandoned)
        self._ended_loading.ended(end.request for end in meta.prefill_ends if end.request in loading)
        self._ended_loading.ended_unread(meta.unreported, self.names)
        self._each(meta.prefill_ends, self._prefills.end)
        self._each(meta.expired, self._prefills.expire)

    def _on_sent(self, request: str) -> None:
        """Nothing reads the pages of an ended prefill any more."""
        if not self._ended_loading.has(request):
            self._reports.sent.add(request)
            return
        self._news.released.append(request)
        if self._ended_loading.sent(request):
            self._reports.received.add(request)

    def _expect(self, expect: Expect) -> None:
        transfer = Transfer(expect.transfer, expect.prompt_digest)
        if self._client.submit(expect):
            self._expected.add(transfer)
        else:
            self._news.computed.append(transfer)  # no event will come: let the fetch fail at once

    def _decline(self, decline: Decline) -> None:
        self._expected.discard(Transfer(decline.transfer, decline.prompt_digest))
        self._pulls.declined(decline.transfer)
        self._client.submit(decline)

    def _abandon(self, request: str) -> None:
        if request in self._fetching:
            self._fetching[request].abandon()
            self._client.submit(Abandon(request))

    def _rename(self, renamed: Renamed) -> None:
        """What comes by the name of before is not used; it ends when its prefiller computes it, by either name."""
        if renamed.request in self._fetching:
            self._fetching[renamed.request].rename(renamed.transfer)

    def _begin_chunks(self, meta: StepMetadata, chunks: Sequence[Chunk]) -> None:
        described = self._prefills.described(chunks, self._groups)
        if not described:
            return
        if self._steps.begin(meta.step, described, layers_are_right=meta.layers_are_right):
            self._prefills.begun(chunk.request for chunk in described)
            self._open_step = meta
        else:
            self._lose(chunks)

    def _fetch(self, fetch: Fetch) -> None:
        self._fetching[fetch.request] = OpenFetch.of(fetch, self._now_seconds() + self._limits.fetch_seconds)
        self._expected.discard(Transfer(fetch.transfer, fetch.prompt_digest))
        if not self._ask(fetch, fetch.limit_seconds):
            self._fail(fetch.request, "the messenger did not take the fetch")

    def _ask(self, fetch: Fetch, limit_seconds: float) -> bool:
        return self._client.submit(fetch_command(fetch, fetch.messengers, limit_seconds, self._groups))

    def _ask_again(self, request: str, reason: str) -> bool:
        """Asks by another name, or the next prefiller that the router named; False if there is none, or no time."""
        waiting = self._fetching[request]
        left_seconds = waiting.deadline_seconds - self._now_seconds()
        if left_seconds < 0.001:
            return False
        fetch = waiting.take_renamed()
        if fetch is None:
            if (fetch := waiting.take_next()) is None:
                return False
            self._news.moved[request] = fetch.messengers
            self._logger.warning(
                "the KV of request %s did not come, the prefiller at %s is asked next: %s",
                *(self.names.shown(request), fetch.messengers[0], reason),
            )
        return self._ask(fetch, left_seconds)

    def _refuse(self, refusal: Refusal) -> None:
        """Fails a request; the scheduler's half has logged the reason."""
        self._fetching[refusal.request] = OpenFetch(refusal.blocks)
        self._fail(refusal.request, "")

    def _fail_broken(self, item: Refusal | Fetch) -> None:
        fetch = item if isinstance(item, Fetch) else None
        self._fetching.setdefault(item.request, OpenFetch(item.blocks, fetch))
        self._fail(item.request, "its fetch could not be told to the messenger")

    def _lose(self, chunks: Iterable[Chunk]) -> None:
        """Gives up the requests of these chunks."""
        for chunk in chunks:
            self._prefills.give_up(chunk.request)

    # ---- the forward pass

    @property
    def lost_because(self) -> str:
        """Why the messenger was given up; "" while it works."""
        return self._client.lost_because

    @property
    def wants_layers(self) -> bool:
        """Whether the layer hooks must be called."""
        return self._steps.wants_layers

    def layer_complete(self, layer_name: str) -> None:
        """The KV of a layer is written."""
        self._steps.layer_complete(layer_name)

    def forward_over(self) -> None:
        """The model's own layers are done. vLLM need not call this before a drafter runs, so collect() does it too."""
        self._steps.forward_over()

    def end(self) -> None:
        """The forward pass is over."""
        meta, self._open_step = self._open_step, None
        if meta is None:
            return
        match self._steps.end():
            case StepEnd.LOST:
                self._lose(meta.chunks)
            case StepEnd.REFUSED:
                self._client.give_up("it did not take the end of a step")
        if self._steps.first_pass_is_right and not self._reported_counted_right:
            self._reported_counted_right = True
            self._news.counted_right += 1

    # ---- what has happened

    def collect(self) -> Reports:
        """Takes all reports; waits for some for a short time in a step that computes nothing.

        vLLM calls this after the model's forward pass; with a drafter, before the end of the step.
        """
        self._steps.forward_over()
        self._pulls.end_again(self._now_seconds(), self._limits.unheard_seconds)
        if self._reported_step:
            self._news.steps_over.append(self._reported_step)
        if self._has_news() or self._step_computes:
            self._empty_steps.interrupted()
        else:
            self._empty_steps.wait(self._has_news, self._messenger.wait)
        self._end_waits_for_proof()
        self._end_waits_in_vain()
        reports, self._reports = self._reports, Reports()
        if reports.sent or reports.received:
            self._figures.request_ended()
        return reports

    def _has_news(self) -> bool:
        self._client.poll(self._on)
        return bool(self._reports.sent or self._reports.received or self._news.is_urgent())

    def _end_waits_for_proof(self) -> None:
        now_seconds = self._now_seconds()
        for request, waiting in list(self._fetching.items()):
            if waiting.quarantine_reason and now_seconds >= waiting.proof_deadline_seconds:
                self._take_in(request, waiting.quarantine_reason)

    def _end_waits_in_vain(self) -> None:
        """Ends what the messenger should have ended by its own limits: no wait of an engine hangs on one event.

        Whether a fetch still writes is not known then, so its pages stay out of use until the messenger says so.
        """
        now_seconds = self._now_seconds()
        limit_seconds = self._limits.unheard_seconds
        for request, waiting in list(self._fetching.items()):
            if now_seconds >= waiting.deadline_seconds + limit_seconds - self._limits.fetch_seconds:
                self._client.submit(Abandon(request))
                self._take_in(request, f"the messenger has reported no end of it within {limit_seconds:g} s")
        for request, due_seconds in self._quarantined.items():
            if now_seconds >= due_seconds:
                self._quarantined[request] = now_seconds + limit_seconds
                self._client.submit(ReportEnd(request))  # time alone frees no blocks: the answer is the proof
        self._prefills.repeat_ends()

    def take_news(self) -> WorkerNews | None:
        """Takes the news for the scheduler's half, which go with the last reports; None if there are none."""
        if self._news == WorkerNews():
            return None
        news, self._news = self._news, WorkerNews()
        return news

    def count(self, tallies: Iterable[ProofTally]) -> None:
        """Passes on to the metrics what the comparisons of last tokens came to; one messenger of the engine does."""
        for tally in tallies if self._is_first else ():
            self._client.submit(comparison_command(tally))

    def figures(self) -> dict[str, dict[str, Any]] | None:
        """What counters have gained since the last call, and the gauges; None if unchanged or within the interval."""
        return self._figures.take_off() if self.lost_because else self._figures.take()

    @property
    def opened(self) -> Opened:
        """The messenger's addresses."""
        return self._messenger.opened

    def address(self) -> MessengerAddress:
        """The address at which decoders reach this messenger."""
        opened = self._messenger.opened
        return MessengerAddress(opened.engine_id, Address(opened.control_host, opened.control_port))

    def held(self) -> dict[str, int]:
        """The number of requests in each state; for leak checks at rest."""
        kinds: dict[str, Sized] = {
            **self._prefills.held(),
            "fetching": self._fetching,
            "expected": self._expected,
            "quarantined": self._quarantined,
            "names": self.names,
            **self._ended_loading.held(),
            **self._pulls.held(),
        }
        return {name: len(requests) for name, requests in kinds.items() if requests}

    def withdraw_offers(self) -> list[str]:
        """Ends all offers that no engine is fetching; returns those whose pages nothing reads any more."""
        return self._pulls.withdraw_all(lambda: self._client.poll(self._on), self._messenger.wait, self._news)

    def close(self) -> None:
        """Closes the messenger."""
        self._messenger.close()

    def retire(self, why: str) -> LeftOver:
        """Closes the messenger of an engine that goes on without it; ``why`` is for peers.

        Raises MessengerError if the memory of the KV cache may still be accessed, before anything is changed or because
        the messenger cannot be closed.
        """
        self._client.poll(self._on)
        at_risk = len(self._fetching) + len(self._quarantined)
        if at_risk or (self.lost_because and not self._client.closed):
            raise MessengerError(
                f"KV memory cannot be given back: {at_risk} requests have pages that a prefiller may still write to,"
                " expected none; end a prefiller that hangs, or start this engine again"
            )
        self._messenger.close(why)
        self._prefills.on_closed()
        self._pulls.on_lost(self._news, closed=True)
        self._news.computed.extend(self._expected)  # no event will come: let the fetch begin when it can
        return LeftOver(self._reports, self._news, self.names.all())

    def take_over(self, left: LeftOver) -> None:
        """Reports what an earlier messenger has left, and sends what was kept for its peers."""
        self.names.learn(left.names)
        self._reports, self._news = left.reports, left.news
        self._each(left.declines, self._decline)
        self._each(left.rejections, self._client.submit)

    # ---- inside

    def _on(self, event: Event) -> None:
        match event:
            case Released(request):
                if not self._pulls.on_released(request, self._news):
                    self._prefills.on_released(request)
            case Offered():
                self._pulls.on_offered(event, self._news)
            case Prefilled(transfer, prompt_digest):
                self._expected.discard(Transfer(transfer, prompt_digest))
                self._news.computed.append(Transfer(transfer, prompt_digest))
            case Arrived(request):
                if request in self._quarantined:
                    self._let_go(request)
                else:
                    self._on_arrived(request)
            case Connected() | Disconnected() | Granted():
                self._news.note(event)
            case Quarantined(request, reason):
                self._on_quarantined(request, reason)
            case Failed(request, reason):
                if request in self._quarantined:
                    self._let_go(request)
                elif request not in self._fetching:
                    self._logger.warning("request %s failed and does not wait: %s", self.names.shown(request), reason)
                elif not self._ask_again(request, reason):
                    self._fail(request, reason)
            case Timeline() | Log():
                write_to_log(self.names.in_log(event), self._logger)

    def _on_arrived(self, request: str) -> None:
        waiting = self._fetching.get(request)
        if waiting is None:
            self._logger.warning("KV arrived for request %s, which does not wait for any", self.names.shown(request))
        elif waiting.is_outdated:
            self._fail(request, OUTDATED)
        else:
            del self._fetching[request]
            if not waiting.is_shadow:
                self._loaded(request)
            self._news.arrived.append(request)

    def _loaded(self, request: str) -> bool:
        """A load is over, well or not: False if its request has ended and is reported once nothing reads its pages."""
        is_due = self._ended_loading.loaded(request)
        if is_due:
            self._reports.received.add(request)
        return is_due

    def _on_quarantined(self, request: str, reason: str) -> None:
        waiting = self._fetching.get(request)
        if waiting is not None and not waiting.awaits_proof(reason, self._now_seconds()):
            self._take_in(request, reason)

    def _take_in(self, request: str, reason: str) -> None:
        """Fails the request at once, and has its pages kept out of use until they are safe."""
        self._quarantined[request] = self._now_seconds() + self._limits.unheard_seconds
        self._news.taken_in.append(request)
        self._fail(request, reason)

    def _let_go(self, request: str) -> None:
        del self._quarantined[request]
        self._news.note_let_go(request)

    def _fail(self, request: str, reason: str) -> None:
        waiting = self._fetching.pop(request)
        if reason:
            shown, why = self.names.shown(request), OUTDATED if waiting.is_outdated else reason
            self._logger.log(waiting.logged_as, "the KV of request %s did not come: %s", shown, why)
        if waiting.is_shadow:
            self._news.shadows_failed.append(request)
            return
        self._each(waiting.rejection(), self._client.submit)
        if self._loaded(request):
            self._reports.failed[request] = waiting.blocks

    def _on_lost(self, closed: bool) -> None:
        """Fails all transfers of a messenger that was given up.

        Once it is closed it no longer reads any page. Pages that wait for KV are not safe even then: a peer on this
        host may have them mapped and write to them later. They stay out of use until this engine is restarted.
        """
        for request in list(self._fetching):
            self._take_in(request, "the messenger was given up")
        self._news.computed.extend(self._expected)
        self._expected.clear()
        self._pulls.on_lost(self._news, closed=closed)
        if closed:
            self._prefills.on_closed()
