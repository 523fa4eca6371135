"""The safetensors files of a model's folder: which tensors they have, and where each one's bytes are."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

HEADER_BYTES_MAX = 100_000_000
"""The limit of safetensors itself."""
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
    """The files of the model in this folder; raises OSError, ValueError or KeyError if its index is unreadable."""
    index = folder / INDEX
    if index.is_file():
        placed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [folder / name for name in sorted(set(placed.values()))]
    found = sorted(folder.glob("*.safetensors"))
    return [file for file in found if not file.name.startswith(_OTHER_NAMING)] or found


def tensors_in(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, by name; raises OSError, ValueError, KeyError, TypeError or struct.error."""
    with file.open("rb") as content:
        (length,) = _LENGTH.unpack(content.read(_LENGTH.size))
        if length > HEADER_BYTES_MAX:
            raise ValueError(f"{file} begins with a header of {length} bytes, expected at most {HEADER_BYTES_MAX}")
        header = json.loads(content.read(length))
    start = _LENGTH.size + length
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            found[name] = StoredTensor(file, entry["dtype"], tuple(entry["shape"]), start + begin, end - begin)
    return found
