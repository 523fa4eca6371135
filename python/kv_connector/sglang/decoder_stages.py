"""Lets all pipeline stages of a decoder end a transfer alike, as SGLang's tensor-parallel ranks do.

SGLang's stages pass on the names of ended transfers, not how they ended. So if one stage fails, it drops a request that
another one computes; and a stage names to the next one only what has arrived, so that later stages keep failed requests
for ever. With this backend the stages pass on the lowest state of each transfer instead, and of a failed one its
reason: the client reads what the first stage says, whichever has failed.

Each function wraps a method of SGLang's scheduler that only a decoder with several stages calls, on its own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kv_connector.sglang.receiver import Receiver
from kv_connector.sglang.sglang_api import KVPoll

_MIXIN = "sglang.srt.managers.scheduler_pp_mixin.SchedulerPPMixin"
ENDED = f"{_MIXIN}._pp_pd_get_decode_transferred_ids"
RELEASE = f"{_MIXIN}.process_decode_transfer_queue"

StageState = tuple[int, str]
"""The state of a transfer, and why it failed with the stage that failed; "" unless it did."""

_UNDER_WAY = (KVPoll.Bootstrapping, KVPoll.WaitingForInput, KVPoll.Transferring)


def lowest_states(_original: Callable[..., Any], scheduler: Any) -> dict[str, StageState]:
    """The lowest state of each transfer on this stage and those before it; SGLang passes it to the next stage.

    Of two stages that failed, the reason of the earlier one.

    Without transfers that this stage has not begun yet, since all stages end a transfer at the same place of the ring.
    """
    queue = scheduler.disagg_decode_transfer_queue.queue
    failed, under_way, arrived = scheduler.get_rids(queue, False, (KVPoll.Failed,), _UNDER_WAY, (KVPoll.Success,))
    receivers = {waiting.req.rid: waiting.kv_receiver for waiting in queue}
    own: dict[str, StageState] = {
        **{request: (int(KVPoll.Failed), _reason(receivers[request])) for request in failed},
        **dict.fromkeys(under_way, (int(KVPoll.Transferring), "")),
        **dict.fromkeys(arrived, (int(KVPoll.Success), "")),
    }
    if scheduler.pp_group.is_first_rank:
        return own
    earlier = dict(scheduler._pp_recv_pyobj_from_prev_stage())  # an empty one comes as an empty list
    return {
        request: min(state, own[request], key=lambda each: each[0])
        for request, state in earlier.items()
        if request in own
    }


def _reason(receiver: Any) -> str:
    """SGLang has receivers of its own for requests without a prefiller, such as its warm-up."""
    return receiver.stage_failure if isinstance(receiver, Receiver) else ""


def end_alike(
    original: Callable[[Any, Sequence[str] | None], Any], scheduler: Any, states: Mapping[str, StageState] | None
) -> dict[str, StageState] | None:
    """Ends the transfers that have arrived on all stages or failed on one; SGLang passes the result to the next stage.

    ``states`` are those of all stages; None if there is nothing to agree on yet.
    """
    if states is None:
        original(scheduler, None)
        return None
    ended = {request: state for request, state in dict(states).items() if state[0] in (KVPoll.Failed, KVPoll.Success)}
    for waiting in scheduler.disagg_decode_transfer_queue.queue:
        state, reason = ended.get(waiting.req.rid, (KVPoll.Success, ""))
        if state == KVPoll.Failed and isinstance(waiting.kv_receiver, Receiver):
            waiting.kv_receiver.fail_with_others(reason)
    original(scheduler, list(ended))
    return ended
