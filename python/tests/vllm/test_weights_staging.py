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


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_elements_that_are_not_finite_are_counted_and_sent_as_they_are(dtype: str, value: str) -> None:
    if dtype == "float8_e4m3fn" and value != "nan":
        value = "nan"  # it has no infinity
    bad = torch.ones(4, 5)
    bad[1, 2] = bad[3, 4] = float(value)
    staging = Staging()
    given = [
        ("good", torch.ones(3)),
        ("bad", bad.to(getattr(torch, dtype))),
        ("count", torch.ones(2, dtype=torch.int8)),
    ]
    manifest, memory = staging.take(given)
    assert staging.not_finite().startswith("2 elements of 1 tensors are NaN or infinite, the first 2 of them in bad:")
    place = manifest.places[1]
    there = bytes(memory.view[place.offset_bytes : place.offset_bytes + place.length_bytes])
    assert there == given[1][1].view(torch.uint8).numpy().tobytes()
    staging.take([("good", torch.ones(3)), ("bad", torch.ones(4, 5).to(getattr(torch, dtype))), given[2]])
    assert staging.not_finite() == ""


def test_a_sum_that_overflows_is_of_finite_elements() -> None:
    staging = Staging()
    staging.take([("large", torch.full((8,), 60_000, dtype=torch.float16)), ("empty", torch.empty(0))])
    assert staging.not_finite() == ""


def test_both_infinities_are_seen_though_they_cancel() -> None:
    staging = Staging()
    staging.take([("both", torch.tensor([float("inf"), float("-inf"), 1.0]))])
    assert staging.not_finite().startswith("2 elements of 1 tensors")
