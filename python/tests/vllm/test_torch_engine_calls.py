"""What e2e-tests/torch_engine calls of a connector, and puts in the place of vLLM's modules, is vLLM's."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from release import Release

SOURCE = Path(__file__).resolve().parents[3] / "e2e-tests" / "torch_engine" / "vllm_names.py"


@pytest.fixture(scope="module")
def names() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_engine_vllm_names", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(importlib.import_module("sys").modules, spec.name, module)  # dataclasses look there
        spec.loader.exec_module(module)
    return module


def test_should_call_what_the_connectors_of_vllm_have(names: ModuleType, vllm_release: Release) -> None:
    base = vllm_release.base.KVConnectorBase_V1
    hybrid = vllm_release.base.SupportsHMA
    for called in (*names.CALLED_ON_A_WORKER, *names.CALLED_ON_A_SCHEDULER):
        assert hasattr(base, called) or hasattr(hybrid, called), called


def test_should_stand_in_for_names_as_vllm_has_them(names: ModuleType, vllm_release: Release) -> None:
    base = vllm_release.base
    assert [role.name for role in names.Role] == [role.name for role in base.KVConnectorRole]
    ours, theirs = (
        [each.name for each in fields(results)] for results in (names.TransferResults, base.KVConnectorTransferResults)
    )
    assert ours == theirs
    for defaulted in ("bind_connector_metadata", "clear_connector_metadata", "finish_forward", "reset_capture_state"):
        signatures = (inspect.signature(getattr(of, defaulted)) for of in (names.Connector, base.KVConnectorBase_V1))
        assert len({tuple(each.parameters) for each in signatures}) == 1, defaulted
