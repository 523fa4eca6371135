"""The backend, broken on purpose in one place: the stories must find each of these, or they would find none like it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

from mutant import Mutant

from kv_connector.runtime.commands import PrefillEnded
from kv_connector.runtime.facade import Stopped
from kv_connector.sglang import hooks, pair_check
from kv_connector.sglang import sender as sender_module
from kv_connector.sglang.beside_pages import RequestSlot
from kv_connector.sglang.endpoint import TransferEndpoint
from kv_connector.sglang.exchange import Exchange
from kv_connector.sglang.late_declines import LateDeclines
from kv_connector.sglang.page_list import PageList, Pages
from kv_connector.sglang.page_numbers import PageNumbers
from kv_connector.sglang.pair_check import PairCheck
from kv_connector.sglang.pair_states import PairStates
from kv_connector.sglang.receiver import Receiver
from kv_connector.sglang.reported_step import ReportedStep
from kv_connector.sglang.sender import Sender
from kv_connector.sglang.sglang_api import KVPoll
from kv_connector.sglang.window_pages import WindowPages

_on: Callable[..., Any] = Exchange._on
_own_state: Callable[..., Any] = Sender._own_state
_report: Callable[..., Any] = Sender._report
_abort: Callable[..., Any] = Sender.abort
_find: Callable[..., Any] = TransferEndpoint.try_ensure_parallel_info
_receiver_abandons: Callable[..., Any] = Receiver.ensure_abort_notified
_fetch: Callable[..., Any] = Exchange.fetch
_places: Callable[..., Any] = TransferEndpoint.places
_rename: Callable[..., Any] = Sender.rename
_decline_once_found: Callable[..., Any] = Receiver.decline_once_found
_begin: Callable[..., Any] = ReportedStep.begin
_when_here: Callable[..., Any] = PageNumbers.when_here


@dataclass(frozen=True)
class StoryMutant(Mutant):
    """With the story that finds it."""

    seed: int
    """Of the first story that does; -1 = none is known to."""

    @property
    def must_be_found(self) -> bool:
        return self.seed >= 0


def _abort_at_once(self: Any) -> None:
    _abort(self)
    self.conclude_state = KVPoll.Failed


def _no_fence(_self: Any, out: Any) -> None:
    out.released = True


def _no_word(_self: Any, **_named: Any) -> None:
    pass


def _no_decline(self: Any, **named: Any) -> None:
    if self._incoming is not None:
        _receiver_abandons(self, **named)


def _names_again(self: Any, *arguments: Any, **named: Any) -> Any:
    self._count = itertools.count(1)
    return _fetch(self, *arguments, **named)


def _sent_is_success(self: Any) -> Any:
    state = _own_state(self)
    return KVPoll.Success if state == KVPoll.Transferring and self._outgoing.ended else state


def _deaf_to_stops(self: Any, event: Any) -> None:
    if not isinstance(event, Stopped):
        _on(self, event)


def _fail_in_silence(self: Any, reason: str) -> None:
    self._outgoing.failure = self._outgoing.failure or reason
    self.conclude_state = KVPoll.Failed


def _finish_early(self: Any, chunk: Any) -> None:
    _report(self, chunk)
    self.kv_mgr.exchange.finish(self._outgoing, self._context_slot)


def _give_unseen(self: Any, pages: Any) -> None:
    planned = self._from(self.given, self.given + len(pages))
    self._pages.extend(pages[len(planned) :])
    self.given += len(pages)


def _no_second_look(self: Any, failure: str) -> int:
    return int(self._fail(failure))


def _stale_contact(self: Any, bootstrap_addr: str) -> bool:
    contact = self._first_contacts._open.get(bootstrap_addr)
    was_answered = contact is not None and contact.done() and contact.exception() is None and contact.result()
    return _find(self, bootstrap_addr) or bool(was_answered)


def _forget_nothing(_self: Any, _bootstrap_addr: str) -> None:
    pass


def _ends_once(self: Any, now: float) -> None:
    for incoming in self._incoming.values():
        if now >= incoming.deadline_seconds:
            self._client.give_up("no end of a fetch")
            return


def _waits_for_proof(_self: Any, _incoming: Any) -> str:
    return ""


def _fetches_without_limit(self: Any, now: float) -> None:
    for out in self._outgoing.values():
        if out.end is not None and now >= out.end_due_seconds:
            out.end_due_seconds = now + self._unheard_seconds
            self._client.submit(out.end)


def _taken_unasked(self: Any, step: int, counter_start: int, chunks: Any) -> bool:
    from kv_connector.runtime.commands import Step

    self._client.submit(Step(step, counter_start, chunks))
    return not self._dead


def _abort_untold(self: Any, out: Any, reason: str) -> None:
    if not out.released:
        out.failure = out.failure or reason
        if out.ended:
            self._end(out, PrefillEnded(out.request, "aborted"))


def _another_slot(_self: Any, _of_full: Any, given: Any) -> Pages:
    return Pages(0, [1 + given[0] % 2] if given else [])


def _declines_what_it_has_not_fetched(self: Any) -> bool:
    return self._incoming is None and bool(self.bootstrap_infos)


def _declines_at_known_ranks(self: Any) -> bool:
    return self._lookup is None or bool(_decline_once_found(self))


def _rename_unheard(self: Any, digest: str, weights: str) -> None:
    with mock.patch.object(self.kv_mgr.exchange, "drain"):
        _rename(self, digest, weights)


def _other_group(self: Any, bootstrap_addr: str, dp_rank: int) -> Any:
    return _places(self, bootstrap_addr, 1 - dp_rank if self.prefill_info_table[bootstrap_addr].dp_size > 1 else 0)


def _plan_of_ended(self: Any, end_token: int, prompt_tokens: int) -> int | None:
    if not self._begun or self._kept or not self._parts.leaves_early:
        return None
    return int(self._pages.total if end_token >= prompt_tokens else end_token // self.kv_mgr.kv_args.page_size)


def _look_blindly(self: Any) -> None:
    while self._coming:
        self._coming.popleft()[1]()


def _look_out_of_order(self: Any) -> None:
    for each in [each for each in self._coming if each[0] is None or each[0].query()]:
        self._coming.remove(each)
        each[1]()


def _act_before_others(self: Any, event: Any, act: Any) -> None:
    if event is None:
        act()
    else:
        _when_here(self, event, act)


def _begin_only(self: Any) -> None:
    self._counter_end = None
    _begin(self)


MUTANTS = (
    StoryMutant("an abort does not wait for the release of a finished prompt", Sender, "abort", _abort_at_once, -1),
    StoryMutant("pages are freed on the failure of another rank before the fence", Exchange, "fence", _no_fence, 271),
    StoryMutant("an aborted fetch is not abandoned", Receiver, "ensure_abort_notified", _no_word, 18),
    StoryMutant("a decline is not sent", Receiver, "ensure_abort_notified", _no_decline, 33),
    StoryMutant("a prefiller that is found after an abort is not declined", LateDeclines, "add", lambda *_: None, 5),
    StoryMutant(
        "a prefiller whose ranks were not known at an abort is not declined",
        *(Receiver, "decline_once_found", _declines_at_known_ranks, 5),
    ),
    StoryMutant("pages of an aborted fetch are free at once", Exchange, "is_quiet", lambda *_: True, 18),
    StoryMutant("a fetch's name is given again", Exchange, "fetch", _names_again, 7),
    StoryMutant(
        "a prompt waits for its decoder without a limit", Sender, "_poll_grant", lambda _: KVPoll.Bootstrapping, 1
    ),
    StoryMutant("an end without an answer is not reported again", Exchange, "_look_after_waits", _ends_once, 31),
    StoryMutant(
        "a fetch without an end is awaited for ever", Exchange, "_look_after_waits", _fetches_without_limit, 14
    ),
    StoryMutant("a request waits for its pages' proof", Exchange, "why_without_proof", _waits_for_proof, 3),
    StoryMutant(
        "pages that the cache replaces are sent during their pass", Sender, "leave_to_send", lambda _: None, 35
    ),
    StoryMutant("cached pages are sent before their pass is over", sender_module, "_is_over", lambda _: True, 27),
    StoryMutant("a finished prompt's pages are freed before their release", Sender, "_own_state", _sent_is_success, 0),
    StoryMutant("the decoder's cached beginning is ignored", Sender, "pop_decode_prefix_len", lambda _: 0, -1),
    StoryMutant("a restarted prefiller is not looked up again", Receiver, "_poll_retry", _no_second_look, -1),
    StoryMutant("a prefiller's old addresses are kept", TransferEndpoint, "forget_prefiller", _forget_nothing, -1),
    StoryMutant("a stopped prompt goes on", Exchange, "_on", _deaf_to_stops, 33),
    StoryMutant("a step that was refused counts as taken", Exchange, "step", _taken_unasked, 89),
    StoryMutant("the prompt is finished with its first chunk", Sender, "_report", _finish_early, 1),
    StoryMutant("the end of a failed prompt is not reported", Sender, "_fail", _fail_in_silence, -1),
    StoryMutant("an abort of a prompt is not reported", Exchange, "abort", _abort_untold, 1),
    StoryMutant("a page that has moved is not noticed", PageList, "give", _give_unseen, -1),
    StoryMutant(
        "a forgotten prefiller counts as known", TransferEndpoint, "try_ensure_parallel_info", _stale_contact, -1
    ),
    StoryMutant("what the check of a pair finds is ignored", PairCheck, "_drop", lambda *_: None, 100000),
    StoryMutant("a restarted prefiller counts as proven", PairStates, "connected", lambda *_: None, 100879),
    StoryMutant("KV is cached before its pair is checked", pair_check, "bind", lambda *_: None, 100510),
    StoryMutant("the state of another request is sent", RequestSlot, "beside", _another_slot, 100004),
    StoryMutant(
        "pages of a window are named before the last chunk", WindowPages, "readable_end", lambda _, end: end, 100001
    ),
    StoryMutant("a prompt keeps the name of earlier weights", hooks, "_name_anew", lambda *_: None, 200012),
    StoryMutant(
        "a fetch is not asked for by the name of new weights",
        Receiver,
        "_fetch_by_another_name",
        lambda _: False,
        200014,
    ),
    StoryMutant(
        "what was sent under the name of earlier weights counts", PageList, "forget_reported", lambda _: None, 200014
    ),
    StoryMutant(
        "a fetch under earlier weights is given up by its old name alone",
        *(Receiver, "_is_awaited", _declines_what_it_has_not_fetched, 200021),
    ),
    StoryMutant("weights are named anew before events are heard", Sender, "rename", _rename_unheard, -1),
    StoryMutant("a rank of another data-parallel group is asked", TransferEndpoint, "places", _other_group, 100028),
    StoryMutant(
        "a request that ended before its page numbers came is planned", Sender, "_end_of_plan", _plan_of_ended, 3
    ),
    StoryMutant("page numbers are read before they are here", PageNumbers, "look", _look_blindly, 0),
    StoryMutant("page numbers are taken in another order", PageNumbers, "look", _look_out_of_order, 8),
    StoryMutant("pages are taken before those that were given first", PageNumbers, "when_here", _act_before_others, 8),
    StoryMutant("a pass that is over before its page numbers come never ends", ReportedStep, "begin", _begin_only, 0),
)
