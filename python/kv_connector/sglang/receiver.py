"""One request on the decoder, in SGLang's terms. The scheduler's thread only, except ``end_beside``; nothing blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from kv_connector.naming.prompt_digest import NO_DIGEST
from kv_connector.runtime.commands import PrefillerAddress
from kv_connector.sglang.beside_pages import NO_SLOT, as_lists
from kv_connector.sglang.client_fields import NO_ROOM, address_fault, dp_rank_fault, room_fault
from kv_connector.sglang.endpoint import TransferEndpoint
from kv_connector.sglang.exchange import Incoming
from kv_connector.sglang.page_list import Pages
from kv_connector.sglang.pair_states import Arrival
from kv_connector.sglang.prefillers import Lookup, RankPlace
from kv_connector.sglang.sglang_api import BaseKVReceiver, KVPoll, KVTransferError

_ABORTED = "Aborted by AbortReq."
_FAILED_ELSEWHERE = "the transfer failed on another rank of this engine, whose log has the reason"


class Receiver(BaseKVReceiver):
    """Finds the prefiller, fetches the KV, and ends when all of it has arrived or none can arrive any more."""

    supports_host_destination = False

    def __init__(self, mgr: TransferEndpoint, bootstrap_addr: str, bootstrap_room: int | None = None) -> None:
        self.kv_mgr = mgr
        self.bootstrap_addr = bootstrap_addr
        refusal = room_fault(bootstrap_room) or address_fault(bootstrap_addr)
        self.bootstrap_room = NO_ROOM if refusal or bootstrap_room is None else bootstrap_room
        """The client's, once it is checked: it is a key from here on."""
        self.conclude_state: int | None = None
        self.require_staging = False
        self.prompt_digest = NO_DIGEST
        self.digest_now: Callable[[], str] | None = None
        """Gives the prompt's digest with the present weights; None where there is no scheduler."""
        self.prompt_tokens = 0
        """Used only if the model has sliding windows; otherwise whole pages are counted."""
        self.request_row = NO_SLOT
        """The request's row in SGLang's table of requests, once it has its pages."""
        self.arrival = Arrival()
        """Shared with SGLang's request, for the comparison with what this decoder computes."""
        self.abort_notified = False
        """Whether pages of the failed request may still be written to; SGLang then keeps them."""
        self.bootstrap_infos: Sequence[PrefillerAddress] = ()
        self.mistake = ""
        """What the client has wrong, if the request has failed by that."""
        self._dp_rank = 0
        self._places: Sequence[RankPlace] = ()
        self._lookup: Lookup | None = None
        self._ask: dict[str, Any] | None = None
        """The arguments of the fetch, to repeat it at another address."""
        self._incoming: Incoming | None = None
        self._topology: Future[Any] | None = None
        """The topology that was requested again, after the fetch had failed or for a rank that is not known."""
        self._asked_again = False
        self._seeks_late = False
        """Whether it has ended, and its prefiller is looked up to be declined."""
        self._failure = ""
        self._failure_elsewhere = _FAILED_ELSEWHERE
        """The reason if this rank has none."""
        self._ended_beside = ""
        """Why another thread has ended it, for the next poll."""
        if refusal:
            self._fail(refusal)

    def refuse(self, reason: str) -> None:
        """Ends the request before it is asked for, unless it has ended already."""
        if self.conclude_state is None:
            self._fail(reason)

    # ---- finding the prefiller

    def init(self, prefill_dp_rank: int) -> None:
        """The prefiller's data-parallel rank is known: finds its messengers."""
        if self.conclude_state is not None:
            return
        if refusal := dp_rank_fault(prefill_dp_rank):
            self._fail(refusal)
            return
        self._dp_rank = prefill_dp_rank
        found = self.kv_mgr.places(self.bootstrap_addr, prefill_dp_rank, self.bootstrap_room)
        if isinstance(found, str):
            self._fail(found)
        elif self._rank_fault():  # it may have been started again, with more ranks
            self._topology = self.kv_mgr.ask_again(self.bootstrap_addr)
        else:
            self._find(found)

    def _find(self, places: Sequence[RankPlace]) -> None:
        self._places = places
        self._lookup = self.kv_mgr.prefillers.find(self.bootstrap_addr, places)

    def _rank_fault(self) -> str:
        """Why the prefiller, as far as it is known, has no such data-parallel rank; "" if it has."""
        known = self.kv_mgr.prefill_info_table.get(self.bootstrap_addr)
        return dp_rank_fault(self._dp_rank, known.dp_size) if known is not None else ""

    def _poll_topology(self, topology: Future[Any]) -> int:
        if not topology.done():
            return KVPoll.Bootstrapping
        places = self._places_again(self._dp_rank)
        self.mistake = "" if isinstance(places, str) else self._rank_fault()
        if isinstance(places, str) or self.mistake:
            return self._fail(self.mistake or str(places))
        self._topology = None
        self._find(places)
        return KVPoll.Bootstrapping

    def _poll_lookup(self) -> int:
        if self._topology is not None:
            return self._poll_topology(self._topology)
        if self.bootstrap_infos:
            return KVPoll.WaitingForInput
        if self._lookup is None or not self._lookup.done():
            return KVPoll.Bootstrapping
        if self._lookup.failure:
            self.kv_mgr.forget_prefiller(self.bootstrap_addr)
            return self._fail(self._lookup.failure)
        self.bootstrap_infos = self._lookup.addresses
        self._lookup = None
        return KVPoll.WaitingForInput

    # ---- the transfer

    def send_metadata(
        self,
        kv_indices: Any,
        aux_index: int | None = None,
        state_indices: Sequence[Any] | None = None,
        decode_prefix_len: int | None = None,
        destination: Any = None,
        device_kv_indices: Any = None,
    ) -> None:
        """Fetches the KV: the request has its pages and a metadata slot."""
        if self.conclude_state is not None:
            return
        if device_kv_indices is not None or getattr(destination, "value", "device") != "device":
            self._fail(
                "KV Messenger writes to the KV cache only: start without --enable-hisparse and without"
                " --disaggregation-decode-host-receive-threshold"
            )
            return
        page_tokens = self.kv_mgr.kv_args.page_size
        prefix = decode_prefix_len or 0
        if prefix % page_tokens:
            self._fail(
                f"{prefix} tokens of the prompt are cached on the decoder, expected whole pages of {page_tokens}:"
                " start it without --disaggregation-decode-enable-radix-cache"
            )
            return
        full = Pages(prefix // page_tokens, [int(page) for page in kv_indices])
        parts = self.kv_mgr.prompt_parts(full.end_page, self.prompt_tokens, prefix, self.request_row)
        given = as_lists(state_indices)
        if misfit := parts.misfit(full, given):
            self._fail(misfit)
            return
        self._ask = {
            "prompt_tokens": parts.prompt_tokens,
            "first_token": prefix,
            "pages": parts.granted(full, given),
            "context_slot": -1 if aux_index is None else int(aux_index),
            "prompt_digest": self.prompt_digest,
            "limit_seconds": self.kv_mgr.waiting_timeout,
        }
        # While it waited for its pages, another request may have learnt that the prefiller was started again.
        self.bootstrap_infos = self.kv_mgr.prefillers.known(self.bootstrap_addr, self._places) or self.bootstrap_infos
        self._fetch()

    def _fetch(self) -> None:
        if self._ask is None:
            raise AssertionError("a fetch before its metadata")
        if refusal := self._pair_refusal():
            self._fail(refusal)
            return
        self._incoming = self.kv_mgr.exchange.fetch(self.bootstrap_room, self.bootstrap_infos, **self._ask)

    def _pair_refusal(self) -> str:
        """Why nothing is fetched from this prefiller: it was found to compute another KV; "" if it was not."""
        check = self.kv_mgr.pair_check
        refusal = check.pairs.fetching(self.arrival, tuple(self.bootstrap_infos)) if check is not None else ""
        if refusal:
            self.kv_mgr.exchange.count_refuted()
        return refusal

    def poll(self) -> int:
        """The state of the transfer, a KVPoll; Success means that everything has arrived, including the metadata."""
        if self._ended_beside and self.conclude_state is None:
            self.abort()
        if self.conclude_state is not None:
            return self.conclude_state
        self.kv_mgr.exchange.drain()
        incoming = self._incoming
        if incoming is None:
            return self._poll_lookup()
        if incoming.arrived:
            self.arrival.sessions = incoming.sessions
            self.conclude_state = KVPoll.Success
            return KVPoll.Success
        if incoming.quarantine and (reason := self.kv_mgr.exchange.why_without_proof(incoming)):
            return self._fail(reason)  # its pages wait for the proof, and the client does not
        return self._poll_retry(incoming.failure) if incoming.failure else KVPoll.Transferring

    def _poll_retry(self, failure: str) -> int:
        """Looks the prefiller up once more: after a restart it may have other addresses and other ranks.

        First the topology is requested, then the addresses of its ranks; if neither has changed, the failure is final.
        """
        if self._fetch_by_another_name():
            return KVPoll.Transferring if self.conclude_state is None else self.conclude_state
        if self._asked_again:
            return self._fail(failure)
        if self._topology is None:
            self._topology = self.kv_mgr.ask_again(self.bootstrap_addr)
        if not self._topology.done():
            return KVPoll.Transferring
        if self._lookup is None:
            places = self._places_again(self._dp_rank)
            if isinstance(places, str):
                self._asked_again = True
                return self._fail(failure)
            self._places, self._lookup = places, self.kv_mgr.prefillers.find_again(self.bootstrap_addr, places)
        if not self._lookup.done():
            return KVPoll.Transferring
        self._asked_again = True
        if self._lookup.failure or self._lookup.addresses == self.bootstrap_infos:
            return self._fail(failure)
        self.bootstrap_infos = self._lookup.addresses
        self._fetch()
        return KVPoll.Transferring if self.conclude_state is None else self.conclude_state

    def _fetch_by_another_name(self) -> bool:
        """Asks anew for a prompt of which the weights have changed since: its prefiller, given them too, names it so.

        Part of its KV may be of the weights before, as in an engine that is alone, so it is no proof of the pair.
        """
        name, asked_with = self._named(), self.arrival.pair
        if self._ask is None or name == self._ask["prompt_digest"]:
            return False
        self._ask["prompt_digest"] = name
        self._fetch()
        self.arrival.pair = asked_with
        return True

    def _named(self) -> str:
        """The digest of the prompt with the present weights."""
        if self.digest_now is not None:
            self.prompt_digest = self.digest_now()
        return self.prompt_digest

    def _places_again(self, dp_rank: int | None) -> list[RankPlace] | str:
        """The prefiller's ranks in its latest topology, or an error message; None = of the rank that a room has."""
        if self._topology is None:
            raise AssertionError("the topology was not asked for")
        fault = self._topology.exception()
        topology = None if fault else self._topology.result()
        if topology is None:
            self.kv_mgr.forget_prefiller(self.bootstrap_addr)
            return str(fault or "no answer")
        self.kv_mgr.learn(self.bootstrap_addr, topology)
        rank = self.bootstrap_room % topology.dp_size if dp_rank is None else dp_rank
        return self.kv_mgr.places(self.bootstrap_addr, rank, self.bootstrap_room)

    # ---- its end

    def abort(self) -> None:
        """Aborts the request; its pages are kept until nothing can write to them."""
        self._failure = self._failure or self._ended_beside or _ABORTED
        self.conclude_state = KVPoll.Failed
        self.ensure_abort_notified()

    def end_beside(self, reason: str) -> None:
        """Has the next poll abort the request, unless it has ended; for any thread. The first reason counts."""
        self._ended_beside = self._ended_beside or reason

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:  # noqa: ARG002 - SGLang's word
        """Cancels the transfer in progress; SGLang then asks the endpoint until the pages are safe."""
        if self.abort_notified:
            return
        if self._incoming is not None:
            self.kv_mgr.exchange.abandon(self._incoming)
            self.abort_notified = True
        if self._lookup is not None and not self.bootstrap_infos and self._lookup.done():
            self.bootstrap_infos = self._lookup.addresses  # an abort in the request's first round comes before any poll
        if self._is_awaited():
            self.kv_mgr.exchange.decline(self.bootstrap_room, self.bootstrap_infos, self.prompt_digest)
        elif self._is_sought():
            self._seeks_late = True
            self.kv_mgr.prefillers.late_declines.add(self)

    def _is_sought(self) -> bool:
        """Whether the prefiller is still to be found, which may wait for a fetch."""
        is_found = bool(self.bootstrap_infos) or (self._lookup is not None and self._lookup.done())
        return not is_found and not self._seeks_late and self.bootstrap_room != NO_ROOM

    def decline_once_found(self) -> bool:
        """Declines the request, which has ended, if its prefiller is found by now; whether nothing is left to do.

        If even the prefiller's topology was not known, SGLang does not ask for it any more.
        """
        if self._lookup is None:
            self._topology = self._topology or self.kv_mgr.ask_again(self.bootstrap_addr)
            if not self._topology.done():
                return False
            places = self._places_again(dp_rank=None)
            if isinstance(places, str):
                return True
            self._lookup = self.kv_mgr.prefillers.find(self.bootstrap_addr, places)
        if not self._lookup.done():
            return False
        self.bootstrap_infos = self._lookup.addresses
        if self._is_awaited():
            self.kv_mgr.exchange.decline(self.bootstrap_room, self.bootstrap_infos, self.prompt_digest)
        return True

    def _is_awaited(self) -> bool:
        """Whether a prefiller may wait for a fetch by the prompt's present name, which is not the one abandoned."""
        if not self.bootstrap_infos or (self._incoming is not None and self._incoming.arrived):
            return False
        name = self._named()
        return self._incoming is None or self._ask is None or name != self._ask["prompt_digest"]

    def _fail(self, reason: str) -> int:
        # The messenger's own option is not available here; the limit is one of SGLang's.
        self._failure = reason.replace("fetch_limit_seconds", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT")
        self.conclude_state = KVPoll.Failed
        return KVPoll.Failed

    @property
    def stage_failure(self) -> str:
        """Why this pipeline stage has failed, for the others."""
        return f"pipeline stage {self.kv_mgr.kv_args.pp_rank}: {self._failure or self._failure_elsewhere}"

    def fail_with_others(self, reason: str) -> None:
        """A pipeline stage has failed; SGLang keeps the pages of this one until nothing can write to them."""
        self._failure_elsewhere = reason or _FAILED_ELSEWHERE
        self.conclude_state = KVPoll.Failed

    def failure_exception(self) -> None:
        """Raises KVTransferError with the reason of the failure."""
        own = bool(self._failure)
        self.conclude_state = KVPoll.Failed
        raise KVTransferError(
            self.bootstrap_room,
            self._failure or self._failure_elsewhere,
            is_from_another_rank=not own,
        )

    def clear(self) -> None:
        """Called when the scheduler drops the request."""
        if self._incoming is not None:
            self.kv_mgr.exchange.abandon(self._incoming)
