"""Pulls of engines whose ranks have a messenger each: one of them asks and answers, and each of them counts."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pytest
from release import Release
from simulated_engine import caches, config
from simulated_requests import SimulatedBlockPool

TWO_MESSENGERS = {
    "tensor_parallel_size": 2,
    "local_world_size": 2,
    "distributed_executor_backend": "mp",
    "extra": {"transports": ["tcp"], "messenger_per": "rank"},
}

pytestmark = pytest.mark.usefixtures("vllm_release")


class Client:
    """Takes commands."""

    def __init__(self) -> None:
        self.commands: list[Any] = []

    def submit(self, command: Any) -> bool:
        self.commands.append(command)
        return True


def module(name: str) -> Any:
    return importlib.import_module(f"kv_connector.{name}")


def worker_pulls(*, is_first: bool) -> tuple[Any, Client]:
    client = Client()
    groups = module("vllm.kv_groups")
    pages = groups.GroupPages(groups.KvGroup(("layer",), 16), 16, 0)
    return module("vllm.worker_pulls").WorkerPulls(client, [pages], is_first=is_first), client


def the_ask() -> Any:
    return module("runtime.commands").Ask("7", "pull-1", "d", [], [1, 2], "", 0, 100)


def the_offer(held_tokens: int) -> Any:
    metadata = module("vllm.metadata")
    groups = [metadata.PlacedBlocks(0, [3])] if held_tokens else []
    return metadata.Offer("8", "pull-1", "d", held_tokens, groups, "")


@pytest.mark.parametrize("is_first", [True, False])
def test_should_ask_by_way_of_the_first(is_first: bool) -> None:
    pulls, client = worker_pulls(is_first=is_first)
    news = module("vllm.metadata").WorkerNews()
    pulls.ask(the_ask(), news)
    assert [command.request for command in client.commands] == ["7"] * is_first
    pulls.on_lost(news, closed=True)
    assert [each.request for each in news.offered] == ["7"] * is_first


@pytest.mark.parametrize("held_tokens", [0, 16])
@pytest.mark.parametrize("is_first", [True, False])
def test_should_answer_by_way_of_the_first_and_offer_the_pages_of_each(is_first: bool, held_tokens: int) -> None:
    pulls, client = worker_pulls(is_first=is_first)
    pulls.offer(the_offer(held_tokens), module("vllm.metadata").WorkerNews(), 0.0)
    submitted = [(command.asked, command.held_tokens) for command in client.commands]
    assert submitted == ([(is_first, held_tokens)] if is_first or held_tokens else [])
    assert len(pulls.held()["offers"]) == bool(held_tokens)


def test_should_hold_what_is_offered_until_each_has_released_it(vllm_release: Release) -> None:
    role = vllm_release.base.KVConnectorRole.SCHEDULER
    made = vllm_release.connector.KvMessengerConnector(config("kv_both", **TWO_MESSENGERS), role, caches())
    half, pool = made._half, SimulatedBlockPool(8)
    half.bind(pool)
    half._offers._pinned["8"] = blocks = pool.take(2)
    half._ended.end_quietly("9")
    for holds in (True, False):
        half.on_released(["8", "9"])
        assert [pool._references[block] for block in blocks] == [int(holds)] * 2
        assert half.has_work() == holds
    assert half._ended.is_empty()


@pytest.mark.parametrize(
    "events",
    [each for each in itertools.permutations(["ended", "sent", "loaded"]) if each.index("ended") < each.index("sent")],
)
def test_should_report_a_load_once_in_each_order_of_its_ends(events: tuple[str, ...]) -> None:
    """After the request's own end not before nothing reads its pages."""
    ended_loading = module("vllm.ended_loading").EndedLoading()
    reports = []
    for event in events:
        is_due = ended_loading.ended(["5"]) if event == "ended" else getattr(ended_loading, event)("5")
        reports += [event] if is_due else []
    assert reports == (["loaded"] if events[-1] == "loaded" or events[0] == "loaded" else ["sent"])
    assert not any(ended_loading.held().values())
