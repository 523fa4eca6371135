"""Beside Mooncake Store, inside vLLM's MultiConnector: prefixes are kept there, and what is sent goes by the messenger.

One set-up runs with all other tests; `make stores` runs all of them: each side in both orders, on one rank and two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mooncake_store
import pytest
from bed import Messenger, decoder, messenger, prefiller, start_messengers
from clients import Client, faults_of_groups
from conftest import Reference
from mooncake_store import Store
from processes import kill, stopped
from prompts import random_prompt
from server_process import Server, complete, start_all, wait_until, words_of
from servers import EngineOptions, engine
from traffic import CHUNK_TOKENS, PAGE_TOKENS, Group, Traffic
from warm_starts import WarmServer

GROUPS: Final = 12
"""Of the everyday traffic, in each round."""
KEPT_LIMIT_SECONDS: Final = 600.0
GROUPS_OF_FAULT: Final = 6
"""Fewer: vLLM's connector asks a master that is gone once for each prompt, one after the other, for seconds each."""
BEFORE_FAULT: Final = 3
"""Requests of a round that have been answered when something happens to the store."""
ROUND_LIMIT_SECONDS: Final = 600.0
TIMED_ANSWERS: Final = 16
TIMED_TOKENS: Final = 200


@dataclass(frozen=True)
class Setup:
    """Which of its two connectors each side asks first, on how many ranks."""

    tp_size: int = 1
    ours_first: frozenset[str] = frozenset({"decoder"})
    """The sides that ask the messenger before the store."""
    messenger_per: str = "node"

    def store(self, side: str) -> dict[str, Any]:
        """The store's connector there.

        A decoder that asks it second keeps what it has there, and looks nothing up: a transfer brings all.
        """
        looks_up = side == "prefiller" or side not in self.ours_first
        extra = {"lookup_async": True} if looks_up else {"enable_lookup": False}
        return {**mooncake_store.CONNECTOR, "kv_connector_extra_config": extra}

    def side(self, side: str) -> dict[str, Any]:
        """What `bed` starts it with."""
        options = {
            "page_tokens": PAGE_TOKENS,
            "prefix_caching": True,
            "arguments": ("--max-num-batched-tokens", str(CHUNK_TOKENS)),
            "beside": self.store(side),
            "asks_ours_first": side in self.ours_first,
            "load_failure_policy": "recompute",
            "tp_size": self.tp_size,
        }
        count = self.tp_size if self.messenger_per == "rank" else 1
        return {"options": options, "extra": {"messenger_per": self.messenger_per}, "messenger_count": count}


ALIKE: Final = ("page_tokens", "prefix_caching", "arguments", "tp_size")
"""Options of a set-up that say nothing of connectors."""
TURNED: Final = frozenset({"prefiller"})
BOTH: Final = frozenset({"prefiller", "decoder"})
NEITHER: Final[frozenset[str]] = frozenset()
SETUPS: Final = {
    "usual": Setup(),
    "turned": Setup(ours_first=TURNED),
    "messenger-first": Setup(ours_first=BOTH),
    "store-first": Setup(ours_first=NEITHER),
    "two-ranks": Setup(tp_size=2),
    "two-ranks-turned": Setup(tp_size=2, ours_first=TURNED, messenger_per="rank"),
    "two-ranks-messenger-first": Setup(tp_size=2, ours_first=BOTH, messenger_per="rank"),
    "two-ranks-store-first": Setup(tp_size=2, ours_first=NEITHER),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "setup" in metafunc.fixturenames:
        at_length = metafunc.config.getoption("--all-stores") and metafunc.function not in ON_USUAL_SETUP
        names = list(SETUPS) if at_length else ["usual"]
        metafunc.parametrize("setup", [SETUPS[name] for name in names], ids=names, scope="module")


def stopped_node(store: Store) -> AbstractContextManager[None]:
    return stopped(store.node.pid)


def stopped_master(store: Store) -> AbstractContextManager[None]:
    return stopped(store.master.pid)


@contextmanager
def killed_node(store: Store) -> Iterator[None]:
    kill(store.node.pid)
    yield


@contextmanager
def killed_master(store: Store) -> Iterator[None]:
    kill(store.master.pid)
    yield


FAULTS: Final = (stopped_node, stopped_master, killed_node, killed_master)
"""In this order: what is killed does not come back."""


@dataclass(frozen=True)
class Pair:
    setup: Setup
    prefiller: Messenger
    decoder: Messenger
    store: Store
    groups: list[Group]
    reference: Reference

    def answered(self, groups: list[Group]) -> None:
        """Everyday traffic: right tokens, most of them by transfers, and nothing held afterwards."""
        before = self.arrived()
        faults = faults_of_groups(Client(self.prefiller, self.decoder), groups, self.reference)
        assert not faults, "\n".join(faults)
        requests = sum(len(group.requests) for group in groups)
        # A decoder that asks the store first takes what it has of a prompt from there, and computes the rest.
        if "decoder" in self.setup.ours_first:
            assert self.arrived() - before >= requests / 2, "most answers did not come from transferred KV"

    def arrived(self) -> float:
        return self.decoder.metric("kv_messenger_fetches_arrived_total")

    def answers(self) -> float:
        return self.decoder.server.metric("vllm:request_success_total")

    def wait_for_answers(self, count: float) -> None:
        wait_until(lambda: self.answers() >= count, KEPT_LIMIT_SECONDS, "requests are under way")

    def of_store(self, side: Messenger) -> float:
        """How many tokens of prompts it has taken from a connector."""
        return side.server.metric("vllm:external_prefix_cache_hits_total")

    def forget(self) -> None:
        """Neither engine has anything cached any more, the store has."""
        for side in (self.prefiller, self.decoder):
            side.wait_at_rest()
            assert "error" not in side.server.post("/reset_prefix_cache", {})


@pytest.fixture(scope="module")
def pair(
    setup: Setup, model: Path, run_folder: Path, traffic: Traffic, everyday_reference: Reference
) -> Iterator[Pair]:
    lack = mooncake_store.why_there_is_none()
    if lack:
        print(f"not shown beside Mooncake Store: {lack}")
        pytest.skip(lack)
    with ExitStack() as stack:
        name = f"store-{time.monotonic_ns() % 10**6}"
        store = mooncake_store.started(stack, name, run_folder)
        environment = {"environment": store.environment()}
        sides = []
        for kind in (prefiller, decoder):
            side = setup.side(kind.__name__)
            side["options"] |= environment
            sides.append(messenger(kind(f"{kind.__name__}-{name}", **side), model, run_folder))
        start_messengers(stack, sides)
        groups = [group for group in traffic.groups if not any(r.gone_after_seconds for r in group.requests)]
        yield Pair(setup, sides[0], sides[1], store, groups, everyday_reference)


def test_answers_are_right_and_the_store_has_the_prompts(pair: Pair) -> None:
    pair.answered(pair.groups[:GROUPS])
    wait_until(lambda: pair.store.key_count() > 0, KEPT_LIMIT_SECONDS, "the store keeps blocks")


def test_prefixes_come_from_the_store_when_both_caches_were_reset(pair: Pair) -> None:
    """The prefiller takes them from there, and the messenger sends all of it on."""
    pair.forget()
    before = pair.of_store(pair.prefiller)
    pair.answered(pair.groups[:GROUPS])
    assert pair.of_store(pair.prefiller) > before, "the prefiller took nothing from the store"
    for side in (pair.prefiller, pair.decoder):
        side.wait_at_rest()


def decoders_to_time(pair: Pair, model: Path, folder: Path) -> dict[str, Server]:
    """Of one kind but for their connectors; none is sent anything."""
    store = pair.setup.store("decoder")
    ours: dict[str, Any] = {"kv_connector": "KvMessengerConnector", "kv_role": "kv_consumer"}
    role = {"kv_role": "kv_consumer"}
    wrapped = {"kv_connector": "MultiConnector", **role, "kv_connector_extra_config": {"connectors": [ours]}}
    options = {key: value for key, value in pair.setup.side("decoder")["options"].items() if key in ALIKE}
    transfers: dict[str, dict[str, Any]] = {"messenger": ours, "messenger in MultiConnector": wrapped, "store": store}
    environment = pair.store.environment()
    return {
        name: engine(
            f"timed-{name.replace(' ', '-')}",
            EngineOptions(model, "kv_consumer", core=1, transfer=transfer, environment=environment, **options),
            folder,
            kind=WarmServer,
        )
        for name, transfer in transfers.items()
    }


@pytest.mark.at_length
def test_decode_steps_beside_the_store(pair: Pair, model: Path, run_folder: Path) -> None:
    """What they cost with each connector and with both is printed: decoders answer in turns."""
    servers = decoders_to_time(pair, model, run_folder)
    with ExitStack() as stack:
        for server in servers.values():
            stack.callback(server.stop)
        start_all(list(servers.values()), print)
        sides = {**servers, "both": pair.decoder.server}
        took: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(TIMED_ANSWERS + 1):
            prompt = random_prompt(PAGE_TOKENS + turn, 4700)
            for name in sorted(sides, key=lambda name: (list(sides).index(name) + turn) % len(sides)):
                begun = time.monotonic()
                assert len(words_of(complete(sides[name], prompt, TIMED_TOKENS))) == TIMED_TOKENS
                took[name].append((time.monotonic() - begun) / TIMED_TOKENS)
    print(f"decode step, of {TIMED_ANSWERS} answers of {TIMED_TOKENS} tokens:")
    for name, seconds in took.items():
        quickest, middle = min(seconds[1:]), statistics.median(seconds[1:])
        print(f"  {name}: {1000 * quickest:.3f} ms in the quickest, {1000 * middle:.3f} ms in the median")


def test_requests_end_rightly_when_the_store_does_not(pair: Pair, pytestconfig: pytest.Config) -> None:
    """In the middle of a round whose prefixes are in the store alone. What it does not give is computed again."""
    for fault in FAULTS if pytestconfig.getoption("--all-stores") else [killed_node]:
        pair.forget()
        under_way, begun = pair.answers() + BEFORE_FAULT, time.monotonic()
        with ThreadPoolExecutor(1) as clients:
            answered = clients.submit(pair.answered, pair.groups[:GROUPS_OF_FAULT])
            pair.wait_for_answers(under_way)
            with fault(pair.store):
                answered.result(ROUND_LIMIT_SECONDS)
        print(f"{fault.__name__}: {GROUPS_OF_FAULT} groups of requests in {time.monotonic() - begun:.1f} s")
        for side in (pair.prefiller, pair.decoder):
            side.wait_at_rest()


ON_USUAL_SETUP: Final = (test_decode_steps_beside_the_store, test_requests_end_rightly_when_the_store_does_not)
