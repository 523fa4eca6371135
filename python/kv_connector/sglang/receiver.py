"""One request on the decoder, in SGLang's terms. The scheduler's thread only, but for `abort`; nothing here blocks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from kv_connector.sglang.endpoint import TransferEndpoint
from kv_connector.sglang.exchange import Incoming, PrefillerAddress
from kv_connector.sglang.page_list import Pages
from kv_connector.sglang.prefillers import Lookup, RankPlace
from kv_connector.sglang.prompt_name import NO_DIGEST
from kv_connector.sglang.sglang_api import BaseKVReceiver, KVPoll, KVTransferError

_ABORTED = "Aborted by AbortReq."


class Receiver(BaseKVReceiver):
    """Finds the prefiller, grants it pages, and ends when all has come or nothing can come any more."""

    supports_host_destination = False

    def __init__(self, mgr: TransferEndpoint, bootstrap_addr: str, bootstrap_room: int | None = None) -> None:
        self.kv_mgr = mgr
        self.bootstrap_addr = bootstrap_addr
        self.bootstrap_room = bootstrap_room or 0
        self.conclude_state: int | None = None
        self.require_staging = False
        self.prompt_digest = NO_DIGEST
        self.prompt_tokens = 0
        """Said where the model has sliding windows; of others whole pages are counted."""
        self.abort_notified = False
        """Whether the pages may still be written to although the request has failed: SGLang holds them then."""
        self.bootstrap_infos: Sequence[PrefillerAddress] = ()
        self._dp_rank = 0
        self._places: Sequence[RankPlace] = ()
        self._lookup: Lookup | None = None
        self._ask: dict[str, Any] | None = None
        """What was asked for, to ask again at another address."""
        self._incoming: Incoming | None = None
        self._topology: Future[Any] | None = None
        """What was asked for when the fetch had failed."""
        self._asked_again = False
        self._failure = ""
        self._abort_asked = False
        """By another thread."""
        self._lifecycle_lock = threading.RLock()
        """SGLang's base takes it where it ends a request on a thread of its own."""

    # ---- finding the prefiller

    def init(self, prefill_dp_rank: int) -> None:
        """The prefiller's data-parallel rank is known: finds its messengers."""
        if self.conclude_state is not None:
            return
        self._dp_rank = prefill_dp_rank
        found = self.kv_mgr.places(self.bootstrap_addr, prefill_dp_rank)
        if isinstance(found, str):
            self._fail(found)
        else:
            self._places = found
            self._lookup = self.kv_mgr.prefillers.find(self.bootstrap_addr, self._places)

    def _poll_lookup(self) -> int:
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
        """The request has pages and a metadata slot: asks for its KV."""
        if self.conclude_state is not None:
            return
        if device_kv_indices is not None or getattr(destination, "value", "device") != "device":
            self._fail("KV Messenger writes to the KV cache only: start without HiSparse and without host receive")
            return
        page_tokens = self.kv_mgr.kv_args.page_size
        prefix = decode_prefix_len or 0
        if prefix % page_tokens:
            self._fail(
                f"{prefix} tokens of the prompt are cached on the decoder, expected whole pages of {page_tokens}:"
                " start it without --disaggregation-decode-enable-radix-cache"
            )
            return
        pages = [[int(page) for page in kv_indices]]
        full = Pages(prefix // page_tokens, pages[0])
        prompt_tokens = full.end_page * page_tokens
        beside = self.kv_mgr.beside_pages(full.end_page, self.prompt_tokens, prefix)
        if beside is not None:
            prompt_tokens = beside.prompt_tokens
            given = [int(page) for of in state_indices or () for page in of]
            pages += [given] if beside.has_group else []
            misfit = beside.misfit(full, given)
            if misfit:
                self._fail(misfit)
                return
        self._ask = {
            "prompt_tokens": prompt_tokens,
            "first_token": prefix,
            "pages": pages,
            "context_slot": -1 if aux_index is None else int(aux_index),
            "prompt_digest": self.prompt_digest,
            "limit_seconds": self.kv_mgr.waiting_timeout,
        }
        self._fetch()

    def _fetch(self) -> None:
        if self._ask is None:
            raise AssertionError("a fetch before its metadata")
        self._incoming = self.kv_mgr.exchange.fetch(self.bootstrap_room, self.bootstrap_infos, **self._ask)

    def poll(self) -> int:
        """SGLang's state of the transfer; Success means that all has come, metadata included."""
        if self._abort_asked and self.conclude_state is None:
            self._abort_as_asked()
        if self.conclude_state is not None:
            return self.conclude_state
        self.kv_mgr.exchange.drain()
        incoming = self._incoming
        if incoming is None:
            return self._poll_lookup()
        if incoming.arrived:
            self.conclude_state = KVPoll.Success
            return KVPoll.Success
        return self._poll_retry(incoming.failure) if incoming.failure else KVPoll.Transferring

    def _poll_retry(self, failure: str) -> int:
        """A prefiller that was restarted may listen elsewhere, with other ranks: what was known is asked for once more.

        The topology first, then its ranks' addresses; if neither has changed, the failure stands.
        """
        if self._asked_again:
            return self._fail(failure)
        if self._topology is None:
            self._topology = self.kv_mgr.ask_again(self.bootstrap_addr)
        if not self._topology.done():
            return KVPoll.Transferring
        if self._lookup is None:
            places = self._places_again()
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
        return KVPoll.Transferring

    def _places_again(self) -> list[RankPlace] | str:
        """Where the prefiller's ranks are by its newest topology, or why that is not known."""
        if self._topology is None:
            raise AssertionError("the topology was not asked for")
        fault = self._topology.exception()
        topology = None if fault else self._topology.result()
        if topology is None:
            self.kv_mgr.forget_prefiller(self.bootstrap_addr)
            return str(fault or "no answer")
        self.kv_mgr.learn(self.bootstrap_addr, topology)
        return self.kv_mgr.places(self.bootstrap_addr, self._dp_rank)

    # ---- its end

    def abort(self) -> None:
        """The engine gives the request up; its pages are held until nothing can write to them.

        SGLang says so on other threads as well, when a recompute could not be asked for; the next poll acts on it then.
        """
        if not self.kv_mgr.on_scheduler_thread():
            self._abort_asked = True
            return
        self._failure = self._failure or _ABORTED
        self.conclude_state = KVPoll.Failed
        self.ensure_abort_notified()

    def _abort_as_asked(self) -> None:
        """SGLang holds the lock until it has said why."""
        with self._lifecycle_lock:
            self._failure = self.kv_mgr.failure_records.pop(self.bootstrap_room, _ABORTED)
        self.abort()

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:  # noqa: ARG002 - SGLang's word
        """Cancels what is under way; afterwards SGLang asks the endpoint when the pages are safe."""
        if self.abort_notified:
            return
        if self._incoming is not None:
            self.kv_mgr.exchange.abandon(self._incoming)
            self.abort_notified = True
        elif self.bootstrap_infos:
            self.kv_mgr.exchange.decline(self.bootstrap_room, self.bootstrap_infos, self.prompt_digest)

    def _fail(self, reason: str) -> int:
        # The messenger's own name of the limit is no option here.
        self._failure = reason.replace("fetch_limit_seconds", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT")
        self.conclude_state = KVPoll.Failed
        return KVPoll.Failed

    def failure_exception(self) -> None:
        """Raises the reason."""
        self._failure = self.kv_mgr.failure_records.pop(self.bootstrap_room, self._failure)
        own = bool(self._failure)
        self.conclude_state = KVPoll.Failed
        raise KVTransferError(
            self.bootstrap_room,
            self._failure or "the transfer failed on another rank",
            is_from_another_rank=not own,
        )

    def clear(self) -> None:
        """The scheduler forgets the request."""
        if self._incoming is not None:
            self.kv_mgr.exchange.abandon(self._incoming)
