"""Identifies a model's weights by samples of their files; equal for all engines that have loaded the same weights.

Two trainings of one architecture have the same configuration, and often the same name (``/models/current``), but KV of
one gives wrong tokens in the other, without any error. So the digest has samples of up to 256 tensors, evenly spaced
in the order of their names, and does not depend on how they are distributed over files. It is computed once, when a
messenger opens. Thread-safe: there is no shared state.

Not covered: weights that an engine changes after loading, and formats other than safetensors. An unknown digest is not
compared.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_connector.naming.safetensors_files import StoredTensor, files_in, tensors_in

SAMPLES_MAX = 256
SAMPLE_BYTES = 4096
"""The sample of a tensor: thousands of numbers, because in 16 bits many stay the same in a short training."""
_AGAIN = " in another file"
"""Behind the name of a tensor that an earlier file has too: which one an engine keeps is its own choice."""
PARTS_OF_KIND = 8
"""A kind's tensors are divided into so many parts, with a sample of each. A tensor that is alone is no kind."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file or in memory."""

    description: str
    """Type and shape, as written by safetensors."""
    length_bytes: int
    read: Callable[[int, int], bytes]
    """Reads bytes, given a position and a length."""


def digest_of_weights(
    model: str, *, revision: str | None, cache_folder: str | None, load_format: str, logger: logging.Logger
) -> str:
    """The digest of the files from which an engine loads ``model``; "" if it cannot be determined."""
    if load_format == "dummy":
        return ""
    try:
        return weights_digest(folder_of(model, revision, cache_folder))
    except Exception as unknown:
        logger.info("the weights of %s are not compared with those of peers: %s", model, unknown)
        return ""


def weights_digest(folder: Path) -> str:
    """The digest, 16 hexadecimal digits; raises if the folder has no readable safetensors file."""
    return digest_of_files(files_in(folder))


def digest_of_files(files: Sequence[Path], settings: str = "") -> str:
    """The digest, 16 hexadecimal digits, of the tensors in these files and of the settings they depend on."""
    tensors: dict[str, Tensor] = {}
    for file in files:
        for name, stored in tensors_in(file).items():
            while name in tensors:
                name += _AGAIN
            tensors[name] = _tensor_in(stored)
    if not tensors:
        raise ValueError(f"no tensor in {', '.join(map(str, files)) or 'a .safetensors file'}")
    return digest_of_tensors(tensors, settings)


def digest_of_tensors(tensors: Mapping[str, Tensor], settings: str = "") -> str:
    """The digest of files with these tensors."""
    names = sorted(tensors)
    digest = hashlib.sha256(settings.encode())
    for name in names:
        digest.update(f"{name} {tensors[name].description}\n".encode())
    for name in sampled(names):
        digest.update(_sample(tensors[name]))
    return digest.hexdigest()[:16]


def sampled(names: Sequence[str]) -> list[str]:
    """Of which of these tensors, given in order, there are samples: in even steps, then of kinds that these miss."""
    chosen = _evenly(names, SAMPLES_MAX)
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(_kind(name), []).append(name)
    seen = frozenset(chosen)
    for _, alike in sorted(kinds.items()):
        count = min(PARTS_OF_KIND, len(alike))
        parts = (alike[index * len(alike) // count : (index + 1) * len(alike) // count] for index in range(count))
        chosen += [part[len(part) // 2] for part in parts if len(alike) > 1 and seen.isdisjoint(part)]
    return chosen


def _kind(name: str) -> str:
    """What the tensors of one name have in common in all layers and experts."""
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def _evenly(names: Sequence[str], count_max: int) -> list[str]:
    count = min(count_max, len(names))
    return [names[index * len(names) // count] for index in range(count)]


def folder_of(model: str, revision: str | None, cache_folder: str | None) -> Path:
    """The folder with the files of a model or adapter on this host; raises if there is none. Downloads nothing."""
    if Path(model).is_dir():
        return Path(model)
    hub = importlib.import_module("huggingface_hub")
    return Path(hub.snapshot_download(model, revision=revision, cache_dir=cache_folder, local_files_only=True))


def _tensor_in(stored: StoredTensor) -> Tensor:
    def read(position: int, length: int) -> bytes:
        with stored.file.open("rb") as content:
            content.seek(stored.begin_bytes + position)
            return content.read(length)

    return Tensor(f"{stored.dtype} {list(stored.shape)}", stored.length_bytes, read)


def _sample(tensor: Tensor) -> bytes:
    """Bytes from the middle of a tensor: rows of untrained tokens and of padding are at its ends."""
    length = min(SAMPLE_BYTES, tensor.length_bytes)
    return tensor.read((tensor.length_bytes - length) // 2, length)
