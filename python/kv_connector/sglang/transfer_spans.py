"""A prefiller's spans of one transfer, for SGLang's ``--enable-trace``. The scheduler's thread only."""

from __future__ import annotations

from typing import Any

from kv_connector.sglang import BACKEND_NAME
from kv_connector.sglang.sglang_api import KVPoll

_STAGES = {
    int(KVPoll.Bootstrapping): f"{BACKEND_NAME}_wait_for_decoder",
    int(KVPoll.WaitingForInput): f"{BACKEND_NAME}_prefill",
    int(KVPoll.Transferring): f"{BACKEND_NAME}_send",
}
"""The name of the span that a transfer is in, by its state."""
_LEVEL = 1
"""SGLang's lowest level: shown wherever something is traced."""


class TransferSpans:
    """One span for the transfer, which names its room, and one for each of its stages."""

    @classmethod
    def of(cls, room: int) -> TransferSpans | None:
        """None where SGLang traces nothing, or not this backend (``--trace-modules``)."""
        from sglang.srt.observability.trace import TraceReqContext
        from sglang.srt.runtime_context import get_observability

        if not get_observability().enable_trace:
            return None
        context = TraceReqContext(rid=hex(room), bootstrap_room=room, role="Sender", module_name=BACKEND_NAME)
        return cls(context) if context.tracing_enable else None

    def __init__(self, context: Any) -> None:
        self._context = context
        self._stage = ""
        self._ended = False
        context.trace_req_start()

    def at(self, state: int) -> None:
        """The transfer has this state, a KVPoll; spans begin and end with a change."""
        stage = _STAGES.get(int(state), "")
        if self._ended or stage == self._stage:
            return
        self._leave_stage()
        self._stage = stage
        if stage:
            self._context.trace_slice_start(stage, _LEVEL)

    def end(self, failure: str, bytes_sent: int) -> None:
        """The transfer is over; "" = it has arrived. Only the first call counts."""
        if self._ended:
            return
        if failure:
            self._context.abort(abort_info={"reason": failure})
        else:
            self._leave_stage(bytes_sent)
        self._ended = True
        self._context.trace_req_finish()

    def _leave_stage(self, bytes_sent: int = 0) -> None:
        if self._stage:
            attributes = {"bytes": bytes_sent} if bytes_sent else None
            self._context.trace_slice_end(self._stage, _LEVEL, attrs=attributes)
