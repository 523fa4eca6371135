"""Identifies a LoRA adapter by its name and by samples of its files; equal for all engines with the same files.

A retrained adapter may replace another under the same name, on one host before the other. KV that was computed with one
gives wrong tokens with the other, and the name does not show that. Files are read when they are first seen and after
they have changed. Callable from any thread.

An adapter that is named by its repository is the newest copy of it on this host, which the engine loads too.

Not covered: adapters in other files, or which only the engine can access (these are distinguished by name only), and a
file that changes before the engine loads it again, if loads are not observed (vLLM).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kv_connector.naming.torch_files import parts_of
from kv_connector.naming.weights_digest import Tensor, digest_of_files, digest_of_tensors

logger = logging.getLogger(__name__)

KNOWN_MAX = 1024
"""The number of adapters whose digests are cached; reading one again takes a few milliseconds."""
_WEIGHTS = "adapter_model.safetensors"
_OF_TORCH = ("adapter_model.bin", "adapter_model.pt")
"""What engines read where there is no safetensors file, in their order."""
_SETTINGS = "adapter_config.json"
_SCALES = ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
"""The settings that determine how an adapter's matrices are applied; the others describe its origin."""

_KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
"""The names of torch's types in safetensors."""

_Stamp = tuple[int, int, int] | None


def adapter_identity(name: str, path: str) -> str:
    """The name and, if known, the digest of the files in folder ``path`` (or of that repository's local copy)."""
    digest = _digest(*_found(path)) if path else ""
    return f"{name}\n{digest}" if digest else name


def identity_of_tensors(name: str, tensors: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The identity of an adapter that an engine got as torch tensors, named as they would be in a file."""
    digest = digest_of_tensors({key: _tensor(tensor) for key, tensor in tensors.items()}, _scales(settings))
    return f"{name}\n{digest}"


def _tensor(tensor: Any) -> Tensor:
    torch = importlib.import_module("torch")
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    kind = str(tensor.dtype).removeprefix("torch.")
    return Tensor(
        f"{_KINDS.get(kind, kind)} {list(tensor.shape)}",
        data.nbytes,
        lambda position, length: data[position : position + length].tobytes(),
    )


def _scales(settings: Mapping[str, Any]) -> str:
    return json.dumps({key: settings.get(key) for key in _SCALES}, sort_keys=True)


def _found(path: str) -> tuple[str, tuple[_Stamp, ...]]:
    """The folder and the state of its files now."""
    folder = _folder(path)
    return folder, tuple(_stamp(folder, file) for file in (_WEIGHTS, *_OF_TORCH, _SETTINGS))


def _folder(path: str) -> str:
    """The folder itself, or the repository's newest copy on this host, which another load may have fetched since."""
    with contextlib.suppress(Exception):
        local = Path(path).expanduser()
        if local.is_dir():
            return str(local)
        copied = importlib.import_module("huggingface_hub").try_to_load_from_cache(path, _SETTINGS)
        if isinstance(copied, str):
            return str(Path(copied).parent)
    return path


def _stamp(folder: str, file: str) -> _Stamp:
    try:
        status = (Path(folder) / file).stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@functools.lru_cache(KNOWN_MAX)
def _digest(folder: str, _stamps: tuple[_Stamp, ...]) -> str:
    """The cached digest; failures are cached too, so that files are read and the failure logged only once."""
    try:
        scales = _scales(json.loads((Path(folder) / _SETTINGS).read_text(encoding="utf-8")))
        of_torch = [file for name in _OF_TORCH if (file := Path(folder) / name).is_file()]
        if of_torch and not (Path(folder) / _WEIGHTS).is_file():
            return digest_of_tensors(parts_of(of_torch[0]), scales)
        return digest_of_files([Path(folder) / _WEIGHTS], scales)
    except Exception as unknown:
        logger.info("the adapter in %s is identified by its name only: %s", folder, unknown)
        return ""
