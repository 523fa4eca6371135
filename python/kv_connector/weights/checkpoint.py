"""Reads a checkpoint's folder of safetensors files: which tensors it has, and their bytes. No torch is needed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kv_connector.exceptions import WeightsError
from kv_connector.naming.safetensors_files import StoredTensor, files_in, tensors_in
from kv_connector.weights.manifest import Manifest, ManifestError

DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Names of types in the files, and torch's."""
COPIED_BYTES = 8 << 20


class CheckpointError(WeightsError):
    """A folder that cannot be read as a checkpoint; one sentence."""


class Checkpoint:
    """The tensors of one folder. Reads headers when it is made; raises CheckpointError."""

    def __init__(self, folder: Path) -> None:
        try:
            self._stored = _tensors(folder)
            self.manifest = Manifest.of(
                (name, DTYPES.get(stored.dtype, stored.dtype), stored.shape)
                for name, stored in sorted(self._stored.items())
            )
        except (OSError, ValueError, KeyError, TypeError, struct.error, ManifestError) as unread:
            what = unread if isinstance(unread, ManifestError) else f"{type(unread).__name__}: {unread}"
            raise CheckpointError(
                f"{folder} cannot be read ({what}), expected a folder with the .safetensors files of a model: name one"
            ) from unread
        for place in self.manifest.places:
            if self._stored[place.name].length_bytes != place.length_bytes:
                raise CheckpointError(f"{self._stored[place.name].file} is damaged: {place.name} has another length")

    def read_into(self, target: memoryview) -> None:
        """Copies all tensors to their places; raises CheckpointError if a file has changed or ended."""
        for place in self.manifest.places:
            stored = self._stored[place.name]
            part = target[place.offset_bytes : place.offset_bytes + place.length_bytes]
            try:
                with stored.file.open("rb", buffering=0) as content:
                    content.seek(stored.begin_bytes)
                    _fill(part, content)
            except OSError as unread:
                raise CheckpointError(f"{stored.file} cannot be read: {unread}") from unread


def served_manifest(find_folder: Callable[[], Path]) -> Manifest:
    """The tensors of the checkpoint that a server was started from, which it must be sent all of.

    Without them a sender that leaves out a layer would leave the server with weights of two versions, since engines
    keep what they had. ``find_folder`` returns the checkpoint's folder. Raises CheckpointError, with a sentence for the
    sender.
    """
    try:
        return Checkpoint(find_folder()).manifest
    except (WeightsError, OSError, ImportError, ValueError) as unread:
        raise CheckpointError(
            "the tensors of this server's checkpoint are not known, so that weights of a part of them could not be"
            f" refused ({unread}): start the server from a folder with the model's .safetensors files"
        ) from unread


def _fill(part: memoryview, content: Any) -> None:
    done = 0
    while done < len(part):
        count = content.readinto(part[done : done + COPIED_BYTES])
        if not count:
            raise OSError("it ends before its last tensor")
        done += count


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    files = files_in(folder)
    if not files:
        raise OSError("it has no .safetensors file")
    found: dict[str, StoredTensor] = {}
    for file in files:
        for name, stored in tensors_in(file).items():
            found.setdefault(name, stored)
    return found
