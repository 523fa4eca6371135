"""Two trainers update SGLang servers, in each order: what weights are called, by SGLang's updater and its hooks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_weight_changes
from test_weights_digest import trained, write

from kv_connector.naming.weights_digest import weights_digest
from kv_connector.weights.decision import Decision

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]
weights_of_the_start = test_weight_changes.weights_of_the_start


class Server:
    """One scheduler, whose landing has what was sent last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        from kv_connector.naming.cached_weights import CachedWeights
        from kv_connector.naming.changed_weights import ChangedWeights
        from kv_connector.sglang import weight_changes, weight_hooks
        from kv_connector.sglang.weights import LandedWeights

        self.updater = test_weight_changes.updater_of(
            update_weights_from_disk=lambda *_, **__: (True, "loaded"),
            update_weights_from_tensor=lambda **_: (True, "loaded"),
        )
        self.updater.is_fully_idle = lambda ignore_waiting: not ignore_waiting
        self.updater.tp_worker.deserialize_own_rank = lambda _tensors: []
        self.updater.tp_cpu_group = None
        test_weight_changes.SERVING.weight_version = "default"
        self.refused = False
        self.landing = Decision("")
        landed: Any = object.__new__(LandedWeights)
        landed._updater, landed._host, landed._refusal = self.updater, None, ""
        landed._first = lambda own: own
        landed._load_together = lambda *_: (self.landing, "KV is held" if self.refused else "")
        monkeypatch.setattr(weight_hooks.WEIGHTS, "_landed", landed)
        monkeypatch.setattr(weight_hooks.WEIGHTS, "_is_lacking", lambda: False)
        monkeypatch.setattr(weight_changes, "WEIGHTS", ChangedWeights())
        monkeypatch.setattr(weight_changes, "CACHED", CachedWeights())
        self.folder = folder
        self.weights: tuple[str, ...] = ("",)
        """What landed last, or the files since, and what came on top of it; "" are those of the start."""

    def lands(self, name: str, version: int, *, refused: bool = False) -> None:
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput

        from kv_connector.weights.routes import SGLANG_LOADER

        self.landing, self.refused = Decision("", version, name=name), refused
        request = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=[json.dumps({"update_id": 1}).encode()],
            load_format=SGLANG_LOADER,
            weight_version=str(version),
            flush_cache=False,
        )
        assert self.updater.update_weights_from_tensor(request).success != refused
        self.weights = self.weights if refused else (f"landed {name}",)

    def gets_tensors(self, version: str | None) -> None:
        """Some of the model's, as of an adapter that was merged."""
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput

        self.updater._session = SimpleNamespace(loaded_weights=False, selector="all")
        request = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=[b""], weight_version=version, flush_cache=False
        )
        assert self.updater.update_weights_from_tensor(request).success
        self.weights += ("tensors",)

    def loads(self, version: str | None) -> None:
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        request = UpdateWeightFromDiskReqInput(model_path=str(self.folder), weight_version=version)
        assert self.updater.update_weights_from_disk(request).success
        self.weights = ("files",)

    def is_given(self, version: str) -> None:
        """By ``/update_weight_version``, of which SGLang reports nothing."""
        test_weight_changes.record(new_version=version)


ACTS: dict[str, Callable[[Server], None]] = {
    "one lands as 5": lambda server: server.lands("one", 5),
    "two lands as 5": lambda server: server.lands("two", 5),
    "two lands as 6": lambda server: server.lands("two", 6),
    "one is refused as 6": lambda server: server.lands("one", 6, refused=True),
    "tensors as 5": lambda server: server.gets_tensors("5"),
    "tensors": lambda server: server.gets_tensors(None),
    "files as 5": lambda server: server.loads("5"),
    "files": lambda server: server.loads(None),
    "told 5": lambda server: server.is_given("5"),
    "told 6": lambda server: server.is_given("6"),
    "told default": lambda server: server.is_given("default"),
}


def test_should_never_call_what_one_trainer_has_sent_as_that_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What has landed is in the name until files replace it, whatever number a client gives it."""
    import sglang.srt.managers.scheduler_components.weight_updater as of_sglang
    import torch

    monkeypatch.setattr(torch.distributed, "barrier", lambda **_: None)
    monkeypatch.setattr(of_sglang.msgspec.structs, "replace", lambda _session, **changed: SimpleNamespace(**changed))
    write(tmp_path / "model.safetensors", trained(2))
    files = weights_digest(tmp_path)
    bases: dict[str, str] = {}
    for acts in itertools.product(ACTS, repeat=3):
        server = Server(monkeypatch, tmp_path)
        for act in acts:
            ACTS[act](server)
        name, (base, *since) = test_weight_changes.name_of_now(), server.weights
        assert name.startswith(base) or base == "files", acts
        if base.startswith("landed"):
            assert bases.setdefault(name, base) == base, acts
        else:
            assert "landed" not in name, acts
        if not since and not any(act.startswith("told") for act in acts):
            expected = "5" if acts[-1] == "files as 5" else files if base == "files" else base
            assert name in ({expected, "5"} if base == "files" else {expected}), acts
    assert len(bases) > len(ACTS)
