"""Folders that are no checkpoint in any way, and those with a tensor in two files: read, or refused in a sentence."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_weights import write_file

from kv_connector.naming.safetensors_files import INDEX
from kv_connector.naming.weights_digest import weights_digest
from kv_connector.weights.checkpoint import Checkpoint, CheckpointError, served_manifest

ODD: tuple[Any, ...] = (None, True, -1, 1.5, 10**30, "", "a.safetensors", [], [1], {}, {"a": 1}, [[[]]])
"""Values of all forms of JSON, put where each value of a file stands."""
DEEP = "[" * 20_000
SEEDS = range(200)
ENTRY = {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}
HEADER = {"a": ENTRY, "b": ENTRY, "__metadata__": {"format": "pt"}}
FILES = ("model.safetensors", "model-1.safetensors", "model-2.safetensors", "model-10.safetensors")
COPIES = (("I8", 2, b"xy"), ("I8", 2, b"xz"), ("I16", 1, b"xy"), ("I8", 3, b"xy!"))
"""Of one tensor: type, extent and bytes; the first is the usual one."""
PLACED = {"metadata": {"total_size": 2}, "weight_map": {"a": "a.safetensors", "b": "a.safetensors"}}


def places_in(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each value of a document, its own among them."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(found for at, value in inner for found in places_in(value, (*path, at)))]


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = json.loads(json.dumps(document))
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return changed


def odd_forms(document: Any) -> list[str]:
    forms = [json.dumps(put(document, path, value)) for path in places_in(document) for value in ODD]
    return [*forms, DEEP, "", "{", "\0"]


def write_folder(folder: Path, header: str, index: str) -> None:
    (folder / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"12")
    (folder / INDEX).write_text(index, encoding="utf-8")


def read(folder: Path) -> None:
    """As the command reads it; its own errors are sentences."""
    checkpoint = Checkpoint(folder)
    checkpoint.read_into(memoryview(bytearray(checkpoint.manifest.length_bytes)))


@pytest.mark.parametrize("header", odd_forms(HEADER))
def test_should_read_a_file_of_any_header_or_refuse_it_in_a_sentence(tmp_path: Path, header: str) -> None:
    write_folder(tmp_path, header, json.dumps(PLACED))
    read_or_refused(tmp_path)


@pytest.mark.parametrize("index", odd_forms(PLACED))
def test_should_read_a_folder_of_any_index_or_refuse_it_in_a_sentence(tmp_path: Path, index: str) -> None:
    write_folder(tmp_path, json.dumps(HEADER), index)
    read_or_refused(tmp_path)


def read_or_refused(folder: Path) -> None:
    refused = refusal(lambda: read(folder))
    assert len(refused) < 1000
    assert not refused or str(folder) in refused
    served = refusal(lambda: served_manifest(lambda: folder))
    assert not served or "start the server from a folder" in served


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except CheckpointError as refused:
        return str(refused)
    return ""


def test_should_name_the_file_that_an_index_has_and_the_folder_has_not(tmp_path: Path) -> None:
    write_file(tmp_path / "a.safetensors", {"a": ("I8", [1], b"1")})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "gone.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"gone\.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_should_send_a_tensor_of_two_files_only_if_both_have_the_same(tmp_path: Path, seed: int) -> None:
    """Engines load all files and keep what the last one has, in an order of their own; others go by the index."""
    draw = random.Random(seed)
    files = draw.sample(FILES, draw.randint(2, len(FILES)))
    placed = {name: draw.choice(files) for name in "abc"}
    copies: dict[str, set[tuple[str, int, bytes]]] = {name: set() for name in placed}
    has_index = draw.random() < 0.5
    for file in files:
        held = {}
        for name in placed:
            if file == placed[name] or draw.random() < 0.3:
                dtype, length, content = COPIES[0] if draw.random() < 0.8 else draw.choice(COPIES)
                held[name] = (dtype, [length], content)
                if not has_index or file in placed.values():
                    copies[name].add((dtype, length, content))
        write_file(tmp_path / file, held)
    if has_index:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": placed}))
    served_manifest(lambda: tmp_path)
    if all(len(each) == 1 for each in copies.values()):
        read(tmp_path)
    else:
        with pytest.raises(CheckpointError, match=r"is in .*\.safetensors and, with other content, in .*\.safetensors"):
            read(tmp_path)


def test_should_distinguish_weights_of_which_only_the_second_file_differs(tmp_path: Path) -> None:
    for folder, last in (("one", b"1"), ("two", b"2")):
        (tmp_path / folder).mkdir()
        write_file(tmp_path / folder / "model-1.safetensors", {"a": ("I8", [1], b"0")})
        write_file(tmp_path / folder / "model.safetensors", {"a": ("I8", [1], last)})
    assert weights_digest(tmp_path / "one") != weights_digest(tmp_path / "two")
