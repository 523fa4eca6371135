"""LoRA adapters whose files are written anew: what prompts are named by, with vLLM's own request and engine core."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_adapter_digest import adapter

from kv_connector.naming.adapter_digest import adapter_identity
from kv_connector.vllm.loaded_adapters import LoadedAdapters
from kv_connector.vllm.weight_changes import WeightChanges

LOGGER = logging.getLogger(__name__)


def asked(folder: Path, number: int = 1, *, load_inplace: bool = False, name: str = "sql") -> Any:
    """As much of vLLM's LoRARequest as is read."""
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=str(folder), load_inplace=load_inplace)


def trained_again(folder: Path, seed: int) -> None:
    """Other weights in the same file, which is seen by its time."""
    file = folder / "adapter_model.safetensors"
    written = file.stat().st_mtime_ns
    adapter(folder, seed=seed)
    os.utime(file, ns=(written + seed, written + seed))


def test_should_name_an_adapter_by_what_was_loaded(tmp_path: Path) -> None:
    """The files lie where both sides read them; one is told to load them again, then the other."""
    folder = adapter(tmp_path / "sql")
    sides = [LoadedAdapters(1, LOGGER) for _ in range(2)]
    for side in sides:
        side.on_added(asked(folder))
    before = {side.identity(asked(folder)) for side in sides}
    assert len(before) == 1
    trained_again(folder, 2)
    assert {side.identity(asked(folder)) for side in sides} == before, "both go on with what they have read"
    sides[0].on_added(asked(folder))
    assert {side.identity(asked(folder)) for side in sides} == before, "one that is there is not read again"
    again = asked(folder, load_inplace=True)
    sides[0].on_added(again)
    assert sides[0].identity(again) != sides[1].identity(asked(folder))
    sides[1].on_added(again)
    assert len({side.identity(again) for side in sides} | before) == 2


def test_should_take_what_is_read_for_each_pass_from_the_files(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "sql")
    side, again = LoadedAdapters(1, LOGGER), asked(folder, load_inplace=True)
    before = side.identity(again)
    trained_again(folder, 2)
    assert side.identity(again) != before


@pytest.mark.parametrize("dropped", ["remove_lora", "reload_weights", "finish_weight_update"])
def test_should_look_again_at_what_was_dropped(tmp_path: Path, dropped: str) -> None:
    folder = adapter(tmp_path / "sql")
    side = LoadedAdapters(1, LOGGER)
    before = side.identity(asked(folder))
    trained_again(folder, 2)
    if dropped == "remove_lora":
        side.on_removed(1)
    else:
        weights = WeightChanges(lambda _: "", side.forget, LOGGER)
        weights.on_called("start_draft_weight_update", (), {})
        weights.on_called("finish_weight_update", (), {})
        assert side.identity(asked(folder)) == before, "a draft's weights leave adapters as they are"
        weights.on_called(dropped, (), {})
    assert side.identity(asked(folder)) != before


def test_should_not_know_what_an_engine_has_that_may_have_dropped_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, other = adapter(tmp_path / "sql"), adapter(tmp_path / "chat")
    sides = [LoadedAdapters(1, LOGGER) for _ in range(2)]
    for side in sides:
        side.identity(asked(folder))
        side.identity(asked(other, 2, name="chat"))
    assert len({side.identity(asked(folder)) for side in sides}) == 1, "read again, it would be the same"
    trained_again(folder, 2)
    with caplog.at_level(logging.WARNING):
        assert len({side.identity(asked(folder)) for side in sides}) == 2
    assert "the files of adapter sql" in caplog.text
    for side in sides:
        side.on_added(asked(folder, load_inplace=True))
    assert len({side.identity(asked(folder)) for side in sides}) == 1


def test_should_name_an_adapter_of_a_repository_by_its_newest_copy_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another load may have fetched a later one since."""
    copied = tmp_path / "models--me--sql"
    (copied / "refs").mkdir(parents=True)
    pytest.importorskip("huggingface_hub", reason="it comes with the engine: see the suite that has vLLM")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert adapter_identity("sql", "me/sql") == "sql"
    named = []
    for seed, commit in enumerate(("a" * 40, "b" * 40)):
        adapter(copied / "snapshots" / commit, seed)
        (copied / "refs" / "main").write_text(commit)
        named.append(adapter_identity("sql", "me/sql"))
        assert named[-1] == adapter_identity("sql", str(copied / "snapshots" / commit))
    assert len({"sql", *named}) == 3


def saved(folder: Path, seed: int, file: str = "adapter_model.bin", **how: Any) -> str:
    """As torch writes it; all but one number of each tensor are the same for all seeds."""
    torch = pytest.importorskip("torch", reason="torch comes with the engine: see the suite that has vLLM")
    adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    tensors = {
        f"base_model.model.layers.{layer}.q_proj.lora_{part}.weight": torch.ones(8, 3000)
        for layer in range(3)
        for part in "AB"
    }
    for tensor in tensors.values():
        tensor[0, 0] = seed
    torch.save(tensors, folder / file, **how)
    return adapter_identity("sql", str(folder))


@pytest.mark.parametrize("file", ["adapter_model.bin", "adapter_model.pt"])
def test_should_distinguish_what_torch_has_saved(tmp_path: Path, file: str) -> None:
    """vLLM loads these too, where there is no safetensors file."""
    one = saved(tmp_path / "one", 1, file)
    assert one.startswith("sql\n")
    assert saved(tmp_path / "copy", 1, file) == one
    assert len({one, saved(tmp_path / "other", 2, file), saved(tmp_path / "third", 3, file)}) == 3


def test_should_know_a_copy_of_what_an_earlier_torch_has_saved(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", 1, _use_new_zipfile_serialization=False)
    assert one.startswith("sql\n")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert adapter_identity("sql", str(tmp_path / "copy")) == one
