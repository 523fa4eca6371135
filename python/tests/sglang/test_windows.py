"""Layers with a sliding window in SGLang's pool of their own: only the pages of a prompt's last window move."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

WINDOW_TOKENS = 39
"""As SGLang says a window of 40: what it keeps behind a token."""
PAGE_TOKENS = 16
WINDOWED_PAGES = 32
CHUNK_PAGES = 3


@pytest.fixture(scope="module", params=[4, 1], ids=["heads-as-in-other-layers", "other-heads"])
def pair(
    request: pytest.FixtureRequest, sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import MODEL, Pair, Shape

        from kv_connector.sglang.layerwise import HOOKS

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HOOKS, "window_tokens", WINDOW_TOKENS)
            patch.setitem(MODEL, "swa_num_key_value_heads", request.param)
            shape = Shape(windowed_page_count=WINDOWED_PAGES, windowed_head_count=request.param)
            opened = Pair(tmp_path_factory.mktemp("windows"), shape)
    yield opened
    opened.close()


class Prompt:
    """One prompt's pages in both pools of both sides, drawn at random."""

    def __init__(self, pair: Pair, tokens: int, prefix_pages: int = 0) -> None:
        self._pair = pair
        self.tokens, self.prefix = tokens, prefix_pages * PAGE_TOKENS
        self.room = pair.next_room()
        count = -(-tokens // PAGE_TOKENS)
        in_window = count - max(self.prefix, tokens - WINDOW_TOKENS) // PAGE_TOKENS
        draw = random.Random(tokens)
        self.sources, self.targets = (draw.sample(range(1, 64), count - prefix_pages) for _ in range(2))
        self.windowed_sources, self.windowed_targets = (draw.sample(range(1, 32), in_window) for _ in range(2))
        for seed, side in enumerate((pair.prefiller, pair.decoder)):
            side.scribble(seed)
            for buffer in side.windowed_buffers():
                buffer.random_(generator=_drawn(seed + 10))
        self.sender: Any = None
        self.receiver: Any = None

    def begin(self, given_tokens: int | None = None) -> None:
        from one_process import pages, wait_for
        from sglang.srt.disaggregation.base.conn import KVPoll

        pair = self._pair
        pair.prefiller.endpoint.next_prompt_tokens = self.tokens
        self.sender, self.receiver = pair.sender(self.room), pair.receiver(self.room)
        self.receiver.prompt_tokens = given_tokens or self.tokens
        windowed = [pages(*self.windowed_targets)]
        self.receiver.send_metadata(pages(*self.targets), 5, windowed, decode_prefix_len=self.prefix)
        if given_tokens is None:
            wait_for(self.sender, KVPoll.WaitingForInput)

    def send(self) -> None:
        """In chunks, as SGLang's prefiller does: the windowed layers' pages come with the last one."""
        from one_process import pages

        self._pair.write_metadata(5, self.room, 9)
        self.sender.init(len(self.sources), 5)
        chunks = [self.sources[at : at + CHUNK_PAGES] for at in range(0, len(self.sources), CHUNK_PAGES)]
        for chunk in chunks[:-1]:
            self.sender.send(pages(*chunk))
        self.sender.send(pages(*chunks[-1]), [pages(*self.windowed_sources)])

    def finish(self) -> None:
        from one_process import wait_for
        from sglang.srt.disaggregation.base.conn import KVPoll

        for end in (self.sender, self.receiver):
            wait_for(end, KVPoll.Success)
            end.clear()


def _drawn(seed: int) -> Any:
    import torch

    return torch.Generator().manual_seed(seed)


def _pages_of(buffer: Any, indices: list[int]) -> Any:
    return buffer.unflatten(0, (-1, PAGE_TOKENS))[indices]


@pytest.mark.parametrize("tokens", [1, 16, 17, 38, 39, 40, 48, 55, 56, 64, 65, 100, 255, 256])
def test_should_move_the_pages_of_both_pools_and_no_windowed_page_before_the_window(pair: Pair, tokens: int) -> None:
    prompt = Prompt(pair, tokens)
    before = [buffer.clone() for buffer in pair.decoder.windowed_buffers()]
    prompt.begin()
    prompt.send()
    prompt.finish()
    assert_moved(pair, prompt, before)


def assert_moved(pair: Pair, prompt: Prompt, before: list[Any]) -> None:
    import torch

    pair.assert_equal_pages(prompt.sources, prompt.targets)
    others = [page for page in range(WINDOWED_PAGES) if page not in prompt.windowed_targets]
    sides = (pair.prefiller.windowed_buffers(), pair.decoder.windowed_buffers())
    for here, there, old in zip(*sides, before, strict=True):
        assert torch.equal(_pages_of(here, prompt.windowed_sources), _pages_of(there, prompt.windowed_targets))
        assert torch.equal(_pages_of(old, others), _pages_of(there, others))
    assert pair.decoder.metadata.bootstrap_room[5, 0] == prompt.room
    pair.assert_nothing_held()


def test_should_leave_out_what_the_decoder_has_of_both_pools(pair: Pair) -> None:
    prompt = Prompt(pair, 70, prefix_pages=2)
    before = [buffer.clone() for buffer in pair.decoder.windowed_buffers()]
    prompt.begin()
    prompt.send()
    prompt.finish()
    assert_moved(pair, prompt, before)


def test_should_fail_a_prompt_whose_windowed_pages_are_not_as_many_as_its_tokens_need(pair: Pair) -> None:
    from sglang.srt.disaggregation.base.conn import KVPoll

    prompt = Prompt(pair, 55)
    prompt.begin(given_tokens=54)
    assert prompt.receiver.poll() == KVPoll.Failed
    with pytest.raises(
        Exception, match="gives 4 pages and 3 of the layers with a window of 39 tokens, expected 4 and 4"
    ):
        prompt.receiver.failure_exception()
    prompt.sender.abort()
    prompt.sender.clear()
    prompt.receiver.clear()
    pair.assert_nothing_held()
