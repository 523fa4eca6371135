"""Layers that keep one state of all tokens: its slot goes once, behind the last chunk, with the prompt's pages."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

PAGE_TOKENS = 16
METADATA_SLOT = 5

SHAPES = {
    "mamba-2": {},
    "short convolutions": {"state_size": 0},
    "beside latent KV": {"latent": True},
}


@pytest.fixture(scope="module", params=SHAPES)
def pair(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[Pair]:
    assert sglang_plugins is None
    opened = opened_pair(tmp_path_factory.mktemp("states"), **SHAPES[request.param])
    yield opened
    opened.close()


def opened_pair(folder: Any, decoder: Any = None, **shape: Any) -> Pair:
    with warnings.catch_warnings(action="ignore"):
        from hybrid import HybridShape
        from one_process import Pair

        return Pair(folder, HybridShape(**shape), HybridShape(**decoder) if decoder else None)


class Prompt:
    """One prompt's request on both sides, and its pages, drawn at random; each side has slots of its own."""

    def __init__(self, pair: Pair, tokens: int, metadata_slot: int = METADATA_SLOT, held: Any = None) -> None:
        from hybrid import in_different_slots

        self._pair = pair
        self.room = pair.next_room()
        self.metadata_slot = metadata_slot
        self.here, self.there = held or in_different_slots(pair.prefiller, pair.decoder)
        draw = random.Random(self.room)
        count = -(-tokens // PAGE_TOKENS)
        self.sources, self.targets = (draw.sample(range(1, 64), count) for _ in range(2))
        self.sender: Any = None
        self.receiver: Any = None

    def begin(self) -> None:
        from one_process import pages, wait_for
        from sglang.srt.disaggregation.base.conn import KVPoll

        pair = self._pair
        self.sender, self.receiver = pair.sender(self.room), pair.receiver(self.room)
        self.receiver.send_metadata(pages(*self.targets), self.metadata_slot, self.there.state_indices())
        wait_for(self.sender, KVPoll.WaitingForInput)
        self.sender.init(len(self.sources), self.metadata_slot)

    def send_all_but_the_last(self, chunk_pages: int) -> None:
        from one_process import pages

        for at in range(0, len(self.sources) - chunk_pages, chunk_pages):
            self.sender.send(pages(*self.sources[at : at + chunk_pages]))

    def send_the_last(self, chunk_pages: int) -> None:
        from hybrid import write_state
        from one_process import pages

        write_state(self._pair.prefiller, self.here.slot, seed=self.room)
        self._pair.write_metadata(self.metadata_slot, self.room, 9)
        whole_chunks = (len(self.sources) - 1) // chunk_pages * chunk_pages
        self.sender.send(pages(*self.sources[whole_chunks:]), self.here.state_indices())

    def finish(self) -> None:
        """The decoder has all at the first Success that it sees."""
        from one_process import wait_for
        from sglang.srt.disaggregation.base.conn import KVPoll

        wait_for(self.receiver, KVPoll.Success)
        self.assert_moved()
        wait_for(self.sender, KVPoll.Success)
        for end in (self.sender, self.receiver):
            end.clear()

    def assert_moved(self) -> None:
        import torch
        from hybrid import states

        self._pair.assert_equal_pages(self.sources, self.targets)
        for here, there in zip(states(self._pair.prefiller), states(self._pair.decoder), strict=True):
            assert here[self.here.slot].any()
            assert torch.equal(here[self.here.slot], there[self.there.slot])
        assert self._pair.decoder.metadata.bootstrap_room[self.metadata_slot, 0] == self.room

    def give_back(self) -> None:
        for held in (self.here, self.there):
            held.give_back()


def scribble(pair: Pair) -> None:
    from hybrid import states, write_state

    for seed, side in enumerate((pair.prefiller, pair.decoder)):
        side.scribble(seed)
        for slot in range(len(states(side)[0])):
            write_state(side, slot, seed=1000 * seed + slot)


def copies(side: Any) -> list[Any]:
    from hybrid import states

    return [tensor.clone() for tensor in states(side)]


def assert_only_changed(pair: Pair, before: list[Any], *slots: int) -> None:
    """The decoder's other slots are as they were."""
    import torch
    from hybrid import states

    for old, new in zip(before, states(pair.decoder), strict=True):
        others = [slot for slot in range(len(old)) if slot not in slots]
        assert torch.equal(old[others], new[others])


@pytest.mark.parametrize("chunk_pages", [1, 3, 64])
@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 48, 63, 64, 65, 200, 511, 512])
def test_should_move_a_prompts_pages_and_its_state(pair: Pair, tokens: int, chunk_pages: int) -> None:
    scribble(pair)
    prompt = Prompt(pair, tokens)
    assert prompt.here.slot != prompt.there.slot
    before = copies(pair.decoder)
    prompt.begin()
    prompt.send_all_but_the_last(chunk_pages)
    prompt.send_the_last(chunk_pages)
    prompt.finish()
    assert_only_changed(pair, before, prompt.there.slot)
    pair.assert_nothing_held()
    prompt.give_back()


def test_should_send_pages_chunk_by_chunk_and_the_state_behind_the_last(pair: Pair) -> None:
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    scribble(pair)
    prompt = Prompt(pair, 100)
    before = copies(pair.decoder)
    prompt.begin()
    prompt.send_all_but_the_last(2)

    def six_pages_are_there() -> bool:
        assert prompt.receiver.poll() == KVPoll.Transferring
        prompt.sender.poll()
        sides = ((pair.prefiller, prompt.sources[:6]), (pair.decoder, prompt.targets[:6]))
        here, there = ([page.tolist() for page in side.all_pages(of)] for side, of in sides)
        return here == there

    until(six_pages_are_there, "the first six of seven pages are there")
    assert_only_changed(pair, before)
    prompt.send_the_last(2)
    prompt.finish()
    assert_only_changed(pair, before, prompt.there.slot)
    prompt.give_back()
    pair.assert_nothing_held()


def test_should_send_the_requests_own_slot_beside_those_that_the_radix_cache_keeps(pair: Pair) -> None:
    """SGLang's cache keeps a copy behind each chunk, and a later request begins with a copy of that."""
    import torch
    from hybrid import states, write_state

    scribble(pair)
    first = Prompt(pair, 100)
    first.here.begin_empty()
    first.begin()
    first.send_all_but_the_last(2)
    write_state(pair.prefiller, first.here.slot, seed=77)
    kept = first.here.keep_for_prefixes()
    first.send_the_last(2)
    kept_of_all = first.here.keep_for_prefixes()
    first.finish()
    second = Prompt(pair, 90, metadata_slot=6)
    second.here.begin_with(kept)
    for tensor in states(pair.prefiller):
        assert torch.equal(tensor[second.here.slot], tensor[kept])
    second.begin()
    second.send_the_last(64)
    second.finish()
    for tensor in states(pair.prefiller):
        assert torch.equal(tensor[first.here.slot], tensor[kept_of_all])
        assert not torch.equal(tensor[second.here.slot], tensor[kept])
    for prompt in (first, second):
        prompt.give_back()
    pair.assert_nothing_held()


def test_should_move_the_states_of_several_requests_at_once(pair: Pair) -> None:
    scribble(pair)
    prompts = [Prompt(pair, tokens, metadata_slot=slot) for slot, tokens in enumerate((5, 40, 70, 33))]
    draw = random.Random(7)
    distinct = draw.sample(range(1, 64), 16)
    for prompt in prompts:
        prompt.targets = [distinct.pop() for _ in prompt.targets]
    before = copies(pair.decoder)
    for step in ("begin", "send_all_but_the_last", "send_the_last"):
        for prompt in draw.sample(prompts, len(prompts)):
            getattr(prompt, step)(*([] if step == "begin" else [1]))
    for prompt in draw.sample(prompts, len(prompts)):
        prompt.finish()
    for prompt in prompts:
        prompt.assert_moved()
    assert_only_changed(pair, before, *(prompt.there.slot for prompt in prompts))
    for prompt in prompts:
        prompt.give_back()
    pair.assert_nothing_held()


@pytest.mark.parametrize("side", ["decoder", "prefiller"])
@pytest.mark.parametrize("sent", ["nothing", "some pages", "all"])
def test_should_fill_reused_slots_with_their_new_requests_state_alone(pair: Pair, side: str, sent: str) -> None:
    """What was given up may still be on its way when the prefiller gives its slot to another request."""
    from hybrid import taken_again
    from one_process import until

    scribble(pair)
    given_up = Prompt(pair, 100)
    given_up.begin()
    if sent != "nothing":
        given_up.send_all_but_the_last(2)
    if sent == "all":
        given_up.send_the_last(2)
    (given_up.receiver if side == "decoder" else given_up.sender).abort()
    is_safe = pair.decoder.endpoint.is_abort_release_safe
    until(lambda: is_safe(given_up.room, 1), "nothing writes to the decoder's slot")
    before = copies(pair.decoder)
    slots = given_up.here.slot, given_up.there.slot
    given_up.give_back()
    prompt = Prompt(
        pair, 64, metadata_slot=1, held=(taken_again(pair.prefiller, slots[0]), taken_again(pair.decoder, slots[1]))
    )
    prompt.begin()
    prompt.send_the_last(64)
    prompt.finish()
    assert_only_changed(pair, before, prompt.there.slot)
    prompt.give_back()
    assert_ended(given_up)
    pair.assert_nothing_held()


def assert_ended(prompt: Prompt) -> None:
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    for end in (prompt.sender, prompt.receiver):
        until(lambda end=end: end.poll() in (KVPoll.Failed, KVPoll.Success), "it has ended")
        if end.poll() == KVPoll.Failed:
            with pytest.raises(Exception, match=r"\w"):
                end.failure_exception()
        end.clear()


def test_should_fail_a_prompt_whose_request_has_no_slot(pair: Pair) -> None:
    import numpy as np
    from one_process import pages
    from sglang.srt.disaggregation.base.conn import KVPoll

    prompt = Prompt(pair, 20)
    prompt.sender, prompt.receiver = pair.sender(prompt.room), pair.receiver(prompt.room)
    prompt.receiver.send_metadata(pages(*prompt.targets), 5, [[np.array(0, dtype=np.int32)]])
    assert prompt.receiver.poll() == KVPoll.Failed
    with pytest.raises(Exception, match=r"SGLang gives slots \[0\] of state, expected one, and not 0: please report"):
        prompt.receiver.failure_exception()
    prompt.sender.abort()
    for end in (prompt.sender, prompt.receiver):
        end.clear()
    prompt.give_back()
    pair.assert_nothing_held()


def test_should_refuse_a_side_whose_slots_hold_other_numbers(tmp_path: Any) -> None:
    """Of as many bytes: nothing but the tensors' names tells them apart."""
    import torch
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    pair = opened_pair(tmp_path, {"state_dtype": torch.float16}, state_dtype=torch.bfloat16)
    prompt = Prompt(pair, 20)
    prompt.sender, prompt.receiver = pair.sender(prompt.room), pair.receiver(prompt.room)
    prompt.receiver.send_metadata(pages(*prompt.targets), 5, prompt.there.state_indices())
    until(lambda: prompt.receiver.poll() == KVPoll.Failed, "the fetch has failed")
    sentence = r"prefiller's dtype of KV group 1 is bfloat16\[48, 3\] bfloat16\[4, 8, 8\].*float16\[4, 8, 8\]"
    with pytest.raises(Exception, match=sentence):
        prompt.receiver.failure_exception()
    prompt.sender.abort()
    for end in (prompt.sender, prompt.receiver):
        end.clear()
    pair.close()


def test_should_refuse_a_model_whose_state_sglang_does_not_name() -> None:
    from sglang.srt.configs import FalconH1Config
    from transformers import LlamaConfig

    from kv_connector import OptionError
    from kv_connector.sglang.refusals import refuse_unnamed_state

    def model(config: Any) -> Any:
        return SimpleNamespace(hf_config=config, is_draft_model=False, linear_attn_registry_result=None)

    refuse_unnamed_state(model(LlamaConfig()), ["swa"])
    refuse_unnamed_state(model(FalconH1Config()), ["mamba"])
    for kinds, named in ((["swa"], "swa"), ([], "nothing")):
        with pytest.raises(
            OptionError, match=rf"SGLang names {named} to a backend .*, expected 'mamba' among it: what"
        ):
            refuse_unnamed_state(model(FalconH1Config()), kinds)
