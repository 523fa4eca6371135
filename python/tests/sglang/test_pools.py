"""Any pools of a model together, beside any draft: each page, slot and row arrives, and nothing else is touched."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

TARGET_HEADS = 4


def all_shapes() -> list[Any]:
    pytest.importorskip("sglang.srt", reason="SGLang is not installed")
    with warnings.catch_warnings(action="ignore"):
        from several_pools import shapes

        return [pytest.param(s, id=f"{s.model} + draft {s.draft}, pages of {s.page_tokens}") for s in shapes()]


@contextlib.contextmanager
def opened(folder: Path, shape: Any, decoder_shape: Any = None) -> Iterator[Pair]:
    with warnings.catch_warnings(action="ignore"):
        from one_process import Pair
        from several_pools import DRAFT_HEADS, WINDOW_TOKENS

        from kv_connector.sglang import engine_facts
        from kv_connector.sglang.layerwise import HOOKS

        drafts = {"heads": engine_facts.Draft(latent=False, kv_head_count=DRAFT_HEADS), "none": None}
        draft = drafts.get(shape.draft, engine_facts.Draft(latent=True, kv_head_count=1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HOOKS, "window_tokens", WINDOW_TOKENS)
            patch.setattr(engine_facts, "draft_of", lambda _: draft)
            pair = Pair(folder, shape, decoder_shape)
    with contextlib.closing(pair):
        yield pair


def moved(pair: Pair, tokens: int, chunk_pages: int = 3) -> Callable[[], None]:
    """Moves a prompt as SGLang's queues do; gives the comparison of all bytes."""
    import functools

    from one_process import pages, wait_for
    from several_pools import Request, assert_moved, items_of, scribble
    from sglang.srt.disaggregation.base.conn import KVPoll

    scribble(pair.prefiller, tokens)
    scribble(pair.decoder, tokens + 1)
    before = {kind: [buffer.clone() for buffer in of] for kind, of in items_of(pair.decoder).items()}
    here, there = Request(pair.prefiller, tokens, tokens + 2), Request(pair.decoder, tokens, tokens + 3)
    room = pair.next_room()
    pair.prefiller.endpoint.next_prompt_tokens = tokens
    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.prompt_tokens = tokens
    receiver.send_metadata(pages(*there.pages), 5, there.indices)
    wait_for(sender, KVPoll.WaitingForInput)
    sender.init(len(here.pages), 5)
    pair.write_metadata(5, room, 9)
    last = (len(here.pages) - 1) // chunk_pages * chunk_pages
    for at in range(0, last, chunk_pages):
        sender.send(pages(*here.pages[at : at + chunk_pages]))
    sender.send(pages(*here.pages[last:]), here.indices)
    pair.finish(sender, receiver)
    return functools.partial(assert_moved, before, pair, here, there)


@pytest.mark.parametrize("shape", all_shapes())
def test_should_move_what_each_pool_has_of_a_prompt(tmp_path: Path, shape: Any) -> None:
    with opened(tmp_path, shape) as pair:
        for tokens in (1, 7 * shape.page_tokens, 19 * shape.page_tokens - shape.page_tokens // 2):
            moved(pair, tokens)()
        pair.assert_nothing_held()
