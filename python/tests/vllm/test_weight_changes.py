"""Weights that are changed in a running engine: what prompts are named by afterwards, with vLLM's own engine core."""

from __future__ import annotations

import ast
import contextlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import EngineMaker
from release import Release
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill
from test_adapter_digest import adapter
from test_loaded_adapters import trained_again
from test_weights_digest import trained, write

from kv_connector.naming.weights_digest import digest_of_weights
from kv_connector.vllm.loaded_adapters import LoadedAdapters
from kv_connector.vllm.weight_changes import (
    CHANGING,
    HARMLESS,
    LOADED_AT_REST,
    NO_SUCH_METHOD,
    WeightChanges,
    may_change_weights,
)

CORE = "vllm.v1.engine.core"
REQUEST = "cmpl-a-0-11111111"


@pytest.fixture
def core_class(vllm_release: Release, monkeypatch: pytest.MonkeyPatch) -> type:
    """What vLLM's engine core does to weights, by its own source; the rest of the class wants torch."""
    tree = ast.parse((vllm_release.folder / "vllm/v1/engine/core.py").read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "EngineCore")
    wanted = ("collective_rpc", "set_weight_version", "add_lora", "remove_lora", "sleep", "reset_prefix_cache")
    found.body = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    assert len(found.body) == len(wanted), "vLLM changes weights in another way now"
    module = ModuleType(CORE)
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, found], []), CORE, "exec"), vars(module))
    monkeypatch.setitem(sys.modules, CORE, module)
    return module.EngineCore  # type: ignore[no-any-return]


def core_of(core_class: type, engine: SimulatedEngine, rpc: Callable[..., Any] = lambda *_: [None]) -> Any:
    core = core_class()
    core.scheduler = SimpleNamespace(connector=engine.scheduler)
    core.model_executor = SimpleNamespace(collective_rpc=rpc, sleep=lambda _level: None)
    core.pause_scheduler = lambda mode, clear_cache: None  # noqa: ARG005
    return core


@pytest.mark.parametrize("is_emptied", [True, False])
def test_should_know_whether_all_that_is_cached_is_of_the_current_weights(
    core_class: type, engine: EngineMaker, is_emptied: bool
) -> None:
    """vLLM keeps its prefix cache when its weights change, until it is asked to empty it, and can."""
    made = engine("kv_both")
    core, cached = core_of(core_class, made), made.own_scheduler._half.cached
    core.scheduler.reset_prefix_cache = lambda *_: is_emptied
    core.collective_rpc("reload_weights")
    assert cached.are_current, "nothing was computed before"
    made.add(REQUEST, 20, remote_decode())
    made.step()
    core.collective_rpc("reload_weights")
    assert not cached.are_current
    assert core.reset_prefix_cache() == is_emptied
    assert cached.are_current == is_emptied


@pytest.fixture
def digests(core_class: type, engine: EngineMaker) -> Callable[..., tuple[str, str]]:
    """What a prefiller and a decoder call one prompt after each was told these calls of its core."""

    def names(of_prefiller: list[tuple[str, ...]], of_decoder: list[tuple[str, ...]]) -> tuple[str, str]:
        sides = (engine("kv_producer"), engine("kv_consumer"))
        for side, calls in zip(sides, (of_prefiller, of_decoder), strict=True):
            core = core_of(core_class, side)
            for call in calls:
                assert getattr(core, call[0])(*call[1:]) in (None, [None])
        sides[0].add(REQUEST, 20, remote_decode())
        sides[1].add(REQUEST, 20, remote_prefill())
        for side in sides:
            side.step()
        announced, expected = sides[0].messenger.of_kind("announce")[0], sides[1].messenger.commands[0]
        return announced["promptDigest"], expected["promptDigest"]

    return names


RELOAD, SENT = ("collective_rpc", "reload_weights"), ("collective_rpc", "finish_weight_update")
STARTED, PART = ("collective_rpc", "start_weight_update"), ("collective_rpc", "update_weights")
DRAFTS = [("collective_rpc", "start_draft_weight_update"), PART, SENT]
OWN_METHODS = ("reset_weights", "apply_model", "load_model", "update_weight", "reload_weights")
OWN_CODE = [("collective_rpc", name) for name in OWN_METHODS[:-1]]
"""The last is a method of a user's worker extension."""


def of_a_user(worker: Any) -> None:
    """Sent to the workers, where it does what it likes."""


def test_should_distinguish_a_changed_engine_from_one_that_is_not(digests: Callable[..., tuple[str, str]]) -> None:
    for change in (RELOAD, SENT, ("set_weight_version", "step 7"), *OWN_CODE, ("collective_rpc", of_a_user)):
        before, after = digests([], [change])
        assert before != after, change
        before, after = digests([change], [change])
        assert before == after, change


def test_should_go_by_the_version_where_one_was_given(digests: Callable[..., tuple[str, str]]) -> None:
    named = ("set_weight_version", "step 7")
    one, other = digests([SENT, SENT, named], [named])
    assert one == other, "a server that came later has what others were given bit by bit"
    one, other = digests([named, SENT], [named])
    assert one != other


@pytest.mark.parametrize(
    ("level", "device_type", "lost"), [(2, "cuda", True), (1, "cuda", False), (0, "cuda", False), (2, "cpu", False)]
)
def test_should_not_know_weights_that_were_discarded_for_a_sleep(
    core_class: type, engine: EngineMaker, level: int, device_type: str, lost: bool
) -> None:
    made = engine("kv_producer")
    connector = made.own_scheduler
    connector._config.device_config.device_type = device_type
    core = core_of(core_class, made)
    core.sleep(level)
    assert connector._weights.name().startswith("lost by") == lost
    core.set_weight_version("step 8")
    assert connector._weights.name() == "step 8"


def test_should_leave_out_what_does_not_change_the_kv(digests: Callable[..., tuple[str, str]]) -> None:
    for call in (("collective_rpc", "check_health"), ("set_weight_version", "default")):
        one, other = digests([call], [])
        assert one == other
    one, other = digests(DRAFTS, [])
    assert one == other, "a draft's weights are its own"


def test_should_fit_no_other_engine_while_a_trainer_sends(digests: Callable[..., tuple[str, str]]) -> None:
    """Each has another part of them, and a trainer that went away never ends its update."""
    for calls in ([STARTED], [STARTED, PART]):
        for others in ([], calls, [STARTED, PART, SENT]):
            one, other = digests(calls, others)
            assert one != other, (calls, others)
    one, other = digests([STARTED, PART, PART, SENT], [STARTED, PART, SENT])
    assert one == other, "into how many parts they were cut says nothing"


def test_should_not_send_a_prompt_under_the_name_of_weights_before(engine: EngineMaker) -> None:
    """It waits in the queue while others are loaded, and is computed with those."""
    source, untouched = engine("kv_producer"), engine("kv_producer")
    for side in (source, untouched):
        side.add(REQUEST, 20, remote_decode())
    source.scheduler.on_weights_called(LOADED_AT_REST, ("7", "ab"), {}, None)
    for side in (source, untouched):
        side.steps(3)
    (before,) = untouched.messenger.outcomes()
    assert untouched.messenger.outcomes() == {before: "finished"}
    outcomes = source.messenger.outcomes()
    assert outcomes.pop(before) == "failed"
    assert list(outcomes.values()) == ["finished"], "by the name of those that have computed it"


def test_should_ask_anew_for_a_prompt_that_waited_while_weights_were_loaded(engine: EngineMaker) -> None:
    digests = []
    for comes_before in (False, True):
        target = engine("kv_consumer")
        if comes_before:
            target.add(REQUEST, 20, remote_prefill())
        target.scheduler.on_weights_called(LOADED_AT_REST, ("7", "ab"), {}, None)
        if not comes_before:
            target.add(REQUEST, 20, remote_prefill())
        target.step()
        digests += [fetch["promptDigest"] for fetch in target.messenger.of_kind("fetch")]
    assert len(digests) == 2
    assert digests[0] == digests[1]


def test_should_not_count_what_an_engine_at_rest_answers_as_a_change(core_class: type, engine: EngineMaker) -> None:
    """Its first update is open, or its status was asked for: it serves what it served."""
    made = engine("kv_producer")
    core = core_of(core_class, made)
    weights = made.own_scheduler._weights
    core._kv_messenger_weights_session = SimpleNamespace(answers=lambda method: method != "reset_weights")
    for method in ("start_weight_update", "kv_messenger_weights", "finish_weight_update"):
        core.collective_rpc(method)
        assert weights.name() == "", method
    made.scheduler.on_weights_called(LOADED_AT_REST, ("7", "ab"), {}, None)
    assert weights.name() == "landed ab"
    core.collective_rpc("reset_weights")
    assert weights.name() != "landed ab"


def test_should_not_take_the_word_for_no_version_for_one(digests: Callable[..., tuple[str, str]]) -> None:
    """A trainer may pass vLLM's default on."""
    named, unnamed = ("set_weight_version", "step 7"), ("set_weight_version", "default")
    for before in ([], [named]):
        one, other = digests([*before, STARTED, PART, SENT, unnamed], before)
        assert one != other
    one, other = digests([SENT, named, unnamed], [])
    assert one != other, "what it has is not what it started with, whatever it is called"


def test_should_not_know_what_files_are_loaded_after_other_settings(digests: Callable[..., tuple[str, str]]) -> None:
    settings = ("collective_rpc", "update_config", None, ({"model_config": {"model": "/models/b"}},))
    one, other = digests([settings], [])
    assert one == other, "nothing was loaded yet"
    one, other = digests([settings, RELOAD], [])
    assert one != other


def test_should_not_know_what_a_change_that_failed_has_left(core_class: type, engine: EngineMaker) -> None:
    side = engine("kv_producer")

    def fails(*_: Any) -> None:
        raise RuntimeError("no such file")

    with pytest.raises(RuntimeError, match="no such file"):
        core_of(core_class, side, fails).collective_rpc("reload_weights")
    side.add(REQUEST, 20, remote_decode())
    untouched = engine("kv_producer")
    untouched.add(REQUEST, 20, remote_decode())
    for each in (side, untouched):
        each.step()
    one, other = (each.messenger.of_kind("announce")[0]["promptDigest"] for each in (side, untouched))
    assert one != other


def test_should_not_take_two_failed_changes_for_the_same(core_class: type, engine: EngineMaker) -> None:
    """One may have stopped at the first part and the other at the last. Files, or a version, end that."""
    names: list[set[str]] = []
    sides = [engine("kv_producer") for _ in range(2)]
    answers: list[Any] = []

    def rpc(*_: Any) -> list[Any]:
        if isinstance(answers[0], Exception):
            raise answers[0]
        return [None]

    cores = [core_of(core_class, side, rpc) for side in sides]

    def both(method: str, *outcome: Any) -> None:
        answers[:] = outcome or [None]
        for core in cores:
            with contextlib.suppress(RuntimeError):
                core.collective_rpc(method)
        names.append({side.scheduler._weights.name() for side in sides})

    both("start_weight_update")
    both("update_weights", RuntimeError("the trainer has gone"))
    both("start_weight_update", RuntimeError("not configured"))
    both("reload_weights")
    both("update_weights", RuntimeError("start_weight_update must be called before update_weights."))
    for words in NO_SUCH_METHOD:
        both("of_none", RuntimeError(f"Worker failed: {words.format('of_none')}."))
    both("update_config", RuntimeError("no such setting"))
    assert [len(of_both) for of_both in names] == [2, 2, 2, 1, 1, 1, 1, 1], names


BEGIN_ONLY = {"start_weight_update", "start_draft_weight_update", "update_config"}
"""A failed one has changed nothing."""


@pytest.mark.parametrize("method", [*sorted(CHANGING - BEGIN_ONLY), "a_users_own", of_a_user], ids=str)
def test_should_get_no_wrong_tokens_from_two_engines_whose_changes_failed_alike(
    core_class: type, engine: EngineMaker, method: Any
) -> None:
    """Each may have got as far as it did: their weights are equal by chance only."""

    def fails(_self: Any, called: Any, *_: Any) -> list[None]:
        if called == method:
            raise RuntimeError("the file is cut")
        return [None]

    names = set()
    for fault in (True, True, False, None):
        side = engine("kv_producer")
        core = core_of(core_class, side, lambda *arguments, fault=fault: fails(None, *arguments) if fault else [None])
        if method in ("update_weights", "finish_weight_update"):
            core.collective_rpc("start_weight_update")
        if fault is not None:
            with contextlib.suppress(RuntimeError):
                core.collective_rpc(method)
        names.add(side.scheduler._weights.name())
    assert len(names) == 4, "two that failed, one that went well, one that was not changed"


def test_should_know_each_method_of_vllm_s_workers(vllm_release: Release) -> None:
    """One that is not known counts as a user's own, which may change weights."""
    found: set[str] = set()
    for file, name in (("worker_base", "WorkerBase"), ("gpu_worker", "Worker"), ("cpu_worker", "CPUWorker")):
        tree = ast.parse((vllm_release.folder / f"vllm/v1/worker/{file}.py").read_text())
        worker = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        found |= {
            node.name
            for node in worker.body
            if isinstance(node, ast.FunctionDef)
            and not node.name.startswith("_")
            and not any(
                isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in node.decorator_list
            )
        }
    assert "update_weights" in found
    assert sorted(found - CHANGING - HARMLESS) == []
    assert not CHANGING & HARMLESS
    assert all(may_change_weights(name) for name in CHANGING)


def test_should_recognise_what_no_worker_has(vllm_release: Release) -> None:
    """In the words of vLLM for one process, and of Python where a worker of several is asked for its attribute."""
    text = (vllm_release.folder / "vllm/v1/serial_utils.py").read_text()
    assert 'f"Method {method!r} is not implemented."' in text
    text = (vllm_release.folder / "vllm/v1/executor/multiproc_executor.py").read_text()
    assert "func = getattr(self.worker, method)" in text
    with pytest.raises(AttributeError) as missing:
        getattr(of_a_user, "no_such_" + "method")
    assert NO_SUCH_METHOD[1].format("no_such_method") in str(missing.value)


def test_should_notify_each_core_s_own_connectors(core_class: type, engine: EngineMaker) -> None:
    engine("kv_producer")
    methods: list[str] = []
    ours = SimpleNamespace(on_weights_called=lambda method, *_, **__: methods.append(method))
    core = core_class()
    core.model_executor = SimpleNamespace(collective_rpc=lambda *_: [None])
    core.scheduler = SimpleNamespace(connector=SimpleNamespace(_connectors=[SimpleNamespace(), ours]))
    core.collective_rpc("reload_weights", kwargs={"weights_path": "/models/b"})
    core.collective_rpc("check_health")
    core.scheduler = SimpleNamespace(connector=None)
    core.collective_rpc("reload_weights")
    assert methods == ["reload_weights"]


def test_should_hear_which_adapters_a_core_has_loaded(core_class: type, engine: EngineMaker, tmp_path: Path) -> None:
    """The files of both sides' adapter are written anew, and one core is told to load them again."""
    folder = adapter(tmp_path / "sql")
    sides = [engine("kv_producer", extra={"transports": ["tcp"]}) for _ in range(2)]
    cores = [core_of(core_class, side) for side in sides]
    loaded = SimpleNamespace(lora_name="sql", lora_int_id=1, lora_path=str(folder), load_inplace=False)
    for core in cores:
        core.model_executor = SimpleNamespace(add_lora=lambda _: True, remove_lora=lambda _: True)
        core.scheduler.connector._adapters = LoadedAdapters(1, logging.getLogger(__name__))
        assert core.add_lora(loaded) is True
    trained_again(folder, 2)

    def names() -> list[str]:
        return [side.scheduler._adapters.identity(loaded) for side in sides]

    assert len(set(names())) == 1
    cores[0].add_lora(SimpleNamespace(**vars(loaded) | {"load_inplace": True}))
    assert len(set(names())) == 2
    cores[1].remove_lora(1)
    assert len(set(names())) == 1, "read again when it is asked for"


def test_should_call_weights_by_the_files_that_were_loaded(tmp_path: Path) -> None:
    for name, seed in (("start", 1), ("next", 2), ("copy", 2)):
        write(tmp_path / name / "model.safetensors", trained(seed))

    def digest_of(path: str) -> str:
        logger = logging.getLogger(__name__)
        return digest_of_weights(path, revision=None, cache_folder=None, load_format="auto", logger=logger)

    def changes() -> WeightChanges:
        made = WeightChanges(digest_of, lambda: None, logging.getLogger(__name__))
        made.started_with(str(tmp_path / "start"))
        return made

    one, other = changes(), changes()
    one.on_called("reload_weights", (), {"weights_path": str(tmp_path / "next")})
    other.on_called("reload_weights", (), {"weights_path": str(tmp_path / "copy")})
    assert one.name() == other.name() != ""
    write(tmp_path / "copy" / "model.safetensors", trained(1))
    other.on_called("reload_weights", (), {})
    assert other.name() == "", "again from where it loaded last: it computes with what it started with"
    other.on_called("update_config", ({"load_config": {"load_format": "pt"}},), {})
    other.on_called("reload_weights", (), {})
    assert other.name() not in ("", one.name()), "which files it reads by other settings is not known"
    one.on_called("reload_weights", (None, "/models/b"), {})
    assert one.name() not in ("", other.name())
