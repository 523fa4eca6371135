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


class Moving:
    """A prompt that moves as SGLang's queues move it."""

    def __init__(self, pair: Pair, tokens: int, seed: int, slot: int = 5) -> None:
        """The decoder has asked for it; ``slot`` is that of its metadata."""
        from one_process import pages, wait_for
        from several_pools import Request
        from sglang.srt.disaggregation.base.conn import KVPoll

        self.here, self.there = Request(pair.prefiller, tokens, seed), Request(pair.decoder, tokens, seed + 1)
        self._pair, room = pair, pair.next_room()
        pair.prefiller.endpoint.next_prompt_tokens = tokens
        self._sender, self._receiver = pair.sender(room), pair.receiver(room)
        self._receiver.prompt_tokens, self._receiver.request_row = tokens, self.there.row
        self._receiver.send_metadata(pages(*self.there.pages), slot, self.there.indices)
        wait_for(self._sender, KVPoll.WaitingForInput)
        self._sender.init(len(self.here.pages), slot)
        pair.write_metadata(slot, room, 9)

    def send(self, chunk_pages: int) -> None:
        from one_process import pages

        given = self.here.pages
        last = (len(given) - 1) // chunk_pages * chunk_pages
        for at in range(0, last, chunk_pages):
            self._sender.send(pages(*given[at : at + chunk_pages]))
        self._sender.send(pages(*given[last:]), self.here.indices)

    def finish(self) -> None:
        self._pair.finish(self._sender, self._receiver)


def moved(pair: Pair, tokens: int, chunk_pages: int = 3) -> Callable[[], None]:
    """Moves a prompt; gives the comparison of all bytes."""
    import functools

    from several_pools import assert_moved, items_of, scribble

    scribble(pair.prefiller, tokens)
    scribble(pair.decoder, tokens + 1)
    before = {kind: [buffer.clone() for buffer in of] for kind, of in items_of(pair.decoder).items()}
    moving = Moving(pair, tokens, tokens + 2)
    moving.send(chunk_pages)
    moving.finish()
    return functools.partial(assert_moved, before, pair, moving.here, moving.there)


@pytest.mark.parametrize("shape", all_shapes())
def test_should_move_what_each_pool_has_of_a_prompt(tmp_path: Path, shape: Any) -> None:
    with opened(tmp_path, shape) as pair:
        for tokens in (1, 7 * shape.page_tokens, 19 * shape.page_tokens - shape.page_tokens // 2):
            moved(pair, tokens)()
        pair.assert_nothing_held()


def test_should_receive_prompts_without_waiting_tokens_in_rows_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one row for all of them, the second one's would arrive while the first one's is held against its checksum."""
    import torch
    from several_pools import PAGE_TOKENS_OF, POOLED, SeveralPools, items_of, scribble

    monkeypatch.setenv("KV_MESSENGER_OPTIONS", '{"page_checksum": "full"}')
    model = "index, waiting, states"
    (page_tokens,) = PAGE_TOKENS_OF[model]
    shape = SeveralPools(model=model, latent=True, page_tokens=page_tokens)
    with opened(tmp_path, shape) as pair:
        scribble(pair.prefiller, 1)
        scribble(pair.decoder, 2)
        padding = [buffer[0].clone() for buffer in items_of(pair.decoder)["dsa_tail"]]
        both = [Moving(pair, page_tokens - POOLED, seed, slot) for seed, slot in ((30, 4), (50, 5))]
        rows = [moving.there.row for moving in both]
        assert all(moving.there.beside["dsa_tail"] == [] for moving in both), "no token waits"
        assert len(set(rows)) == 2, "two requests have two rows"
        for moving in both:
            moving.send(1)
        for moving in both:
            moving.finish()
        sent, arrived = items_of(pair.prefiller)["dsa_tail"], items_of(pair.decoder)["dsa_tail"]
        for own, got, untouched in zip(sent, arrived, padding, strict=True):
            assert torch.equal(got[rows], own[[0, 0]]), "each has been received in its request's row"
            assert torch.equal(got[0], untouched), "nothing is received in the row for padding"
        pair.assert_nothing_held()


GROUPS = ("draft", "swa", "block_scale", "block_scale_swa", "mamba")
"""Those of a model with all of these pools, behind its KV."""


def everything() -> Any:
    from several_pools import SeveralPools

    return SeveralPools(model="scales, windows, states", draft="heads", page_tokens=16)


def test_should_notice_pages_of_any_pool_that_are_mistaken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What these tests would see, held against a sender that names the wrong pages in one group."""
    from kv_connector.sglang.beside_pages import PromptParts
    from kv_connector.sglang.page_list import Pages

    right = PromptParts.groups
    with opened(tmp_path, everything()) as pair:
        for place, kind in enumerate(GROUPS, start=1):

            def wrong(parts: Any, of_full: Any, given: Any = None, place: int = place) -> list[Any]:
                groups = right(parts, of_full, given)
                named = groups[place]
                mistaken = [1 + named.pages[0] % 5] if len(named.pages) == 1 else named.pages[::-1]
                groups[place] = Pages(named.first_page, mistaken)
                return groups

            monkeypatch.setattr(PromptParts, "groups", wrong)
            compared = moved(pair, 100, chunk_pages=64)
            with pytest.raises(AssertionError, match=f"{kind}, buffer 0"):
                compared()
        monkeypatch.setattr(PromptParts, "groups", right)
        moved(pair, 100, chunk_pages=64)()


@pytest.mark.parametrize("place", range(1, 1 + len(GROUPS)), ids=GROUPS)
def test_should_notice_a_pool_that_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    import dataclasses

    from kv_connector.sglang.model_pools import ModelPools

    read = ModelPools.of

    def without_one(*args: Any, **named: Any) -> ModelPools:
        pools = read(*args, **named)
        kept = [k for k in range(len(pools.pools)) if k != place]
        of_groups = [pools.groups_of[k - 1] for k in kept if k]
        return dataclasses.replace(pools, pools=[pools.pools[k] for k in kept], groups_of=of_groups)

    monkeypatch.setattr(ModelPools, "of", without_one)
    with opened(tmp_path, everything()) as pair:
        compared = moved(pair, 100)
        with pytest.raises(AssertionError, match=f"{GROUPS[place - 1]}, buffer 0"):
            compared()
