"""One request on the prefiller, in SGLang's terms. The scheduler's thread only; only a fence may block."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.runtime.commands import Chunk
from kv_connector.runtime.facade import Granted
from kv_connector.sglang.beside_pages import PromptParts, as_lists
from kv_connector.sglang.client_fields import NO_ROOM, room_fault
from kv_connector.sglang.endpoint import TransferEndpoint
from kv_connector.sglang.exchange import Outgoing, PlannedChunk
from kv_connector.sglang.page_list import PageList, PagesMovedError
from kv_connector.sglang.prefillers import cp_rank_of
from kv_connector.sglang.sglang_api import BaseKVSender, KVPoll, KVTransferError, KVTransferMetric
from kv_connector.sglang.transfer_spans import TransferSpans

_FAILED_ELSEWHERE = "the transfer failed on another rank"
RENAMED_LIMIT_SECONDS = 30.0
"""How long a prompt that had its grant waits for another one after it was named anew; its pages are held meanwhile."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk: pages before ``end_page`` may be read once the event has completed."""

    end_page: int
    beside: Sequence[Sequence[int]] | None
    """The indices of each pool beside that of full attention, which come with the last chunk; None = it is not that."""
    wait_event: Any
    """The device's event; None if the pages are complete."""


class Sender(BaseKVSender):
    """Waits for the decoder's grant, reports computed pages to the messenger, and ends when nothing reads them."""

    def __init__(
        self,
        mgr: TransferEndpoint,
        bootstrap_addr: str,
        bootstrap_room: int,
        req_has_disagg_prefill_dp_rank: bool = False,
    ) -> None:
        self.kv_mgr = mgr
        refusal = room_fault(bootstrap_room)
        self.bootstrap_room = NO_ROOM if refusal else bootstrap_room
        """The client's, once it is checked: it is a key from here on."""
        self._spans = TransferSpans.of(self.bootstrap_room)
        self.conclude_state: int | None = None
        self._early_send_wait_event: Any = None
        self._since = time.monotonic()
        self._pages = PageList(0, 0)
        self._begun = False
        """Whether the number of pages that SGLang will give is known."""
        self._context_slot = -1
        self._sent = False
        self._chunks: deque[_Chunk] = deque()
        """Chunks that SGLang has given but that are not readable yet."""
        self._kept = False
        """Whether SGLang's cache may replace the pages that a pass computes; see ``leave_to_send``."""
        self._reported_state: int | None = None
        """The state that was last reported to the first pipeline stage."""
        self._with_stages = True
        """Whether the stages have not agreed yet on whether the request is computed."""
        self.weights = ""
        """The name of the weights in the prompt's digest."""
        self._granted_before: Granted | None = None
        """What its decoder has granted under an earlier name."""
        self._renamed_seconds = 0.0
        self._given_tokens = mgr.take_prompt_tokens()
        self._parts = PromptParts(0)
        """What the model's pools hold of the prompt."""
        digest = mgr.take_prompt_digest()
        self._pull = mgr.take_pull()
        """The pull of the prompt's beginning, for which it waits while it could be computed; None = it has none."""
        self.stands_by = not refusal and _is_sent_by_another(mgr, bootstrap_room)
        """Whether another context-parallel rank sends the request, and this one only computes it."""
        if self.stands_by:
            self._outgoing = Outgoing.of_another_rank()
            return
        if refusal:
            self._outgoing = Outgoing.refused(refusal)
            self._fail(refusal)
            return
        self._outgoing = mgr.exchange.announce(bootstrap_room, digest)
        self._report_stages(KVPoll.Bootstrapping)
        refusal = mgr.place_room(bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank)
        if refusal:
            self._fail(refusal)

    # ---- before the forward pass

    def refuse(self, reason: str) -> None:
        """Ends the request before it is computed, unless it has ended already."""
        if self.conclude_state is None:
            self._fail(reason)

    def rename(self, digest: str, weights: str) -> None:
        """Names a prompt anew that other weights compute than those by which it is named.

        Its decoder asks for it by this name if it has these weights too. What earlier passes computed goes once more.
        A decoder that has given it up does not ask again, so what has been answered by now counts first.
        """
        self.kv_mgr.exchange.drain()
        self.weights = weights
        out = self._outgoing
        if self.stands_by or out.ended or out.failure or digest == out.prompt_digest:
            return
        self._granted_before = out.granted or self._granted_before
        self._renamed_seconds = time.monotonic()
        self.kv_mgr.exchange.abort(out, "it was named anew")
        self._outgoing = self.kv_mgr.exchange.announce(self.bootstrap_room, digest)
        self._pages.forget_reported()

    def pop_decode_prefix_len(self) -> int:
        """The number of tokens that the decoder has in its own cache."""
        granted = self._outgoing.granted or self._granted_before
        return granted.first_token if granted is not None else 0

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        """The scheduler has a metadata slot for the request and will give this many pages."""
        self._leave_stages()
        decoders_tokens = self.pop_decode_prefix_len()
        if num_kv_indices < 0:
            self._fail(
                f"the decoder has {decoders_tokens} tokens of room {self.bootstrap_room} in its cache, expected at most"
                f" the {self._given_tokens} of the prompt: send both sides the same prompt"
            )
            return
        decoders_count = decoders_tokens // self.kv_mgr.kv_args.page_size
        self._pages = PageList(decoders_count, num_kv_indices)
        self._parts = self.kv_mgr.prompt_parts(self._pages.total, self._given_tokens, decoders_tokens)
        self._begun = True
        self._context_slot = -1 if aux_index is None else int(aux_index)

    # ---- chunks

    @property
    def supports_host_tensor_indices(self) -> bool:
        """Whether SGLang may copy page numbers without a wait, and give them with an event.

        Before a pass, which they would hold back until the one before is over. Not after it: no pass is ahead of them
        then, and a prompt's metadata would leave late, since the scheduler's thread waits for the next pass next.
        """
        return self.kv_mgr.page_numbers.may_come_later

    def get_max_transfer_tokens(self) -> int | None:
        """None, no limit: the messenger splits transfers."""
        return None

    def should_send_kv_chunk(self, num_pages: int, last_chunk: bool) -> bool:
        """True also for a last chunk without pages: the decoder waits for its metadata."""
        return num_pages > 0 or last_chunk

    def send(
        self,
        kv_indices: Any,
        state_indices: Sequence[Any] | None = None,
        num_kv_tokens: int | None = None,  # noqa: ARG002 - whole pages are sent
        indices_event: Any = None,
    ) -> None:
        """Gives the next pages of the request, which hold their KV once the wait event has completed.

        Their numbers may still come from the device: they are here once ``indices_event`` has completed.
        """
        wait_event, self._early_send_wait_event = self._early_send_wait_event, None
        self.kv_mgr.page_numbers.when_here(indices_event, lambda: self._take(kv_indices, state_indices, wait_event))

    def _take(self, kv_indices: Any, state_indices: Sequence[Any] | None, wait_event: Any) -> None:
        if self.conclude_state is not None:
            return
        try:
            self._pages.give(kv_indices.tolist())
        except PagesMovedError as moved:
            self._fail(f"SGLang moved a page while it was sent ({moved}): please report this with SGLang's arguments")
            return
        beside = as_lists(state_indices) if self._pages.complete else None
        misfit = self._parts.misfit(self._pages.known_pages, beside) if beside is not None else ""
        if misfit:
            self._fail(misfit)
            return
        self._sent = True
        self._chunks.append(_Chunk(self._pages.given, beside, wait_event))
        self._flush()

    def _flush(self) -> None:
        """Reports all readable chunks to the messenger, in order."""
        while self._chunks and _is_over(self._chunks[0].wait_event):
            chunk = self._chunks.popleft()
            self._report(chunk)
            is_last = chunk.beside is not None
            if is_last and self.stands_by:
                self.conclude_state = KVPoll.Success
            elif is_last:
                self.kv_mgr.exchange.finish(self._outgoing, self._context_slot)

    def _report(self, chunk: _Chunk) -> None:
        """Reports a chunk; pages that need what other pools tell with the last chunk only wait for that."""
        end_page = chunk.end_page if chunk.beside is not None else self._parts.readable_end(chunk.end_page)
        unreported = self._pages.unreported(end_page)
        groups = self._parts.groups(unreported, chunk.beside)
        end_token = min(self._tokens(end_page), self._parts.prompt_tokens)
        self.kv_mgr.exchange.computed(self._outgoing, self._parts.prompt_tokens, end_token, groups)
        self._pages.on_reported(unreported)

    def leave_to_send(self) -> None:
        """Has the prompt sent after its passes, from the pages that SGLang gives.

        SGLang's cache may have the same pages already, and would then free those that a pass computes before they are
        read.
        """
        self._kept = True

    def plan(
        self, end_token: int, prompt_tokens: int, pages_of: Callable[[int, int], list[int]]
    ) -> PlannedChunk | None:
        """The chunk that the next forward pass computes, to be sent layer by layer; None if it is sent after the pass.

        No state changes before the messenger has accepted the chunk, so an unused plan is simply sent afterwards.
        ``pages_of`` gives the pages between two positions of the prompt.
        """
        end_page = self._end_of_plan(end_token, prompt_tokens)
        planned = None if end_page is None else self._pages.plan(end_page, pages_of)
        if planned is None:
            return None
        out = self._outgoing
        chunk = Chunk(
            request=out.request,
            transfer=out.transfer,
            prompt_digest=out.prompt_digest,
            prompt_tokens=self._parts.prompt_tokens,
            cached_tokens=0,
            first_token=self._tokens(planned.first_page),
            end_token=self._tokens(planned.end_page),
            groups=self._parts.groups(planned),
        )
        return PlannedChunk(chunk, lambda: self._pages.on_reported(planned))

    def unplanned(self, end_token: int, prompt_tokens: int) -> tuple[int, int] | None:
        """Between which positions of the prompt a plan needs pages; None if there is nothing to plan.

        A plan that is made later needs none before them.
        """
        end_page = self._end_of_plan(end_token, prompt_tokens)
        return None if end_page is None else self._pages.unknown(end_page)

    def _end_of_plan(self, end_token: int, prompt_tokens: int) -> int | None:
        out = self._outgoing
        if self.conclude_state is not None or out.ended or out.failure or not self._begun or self._kept:
            return None
        if not self._parts.leaves_early:
            return None  # SGLang gives the pages of another pool after the pass
        page_tokens = int(self.kv_mgr.kv_args.page_size)
        return self._pages.total if end_token >= prompt_tokens else end_token // page_tokens

    def _tokens(self, page_count: int) -> int:
        return page_count * int(self.kv_mgr.kv_args.page_size)

    # ---- progress

    def poll(self) -> int:
        """The state of the transfer, a KVPoll; Success and Failed mean that nothing reads the pages any more."""
        self.kv_mgr.page_numbers.look()
        state = self._own_state()
        self._report_stages(state)
        if self._spans is not None:
            self._show(self._spans, state)
        return state

    def _show(self, spans: TransferSpans, state: int) -> None:
        if self._sent:
            spans.at(KVPoll.Transferring)  # also where it has ended since
        if state in (KVPoll.Success, KVPoll.Failed):
            failure = "" if state == KVPoll.Success else self._outgoing.failure or "the transfer failed"
            spans.end(failure, self._outgoing.bytes_sent)
        elif not self._sent:
            spans.at(state)

    def _own_state(self) -> int:
        if self.conclude_state is not None:
            return self.conclude_state
        self.kv_mgr.exchange.drain()
        self._flush()
        if self.stands_by:
            under_way = KVPoll.Transferring if self._sent else KVPoll.WaitingForInput
            return under_way if self.conclude_state is None else self.conclude_state
        out = self._outgoing
        waits_for_release = (
            out.ended and not out.released
        )  # its metadata was sent already, so that only its release ends it
        if out.failure and not waits_for_release:
            self.conclude_state = KVPoll.Failed
        elif out.released:
            self.conclude_state = KVPoll.Success
        elif out.granted is None and self._granted_before is not None:
            return self._poll_renamed()
        elif self._sent:
            return KVPoll.Transferring
        else:
            return self._poll_grant() if out.granted is None else self._poll_pull()
        return self.conclude_state

    def poll_pp_consensus(self) -> int:
        """The state on which all pipeline stages agree; called on the first stage, whose decision the others follow.

        So no stage computes before each has its own grant, which also tells what the decoder has cached.
        """
        return self.kv_mgr.agreed_state(self.bootstrap_room, self.poll())

    def _report_stages(self, state: int) -> None:
        if self._with_stages and state != self._reported_state:
            self._reported_state = int(state)
            self.kv_mgr.report_stages(self.bootstrap_room, self._reported_state)

    def _leave_stages(self) -> None:
        if self._with_stages:
            self._with_stages = False
            self.kv_mgr.forget_room(self.bootstrap_room)

    def _poll_grant(self) -> int:
        waited = time.monotonic() - self._since
        if waited < self.kv_mgr.bootstrap_timeout:
            return KVPoll.Bootstrapping
        changed = "; its weights have changed since it came" if self._renamed_seconds else ""
        self._fail(
            f"no decoder asked for room {self.bootstrap_room} within {waited:.0f} s"
            f" (SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT){changed}"
        )
        return KVPoll.Failed

    def _poll_renamed(self) -> int:
        if time.monotonic() - self._renamed_seconds < RENAMED_LIMIT_SECONDS:
            return KVPoll.Transferring if self._sent else KVPoll.Bootstrapping
        self._fail(
            f"weights changed while room {self.bootstrap_room} waited, and no decoder with these weights asked for it"
            f" within {RENAMED_LIMIT_SECONDS:g} s: update both sides while both are paused"
        )
        return KVPoll.Failed

    def _poll_pull(self) -> int:
        waits = self._pull is not None and not self._begun and self._pull.keeps_waiting()
        return KVPoll.Bootstrapping if waits else KVPoll.WaitingForInput

    def leave_pull(self) -> None:
        """The prompt is computed without waiting for its pull any more, or not at all."""
        if self._pull is not None:
            self._pull.leave()

    def get_transfer_metric(self) -> Any:
        """The bytes sent to all ranks of the decoder, and how long it waited for them after the last pass.

        The wait for the decoder's pages precedes the pass here and is part of SGLang's bootstrap time.
        """
        out = self._outgoing
        return KVTransferMetric(
            transfer_latency_s=out.tail_seconds, alloc_latency_s=None, transfer_total_bytes=out.bytes_sent or None
        )

    # ---- its end

    def abort(self) -> None:
        """Aborts the request.

        Its pages may be reused at once although they may still be read: the decoder uses nothing without the metadata,
        which is sent last and will not be sent now. If it was sent already, the request waits for its release.
        """
        self.leave_pull()
        out = self._outgoing
        finished = out.ended and not out.failure
        self.kv_mgr.exchange.abort(out, "Aborted by AbortReq.")
        self._chunks.clear()
        if not finished:
            self.conclude_state = KVPoll.Failed

    def _fail(self, reason: str) -> None:
        self.leave_pull()
        self.kv_mgr.exchange.abort(self._outgoing, reason)
        self.conclude_state = KVPoll.Failed

    def failure_exception(self) -> None:
        """Raises KVTransferError. The scheduler then frees the pages, even if only another rank has failed."""
        out = self._outgoing
        own = bool(out.failure)
        self._leave_stages()
        self.leave_pull()
        if not out.released:
            given_away = out.ended
            self.kv_mgr.exchange.abort(out, _FAILED_ELSEWHERE)
            if given_away:
                self.kv_mgr.exchange.fence(out)
        self.conclude_state = KVPoll.Failed
        raise KVTransferError(self.bootstrap_room, out.failure or _FAILED_ELSEWHERE, is_from_another_rank=not own)

    def clear(self) -> None:
        """Called when the scheduler drops the request."""
        self.leave_pull()
        self.kv_mgr.exchange.abort(self._outgoing, "the scheduler dropped the request")
        if self._spans is not None:
            self._spans.end(self._outgoing.failure or "the scheduler dropped the request", 0)


def _is_sent_by_another(endpoint: TransferEndpoint, room: int) -> bool:
    from sglang.srt.runtime_context import get_parallel

    if endpoint.attn_cp_size == 1:
        return False
    return cp_rank_of(room, get_parallel().num_dp_ranks, endpoint.attn_cp_size) != endpoint.attn_cp_rank


def _is_over(event: Any) -> bool:
    return event is None or bool(event.query())
