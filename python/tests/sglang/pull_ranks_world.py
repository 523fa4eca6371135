"""Two engines of several ranks, with SGLang's own caches, and messengers between them that a test moves by hand.

The ranks of an engine run their rounds on threads of their own, because they wait for each other's votes. After each
round the caches of all ranks must be equal, slot by slot, and be evicted in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pull_world import Engine
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from kv_connector.runtime.commands import Offer
from kv_connector.runtime.facade import Asked, Offered
from kv_connector.sglang.pull_ranks import PullRanks
from kv_connector.sglang.rank_decisions import RankDecisions


class Meeting:
    """Where ranks vote; a rank that goes home while others wait for its vote breaks the meeting, as it would SGLang."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._votes: dict[int, Sequence[bool]] = {}
        self._result: list[bool] = []
        self._meetings = 0
        self._home: set[int] = set()

    def opens(self) -> None:
        self._home.clear()
        self._votes.clear()

    def leaves(self, rank: int) -> None:
        with self._changed:
            self._home.add(rank)
            self._changed.notify_all()

    def all_have(self, rank: int, votes: Sequence[bool]) -> list[bool]:
        with self._changed:
            now = self._meetings
            self._votes[rank] = list(votes)
            if len(self._votes) == self._count:
                assert len({len(each) for each in self._votes.values()}) == 1, "ranks vote about different things"
                self._result = [all(each) for each in zip(*self._votes.values(), strict=True)]
                self._votes.clear()
                self._meetings += 1
                self._changed.notify_all()
                return self._result
            self._changed.wait_for(lambda: self._meetings > now or self._home)
            assert self._meetings > now, "a rank has gone home, and another waits for its vote"
            return self._result


class Ranks(PullRanks):
    """As one rank of a team sees them all."""

    is_alone = False

    def __init__(self, meeting: Meeting, rank: int) -> None:
        super().__init__()
        self.is_first = rank == 0
        self.rank = rank
        self.decisions = RankDecisions()
        self._meeting = meeting

    def decide(self, decision: object) -> None:
        assert self.is_first, "another rank than the first decides"
        self.decisions.decide(decision)

    def carry_out(self) -> None:
        for decision in self.decisions.take_received():
            self._do(decision)

    def awaits(self) -> bool:
        return self.decisions.are_pending

    def all_have(self, votes: Sequence[bool]) -> list[bool]:
        return self._meeting.all_have(self.rank, votes) if votes else []  # as SGLang's group, see ``reduced``


class Team:
    """One engine of several ranks."""

    def __init__(self, first_port: int, count: int, page_tokens: int) -> None:
        self.meeting = Meeting(count)
        self.ranks = [Ranks(self.meeting, rank) for rank in range(count)]
        self.engines = [
            Engine(first_port + rank, page_tokens, ranks=rank_of, source_ranks=lambda _n, r=rank: [r], part=f"#{rank}")
            for rank, rank_of in enumerate(self.ranks)
        ]
        for engine in self.engines[1:]:
            engine.pulls._rules = replace(engine.rules, counts=False)
        self._threads = ThreadPoolExecutor(count)

    @property
    def first(self) -> Engine:
        return self.engines[0]

    def round(self) -> None:
        """A round of all schedulers: requests and decisions are broadcast, then each rank polls."""
        sent: list[Any] = []
        for ranks in self.ranks:
            requests = ["a request"] if ranks.is_first else None
            received = ranks.decisions.broadcast(lambda _, own: sent.extend(own or []) or list(sent), None, requests)
            assert received == ["a request"], "a scheduler sees a decision"
        self.each(lambda engine: engine.poll())

    def each(self, act: Callable[[Engine], Any]) -> None:
        """Each rank does it, all at once."""
        self.meeting.opens()

        def run(place: int) -> None:
            try:
                act(self.engines[place])
            finally:
                self.meeting.leaves(place)

        list(self._threads.map(run, range(len(self.engines))))
        self.assert_alike()

    def assert_alike(self) -> None:
        seen = {
            (
                engine.allocator.available_size(),
                engine.tree.evictable_size(),
                engine.tree.protected_size(),
                tuple(sorted(engine.tree.all_values_flatten().tolist())),
            )
            for engine in self.engines
        }
        assert len(seen) == 1, "the caches of the ranks differ"

    def cached(self, tokens: Sequence[int]) -> int:
        """How many tokens all ranks have, with the right KV."""
        counts = {engine.cached(tokens) for engine in self.engines}
        assert len(counts) == 1
        return counts.pop()

    def assert_at_rest(self) -> None:
        for engine in self.engines:
            engine.assert_whole()
            assert not engine.pulls.landing_count()
            assert not engine.offers.held_count()
            assert not engine.offers._released
        while self.first.tree.evictable_size():
            self.each(lambda engine: engine.tree.evict(EvictParams(num_tokens=engine.page_tokens)))

    def close(self) -> None:
        self._threads.shutdown()


class Teams:
    """An asker and a source."""

    def __init__(self, count: int, page_tokens: int = 4) -> None:
        self.asker, self.source = Team(1, count, page_tokens), Team(11, count, page_tokens)
        self.asked: dict[str, str] = {}
        self.offers: list[dict[str, Offer]] = [{} for _ in range(count)]
        """Those of each of the source's ranks, by transfer, which its messenger has not released."""

    def request(self, tokens: Sequence[int]) -> Any:
        made = self.asker.first.request(tokens, 11)
        hosts = ",".join(f"127.0.0.1:{engine.port}" for engine in self.source.engines)
        made.sampling_params.custom_params["remote_kv_source"]["remote_host"] = hosts
        return made

    def ask(self, tokens: Sequence[int]) -> Any:
        """The request comes to all ranks; the pull is the first one's."""
        pull, *others = [engine.pulls.queued(self.request(tokens)) for engine in self.asker.engines]
        assert others == [None] * len(others), "another rank asks as well"
        return pull

    def deliver_asks(self) -> None:
        for ask in self.asker.first.messenger.asks:
            ids = list(ask.prompt_token_ids)
            self.source.first.offers.asked(Asked(ask.transfer, ask.prompt_digest, ask.cache_salt, len(ids), ids))
            self.asked[ask.transfer] = ask.request
        self.asker.first.messenger.asks.clear()

    def deliver_offers(self) -> None:
        """Each messenger of the source gets its offers; the first one's are answers."""
        for engine, of_rank in zip(self.source.engines, self.offers, strict=True):
            for offer in engine.messenger.offers:
                if offer.held_tokens:
                    of_rank[offer.transfer] = offer
                if offer.asked:
                    answer = Offered(self.asked[offer.transfer], offer.held_tokens, offer.reason)
                    self.asker.first.pulls.offered(answer)
            engine.messenger.offers.clear()

    def fetching(self) -> list[tuple[int, str]]:
        """The fetches that can end: the rank, and the transfer."""
        return [
            (rank, transfer[0])
            for rank, engine in enumerate(self.asker.engines)
            for transfer, _tokens, _pages, incoming in engine.messenger.fetches
            if not incoming.ended
        ]

    def land(self, rank: int, transfer: str, *, arrives: bool = True) -> None:
        """One rank's fetch ends."""
        asker, source = self.asker.engines[rank], self.source.engines[rank]
        offer = self.offers[rank].get(transfer)
        for (name, _), (first, end), pages, incoming in asker.messenger.fetches:
            if name != transfer or incoming.ended:
                continue
            if arrives and offer is not None:
                size = asker.page_tokens
                theirs = list(offer.groups[0].pages)[first // size : end // size]
                for there, here in zip(theirs, pages[0].pages, strict=True):
                    asker.kv[here * size : (here + 1) * size] = source.kv[there * size : (there + 1) * size]
                incoming.arrived = True
            else:
                incoming.failure = "the source is gone"
        self.release(rank, transfer)

    def release(self, rank: int, transfer: str) -> None:
        """A messenger of the source reads nothing of its offer any more."""
        if (offer := self.offers[rank].pop(transfer, None)) is not None:
            self.source.engines[rank].offers.released(offer.request)

    def deliver_declines(self) -> None:
        """A decline of a rank goes to its own source; the first one's may go to all."""
        for rank, engine in enumerate(self.asker.engines):
            for decline in engine.messenger.declined:
                for address in decline.prefillers:
                    self.release(address.port - 11, decline.transfer)
            engine.messenger.declined.clear()
            assert rank < len(self.offers)

    def rounds(self, count: int = 2) -> None:
        for _ in range(count):
            self.deliver_asks()
            self.source.round()
            self.deliver_offers()
            self.asker.round()
            self.deliver_declines()

    def end(self) -> None:
        """All that is under way ends."""
        for team in (self.asker, self.source):
            for engine in team.engines:
                engine.end_passes()
        self.rounds(3)
        for rank, transfer in self.fetching():
            self.land(rank, transfer)
        self.rounds(3)
        for rank, of_rank in enumerate(self.offers):
            for transfer in list(of_rank):
                self.release(rank, transfer)
        self.rounds(2)

    def assert_at_rest(self) -> None:
        self.asker.assert_at_rest()
        self.source.assert_at_rest()

    def close(self) -> None:
        self.asker.close()
        self.source.close()
