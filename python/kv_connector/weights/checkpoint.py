"""Reads a checkpoint's folder of safetensors files: which tensors it has, and their bytes. No torch is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kv_connector.exceptions import WeightsError
from kv_connector.naming.safetensors_files import INDEX, StoredTensor, files_in, tensors_in
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
_State = tuple[int, int, int, int, int]
"""Which file it is, its length, and when it changed: its content, and anything of it, which no copy's date hides."""


class CheckpointError(WeightsError):
    """A folder that cannot be read as a checkpoint; one sentence."""


class Checkpoint:
    """The tensors of one folder. Reads headers when it is made; raises CheckpointError.

    A training that goes on may write the next checkpoint over this one, whose tensors are as long. So each file has to
    be the one whose header was read, until the last byte is.
    """

    def __init__(self, folder: Path) -> None:
        self._index = folder / INDEX
        self._copies: list[tuple[str, StoredTensor]] = []
        """Tensors that an earlier file has too, by their names."""
        self._seen: dict[Path, _State | None] = {}
        """Each file as it was before its header was read; None for an index that is missing."""
        try:
            self._stored = self._tensors(folder)
            self.manifest = Manifest.of(
                (name, DTYPES.get(stored.dtype, stored.dtype), stored.shape)
                for name, stored in sorted(self._stored.items())
            )
        except (OSError, ValueError, ManifestError) as unread:
            what = unread if isinstance(unread, ManifestError) else f"{type(unread).__name__}: {unread}"
            raise CheckpointError(
                f"{folder} cannot be read ({what}), expected a folder with the .safetensors files of a model: name one"
            ) from unread
        for place in self.manifest.places:
            if self._stored[place.name].length_bytes != place.length_bytes:
                raise CheckpointError(f"{self._stored[place.name].file} is damaged: {place.name} has another length")

    def read_into(self, target: memoryview) -> None:
        """Copies all tensors to their places.

        Raises CheckpointError if a file has changed or ended, or two files have a tensor otherwise: engines load both,
        and which one they keep depends on them.
        """
        parts: dict[str, memoryview] = {}
        for place in self.manifest.places:
            parts[place.name] = target[place.offset_bytes : place.offset_bytes + place.length_bytes]
            self._read(self._stored[place.name], parts[place.name])
        for name, copy in self._copies:
            self._compare(name, copy, parts[name])
        for file in self._seen:
            self._check(file, _state_of(file))

    def _read(self, stored: StoredTensor, part: memoryview) -> None:
        try:
            with stored.file.open("rb", buffering=0) as content:
                self._check(stored.file, _state(os.fstat(content.fileno())))
                content.seek(stored.begin_bytes)
                _fill(part, content)
        except OSError as unread:
            raise CheckpointError(f"{stored.file} cannot be read: {unread}") from unread

    def _compare(self, name: str, copy: StoredTensor, part: memoryview) -> None:
        first = self._stored[name]
        same = (copy.dtype, copy.shape, copy.length_bytes) == (first.dtype, first.shape, first.length_bytes)
        if same:
            content = bytearray(copy.length_bytes)
            self._read(copy, memoryview(content))
            same = content == part
        if not same:
            raise CheckpointError(
                f"tensor {name} is in {first.file} and, with other content, in {copy.file}: delete the file that is not"
                " of this checkpoint"
            )

    def _tensors(self, folder: Path) -> dict[str, StoredTensor]:
        self._seen[self._index] = _state_of(self._index)
        files = files_in(folder)
        if not files:
            raise OSError("it has no .safetensors file")
        found: dict[str, StoredTensor] = {}
        for file in files:
            self._seen[file] = _state_of(file)
            for name, stored in tensors_in(file).items():
                if found.setdefault(name, stored) is not stored:
                    self._copies.append((name, stored))
        return found

    def _check(self, file: Path, now: _State | None) -> None:
        if now != self._seen[file]:
            raise CheckpointError(
                f"{file} has changed since its tensors were listed, expected a checkpoint that stays as it is until it"
                " is sent: send again when it is written, or from a copy"
            )


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


def _state_of(file: Path) -> _State | None:
    try:
        return _state(file.stat())
    except FileNotFoundError:
        return None


def _state(found: os.stat_result) -> _State:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
