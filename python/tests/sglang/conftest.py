from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from one_process import Pair


@contextlib.contextmanager
def _sglangs_own_warnings() -> Iterator[None]:
    """Importing SGLang warns of what the machine lacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="session")
def sglang_plugins() -> None:
    """SGLang's plugins are loaded as by its launcher; needs SGLang and its kernels' stand-in."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("SGLANG_HOST_IP", "127.0.0.1")
    pytest.importorskip("sglang", reason="SGLang is not installed")
    with _sglangs_own_warnings():
        from sglang.srt.plugins.hook_registry import HookRegistry

        import kv_connector.sglang

        kv_connector.sglang.register()
        HookRegistry.apply_hooks()


@pytest.fixture(scope="session")
def pair(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair for all tests: it starts a JVM."""
    assert sglang_plugins is None
    with _sglangs_own_warnings():
        from one_process import Pair

        opened = Pair(tmp_path_factory.mktemp("model"))
    yield opened
    opened.close()
