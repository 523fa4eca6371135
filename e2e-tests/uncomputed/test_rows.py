"""Rows of KV on a CUDA that computes nothing: those that are right pass, and one wrong byte is found and named."""

from __future__ import annotations

from typing import Any

import pytest

from uncomputed.stories import Stories

FIRST, SECOND = [7, 8, 2], [4, 9, 0]
"""Blocks of one request, as two engines have them."""
PROMPT_TOKENS = 40

STORY = """
import ctypes, json, os, sys
from types import SimpleNamespace as Of

import torch
from uncomputed.rows import Place, Rows

rows = Rows(ctypes.CDLL(os.environ["UNCOMPUTED_ROWS"]))
given = json.loads(sys.argv[1])
kv = torch.zeros((10, 2, 16, 2 * 64), dtype=torch.bfloat16, device="cuda")
keys, values = kv.transpose(1, 2).split(64, dim=-1)
scale = torch.zeros((), device="cuda")
rows.places = {scale.data_ptr(): Place(window_tokens=given["window"])}


def step(new, cached, count):
    nothing = Of(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    rows.begin_step(
        Of(
            finished_req_ids=[],
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached or nothing,
            num_scheduled_tokens={"a": count},
        )
    )


def request(blocks, computed):
    prompt = list(range(100, 100 + given["prompt"]))
    named = {"req_id": "a", "prefill_token_ids": None, "prompt_token_ids": prompt}
    return Of(block_ids=(blocks,), num_computed_tokens=computed, **named)


stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    if given["graph"]:
        graph = torch.cuda.CUDAGraph()
        step([], None, 0)
        with torch.cuda.graph(graph, stream=stream):
            rows.layer(keys, values, scale)
        attend = graph.replay
    else:
        attend = lambda: rows.layer(keys, values, scale)
    step([request(given["first"], 0)], None, given["prompt"])
    attend()
    stream.synchronize()
    moved = torch.zeros(kv.shape, dtype=kv.dtype)
    moved.copy_(kv)
    for one, other in zip(given["first"], given["second"]):
        moved[other] = moved[one].clone()
    if given["wrong"] is not None:
        block, head, token, byte = given["wrong"]
        moved.view(torch.uint8)[block, head, token, byte] ^= 1
    kv.copy_(moved)
    step([request(given["second"], given["prompt"] - 1)], None, 1)
    attend()
    stream.synchronize()
print(json.dumps(rows.figures() | {"sampled": rows.sampled}))
"""


def story(
    stories: Stories, graph: bool, wrong: tuple[int, int, int, int] | None = None, window: int = 0
) -> dict[str, Any]:
    """A prompt's rows are written, its pages copied to other blocks, and read there; `wrong`: one byte of a page."""
    given = {
        "graph": graph,
        "first": FIRST,
        "second": SECOND,
        "prompt": PROMPT_TOKENS,
        "wrong": wrong,
        "window": window,
    }
    return stories.run(STORY, **given)


@pytest.mark.parametrize("graph", [False, True])
def test_rows_are_right_wherever_their_pages_lie(graph: bool, stories: Stories) -> None:
    figures = story(stories, graph)
    assert figures["rows_wrong"] == 0, figures["first_wrong"]
    assert figures["rows_written"] == PROMPT_TOKENS + 1
    assert figures["rows_read"] == PROMPT_TOKENS - 1
    assert figures["sampled"] == {"a": 1}


@pytest.mark.parametrize(
    ("wrong", "position"), [((4, 0, 0, 0), 0), ((9, 1, 15, 255), 31), ((0, 1, 6, 128), PROMPT_TOKENS - 2)]
)
def test_one_wrong_byte_is_found(wrong: tuple[int, int, int, int], position: int, stories: Stories) -> None:
    figures = story(stories, True, wrong)
    assert figures["rows_wrong"] == 1
    assert f"at position {position} of {PROMPT_TOKENS}" in figures["first_wrong"]


def test_row_that_is_computed_anew_is_not_read(stories: Stories) -> None:
    assert story(stories, False, (0, 0, 7, 0))["rows_wrong"] == 0


@pytest.mark.parametrize(("token", "wrong"), [(7, 0), (8, 1)])
def test_a_window_begins_at_its_first_row(token: int, wrong: int, stories: Stories) -> None:
    """The token at position 39 reads 16 rows, from position 24 on, which lies in the second block."""
    figures = story(stories, False, (SECOND[1], 0, token, 0), window=16)
    assert figures["rows_wrong"] == wrong
    assert figures["rows_read"] == 15


STATES = """
import ctypes, json, os, sys
from types import SimpleNamespace as Of

import torch
from uncomputed.rows import Place, Rows

rows = Rows(ctypes.CDLL(os.environ["UNCOMPUTED_ROWS"]), groups=[None])
rows.states = {"layer": Place(number=3)}
given = json.loads(sys.argv[1])
memory = torch.zeros((10, 96), dtype=torch.uint8, device="cuda")
tensors = memory[:, :64].view(torch.bfloat16), memory[:, 64:].view(torch.float32)


def step(block, computed, count, changed=()):
    prompt = [*changed, *range(100 + len(changed), 140)]
    named = {"req_id": "a", "prefill_token_ids": None, "prompt_token_ids": prompt}
    new = Of(block_ids=([block],), num_computed_tokens=computed, **named)
    cached = Of(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    named = {"finished_req_ids": [], "num_scheduled_tokens": {"a": count}}
    rows.begin_step(Of(scheduled_new_reqs=[new], scheduled_cached_reqs=cached, **named))
    rows.state("layer", tensors)
    torch.cuda.synchronize()


step(4, 0, 39)
moved = memory.cpu()
moved[7] = moved[4]
if given["byte"] is not None:
    moved[7][given["byte"]] ^= 1
memory.copy_(moved)
step(given["block"], 39, 1, given["changed"])
step(given["block"], 0, 40, given["changed"])
print(json.dumps(rows.figures()))
"""


def carried(stories: Stories, block: int = 7, byte: int | None = None, changed: tuple[int, ...] = ()) -> dict[str, Any]:
    """A state is copied to block 7, and another token added in `block`; `changed`: the first tokens, then."""
    return stories.run(STATES, block=block, byte=byte, changed=changed)


def test_a_state_is_that_of_all_tokens_before(stories: Stories) -> None:
    figures = carried(stories)
    assert figures["rows_wrong"] == 0, figures["first_wrong"]
    assert (figures["states_read"], figures["states_written"]) == (2, 6)


@pytest.mark.parametrize(
    ("wrong", "states"),
    [({"byte": 0}, 1), ({"byte": 63}, 1), ({"byte": 95}, 1), ({"block": 8}, 2), ({"changed": (99,)}, 2)],
)
def test_a_state_of_another_byte_block_or_token_is_found(wrong: dict[str, Any], states: int, stories: Stories) -> None:
    figures = carried(stories, **wrong)
    assert figures["rows_wrong"] == states
    assert "layer 3 at" in figures["first_wrong"]
    assert "at position 39 of 40" in figures["first_wrong"]
