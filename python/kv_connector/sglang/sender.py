"""One request on the prefiller, in SGLang's terms. The scheduler's thread only; nothing here blocks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.sglang.beside_pages import BesidePages
from kv_connector.sglang.endpoint import TransferEndpoint
from kv_connector.sglang.exchange import chunk_fields
from kv_connector.sglang.layerwise import PlannedChunk
from kv_connector.sglang.page_list import PageList, PagesMovedError
from kv_connector.sglang.sglang_api import BaseKVSender, KVPoll, KVTransferError, KVTransferMetric


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Pages before this position may be read when the event is over."""

    end_page: int
    last: bool
    beside: Sequence[int]
    """Pages of a pool beside that of full attention; they come with the last chunk."""
    wait_event: Any
    """Of the device; None when they are complete."""


class Sender(BaseKVSender):
    """Waits for the decoder's grant, tells the messenger what is computed, and ends when nothing reads the pages."""

    def __init__(
        self,
        mgr: TransferEndpoint,
        bootstrap_addr: str,
        bootstrap_room: int,
        req_has_disagg_prefill_dp_rank: bool = False,
    ) -> None:
        self.kv_mgr = mgr
        self.bootstrap_room = bootstrap_room
        self.conclude_state: int | None = None
        self._early_send_wait_event: Any = None
        self._since = time.monotonic()
        self._pages = PageList(0, 0)
        self._begun = False
        """Whether SGLang has said how many pages it will give."""
        self._context_slot = -1
        self._sent = False
        self._chunks: deque[_Chunk] = deque()
        """Given, but not readable yet."""
        self._kept = False
        """Whether SGLang's cache may put other pages in place of those that it computes; see ``leave_to_send``."""
        self._told_state: int | None = None
        """What the first pipeline stage knows of it."""
        self._with_stages = True
        """Whether the stages have yet to agree that it is computed, or is not."""
        self._said_tokens = mgr.take_prompt_tokens()
        self._beside: BesidePages | None = None
        """Of a model with a pool beside that of full attention."""
        self._outgoing = mgr.exchange.announce(bootstrap_room, mgr.take_prompt_digest())
        self._tell_stages(KVPoll.Bootstrapping)
        refusal = mgr.place_room(bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank)
        if refusal:
            self._fail(refusal)

    # ---- before the forward pass

    def pop_decode_prefix_len(self) -> int:
        """Tokens that the decoder has in its own cache."""
        granted = self._outgoing.granted
        return granted.first_token if granted is not None else 0

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        """The scheduler has a metadata slot for the request and will send that many pages."""
        self._leave_stages()
        decoders_count = self.pop_decode_prefix_len() // self.kv_mgr.kv_args.page_size
        self._pages = PageList(decoders_count, num_kv_indices)
        self._beside = self.kv_mgr.beside_pages(self._pages.total, self._said_tokens, self.pop_decode_prefix_len())
        self._begun = True
        self._context_slot = -1 if aux_index is None else int(aux_index)

    # ---- chunks

    def get_max_transfer_tokens(self) -> int | None:
        """No limit: the messenger splits."""
        return None

    def should_send_kv_chunk(self, num_pages: int, last_chunk: bool) -> bool:
        """The last one is sent even when it has no pages: its metadata is what the decoder waits for."""
        return num_pages > 0 or last_chunk

    def send(
        self,
        kv_indices: Any,
        state_indices: Sequence[Any] | None = None,
        num_kv_tokens: int | None = None,  # noqa: ARG002 - whole pages are sent
        indices_event: Any = None,
    ) -> None:
        """The next pages of the request hold their KV, once ``wait_event`` is over."""
        wait_event, self._early_send_wait_event = self._early_send_wait_event, None
        if indices_event is not None:
            raise AssertionError("page indices on the device were not asked for")
        if self.conclude_state is not None:
            return
        try:
            self._pages.give(kv_indices.tolist())
        except PagesMovedError as moved:
            self._fail(f"SGLang moved a page while it was sent ({moved}): please report this with SGLang's arguments")
            return
        last, beside = self._pages.complete, [int(page) for of in state_indices or () for page in of]
        misfit = self._beside.misfit(self._pages.known_pages, beside) if self._beside and last else ""
        if misfit:
            self._fail(misfit)
            return
        self._sent = True
        self._chunks.append(_Chunk(self._pages.given, last, beside, wait_event))
        self._flush()

    def _flush(self) -> None:
        """Tells the messenger all chunks that may be read, in order."""
        while self._chunks and _is_over(self._chunks[0].wait_event):
            chunk = self._chunks.popleft()
            self._tell(chunk)
            if chunk.last:
                self.kv_mgr.exchange.finish(self._outgoing, self._context_slot)

    def _tell(self, chunk: _Chunk) -> None:
        """What a pool beside that of full attention holds of the prompt is named with the last chunk."""
        beside, end_page = self._beside, chunk.end_page
        if beside is not None and not chunk.last:
            end_page = max(self._pages.told, beside.readable_end(end_page))
        told = self._pages.unreported(end_page)
        groups = [told, beside.beside(told, chunk.beside)] if beside is not None and beside.has_group else [told]
        end_token = min(self._tokens(end_page), self._prompt_tokens())
        self.kv_mgr.exchange.computed(self._outgoing, self._prompt_tokens(), end_token, groups)
        self._pages.on_told(told)

    def leave_to_send(self) -> None:
        """SGLang's cache may have these pages already, and may then free what a pass computes before it is read.

        Such a prompt leaves after its passes, from the pages that SGLang gives.
        """
        self._kept = True

    def plan(
        self, end_token: int, prompt_tokens: int, pages_of: Callable[[int, int], list[int]]
    ) -> PlannedChunk | None:
        """The chunk that the next forward pass computes, which then leaves layer by layer; None if it waits for send.

        Nothing is changed before the messenger has taken it: a plan that comes to nothing is sent afterwards.

        ``pages_of`` gives the pages between two positions of the prompt.
        """
        out = self._outgoing
        if self.conclude_state is not None or out.ended or out.failure or not self._begun or self._kept:
            return None
        if self._beside is not None and self._beside.has_group:
            return None  # SGLang says what the other pool holds of the prompt when the pass is over
        page_tokens = self.kv_mgr.kv_args.page_size
        end_page = self._pages.total if end_token >= prompt_tokens else end_token // page_tokens
        planned = self._pages.plan(end_page, pages_of)
        if planned is None:
            return None
        told = chunk_fields(out, self._prompt_tokens(), self._tokens(end_page), [planned])
        told |= {"cachedTokens": 0, "firstToken": self._tokens(planned.first_page)}
        return PlannedChunk(told, lambda: self._pages.on_told(planned))

    def _prompt_tokens(self) -> int:
        """Both sides count whole pages, but where a window's first page depends on the last token's place."""
        return self._tokens(self._pages.total) if self._beside is None else self._beside.prompt_tokens

    def _tokens(self, page_count: int) -> int:
        return page_count * int(self.kv_mgr.kv_args.page_size)

    # ---- what has become of it

    def poll(self) -> int:
        """SGLang's state of the transfer; Success and Failed mean that nothing reads the pages any more."""
        state = self._own_state()
        self._tell_stages(state)
        return state

    def _own_state(self) -> int:
        if self.conclude_state is not None:
            return self.conclude_state
        self.kv_mgr.exchange.drain()
        self._flush()
        out = self._outgoing
        waits_for_release = (
            out.ended and not out.released
        )  # its metadata was given away, so it ends by the release only
        if out.failure and not waits_for_release:
            self.conclude_state = KVPoll.Failed
        elif out.released:
            self.conclude_state = KVPoll.Success
        elif self._sent:
            return KVPoll.Transferring
        else:
            return KVPoll.WaitingForInput if out.granted is not None else self._poll_grant()
        return self.conclude_state

    def poll_pp_consensus(self) -> int:
        """The state on all pipeline stages; the first stage asks, and the others do as it says.

        So no stage computes before each has its own grant, and with it what the decoder has cached.
        """
        return self.kv_mgr.agreed_state(self.bootstrap_room, self.poll())

    def _tell_stages(self, state: int) -> None:
        if self._with_stages and state != self._told_state:
            self._told_state = int(state)
            self.kv_mgr.tell_stages(self.bootstrap_room, self._told_state)

    def _leave_stages(self) -> None:
        if self._with_stages:
            self._with_stages = False
            self.kv_mgr.forget_room(self.bootstrap_room)

    def _poll_grant(self) -> int:
        waited = time.monotonic() - self._since
        if waited < self.kv_mgr.bootstrap_timeout:
            return KVPoll.Bootstrapping
        self._fail(
            f"no decoder asked for room {self.bootstrap_room} within {waited:.0f} s"
            " (SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT)"
        )
        return KVPoll.Failed

    def get_transfer_metric(self) -> Any:
        """Bytes that left to all ranks of the decoder, and how long the decoder waited for them after the last pass.

        Waiting for the decoder's pages comes before the pass here: it is SGLang's bootstrap time already.
        """
        out = self._outgoing
        return KVTransferMetric(
            transfer_latency_s=out.tail_seconds, alloc_latency_s=None, transfer_total_bytes=out.bytes_sent or None
        )

    # ---- its end

    def abort(self) -> None:
        """The engine gives the request up.

        Its pages may be reused at once although they are still read: the decoder takes nothing without the metadata,
        which goes last, and is not sent any more. Once the metadata was given away the request waits for its release.
        """
        out = self._outgoing
        finished = out.ended and not out.failure
        self.kv_mgr.exchange.abort(out, "Aborted by AbortReq.")
        self._chunks.clear()
        if not finished:
            self.conclude_state = KVPoll.Failed

    def _fail(self, reason: str) -> None:
        self.kv_mgr.exchange.abort(self._outgoing, reason)
        self.conclude_state = KVPoll.Failed

    def failure_exception(self) -> None:
        """Raises the reason. The scheduler frees the pages next, also when only another rank has failed."""
        out = self._outgoing
        own = bool(out.failure)
        self._leave_stages()
        if not out.released:
            given_away = out.ended
            self.kv_mgr.exchange.abort(out, "the transfer failed on another rank")
            if given_away:
                self.kv_mgr.exchange.fence(out)
        self.conclude_state = KVPoll.Failed
        raise KVTransferError(self.bootstrap_room, out.failure, is_from_another_rank=not own)

    def clear(self) -> None:
        """The scheduler forgets the request."""
        self.kv_mgr.exchange.abort(self._outgoing, "the scheduler dropped the request")


def _is_over(event: Any) -> bool:
    return event is None or bool(event.query())
