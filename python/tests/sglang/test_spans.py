"""A prefiller's spans for SGLang's ``--enable-trace``, as calls of SGLang's class, whose exporter is not installed."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

SOURCES = [3, 4]
TARGETS = [7, 8]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the backend calls of ``TraceReqContext``, with arguments that SGLang's own methods would take."""
    from sglang.srt.observability import trace
    from sglang.srt.runtime_context import get_observability

    made: list[tuple[str, dict[str, Any]]] = []
    real = trace.TraceReqContext

    class Recording:
        tracing_enable = True

        def __init__(self, **named: Any) -> None:
            inspect.signature(real).bind(**named)
            made.append(("made", named))

        def __getattr__(self, name: str) -> Any:
            def call(*given: Any, **named: Any) -> None:
                bound = inspect.signature(getattr(real, name)).bind(self, *given, **named)
                made.append((name, {key: value for key, value in bound.arguments.items() if key != "self"}))

            return call

    monkeypatch.setattr(trace, "TraceReqContext", Recording)
    with get_observability().override(enable_trace=True):
        yield made


def test_should_show_the_stages_of_a_transfer(pair: Pair, calls: list[tuple[str, dict[str, Any]]]) -> None:
    from one_process import pages

    room = pair.next_room()
    sender, receiver = pair.begin(room, TARGETS, 1)
    sender.init(len(SOURCES), 2)
    pair.write_metadata(2, room, 5)
    sender.send(pages(*SOURCES))
    sender.poll()
    pair.finish(sender, receiver)
    assert calls[0] == (
        "made",
        {"rid": hex(room), "bootstrap_room": room, "role": "Sender", "module_name": "kv_messenger"},
    )
    stages = [(name, given["name"]) for name, given in calls if name.startswith("trace_slice")]
    names = [f"kv_messenger_{stage}" for stage in ("wait_for_decoder", "prefill", "send")]
    assert stages == [(f"trace_slice_{edge}", name) for name in names for edge in ("start", "end")]
    assert [name for name, _ in calls].count("trace_req_finish") == 1
    assert not any(name == "abort" for name, _ in calls)
    ends = [given for name, given in calls if name == "trace_slice_end"]
    assert ends[-1]["attrs"] == {"bytes": sender.get_transfer_metric().transfer_total_bytes}


def test_should_end_the_spans_of_an_aborted_transfer_with_the_reason(
    pair: Pair, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    sender, receiver = pair.begin(pair.next_room(), TARGETS, 1)
    sender.abort()
    sender.poll()
    sender.clear()
    assert ("abort", {"abort_info": {"reason": "Aborted by AbortReq."}}) in calls
    assert [name for name, _ in calls].count("trace_req_finish") == 1
    receiver.abort()
    receiver.clear()
    pair.assert_nothing_held()


def test_should_make_no_span_unless_sglang_traces(pair: Pair) -> None:
    from kv_connector.sglang.transfer_spans import TransferSpans

    assert TransferSpans.of(pair.next_room()) is None
