"""Weights that are changed in a running engine: what prompts are named by afterwards, with vLLM's own engine core."""

from __future__ import annotations

import ast
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
from test_weights_digest import trained, write

from kv_connector.vllm.weight_changes import WeightChanges
from kv_connector.weights_digest import digest_of_weights

CORE = "vllm.v1.engine.core"
REQUEST = "cmpl-a-0-11111111"


@pytest.fixture
def core_class(vllm_release: Release, monkeypatch: pytest.MonkeyPatch) -> type:
    """What vLLM's engine core does to weights, by its own source; the rest of the class wants torch."""
    tree = ast.parse((vllm_release.folder / "vllm/v1/engine/core.py").read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "EngineCore")
    wanted = ("collective_rpc", "set_weight_version")
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
    core.model_executor = SimpleNamespace(collective_rpc=rpc)
    return core


@pytest.fixture
def digests(core_class: type, engine: EngineMaker) -> Callable[..., tuple[str, str]]:
    """What a prefiller and a decoder call one prompt after each was told these calls of its core."""

    def said(of_prefiller: list[tuple[str, ...]], of_decoder: list[tuple[str, ...]]) -> tuple[str, str]:
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

    return said


RELOAD, SENT = ("collective_rpc", "reload_weights"), ("collective_rpc", "finish_weight_update")
DRAFTS = [("collective_rpc", "start_draft_weight_update"), SENT]


def test_should_tell_a_changed_engine_from_one_that_is_not(digests: Callable[..., tuple[str, str]]) -> None:
    for change in (RELOAD, SENT, ("set_weight_version", "step 7")):
        before, after = digests([], [change])
        assert before != after, change
        before, after = digests([change], [change])
        assert before == after, change


def test_should_go_by_the_version_where_one_was_told(digests: Callable[..., tuple[str, str]]) -> None:
    named = ("set_weight_version", "step 7")
    one, other = digests([SENT, SENT, named], [named])
    assert one == other, "a server that came later has what others were given bit by bit"
    one, other = digests([named, SENT], [named])
    assert one != other


def test_should_leave_out_what_does_not_change_the_kv(digests: Callable[..., tuple[str, str]]) -> None:
    for call in (("collective_rpc", "get_stats"), ("set_weight_version", "default")):
        one, other = digests([call], [])
        assert one == other
    one, other = digests(DRAFTS, [])
    assert one == other, "a draft's weights are its own"


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


def test_should_tell_each_core_s_own_connectors(core_class: type, engine: EngineMaker) -> None:
    engine("kv_producer")
    told: list[str] = []
    ours = SimpleNamespace(on_weights_called=lambda method, *_, **__: told.append(method))
    core = core_class()
    core.model_executor = SimpleNamespace(collective_rpc=lambda *_: [None])
    core.scheduler = SimpleNamespace(connector=SimpleNamespace(_connectors=[SimpleNamespace(), ours]))
    core.collective_rpc("reload_weights", kwargs={"weights_path": "/models/b"})
    core.collective_rpc("check_health")
    core.scheduler = SimpleNamespace(connector=None)
    core.collective_rpc("reload_weights")
    assert told == ["reload_weights"]


def test_should_call_weights_by_the_files_that_were_loaded(tmp_path: Path) -> None:
    for name, seed in (("start", 1), ("next", 2), ("copy", 2)):
        write(tmp_path / name / "model.safetensors", trained(seed))

    def digest_of(path: str) -> str:
        logger = logging.getLogger(__name__)
        return digest_of_weights(path, revision=None, cache_folder=None, load_format="auto", logger=logger)

    def changes() -> WeightChanges:
        made = WeightChanges(digest_of)
        made.started_with(str(tmp_path / "start"))
        return made

    one, other = changes(), changes()
    one.on_called("reload_weights", (), {"weights_path": str(tmp_path / "next")})
    other.on_called("reload_weights", (), {"weights_path": str(tmp_path / "copy")})
    assert one.name() == other.name() != ""
    write(tmp_path / "copy" / "model.safetensors", trained(1))
    other.on_called("reload_weights", (), {})
    assert other.name() == "", "again from where it loaded last: it computes with what it started with"
    one.on_called("reload_weights", (None, "/models/b"), {})
    assert one.name() not in ("", other.name())
