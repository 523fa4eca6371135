"""Engines that list the experts of each token in their answers (``--enable-return-routed-experts``).

vLLM keeps them beside the KV of each cached token, its worker raises where it lacks some, and no transfer brings them.
So such an engine takes no KV: a decoder does not start, and an engine of both roles refuses or computes the prompt.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, Final

import pytest
import simulated_engine
import vllm_sources
from release import Release
from simulated_engine import SimulatedEngine, caches, remote_decode, remote_prefill

from kv_connector.vllm.transfer_params import Receive, Refused, Send, Side, read

ROLES: Final = {"kv_producer": "prefiller", "kv_consumer": "decoder", "kv_both": "both"}
ASKS: Final[dict[str, Any]] = {
    "both legs": remote_prefill(),
    "decoder first": {"do_remote_prefill": True, "prefiller": "127.0.0.1:14579"},
    "a beginning": remote_prefill(remote_prompt_tokens=100),
    "a choice": remote_prefill(),
}
PROMPT_TOKENS: Final = 300
OF_VLLM: Final = """
from threading import Lock

import numpy as np
from vllm.distributed.aux_output_connector.connector import AuxOutputConnectorMetadata, PackedBlockHashes
from vllm.distributed.aux_output_connector.routed_experts import RoutedExpertsBuffer
from vllm.distributed.aux_output_connector.store import BackgroundBlockObjectStore, BlockObjectStore
from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector, PendingAuxOutput

prompt, block, shape, kind = 41, 16, (2, 1), np.dtype("uint8")


def listed(loaded):
    worker = object.__new__(AuxOutputWorkerConnector)
    worker._buffer = RoutedExpertsBuffer(kind, shape, block, 4, 64, 2)
    store = BlockObjectStore(max_bytes=4096, object_nbytes=2 * block)
    worker._store = BackgroundBlockObjectStore(store, max_pending_batches=8)
    worker._requests, worker._pending_outputs, worker._generation, worker._lock = {}, [], 0, Lock()
    blocks = b"".join(bytes([number]) * 32 for number in range(prompt // block))
    worker.begin_step(AuxOutputConnectorMetadata(0, {"r": 0}, {"r": PackedBlockHashes(blocks, 32)}, ()))
    rows, none, one = np.zeros((prompt - loaded, *shape), kind), np.zeros(1), np.ones(1)
    step = PendingAuxOutput(worker, ["r"], np.array([loaded]), np.array([0, len(rows)]), None, rows, one, none)
    worker._pending_outputs.append(step)
    worker._requests["r"].pending_outputs = 1
    return len(worker.process_output(step)["r"].rows)


for loaded in (0, 32, 40):
    try:
        print(listed(loaded))
    except Exception as ended:
        print(ended)
"""
"""A worker's step in which a prompt of 41 tokens is computed behind those that were loaded, with pages of 16."""
START_LIMIT_SECONDS: Final = 600.0


@pytest.fixture
def returns_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all engines that are made."""
    made = simulated_engine.config

    def config(*given: Any, **more: Any) -> Any:
        found = made(*given, **more)
        found.aux_output_config = SimpleNamespace(enabled=True)
        return found

    monkeypatch.setattr(simulated_engine, "config", config)


def test_should_know_that_vllm_ends_without_the_experts_of_loaded_tokens() -> None:
    """The reason for all of the below. In its own process, since parts of vLLM are simulated in this one."""
    if not any(found.name in vllm_sources.RELEASES.values() for found in importlib.metadata.distributions()):
        pytest.skip("vLLM's own worker comes with the engine")
    command = [sys.executable, "-c", OF_VLLM]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_SECONDS, check=False)
    computed, whole_pages, but_one = ended.stdout.splitlines()[-3:]
    assert computed == "41", ended.stderr
    assert "auxiliary output object does not exist" in whole_pages
    assert "auxiliary output capture is not contiguous" in but_one


@pytest.mark.usefixtures("returns_experts")
@pytest.mark.parametrize("kv_role", ROLES)
def test_should_not_start_as_a_decoder(vllm_release: Release, kv_role: str) -> None:
    connector, made = vllm_release.connector.KvMessengerConnector, simulated_engine.config(kv_role)
    starts = [lambda: connector.get_required_kvcache_layout(made)]
    starts += [lambda half=half: connector(made, half, caches()) for half in vllm_release.base.KVConnectorRole]  # type: ignore[misc]
    for start in starts:
        if kv_role != "kv_consumer":
            start()
            continue
        with pytest.raises(Exception, match="enable_return_routed_experts is True on a decoder, expected False") as why:
            start()
        assert type(why.value).__name__ == "OptionError"


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("keeps", [False, True])
def test_should_refuse_kv_that_comes_without_experts(ask: str, *, keeps: bool) -> None:
    side = Side("both", 1, 1, 1, keeps_experts=keeps)
    found = read(ASKS[ask], "1_r-00000000" if ask == "a choice" else "r-00000000", side)
    assert isinstance(found, Refused) == keeps
    if isinstance(found, Refused):
        assert "--enable-return-routed-experts" in found.reason
        assert isinstance(found.unfit, Receive), "the prefiller is to hear of it"
    assert isinstance(read(remote_decode(), "r-00000000", side), Send)


@pytest.mark.usefixtures("returns_experts")
@pytest.mark.parametrize("ask", ["both legs", "decoder first", "a beginning"])
@pytest.mark.parametrize("recompute", [False, True])
def test_should_compute_a_prompt_or_refuse_it(vllm_release: Release, ask: str, *, recompute: bool) -> None:
    engine = SimulatedEngine(vllm_release, "kv_both", recompute=recompute)
    engine.add("r", PROMPT_TOKENS, ASKS[ask])
    for _ in range(12):
        assert "fetch" not in engine.messenger.owes().values()
        engine.step()
    assert engine.ended["r"].name == ("FINISHED_LENGTH_CAPPED" if recompute else "FINISHED_ERROR")
    assert engine.at_rest()


@pytest.mark.usefixtures("returns_experts")
def test_should_send_what_it_has_computed(vllm_release: Release) -> None:
    engine = SimulatedEngine(vllm_release, "kv_both")
    engine.add("r", PROMPT_TOKENS, remote_decode())
    engine.steps(4)
    assert engine.messenger.owes(), "nothing is sent"
    for number in engine.messenger.owes():
        engine.messenger.release(number)
    engine.steps(3)
    assert engine.at_rest()
