"""A vLLM that the connector does not fit: servers that never asked for it start, and the others get one sentence."""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import release
import vllm_sources

VLLM_API = Path(__file__).parents[2] / "kv_connector" / "vllm" / "vllm_api.py"
FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"


def names_taken_from_vllm() -> list[tuple[str, str]]:
    tree = ast.parse(VLLM_API.read_text(encoding="utf-8"))
    return [
        (node.module, alias.name)
        for block in ast.walk(tree)
        if isinstance(block, ast.Try)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm.")
        for alias in node.names
    ]


@pytest.fixture
def fresh_release() -> Iterator[release.Release]:
    """A release whose modules the test may damage."""
    try:
        with release.loaded("0.32.0") as found:
            yield found
    except vllm_sources.SourcesUnavailableError as missing:
        pytest.skip(str(missing))


def import_connector_again() -> None:
    for module in [name for name in sys.modules if name.startswith(release.CONNECTOR_PACKAGE)]:
        del sys.modules[module]
    importlib.import_module(f"{release.CONNECTOR_PACKAGE}.connector")


def test_should_know_what_is_taken_from_vllm() -> None:
    assert len(names_taken_from_vllm()) == 11


@pytest.mark.parametrize(("module", "name"), names_taken_from_vllm())
def test_should_refuse_only_its_own_users_when_a_name_is_missing(
    fresh_release: release.Release, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.delattr(sys.modules[module], name)
    fresh_release.package.register()
    wanted = SimpleNamespace(kv_connector="KvMessengerConnector", kv_connector_module_path=None)
    for loaded in [known for known in sys.modules if known.startswith(f"{release.CONNECTOR_PACKAGE}.")]:
        del sys.modules[loaded]
    with pytest.raises(ImportError, match=r"is made for vLLM 0\.32 and 0\.33, and this is vLLM") as refused:
        fresh_release.factory.KVConnectorFactory.get_connector_class(wanted)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("module", sorted({module for module, _ in names_taken_from_vllm()}))
def test_should_refuse_only_its_own_users_when_a_module_is_missing(
    fresh_release: release.Release, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    fresh_release.package.register()
    with pytest.raises(ImportError, match=r"install one of these releases"):
        import_connector_again()


def test_should_let_a_vllm_start_that_has_no_such_factory(
    fresh_release: release.Release, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, FACTORY, None)
    with caplog.at_level(logging.WARNING):
        fresh_release.package.register()
    assert "servers that do not use it are not affected" in caplog.text
    monkeypatch.setitem(sys.modules, FACTORY, SimpleNamespace(KVConnectorFactory=object()))
    fresh_release.package.register()
