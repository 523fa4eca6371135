"""What a decode step's calls cost, alone and in vLLM's MultiConnector beside a store that does nothing.

    examples/setup/environment run tools -- python/tests/vllm/hook_cost.py

In a step that sends nothing, with a simulated messenger and vLLM's own MultiConnector; the quickest of many runs.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import release  # noqa: E402 - found by what the line above says
import test_beside_others as beside  # noqa: E402

RELEASE = "0.32.0"
REPEATS = 15
CALLS = 5000


def microseconds(call: Callable[[Any], None], connector: Any) -> float:
    return min(timeit.repeat(lambda: call(connector), number=CALLS, repeat=REPEATS)) / CALLS * 1e6


def layer(connector: Any) -> None:
    """As vLLM's attention calls it."""
    if connector.has_connector_metadata():
        connector.wait_for_layer_load("layer")
        connector.save_kv_layer("layer", None, None)


def rest(connector: Any) -> None:
    """What else a worker calls in a step, but for the binding of its metadata."""
    connector.start_load_kv(None)
    connector.wait_for_save()
    connector.get_transfer_results(set())
    connector.get_block_ids_with_load_errors()
    connector.get_kv_connector_stats()
    connector.build_connector_worker_meta()


def engine(found: release.Release) -> beside.SharedEngine:
    module: Any = ModuleType(beside.STORE_MODULE)
    module.Store = beside.store_class(found)
    sys.modules[beside.STORE_MODULE] = module
    found.multi.KVTransferConfig = beside._TransferConfig
    kind = type("Both", (beside.SharedEngine,), {"multi": found.multi.MultiConnector})
    return kind(found, "kv_consumer")  # type: ignore[no-any-return]


def main() -> None:
    with release.loaded(RELEASE) as found:
        decoder = engine(found)
        decoder.add("request", 10, None, max_tokens=3)
        decoder.step()  # a decoder's step of its own: it computes, and sends nothing
        multi = decoder.worker
        (ours, store) = multi.sub_connectors
        multi.bind_connector_metadata(decoder.scheduler.build_connector_meta(decoder._schedule()))
        for name, call in (("hooks of a layer", layer), ("other calls of a step", rest)):
            alone, both = microseconds(call, ours), microseconds(call, multi)
            multi._connectors = [store]
            without = microseconds(call, multi)
            multi._connectors = [ours, store]
            print(
                f"{name}: {alone:.2f} us alone, {both:.2f} us inside MultiConnector, {without:.2f} us there without it"
            )


if __name__ == "__main__":
    main()
