"""What names the weights and the adapters that SGLang was given while it runs, by SGLang's own updaters and manager."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from test_adapter_digest import SETTINGS, adapter
from test_weights_digest import trained, write

from kv_connector.naming.cached_weights import CachedWeights
from kv_connector.naming.changed_weights import ChangedWeights
from kv_connector.naming.weights_digest import weights_digest

if TYPE_CHECKING:
    import torch

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]
Updater = Any
SERVING = SimpleNamespace(weight_version="default")
"""Where SGLang keeps the version that it was told."""


def record(*, new_version: str | None) -> None:
    SERVING.weight_version = new_version or SERVING.weight_version


@pytest.fixture(autouse=True)
def weights_of_the_start(sglang_plugins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks are in place, nothing was changed yet, and SGLang was told no version."""
    assert sglang_plugins is None
    from sglang.srt import runtime_context

    from kv_connector.sglang import weight_changes
    from kv_connector.sglang.registration import hook_scheduler

    SERVING.weight_version = "default"
    monkeypatch.setattr(runtime_context, "get_serving", lambda: SERVING)
    with warnings.catch_warnings(action="ignore"):
        hook_scheduler()
    monkeypatch.setattr(weight_changes, "WEIGHTS", ChangedWeights())


def updater_of(**runner_updates: Callable[..., Any]) -> Updater:
    """SGLang's own, whose runner does what it is told to."""
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

    runner = SimpleNamespace(weight_updater=SimpleNamespace(**runner_updates))
    updater: Any = SchedulerWeightUpdaterManager.__new__(SchedulerWeightUpdaterManager)
    updater.tp_worker = SimpleNamespace(weight_update_runners=lambda: [("target", runner)], model_runner=runner)
    updater.draft_worker = updater.metrics_collector = updater._session = None
    updater.flush_cache = lambda **_: True
    updater.scheduler = SimpleNamespace(record_weight_version_change=record)
    return updater


def name_of_now() -> str:
    from kv_connector.sglang import weight_changes

    return weight_changes.name()


def test_should_name_weights_that_sglang_loaded_without_a_version(tmp_path: Path) -> None:
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    write(tmp_path / "model.safetensors", trained(2))
    updater = updater_of(update_weights_from_disk=lambda *_, **__: (True, "loaded"))

    def update(version: str | None = None) -> str:
        updater.update_weights_from_disk(UpdateWeightFromDiskReqInput(model_path=str(tmp_path), weight_version=version))
        return name_of_now()

    assert update() == weights_digest(tmp_path)
    assert update("step 7") == "step 7", "the version says it"
    assert update("default") == weights_digest(tmp_path), "SGLang's word for what has no version says nothing"
    updater.flush_cache = lambda **_: False
    assert update("step 8") == "step 8"
    assert update() == weights_digest(tmp_path), "changed all the same"


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("Failed to update weights: a file has gone.\nRolling back to original weights.", "lost"),
        ("Failed to get weights iterator: no such folder.", ""),
        ("Online weight updates are not supported while a cache is in use", ""),
    ],
)
def test_should_count_a_change_that_failed_unless_nothing_was_touched(message: str, name: str, tmp_path: Path) -> None:
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    updater = updater_of(update_weights_from_disk=lambda *_, **__: (False, message))
    updater.update_weights_from_disk(UpdateWeightFromDiskReqInput(model_path=str(tmp_path), weight_version="step 7"))
    assert name_of_now().partition(" ")[0] == name


def test_should_count_a_change_behind_which_a_draft_failed() -> None:
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    updater = updater_of(update_weights_from_disk=lambda *_, **__: (True, "loaded"))
    unfit = SimpleNamespace(update_weights_from_disk=lambda *_, **__: (False, "Failed to get weights iterator: none"))
    draft = ("draft", SimpleNamespace(weight_updater=unfit))
    updater.draft_worker = SimpleNamespace(weight_update_runners=lambda: [draft])
    updater.update_weights_from_disk(UpdateWeightFromDiskReqInput(model_path="/none"))
    assert name_of_now().startswith("lost by "), "the target has other weights"


@pytest.mark.parametrize("message", ["requests are still computed: ask again", "KV is held", None])
@pytest.mark.parametrize("version", ["5", "6"])
def test_should_be_called_as_before_where_what_has_landed_was_refused(
    message: str | None, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By both hooks of the route. None: no sender was ever announced."""
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput

    from kv_connector.sglang import weight_changes, weight_hooks
    from kv_connector.weights.routes import SGLANG_LOADER

    landed = SimpleNamespace(load=lambda _request: (False, message))
    monkeypatch.setattr(weight_hooks.WEIGHTS, "_landed", landed if message else None)
    monkeypatch.setattr(weight_hooks.WEIGHTS, "_is_lacking", lambda: False)
    monkeypatch.setattr(weight_changes, "CACHED", CachedWeights())
    weight_changes.CACHED.filled()
    SERVING.weight_version = "5"
    before = name_of_now()
    request = UpdateWeightsFromTensorReqInput(
        serialized_named_tensors=[b""], load_format=SGLANG_LOADER, weight_version=version, flush_cache=False
    )
    answer = updater_of().update_weights_from_tensor(request)
    assert (answer.success, answer.message) == (False, message or "no sender is connected")
    assert (name_of_now(), weight_changes.CACHED.are_current) == (before, True)


class Layers:
    """A model of two weights, which refuses those of another size, as SGLang's do."""

    def __init__(self, torch: Any) -> None:
        self.weights = {"a": torch.zeros(4), "b": torch.zeros(4)}

    def load_weights(self, given: list[tuple[str, torch.Tensor]]) -> None:
        for key, tensor in given:
            assert self.weights[key].shape == tensor.shape
            self.weights[key].copy_(tensor)


def test_should_count_tensors_that_a_trainer_sent_in_part() -> None:
    """SGLang's own updater of a runner, which answers that the change has failed, and has loaded the first of two."""
    import torch
    from sglang.srt.managers.io_struct import UpdateWeightsFromDistributedReqInput
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

    model = Layers(torch)
    own: Any = WeightUpdater.__new__(WeightUpdater)
    object.__setattr__(own, "get_model", lambda: SimpleNamespace(load_weights=model.load_weights, modules=list))
    sent = [("a", torch.ones(4)), ("b", torch.ones(5))]

    def load(weights: Any) -> tuple[bool, str]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(WeightUpdater, "_assert_weight_cache_inactive", lambda *_: None)
            return own.load_weights_from_distributed(weights)  # type: ignore[no-any-return]

    updater = updater_of(receive_weights_from_distributed=lambda **_: sent, load_weights_from_distributed=load)
    request = UpdateWeightsFromDistributedReqInput(names=["a", "b"], dtypes=["float32"] * 2, shapes=[[4], [5]])
    assert not updater.update_weights_from_distributed(request).success
    assert name_of_now() == "", "no session is open, nothing was touched"
    updater._session = session(loaded=False)
    answer = updater.update_weights_from_distributed(request)
    assert (answer.success, model.weights["a"].sum()) == (False, 4)
    assert "partially updated" in answer.message
    assert name_of_now().startswith("lost by ")


def session(*, loaded: bool, selector: str = "all") -> Any:
    from sglang.srt.managers.scheduler_components.weight_updater import _WeightUpdateSession

    return _WeightUpdateSession(selector=selector, loaded_weights=loaded)


def test_should_not_count_what_a_draft_alone_was_given() -> None:
    from sglang.srt.managers.io_struct import UpdateWeightsFromDistributedReqInput

    updater = updater_of(receive_weights_from_distributed=lambda **_: [])
    updater._session = session(loaded=False, selector="draft")
    request = UpdateWeightsFromDistributedReqInput(names=[], dtypes=[], shapes=[], selector="draft")
    assert updater.update_weights_from_distributed(request).success
    assert name_of_now() == ""


@pytest.mark.parametrize(
    ("loaded", "selector", "name"), [(False, "all", "1 changes"), (True, "all", ""), (False, "draft", "")]
)
def test_should_count_weights_that_were_written_past_sglang(
    loaded: bool, selector: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two ends of a session a trainer may write into the model's memory, of which SGLang hears nothing."""
    import torch.distributed
    from sglang.srt.managers.io_struct import EndWeightUpdateReqInput

    monkeypatch.setattr(torch.distributed, "barrier", lambda **_: None)
    ended = []
    updater = updater_of(end_weight_update=lambda **named: ended.append(named))
    updater.tp_cpu_group = None
    assert not updater.end_weight_update(EndWeightUpdateReqInput()).success
    assert name_of_now() == "", "there was no session"
    updater._session = session(loaded=loaded, selector=selector)
    updater.draft_worker = None if selector == "all" else SimpleNamespace(weight_update_runners=list)
    assert updater.end_weight_update(EndWeightUpdateReqInput()).success
    assert ended == ([{"run_post_load": not loaded}] if selector == "all" else [])
    assert name_of_now() == name


class Loading:
    """SGLang's own manager of adapters, without a model to put them into."""

    def __init__(self) -> None:
        from sglang.srt.lora.lora_manager import LoRAManager

        self.manager: Any = LoRAManager.__new__(LoRAManager)
        self.manager.base_hf_config = SimpleNamespace(vocab_size=512)
        self.manager.device = SimpleNamespace(type="cpu", index=0)
        self.manager.init_lora_adapters()
        self.manager.attn_dp_enabled, self.manager.max_loras_per_batch = False, 4
        self.while_loading: Callable[[], object] = lambda: None
        self.manager.load_lora_weights = lambda _adapter: self.while_loading()
        self.manager.load_lora_weights_from_tensors = lambda *_: None

    def files(self, folder: Path, *, at_start: bool = False) -> str:
        from sglang.srt.lora.lora_registry import LoRARef

        loaded = LoRARef(lora_name="sql", lora_path=str(folder), pinned=False)
        if at_start:
            self.manager.init_lora_adapters([loaded])
        else:
            self.manager.lora_refs.clear()
            assert self.manager.load_lora_adapter(loaded).success
        return loaded.lora_id

    def tensors(self, tensors: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
        from sglang.srt.lora.lora_registry import LoRARef

        loaded = LoRARef(lora_name="sql", lora_path="__tensor__", pinned=False)
        self.manager.lora_refs.clear()
        assert self.manager.load_lora_adapter_from_tensors(loaded, tensors, dict(settings)).success
        return loaded.lora_id

    def identity(self, adapter_id: str) -> str:
        from kv_connector.sglang.loaded_adapters import ADAPTERS

        return ADAPTERS.identity(self.manager, adapter_id)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """This server has the backend."""
    serve(monkeypatch, "kv_messenger")


def serve(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    from sglang.srt import runtime_context

    chosen = SimpleNamespace(disaggregation_transfer_backend=backend)
    monkeypatch.setattr(runtime_context, "get_disagg", lambda: chosen)


PEFT = {"target_modules": ["q_proj"], "peft_type": "LORA"}


def replace(folder: Path, seed: int) -> None:
    """Another training under the same name, as a trainer leaves it."""
    before = (folder / "adapter_model.safetensors").stat()
    adapter(folder, seed=seed, **PEFT)
    os.utime(folder / "adapter_model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns + seed))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("at_start", [False, True])
def test_should_name_an_adapter_by_what_was_loaded_of_it(at_start: bool, tmp_path: Path) -> None:
    """Its file is replaced, and only one of two servers loads it again."""
    folder = adapter(tmp_path / "sql", **PEFT)
    one, other = Loading(), Loading()
    of_one, of_other = one.files(folder, at_start=at_start), other.files(folder, at_start=at_start)
    before = one.identity(of_one)
    assert before == other.identity(of_other)
    replace(folder, 2)
    assert one.identity(of_one) == before, "the engine has what it has loaded"
    again = other.identity(other.files(folder))
    assert again != before
    assert again == one.identity(one.files(folder)), "both have loaded it again"


@pytest.mark.usefixtures("served")
def test_should_fit_no_peer_while_it_is_not_known_which_file_was_loaded(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "sql", **PEFT)
    one, other = Loading(), Loading()
    one.while_loading = lambda: replace(folder, 2)
    assert one.identity(one.files(folder)) != other.identity(other.files(folder))


@pytest.mark.usefixtures("served")
def test_should_name_adapters_that_came_as_tensors_by_what_is_in_them(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {"lora_A": torch.arange(4000.0).reshape(8, 500), "lora_B": torch.ones(500, 8, dtype=torch.bfloat16)}
    one, other = Loading(), Loading()
    first = one.identity(one.tensors(tensors, SETTINGS | PEFT))
    assert first == other.identity(other.tensors({**tensors}, SETTINGS | PEFT))
    changed = {**tensors, "lora_A": tensors["lora_A"] + 1}
    assert first != other.identity(other.tensors(changed, SETTINGS | PEFT))
    assert first != other.identity(other.tensors(tensors, SETTINGS | PEFT | {"lora_alpha": 99}))
    folder = adapter(tmp_path / "sql", **PEFT)
    save_file(tensors, folder / "adapter_model.safetensors")
    assert load_file(folder / "adapter_model.safetensors").keys() == tensors.keys()
    assert first == other.identity(other.files(folder)), "and out of a file in another server"


def test_should_read_no_adapter_for_another_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kv_connector.sglang import loaded_adapters

    serve(monkeypatch, "nixl")
    monkeypatch.setattr(loaded_adapters, "adapter_identity", lambda *_: pytest.fail("read"))
    Loading().files(adapter(tmp_path / "sql", **PEFT))
