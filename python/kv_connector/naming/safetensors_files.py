"""The safetensors files of a model's folder: which tensors they have, and where each one's bytes are."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADER_BYTES_MAX = 100_000_000
"""The limit of safetensors itself."""
_FILE_BYTES_MAX = 1 << 62
"""Beyond it no file has bytes."""
_LENGTH = struct.Struct("<Q")
INDEX = "model.safetensors.index.json"
_OTHER_NAMING = "consolidated"
"""The prefix of Mistral's own files, which have the same tensors under other names."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file."""

    file: Path
    dtype: str
    """As safetensors writes it, such as BF16."""
    shape: tuple[int, ...]
    begin_bytes: int
    length_bytes: int


def files_in(folder: Path) -> list[Path]:
    """The files of the model in this folder; raises OSError, or ValueError if its index is of another form."""
    index = folder / INDEX
    if index.is_file():
        return [folder / name for name in _placed_in(index)]
    found = sorted(folder.glob("*.safetensors"))
    return [file for file in found if not file.name.startswith(_OTHER_NAMING)] or found


def tensors_in(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, by name; raises OSError, or ValueError if the file is of another form."""
    with file.open("rb") as content:
        begun = content.read(_LENGTH.size)
        if len(begun) < _LENGTH.size:
            raise ValueError(f"{file} has {len(begun)} bytes, expected a safetensors file")
        (length,) = _LENGTH.unpack(begun)
        if length > HEADER_BYTES_MAX:
            raise ValueError(f"{file} begins with a header of {length} bytes, expected at most {HEADER_BYTES_MAX}")
        header = _parsed(file, content.read(length))
    start = _LENGTH.size + length
    return {name: _stored(file, name, entry, start) for name, entry in header.items() if name != "__metadata__"}


def _placed_in(index: Path) -> list[str]:
    """The files' names, each once, in order."""
    placed = _parsed(index, index.read_bytes()).get("weight_map")
    if not isinstance(placed, dict) or not all(name and isinstance(name, str) for name in placed.values()):
        raise ValueError(f"{index} has no weight_map of files' names")
    return sorted(set(placed.values()))


def _parsed(file: Path, content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as other:
        raise ValueError(f"{file} does not hold JSON where it has to: {other}") from other
    if not isinstance(parsed, dict):
        raise ValueError(f"{file} holds {type(parsed).__name__} of JSON, expected an object")
    return parsed


def _stored(file: Path, name: str, entry: object, start: int) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            if 0 <= begin <= end < _FILE_BYTES_MAX and all(isinstance(extent, int) for extent in shape):
                return StoredTensor(file, dtype, tuple(shape), start + begin, end - begin)
    raise ValueError(f"{file} describes tensor {name:.200} by {entry!s:.200}, expected dtype, shape and data_offsets")
