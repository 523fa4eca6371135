"""Timeline lines are read from logs as both sides write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kv_connector.cli.main import main
from kv_connector.cli.timelines import fetches, prefills, timelines


def line(**fields: object) -> str:
    return f"(Worker pid=7) INFO 11-21 10:00:00 [worker_half.py:1] kv_messenger timeline {json.dumps(fields)}\n"


def chunk(first: int, forward: tuple[int, int], left: list[int]) -> dict[str, object]:
    layers = [
        {"layer": layer, "readableNs": at - 2, "submittedNs": at - 1, "leftNs": at} for layer, at in enumerate(left)
    ]
    return {
        "firstToken": first,
        "endToken": first + 256,
        "forwardStartNs": forward[0],
        "forwardEndNs": forward[1],
        "layers": layers,
    }


PREFILL = line(
    transfer="t1",
    side="prefiller",
    transport="tcp",
    lastLeftNs=310,
    chunks=[chunk(256, (200, 300), [250, 310]), chunk(0, (100, 200), [150, 190])],
)
FETCH = line(
    transfer="t1", side="decoder", pages=4, bytes=1024, grantedNs=90, readyNs=320, askedNs=80, polledNs=1_000_350
)


def test_prefill_is_read_with_its_chunks_in_order() -> None:
    timeline = prefills("noise\n" + FETCH + PREFILL)["t1"]
    assert [computed.first_token for computed in timeline.computed()] == [0, 256]
    assert [computed.left_early() for computed in timeline.computed()] == [2, 1]
    assert max(layer.left_ns for layer in timeline.computed()[1].layers) == 310
    assert timeline.last_layer_ns() == 308
    assert timeline.transport == "tcp"


def test_fetch_is_read() -> None:
    fetch = fetches(PREFILL + FETCH)["t1"]
    assert (fetch.pages, fetch.length_bytes, fetch.granted_ns, fetch.ready_ns) == (4, 1024, 90, 320)
    assert fetch.polled_ns == 1_000_350


def test_a_line_that_was_cut_off_is_none() -> None:
    for length in range(len(PREFILL)):
        assert len(list(timelines(PREFILL[:length] + "\n" + FETCH))) == 1 + (length >= len(PREFILL) - 1)


NO_TIMELINES = ["{}", "[]", '"x"', "7", "{" + '"a":{' * 5000, *(f'{{"side": "{side}"}}' for side in ("prefiller", "x"))]


@pytest.mark.parametrize(
    "text", [*NO_TIMELINES, '{"side": "prefiller", "transfer": "t", "transport": "", "chunks": 7}']
)
def test_a_line_that_only_looks_like_one_hides_no_other(text: str) -> None:
    assert len(list(timelines(f"kv_messenger timeline {text}\n{PREFILL}"))) == 1


def test_both_sides_lines_come_in_the_logs_order() -> None:
    assert [type(found).__name__ for found in timelines(FETCH + PREFILL)] == ["FetchTimeline", "PrefillTimeline"]


WRONG = (None, True, "5", 5, 0.5, [], {}, [5], 1 << 63, -(1 << 63), float("nan"), float("inf"))


@pytest.mark.parametrize("begin", [PREFILL, FETCH], ids=["prefiller", "decoder"])
def test_should_skip_lines_with_a_value_of_another_type(begin: str, tmp_path: Path) -> None:
    """Each field in turn has each other value: what is taken can be printed and drawn."""
    fields = json.loads(begin[begin.index("{") :])
    other = FETCH if begin is PREFILL else PREFILL
    for name in fields:
        for value in WRONG:
            log = tmp_path / "log"
            log.write_text(other + line(**{**fields, name: value}))
            files = [str(tmp_path / "transfer.svg"), str(tmp_path / "trace.json")]
            assert main(["timeline", str(log), "--svg", files[0], "--perfetto", files[1]]) in (0, 1)


@pytest.mark.parametrize("days", [0, 1, 30_000])
def test_should_draw_what_two_clocks_stamped(days: int, tmp_path: Path) -> None:
    """The logs of two machines by mistake, and a transfer that took no time at all."""
    late_ns = 86_400 * 10**9 * days
    sent = line(transfer="t", side="prefiller", transport="tcp", chunks=[chunk(0, (100, 100), [100])])
    log = tmp_path / "log"
    log.write_text(sent + line(transfer="t", side="decoder", pages=1, bytes=1, grantedNs=100, readyNs=100 + late_ns))
    assert main(["timeline", str(log), "--svg", str(tmp_path / "transfer.svg")]) == 0
    assert (tmp_path / "transfer.svg").stat().st_size < 10_000


def test_should_print_nothing_that_a_terminal_obeys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(line(transfer="\x1b[31m\x07t", side="decoder", pages=1, bytes=1, grantedNs=1, readyNs=2))
    assert main(["timeline", str(log)]) == 0
    assert capsys.readouterr().out.replace("\n", "").isprintable()
