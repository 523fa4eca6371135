from __future__ import annotations

import os
import warnings

import pytest


@pytest.fixture(scope="session")
def sglang_plugins() -> None:
    """SGLang's plugins are loaded as by its launcher; needs SGLang and its kernels' stand-in."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("SGLANG_HOST_IP", "127.0.0.1")
    pytest.importorskip("sglang.srt", reason="SGLang is not installed")
    with warnings.catch_warnings(action="ignore"):
        from sglang.srt.plugins.hook_registry import HookRegistry

        import kv_connector.sglang

        kv_connector.sglang.register()
        HookRegistry.apply_hooks()
