"""Names a LoRA adapter by its name and by samples of its files, alike for every engine that has the same ones.

An adapter is trained again and put under the same name, on one host before the other: KV computed with the one gives
wrong tokens with the other, and the name does not tell. Read when a file is first seen and when it has changed;
callable from any thread.

Not covered: an adapter in other files than safetensors, or one that only the engine can reach (those are told apart by
name alone), and a file that has changed before the engine loads it again, where its loads are not looked at (vLLM).
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kv_connector.weights_digest import Tensor, digest_of_files, digest_of_tensors, folder_of

logger = logging.getLogger(__name__)

KNOWN_MAX = 1024
"""Adapters whose digests are kept; one that is read again costs a few milliseconds."""
_WEIGHTS = "adapter_model.safetensors"
_SETTINGS = "adapter_config.json"
_SCALES = ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
"""How an adapter's matrices are multiplied and scaled; the other settings say where it came from."""

_KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
"""What safetensors calls torch's types."""

_Stamp = tuple[int, int, int] | None


def adapter_identity(name: str, path: str) -> str:
    """The name, and the digest of the files in the folder ``path`` (or of that repository's local copy) where known."""
    digest = _digest(path, tuple(_stamp(path, file) for file in (_WEIGHTS, _SETTINGS))) if path else ""
    return f"{name}\n{digest}" if digest else name


def identity_of_tensors(name: str, tensors: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The same of an adapter that an engine was given as torch's tensors, by the names that its file would have."""
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


def _stamp(path: str, file: str) -> _Stamp:
    try:
        said = (Path(path).expanduser() / file).stat()
    except (OSError, ValueError, RuntimeError):
        return None
    return said.st_mtime_ns, said.st_size, said.st_ino


@functools.lru_cache(KNOWN_MAX)
def _digest(path: str, _stamps: tuple[_Stamp, ...]) -> str:
    """What is not known is kept as well, so that it is looked for and logged once."""
    try:
        folder = folder_of(str(Path(path).expanduser()), None, None)
        settings = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        return digest_of_files([folder / _WEIGHTS], _scales(settings))
    except Exception as unknown:
        logger.info("the adapter in %s is identified by its name only: %s", path, unknown)
        return ""
