"""A checkpoint whose files are replaced while it is read is not sent as one of two versions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from test_weights import write_file

from kv_connector.naming.safetensors_files import INDEX
from kv_connector.weights import checkpoint as checkpoints
from kv_connector.weights.checkpoint import Checkpoint, CheckpointError

SHARDS = {"one.safetensors": ("a", "d"), "three.safetensors": ("c",), "two.safetensors": ("b", "e")}
"""Tensors are read by name, so in turns from all files."""
NAMES = sorted(name for names in SHARDS.values() for name in names)
TENSOR_BYTES = 64
HOUR_NS = 3_600 * 10**9
Replace = Callable[[Path, bytes], None]


def write_checkpoint(folder: Path, version: int, *, index: bool) -> None:
    folder.mkdir(exist_ok=True)
    for file, names in SHARDS.items():
        write_file(folder / file, {name: ("I8", [TENSOR_BYTES], bytes([version]) * TENSOR_BYTES) for name in names})
    if index:
        placed = {name: file for file, names in SHARDS.items() for name in names}
        (folder / INDEX).write_text(json.dumps({"version": version, "weight_map": placed}), encoding="utf-8")
    for file in folder.iterdir():  # a file that is written now has another date, however coarse the clock
        before = file.stat().st_mtime_ns - HOUR_NS
        os.utime(file, ns=(before, before))


def rename(file: Path, content: bytes) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.replace(file)


def rename_dated(file: Path, content: bytes) -> None:
    """As a copy that keeps dates, both of which are the same here."""
    dated = file.stat().st_mtime_ns
    new = file.with_suffix(".new")
    new.write_bytes(content)
    os.utime(new, ns=(dated, dated))
    new.replace(file)


def rewrite(file: Path, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.write(content)


def truncate_and_write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def make_anew(file: Path, content: bytes) -> None:
    file.unlink()
    file.write_bytes(content)


def link(file: Path, content: bytes) -> None:
    """As a hub's cache names its files."""
    kept = file.with_suffix(".blob")
    kept.write_bytes(content)
    file.unlink()
    file.symlink_to(kept.name)


REPLACES: tuple[Replace, ...] = (rename, rename_dated, rewrite, truncate_and_write, make_anew, link)


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path]:
    for version in (1, 2):
        write_checkpoint(tmp_path / str(version), version, index=True)
    return tmp_path / "1", tmp_path / "2"


def read(checkpoint: Checkpoint, after: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """What is read, where something happens after so many tensors; 0: before the first."""
    target, done = bytearray(checkpoint.manifest.length_bytes), 0
    fill = checkpoints._fill

    def counted(part: memoryview, content: object) -> None:
        nonlocal done
        fill(part, content)
        done += 1
        if done == after:
            act()

    monkeypatch.setattr(checkpoints, "_fill", counted)
    if not after:
        act()
    checkpoint.read_into(memoryview(target))
    assert done == len(NAMES)
    return target


@pytest.mark.parametrize("replace", REPLACES)
@pytest.mark.parametrize("file", [*SHARDS, INDEX])
@pytest.mark.parametrize("after", range(len(NAMES) + 1))
def test_should_refuse_a_file_that_is_replaced_by_one_as_long(
    versions: tuple[Path, Path], replace: Replace, file: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (folder / file for folder in versions)
    content = new.read_bytes()
    assert old.stat().st_size == len(content)
    assert old.read_bytes() != content
    checkpoint = Checkpoint(versions[0])
    with pytest.raises(CheckpointError, match=f"{file} has changed since its tensors were listed, expected"):
        read(checkpoint, after, lambda: replace(old, content), monkeypatch)


@pytest.mark.parametrize("after", range(len(NAMES) + 1))
@pytest.mark.parametrize("file", SHARDS)
def test_should_refuse_a_file_that_is_gone(
    versions: tuple[Path, Path], file: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match=f"{file} (has changed|cannot be read)"):
        read(Checkpoint(versions[0]), after, (versions[0] / file).unlink, monkeypatch)


def test_should_refuse_an_index_that_was_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, 1, index=False)
    made = (tmp_path / INDEX).touch
    with pytest.raises(CheckpointError, match=f"{INDEX} has changed"):
        read(Checkpoint(tmp_path), len(NAMES), made, monkeypatch)


@pytest.mark.parametrize("index", [True, False])
def test_should_read_what_stays_as_it_is_and_each_version_anew(
    tmp_path: Path, index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (1, 2):
        write_checkpoint(tmp_path, version, index=index)
        checkpoint = Checkpoint(tmp_path)
        for _ in range(2):
            with monkeypatch.context() as counting:
                content = read(checkpoint, len(NAMES), lambda: None, counting)
            assert content == bytes([version]) * (TENSOR_BYTES * len(NAMES))
