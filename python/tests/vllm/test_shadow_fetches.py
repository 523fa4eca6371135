"""Where an unproven pair's requests get their KV, and which tokens of a shadow fetch are compared where."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.configuration.messenger_addresses import Address, Messengers
from kv_connector.naming.pair_rules import PROBE_TOKENS_MIN, REFUTED_SECONDS, UNJUDGED_MAX, PairState
from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.pair_proofs import PROBE_LIMIT_SECONDS, SHADOW_TOKENS_MAX, PairProofs, Way
from kv_connector.vllm.proof_messages import ComparedToken, Proved, ShadowProof
from kv_connector.vllm.shadow_fetches import VERDICT_LIMIT_SECONDS, ShadowFetches, compared_tokens
from kv_connector.vllm.transfer_params import Receive, Refused

BLOCK_TOKENS = 16
FULL = KvGroup(("model.layers.0.attn",), BLOCK_TOKENS)
WINDOW = KvGroup(("model.layers.1.attn",), BLOCK_TOKENS, window_tokens=32)
STATE = KvGroup(("model.layers.2.mixer",), 1 << 30, state=True)
FIRST: Messengers = (Address("10.0.0.1", 7000),)
SECOND: Messengers = (Address("10.0.0.2", 7000),)
FINDING = "K of layer model.layers.0.attn differs by 1.7"
LONG = 100


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int = LONG
    lora_request: Any = None
    prompt_token_ids: Any = ()
    mm_features: Any = None


class Pool:
    """Block ids that are free, and references to the others."""

    def __init__(self, count: int) -> None:
        self.blocks = range(count)
        self.references = [0] * count
        self.references[0] = 1

    def get_num_free_blocks(self) -> int:
        return self.references.count(0)

    def get_new_blocks(self, count: int) -> list[SimpleNamespace]:
        if count > self.get_num_free_blocks():
            raise ValueError("no room")
        found = [block for block in self.blocks if not self.references[block]][:count]
        self.touch(found)
        return [SimpleNamespace(block_id=block) for block in found]

    def touch(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.references[block] += 1

    def free_blocks(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            assert self.references[block] > 0
            self.references[block] -= 1


@dataclass
class World:
    groups: tuple[KvGroup, ...] = (FULL, WINDOW)
    check: Any = "fail"
    stops: bool = False
    blocks: int = 4000
    messengers: int = 1
    now_seconds: float = 1000.0
    pool: Any = None
    numbers: int = 0
    bound: bool = True
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = Pool(self.blocks)
        logger = logging.getLogger("proofs")
        self.proofs = PairProofs(
            self.groups,
            self.check,
            can_stop=self.stops,
            weights=str,
            adapter_of=str,
            logger=logger,
            now_seconds=lambda: self.now_seconds,
        )
        self.shadows = ShadowFetches(self.groups, self.proofs, logger, lambda: self.now_seconds)
        self.proofs.begin([True] * self.messengers)
        self.shadows.begin(self.messengers)
        if self.bound:
            self.proofs.bind(self.pool)
            self.shadows.bind(self.pool)

    def ask(self, messengers: Messengers = FIRST, *others: Messengers, first: bool = False) -> Receive:
        return Receive("t", messengers, "", decoder_first=first, other_prefillers=others)

    def way(self, request: Request, messengers: Messengers = FIRST) -> Way:
        way = self.shadows.way(request, self.ask(messengers))
        assert self.shadows.way(request, self.ask(messengers)) is way, "asking changes something"
        return way

    def start(self, request: Request, messengers: Messengers = FIRST) -> str:
        self.numbers += 1
        assert self.shadows.start(request, self.ask(messengers), str(self.numbers)) is not None
        return str(self.numbers)

    def tables(self, tokens: int) -> list[list[int]]:
        return [[1000 * (1 + index) + each for each in range(group.blocks_of(tokens))] for index, group in self._each()]

    def _each(self) -> Iterable[tuple[int, KvGroup]]:
        return enumerate(self.groups)

    def compute(self, request: Request, computed: int = 0) -> None:
        tokens = request.num_prompt_tokens
        tables = self.tables(tokens)
        for table in tables:
            self.pool.touch(table)
        self.shadows.scheduled(request.request_id, tables, True, computed, tokens - computed)
        for table in tables:
            self.pool.free_blocks(table)

    def report(self, arrived: Iterable[str] = (), failed: Iterable[str] = (), proved: Iterable[Proved] = ()) -> None:
        self.ended += self.shadows.reported(arrived, failed, proved)

    def judge(self, request: Request, finding: str = "", *, judged: bool = True, to: Messengers = FIRST) -> ShadowProof:
        """Everything from the request's start to the verdict."""
        number = self.start(request, to)
        self.compute(request)
        self.report(arrived=[number] * self.messengers)
        (proof,) = self.shadows.due()
        assert not self.shadows.due(), "one comparison is asked for once"
        self.report(proved=[Proved(number, judged, 0.01, finding)])
        return proof

    def state(self, messengers: Messengers = FIRST) -> PairState:
        return self.proofs.state_of(Request("any"), messengers)

    def refusal(self, request: Request) -> str:
        chosen = self.proofs.chosen(request, self.ask())
        return chosen.reason if isinstance(chosen, Refused) else ""

    def is_clean(self) -> bool:
        self.proofs.gone("")
        return (
            self.shadows.is_empty()
            and not self.shadows.has_work()
            and self.pool.get_num_free_blocks() == self.blocks - 1
        )


def test_should_compute_here_what_could_be_answered_from_an_unproven_pair() -> None:
    for groups in ((FULL, WINDOW), (FULL, STATE), (FULL,)):
        world = World(groups)
        assert world.way(Request("first")) is Way.SHADOW
        assert world.way(Request("short", PROBE_TOKENS_MIN - 1)) is Way.HERE
        assert world.way(Request("long", SHADOW_TOKENS_MAX + 1)) is Way.FETCH
        assert world.way(Request("longest that is computed here", SHADOW_TOKENS_MAX)) is Way.SHADOW
        number = world.start(Request("first"))
        assert world.way(Request("second")) is Way.WAIT
        assert world.way(Request("of another prefiller"), SECOND) is Way.SHADOW
        world.now_seconds += PROBE_LIMIT_SECONDS
        assert world.way(Request("second")) is Way.HERE
        assert world.way(Request("long", SHADOW_TOKENS_MAX + 1)) is Way.FETCH
        world.shadows.drop(number)
        assert world.is_clean()


@pytest.mark.parametrize(
    "world",
    [
        World((FULL,), stops=True),
        World(check="warn"),
        World(check="off"),
        World((FULL, STATE), check="warn"),
        World(messengers=0),
        World(bound=False),
        World(blocks=2 * (7 + 3)),
    ],
    ids=["can stop", "warn", "off", "state and warn", "no messenger compares", "no pool", "no room"],
)
def test_should_fetch_as_ever_where_it_need_not_or_cannot_shadow(world: World) -> None:
    assert world.way(Request("first")) is Way.FETCH
    assert world.shadows.start(Request("first"), world.ask(), "1") is None


def test_should_have_room_for_twice_the_blocks() -> None:
    assert World(blocks=2 * (7 + 3) + 1).way(Request("first")) is Way.SHADOW


def test_should_leave_alone_what_is_refused_anyway() -> None:
    world = World((FULL, STATE))
    assert world.shadows.way(Request("r"), world.ask(first=True)) is Way.FETCH
    with_image = Request("r", mm_features=[1])
    world = World()
    assert world.shadows.way(with_image, world.ask(first=True)) is Way.FETCH
    assert world.shadows.way(Request("r"), world.ask(first=True)) is Way.SHADOW


def test_should_fetch_the_requests_of_a_proven_pair() -> None:
    world = World()
    world.judge(Request("first"))
    assert world.state() is PairState.PROVEN
    for request in (Request("a"), Request("b", 2), Request("c", SHADOW_TOKENS_MAX + 1)):
        assert world.way(request) is Way.FETCH
        assert not world.refusal(request)
    assert world.is_clean()


def test_should_refuse_the_fetches_of_a_refuted_pair_and_try_one_more_after_a_time() -> None:
    world = World()
    world.judge(Request("first"), FINDING)
    assert world.state() is PairState.REFUTED
    for tokens in (2, LONG, SHADOW_TOKENS_MAX + 1):
        assert world.way(Request("later", tokens)) is Way.FETCH
        assert FINDING in world.refusal(Request("later", tokens))
    world.now_seconds += REFUTED_SECONDS
    for tokens in (2, SHADOW_TOKENS_MAX + 1):
        assert world.way(Request("later", tokens)) is Way.FETCH
        assert FINDING in world.refusal(Request("later", tokens)), "it proves nothing, so it is refused still"
    assert world.way(Request("again")) is Way.SHADOW
    world.judge(Request("again"))
    assert world.state() is PairState.PROVEN
    assert world.is_clean()


def test_should_give_up_for_a_time_when_nothing_can_be_judged() -> None:
    world = World()
    for index in range(UNJUDGED_MAX):
        world.judge(Request(f"r{index}"), judged=False)
    assert world.way(Request("next")) is Way.FETCH
    world.now_seconds += REFUTED_SECONDS
    assert world.way(Request("next")) is Way.SHADOW
    assert world.is_clean()


def test_should_shadow_by_the_first_prefiller_that_is_not_refuted() -> None:
    world = World()
    world.judge(Request("first"), FINDING)
    ask = world.ask(FIRST, SECOND)
    assert world.shadows.way(Request("r"), ask) is Way.SHADOW
    started = world.shadows.start(Request("r"), ask, "9")
    assert started is not None
    assert started[0] == SECOND
    world.shadows.drop("9")


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW), (FULL, STATE), (WINDOW, FULL, STATE)], ids=len)
@pytest.mark.parametrize("tokens", [32, 33, 47, 48, 49, 100, 1000])
@pytest.mark.parametrize("computed", [0, 16, 96])
def test_should_compare_tokens_where_both_sides_have_them(
    groups: tuple[KvGroup, ...], tokens: int, computed: int
) -> None:
    world = World(groups)
    if computed >= tokens - 1:
        return
    request = Request("first", tokens)
    number = world.start(request)
    sent = tokens - 1 if STATE in groups else tokens
    scratch = world.shadows._shadows[number].scratch
    world.compute(request, computed)
    world.report(arrived=[number])
    (proof,) = world.shadows.due()
    assert 1 <= len(proof.tokens) <= 9
    last = proof.tokens[-1]
    for index, (group, table) in enumerate(zip(groups, world.tables(tokens), strict=True)):
        first = group.first_needed(0, sent)
        assert len(scratch[index]) == group.blocks_of(sent) - first // group.block_tokens
        assert (last.own[index] is None) == group.state, "the last one is in every window"
        for each in proof.tokens:
            _check_token(each, index, group, table, scratch[index], (max(first, computed), sent))
    world.report(proved=[Proved(number, True)])
    assert world.is_clean()


def _check_token(
    token: ComparedToken,
    index: int,
    group: KvGroup,
    table: list[int],
    scratch: list[int],
    common: tuple[int, int],
) -> None:
    own, received = token.own[index], token.received[index]
    assert (own is None) == (received is None)
    if own is None or received is None:
        return
    place = table.index(own[0]) * group.block_tokens + own[1]
    assert common[0] <= place < common[1]
    assert own[1] == received[1]
    blocks_before = group.blocks_of(common[1]) - len(scratch)
    assert (blocks_before + scratch.index(received[0])) * group.block_tokens + received[1] == place
    if token.alike_around:
        start = place // group.block_tokens * group.block_tokens
        assert common[0] <= start
        assert start + group.block_tokens <= common[1]


def test_should_compare_tokens_all_over_the_prompt() -> None:
    assert compared_tokens(0, 700) == [100, 200, 300, 400, 500, 600, 697, 698, 699]
    assert compared_tokens(0, 32)[-3:] == [29, 30, 31]
    assert compared_tokens(99, 100) == [99]
    assert compared_tokens(100, 100) == []


def test_should_not_compare_when_nothing_was_computed_here() -> None:
    world = World((FULL, STATE))
    number = world.start(Request("first"))
    world.compute(Request("first"), LONG - 1)
    assert world.way(Request("second")) is Way.SHADOW
    assert world.shadows.take_abandoned() == [number]
    world.report(failed=[number])
    assert world.is_clean()


def test_should_wait_for_all_messengers_and_all_ends() -> None:
    world = World(messengers=2)
    number = world.start(Request("first"))
    world.compute(Request("first"))
    world.report(arrived=[number])
    assert not world.shadows.due()
    assert world.shadows.may_be_written(number)
    world.report(failed=[number])
    assert world.ended == [number]
    assert world.way(Request("second")) is Way.SHADOW, "the others do not wait for a proof about pages"
    assert not world.shadows.has_work()
    assert not world.is_clean(), "a peer may still write"
    assert world.shadows.let_go(number)
    assert world.is_clean()
    assert not world.shadows.let_go(number)
    assert not world.shadows.may_be_written(number)


def test_should_not_wait_for_a_verdict_for_ever() -> None:
    world = World()
    number = world.start(Request("first"))
    world.compute(Request("first"))
    world.report(arrived=[number])
    assert world.shadows.due()
    assert world.shadows.has_work()
    world.now_seconds += VERDICT_LIMIT_SECONDS
    world.shadows.due()
    assert world.is_clean()
    world.report(proved=[Proved(number, True, 1.0, FINDING)])
    assert world.state() is PairState.UNPROVEN


def test_should_survive_tables_that_it_does_not_understand(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    number = world.start(Request("first"))
    world.shadows.scheduled("first", [[1], [2]], True, 0, LONG)
    assert "is not compared" in caplog.text
    assert world.shadows.take_abandoned() == [number]
    world.report(failed=[number])
    assert world.is_clean()


def test_should_leave_nothing_behind_when_the_pool_has_no_block_after_all() -> None:
    world = World()
    world.pool.get_new_blocks = lambda count: [][count]
    with pytest.raises(IndexError):
        world.shadows.start(Request("first"), world.ask(), "1")
    assert world.way(Request("second")) is Way.SHADOW
    assert world.is_clean()


def test_should_not_take_a_later_request_of_the_same_id_for_the_first() -> None:
    world = World()
    first = world.start(Request("r"))
    world.shadows.gone("r")
    second = world.start(Request("r"))
    world.report(failed=[first])
    world.compute(Request("r"))
    world.report(arrived=[second])
    (proof,) = world.shadows.due()
    assert proof.request == second
    world.report(proved=[Proved(second, True)])
    assert world.shadows.take_abandoned() == [first]
    assert world.is_clean()


def test_should_not_take_a_request_to_another_prefiller_for_the_first_of_its_id() -> None:
    world = World()
    first = world.start(Request("r"))
    world.compute(Request("r"))
    second = world.start(Request("r"), SECOND)
    world.report(failed=[first])
    world.compute(Request("r"))
    world.report(arrived=[second])
    assert [each.request for each in world.shadows.due()] == [second]
