"""The source's side of pulls: what its prefix cache holds is offered, and held no longer than it is fetched."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from release import Release

from kv_connector.naming.prompt_digest import prompt_digest

BLOCK = 4
TRANSFER = "pull-1"


class Pool:
    """As much of vLLM's pool as offers use, with its reference counts."""

    def __init__(self, count: int = 20) -> None:
        self.blocks = [SimpleNamespace(block_id=index, ref_cnt=0) for index in range(count)]
        self.cached: dict[int, int] = {}

    def get_cached_block(self, block_hash: int, group_ids: Sequence[int]) -> list[Any] | None:
        assert list(group_ids) == [0]
        return [self.blocks[self.cached[block_hash]]] if block_hash in self.cached else None

    def touch(self, blocks: Iterable[Any]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[Any]) -> None:
        for block in blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0

    def references(self) -> int:
        return sum(block.ref_cnt for block in self.blocks)


class Source:
    def __init__(self, _loaded: Release, because: str = "", share: float = 0.5) -> None:
        offers, rules, groups, numbers, metadata, prompts = (
            importlib.import_module(f"kv_connector.vllm.{name}")
            for name in ("offers", "pull_rules", "kv_groups", "request_numbers", "metadata", "prompts")
        )
        self.params = importlib.import_module("kv_connector.vllm.pull_params")
        self.pool = Pool()
        self.meta = metadata.StepMetadata(step=0)
        self.offers = offers.Offers(
            [groups.KvGroup(("layer",), BLOCK)],
            rules.PullRules("", because, False, 64, share, 5.0),
            numbers.RequestNumbers(),
            prompts.digest_of,
            logging.getLogger("test"),
            lambda: self.now_seconds,
        )
        self.now_seconds = 1000.0
        self.steps = 0
        self.offers.bind(self.pool)

    def hold(self, blocks: int) -> None:
        self.pool.cached = {index: index + 1 for index in range(blocks)}

    def ask(self, tokens: int = 5 * BLOCK, digest: str = "", **more: Any) -> Any:
        ids = list(range(tokens))
        request = SimpleNamespace(
            **{
                "request_id": "carrier",
                "prompt_token_ids": ids,
                "_all_token_ids": list(ids),
                "num_prompt_tokens": tokens,
                "block_hashes": list(range(tokens // BLOCK)),
                "skip_reading_prefix_cache": False,
                "cache_salt": None,
                "kv_transfer_params": {},
                "max_tokens": 5,
                **more,
            }
        )
        carrier = self.params.Carrier(TRANSFER, digest or prompt_digest(ids))
        self.offers.asked(request, carrier)
        assert (request.prompt_token_ids, request._all_token_ids, request.num_prompt_tokens) == ([0], [0], 1)
        assert (request.max_tokens, request.kv_transfer_params, request.block_hashes) == (1, None, [])
        return self.offers._waiting[-1].offer

    def step(self, *, computes: bool = True) -> list[tuple[int, str]]:
        """(held tokens, reason) of the offers that the messenger gets with the next step."""
        self.steps += 1
        self.meta.offers.clear()
        self.meta.step, self.meta.computes, self.meta.reports_end = self.steps, computes, False
        self.offers.step_begins(self.meta)
        assert self.meta.reports_end == computes
        return [(offer.held_tokens, offer.reason) for offer in self.meta.offers]


@pytest.mark.parametrize("idle_after", range(4), ids=lambda count: f"{count} empty steps")
@pytest.mark.parametrize("ahead", range(4))
def test_should_wait_for_the_outputs_of_the_steps_before_its_look_up(
    vllm_release: Release, ahead: int, idle_after: int
) -> None:
    """Passes that were scheduled before may still fill the blocks, as with asynchronous scheduling on a GPU."""
    source = Source(vllm_release)
    source.hold(3)
    for _ in range(2):
        assert not source.step()
        source.offers.step_over(source.steps)
    in_flight = [source.steps + each + 1 for each in range(ahead)]
    for _ in in_flight:
        assert not source.step()
    for _ in range(idle_after):
        assert not source.step(computes=False), "a step without a pass reports nothing"
    source.ask()
    for step in in_flight:
        assert not source.step(computes=False), "a pass that fills its blocks may not be over"
        assert source.offers.has_work()
        source.offers.step_over(step)
    assert source.step() == [(3 * BLOCK, "")]
    assert not source.step()


def test_should_offer_nothing_that_earlier_weights_computed(vllm_release: Release) -> None:
    """The digest has the name of the weights that the engine has now."""
    source = Source(vllm_release)
    source.hold(3)
    source.offers.cached.filled()
    source.offers.cached.changed()
    source.ask()
    assert source.step() == [(0, "misfit")]
    source.offers.cached.emptied()
    source.offers.step_over(source.steps)
    source.ask()
    assert source.step() == [(3 * BLOCK, "")]


def test_should_answer_at_once_that_it_holds_nothing(vllm_release: Release) -> None:
    source = Source(vllm_release)
    assert not source.step()
    source.ask()
    assert source.step() == [(0, "not_held")]


def test_should_give_up_an_offer_whose_steps_never_end(vllm_release: Release) -> None:
    source = Source(vllm_release)
    source.hold(3)
    assert not source.step()
    source.ask()
    source.now_seconds += 4.9
    assert not source.step()
    assert source.pool.references() == 3
    source.now_seconds += 0.1
    assert source.step() == [(0, "busy")]
    assert (source.pool.references(), source.offers.has_work()) == (0, False)


def test_should_report_no_step_where_nothing_is_offered(vllm_release: Release) -> None:
    source = Source(vllm_release, because="role")
    source.meta.computes = True
    source.offers.step_begins(source.meta)
    assert not source.meta.reports_end


def test_should_offer_the_blocks_from_the_beginning_on(vllm_release: Release) -> None:
    source = Source(vllm_release)
    source.hold(3)
    del source.pool.cached[1]
    source.pool.cached[4] = 5
    offer = source.ask()
    assert (offer.held_tokens, offer.groups, offer.reason) == (BLOCK, [(0, [1])], "")
    assert (offer.transfer, source.pool.blocks[1].ref_cnt, source.pool.references()) == (TRANSFER, 1, 1)
    assert source.step() == [(BLOCK, "")]
    source.offers.released([offer.request])
    source.offers.released([offer.request])
    assert (source.pool.references(), source.offers.has_work()) == (0, False)


def test_should_offer_nothing_that_it_does_not_hold(vllm_release: Release) -> None:
    source = Source(vllm_release)
    offer = source.ask()
    assert (offer.held_tokens, offer.groups, offer.reason) == (0, [], "not_held")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"digest": "f" * 32}, "misfit"),
        ({"cache_salt": "another"}, "misfit"),
        ({"lora_request": SimpleNamespace(lora_name="a", lora_path="b")}, "misfit"),
        ({"block_hashes": [0]}, "misfit"),
        ({"block_hashes": []}, "not_held"),
        ({"skip_reading_prefix_cache": True}, "not_held"),
    ],
    ids=str,
)
def test_should_offer_nothing_for_another_prompt(vllm_release: Release, more: Any, reason: str) -> None:
    source = Source(vllm_release)
    source.hold(5)
    offer = source.ask(**more)
    assert (offer.held_tokens, offer.reason) == (0, reason)
    assert source.pool.references() == 0


def test_should_offer_nothing_where_it_may_not(vllm_release: Release) -> None:
    source = Source(vllm_release, because="role")
    source.hold(5)
    assert source.ask().reason == "unavailable"


def test_should_hold_no_more_of_the_pool_than_its_share(vllm_release: Release) -> None:
    source = Source(vllm_release, share=0.25)
    source.hold(5)
    assert source.ask().held_tokens == 5 * BLOCK
    source.pool.cached = {index: index + 8 for index in range(5)}
    assert source.ask().reason == "busy"
    for block in source.pool.blocks[8:13]:
        block.ref_cnt = 1
    assert source.ask().held_tokens == 5 * BLOCK, "what running requests hold is free of charge"


def test_should_withdraw_at_once_what_the_messenger_has_not_got(vllm_release: Release) -> None:
    source = Source(vllm_release)
    source.hold(5)
    first = source.ask()
    assert source.step() == [(5 * BLOCK, "")]
    source.meta.offers.clear()
    second = source.ask()
    source.offers.withdraw(source.meta)
    assert not source.offers._waiting
    assert source.meta.withdrawn == [first.request]
    (answer,) = source.meta.offers
    assert (answer.request, answer.held_tokens, answer.reason) == (second.request, 0, "not_held")
    assert source.pool.references() == 5


@pytest.mark.parametrize("held_blocks", [0, 3])
def test_should_run_a_question_whose_client_stays(vllm_release: Release, held_blocks: int) -> None:
    """A proxy before the engine's server may keep the connection that the messenger closes."""
    source = Source(vllm_release)
    source.hold(held_blocks)
    source.ask()
    limit_seconds = importlib.import_module("kv_connector.vllm.offers").CARRIER_LIMIT_SECONDS
    assert source.offers.keeps_waiting("carrier")
    assert not source.offers.keeps_waiting("another request")
    source.now_seconds += limit_seconds - 0.001
    assert source.offers.keeps_waiting("carrier")
    source.now_seconds += 0.002
    assert not source.offers.keeps_waiting("carrier")
    source.offers.gone("carrier")
    assert not source.offers._carriers
