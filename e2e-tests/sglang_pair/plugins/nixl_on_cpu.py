"""A plug-in of SGLang that lets its NIXL backend run without a GPU, to be compared with; found through PYTHONPATH.

SGLang registers its KV pool with NIXL as GPU memory, whatever the device. NIXL's transport sees that it is not and
refuses. Declared as host memory the same pool works; nothing else of the backend is touched.
"""

from __future__ import annotations


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def all_in_host_memory(kinds: list[str] | None, expected_len: int) -> list[str]:
        return ["DRAM"] * expected_len

    HookRegistry.register(
        "sglang.srt.disaggregation.nixl.conn._normalize_kv_mem_kinds", all_in_host_memory, HookType.REPLACE
    )
