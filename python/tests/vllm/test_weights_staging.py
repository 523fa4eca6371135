"""Tensors of torch's own, of all kinds that a trainer has, are copied as they are."""

from __future__ import annotations

import pytest

from kv_connector.exceptions import WeightsError
from kv_connector.weights.manifest import ELEMENT_BYTES
from kv_connector.weights.staging import Staging

torch = pytest.importorskip("torch", reason="torch comes with the engine")


def test_tensors_of_all_kinds_are_copied_element_by_element() -> None:
    rows = torch.arange(60, dtype=torch.float32).reshape(5, 12)
    given = {
        "parameter": torch.nn.Parameter(rows.clone()),
        "half": rows.to(torch.bfloat16),
        "turned": rows.t(),
        "strided": rows[:, ::3],
        "expanded": rows[0].expand(4, 12),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 7),
    }
    staging = Staging()
    for factor in (1, 3):
        passed = {name: (tensor.detach() * factor).to(tensor.dtype) for name, tensor in given.items()}
        manifest, memory = staging.take(passed.items() if factor > 1 else given.items())
        for place in manifest.places:
            there = memory.view[place.offset_bytes : place.offset_bytes + place.length_bytes]
            dtype = getattr(torch, place.dtype)
            read = torch.frombuffer(there, dtype=dtype) if place.length_bytes else torch.empty(0, dtype=dtype)
            assert torch.equal(read.reshape(place.shape), passed[place.name]), place.name


@pytest.mark.parametrize("dtype", ELEMENT_BYTES)
def test_the_lengths_of_types_are_torchs(dtype: str) -> None:
    tensor = torch.zeros(3, dtype=torch.uint8).to(getattr(torch, dtype))
    manifest, _ = Staging().take([("x", tensor)])
    assert manifest.places[0].length_bytes == tensor.nbytes


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(3, dtype=torch.complex64), "tensor x has elements of type complex64, expected one of"),
        (torch.zeros(3, device="meta"), "tensor x cannot be copied to this host's memory"),
    ],
)
def test_what_cannot_be_sent_is_named(tensor: torch.Tensor, words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        Staging().take([("x", tensor)])
