"""Two trainers update one vLLM server, in each order of what they ask of its engine core: how weights are named."""

from __future__ import annotations

import itertools
import logging
import types
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import test_weight_changes
from release import Release

from kv_connector.vllm.finished_updates import finish_in_one_call
from kv_connector.vllm.weight_changes import WeightChanges, may_change_weights
from kv_connector.vllm.weights_at_rest import load_at_rest

core_class = test_weight_changes.core_class
Program = Callable[[Any], Awaitable[None]]
"""What one client has the server do."""


@types.coroutine
def turn() -> Iterator[None]:
    """Another client's call may come first."""
    yield


class Http:
    """The process between clients and core: the end of an update as in ``AsyncLLM`` of 0.32 and 0.33."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.vllm_config = core.vllm_config

    async def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Any = (), kwargs: Any = None
    ) -> Any:
        await turn()
        return self._core.collective_rpc(method, timeout, args, kwargs)

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        await self.collective_rpc("finish_weight_update")
        if weight_version is not None:
            await self.update_weight_version(weight_version)

    async def update_weight_version(self, new_version: str) -> None:
        await turn()
        self._core.set_weight_version(new_version)


class Workers:
    """The session that vLLM's workers keep, and whose weights they have: "" are those of the start."""

    def __init__(self) -> None:
        self.weight_transfer_engine = self
        self.weights = ""
        self.is_open = False
        self.landings: dict[int, tuple[int, str]] = {}
        """The version and the name of each landing, by the update's id."""
        self.loaded = (0, 0, "")
        self.discarded = False

    def sleep(self, _level: int) -> None:
        self.discarded = True

    def call(self, method: Any, _timeout: Any = None, _args: Any = (), kwargs: Any = None) -> list[Any]:
        if callable(method):
            return [method(self)]
        return [getattr(self, method)(**(kwargs or {}))]

    def start_weight_update(self) -> None:
        if self.is_open:
            raise RuntimeError("start_weight_update called while a weight update is already active")
        self.is_open = True

    def update_weights(self, update_info: Any) -> None:
        assert self.is_open
        self.discarded = False
        if "by" in update_info:
            self.weights = update_info["by"]
            return
        version, name = self.landings.pop(update_info["update_id"])
        self.loaded, self.weights = (update_info["update_id"], version, name), name

    def finish_weight_update(self) -> None:
        if not self.is_open:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update")
        self.is_open = False


class Connector:
    """What a connector does about the names of weights."""

    def __init__(self) -> None:
        changes = WeightChanges(lambda _path: "files", lambda: None, logging.getLogger("test"))
        self.on_weights_called, self.on_weights_versioned = changes.on_called, changes.on_versioned
        self.on_slept, self.name = changes.on_slept, changes.name

    def on_coming_to_rest(self, finishes: bool) -> None: ...

    def on_going_on(self) -> None: ...


class Server:
    def __init__(self, core_class: Any, backend: str, *, in_one_call: bool) -> None:
        self.core, self.workers, self.connector = core_class(), Workers(), Connector()
        self.core.scheduler = SimpleNamespace(
            connector=self.connector,
            pause_state=SimpleNamespace(name="UNPAUSED"),
            set_pause_state=lambda _state: None,
        )
        self.core.model_executor = SimpleNamespace(collective_rpc=self.workers.call, sleep=self.workers.sleep)
        self.core.pause_scheduler = lambda mode, clear_cache: None  # noqa: ARG005
        self.core.vllm_config = SimpleNamespace(
            weight_transfer_config=SimpleNamespace(backend=backend),
            parallel_config=SimpleNamespace(data_parallel_size=1),
        )
        http = type("Http", (Http,), {})
        if in_one_call:
            finish_in_one_call(http)
        self.http = http(self.core)


@pytest.fixture
def serving(core_class: type, vllm_release: Release) -> Callable[..., Server]:
    core_class.pause_scheduler = None  # type: ignore[attr-defined]
    load_at_rest(core_class)
    vllm_release.vllm_api.hear_of_weights(may_change_weights, logging.getLogger("test"))

    def make(backend: str, *, in_one_call: bool) -> Server:
        return Server(core_class, backend, in_one_call=in_one_call)

    return make


def orders(counts: Sequence[int]) -> Iterator[list[int]]:
    """All orders of the calls of clients, of which each makes so many at most."""
    clients = [each for each, count in enumerate(counts) for _ in range(count)]

    def of(left: list[int]) -> Iterator[list[int]]:
        if not left:
            yield []
        for first in sorted(set(left)):
            rest = list(left)
            rest.remove(first)
            yield from ([first, *others] for others in of(rest))

    return of(clients)


def run(server: Server, programs: Sequence[Program], order: Sequence[int], check: Callable[[], None]) -> None:
    """Lets the clients make their calls in this order; ``check`` follows each call."""
    clients: list[Any] = [program(server.http) for program in programs]
    ended: set[int] = set()

    def go_on(client: int) -> None:
        try:
            clients[client].send(None)
        except (StopIteration, RuntimeError):  # it has done all, or was refused
            ended.add(client)

    for client in range(len(clients)):
        go_on(client)  # up to its first call
    for client in order:
        if client not in ended:
            go_on(client)
            check()
    for each in clients:
        each.close()


def of_landing(update_id: int, version: str | None) -> Program:
    """A sender whose bytes have landed, by a client that gives a version with the end."""

    async def program(http: Any) -> None:
        await http.collective_rpc("start_weight_update")
        await http.collective_rpc("update_weights", kwargs={"update_info": {"update_id": update_id}})
        await http.finish_weight_update(version)

    return program


def of_trainer(name: str, version: str | None) -> Program:
    """By another backend of vLLM."""

    async def program(http: Any) -> None:
        await http.collective_rpc("start_weight_update")
        await http.collective_rpc("update_weights", kwargs={"update_info": {"by": name}})
        await http.finish_weight_update(version)

    return program


async def sleeper(http: Any) -> None:
    """Has the server discard its weights."""
    await turn()
    http._core.sleep(2)


VERSIONS = (("5", "5"), ("5", "6"), (None, "5"))


@pytest.mark.parametrize("in_one_call", [True, False])
@pytest.mark.parametrize("versions", VERSIONS)
def test_should_be_called_by_what_has_landed_whatever_two_senders_say(
    serving: Callable[..., Server], versions: tuple[str | None, str], in_one_call: bool
) -> None:
    """Both have counted to 5, and one of the servers sleeps meanwhile. So no number is in a name."""
    programs = [of_landing(1, versions[0]), of_landing(2, versions[1]), sleeper]
    names = {"": "", "one": "landed one", "two": "landed two"}
    checked = 0
    for order in orders([4, 4, 1]):
        server = serving("kv_messenger", in_one_call=in_one_call)
        server.workers.landings = {1: (5, "one"), 2: (5, "two")}

        def check(server: Server = server, order: Sequence[int] = order) -> None:
            nonlocal checked
            name, expected = server.connector.name(), names[server.workers.weights]
            if server.workers.discarded:
                assert name.startswith(", ".join(filter(None, (expected, "lost by "))))
            else:
                assert name == expected, order
            checked += 1

        run(server, programs, order, check)
        assert server.core._weight_version == "5", order
    assert checked > 1000


def wrong_names(serving: Callable[..., Server], versions: Sequence[str | None], *, in_one_call: bool) -> list[Any]:
    """Each order in which the weights of one trainer were called by the other's version, and the name."""
    found: list[Any] = []
    programs = [of_trainer("one", versions[0]), of_trainer("two", versions[1])]
    for order in orders([4, 4]):
        server = serving("nccl", in_one_call=in_one_call)
        by_version = {versions[0]: "one", versions[1]: "two"}

        def check(server: Server = server, order: Any = order, by: dict[str | None, str] = by_version) -> None:
            name, has = server.connector.name(), server.workers.weights
            if by.get(name or None, has) != has:
                found.append((order, name, has))

        run(server, programs, order, check)
        version = versions[server.workers.weights == "two"]
        if version is not None and server.connector.name() != version:
            found.append((order, server.connector.name(), server.workers.weights))
    return found


@pytest.mark.parametrize("versions", [("A", "B"), ("A", None), (None, "B")])
def test_should_not_call_the_weights_of_one_trainer_by_the_version_of_the_other(
    serving: Callable[..., Server], versions: tuple[str | None, str | None]
) -> None:
    """By vLLM's two calls, some orders do; so the version comes with the end of its update."""
    assert wrong_names(serving, versions, in_one_call=True) == []
    assert wrong_names(serving, versions, in_one_call=False)


def test_should_end_an_update_of_several_engines_as_vllm_does(serving: Callable[..., Server]) -> None:
    """Those on other hosts may lack this package, and would be given an argument that their workers do not have."""
    server = serving("nccl", in_one_call=True)
    server.core.vllm_config.parallel_config.data_parallel_size = 2
    asked: list[Any] = []
    call = server.core.collective_rpc
    server.core.collective_rpc = lambda *given: asked.append(given) or call(*given)
    run(server, [of_trainer("one", "A")], [0] * 4, lambda: None)
    assert asked[-1] == ("finish_weight_update", None, (), None)
    assert server.connector.name() == "A"


def test_should_end_an_update_that_fails_without_its_version(serving: Callable[..., Server]) -> None:
    for in_one_call, version in itertools.product([True, False], ["A", None]):
        server = serving("nccl", in_one_call=in_one_call)

        async def finisher(http: Any, version: str | None = version) -> None:
            await http.finish_weight_update(version)

        run(server, [finisher], [0] * 2, lambda: None)
        assert server.connector.name() != "A"
