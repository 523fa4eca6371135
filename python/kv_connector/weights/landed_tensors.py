"""The tensors of a landing, as an engine's loader takes them. torch is imported when they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from kv_connector.weights.manifest import Manifest


def tensors_of(manifest: Manifest, landing: memoryview) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of all of them, each a view of the landing."""
    import torch

    for place in manifest.places:
        part = landing[place.offset_bytes : place.offset_bytes + place.length_bytes]
        dtype = getattr(torch, place.dtype)
        flat = torch.frombuffer(part, dtype=dtype) if part else torch.empty(0, dtype=dtype)
        yield place.name, flat.reshape(place.shape)


def part_from_landing(model: Any, landing: memoryview) -> None:
    """Copies what a loader took as it was: it would change with the next version that lands."""
    import torch

    whole = torch.frombuffer(landing, dtype=torch.uint8)
    begin, end = whole.data_ptr(), whole.data_ptr() + whole.numel()
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.layout is torch.strided and begin <= tensor.data_ptr() < end:
            tensor.data = tensor.data.clone()
