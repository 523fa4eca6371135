"""What two trainings of one model are told apart by: files written here by hand, as safetensors lays them out."""

from __future__ import annotations

import json
import logging
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kv_connector.naming.weights_digest import Tensor, digest_of_tensors, digest_of_weights, weights_digest

NAMES = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(6) for part in "qkv"]


def trained(seed: int, length_bytes: int = 20_000) -> dict[str, bytes]:
    draw = random.Random(seed)
    return {name: draw.randbytes(length_bytes) for name in NAMES}


def write(file: Path, tensors: Mapping[str, bytes], dtype: str = "F32") -> None:
    begin, header = 0, {"__metadata__": {"format": "pt"}}
    for name, content in tensors.items():
        header[name] = {  # type: ignore[assignment]
            "dtype": dtype,
            "shape": [len(content) // 4],
            "data_offsets": [begin, begin + len(content)],
        }
        begin += len(content)
    header_bytes = json.dumps(header).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(struct.pack("<Q", len(header_bytes)) + header_bytes + b"".join(tensors.values()))


def in_files(folder: Path, tensors: Mapping[str, bytes], *parts: Sequence[str]) -> Path:
    """So many files, with the index that says which tensor lies where."""
    placed = {}
    for number, names in enumerate(parts):
        write(folder / f"model-{number}.safetensors", {name: tensors[name] for name in names})
        placed |= dict.fromkeys(names, f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder


def test_should_distinguish_two_trainings_but_not_a_copy(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("copy", 1), ("other", 2)):
        write(tmp_path / name / "model.safetensors", trained(seed))
    one, copy, other = (weights_digest(tmp_path / name) for name in ("one", "copy", "other"))
    assert one == copy
    assert one != other


@pytest.mark.parametrize("changed", [NAMES[0], NAMES[7], NAMES[-1]])
def test_should_see_a_change_in_the_middle_of_any_tensor(tmp_path: Path, changed: str) -> None:
    before = trained(1)
    content = bytearray(before[changed])
    content[len(content) // 2] ^= 1
    write(tmp_path / "before" / "model.safetensors", before)
    write(tmp_path / "after" / "model.safetensors", before | {changed: bytes(content)})
    assert weights_digest(tmp_path / "before") != weights_digest(tmp_path / "after")


def test_should_not_heed_into_how_many_files_they_were_put(tmp_path: Path) -> None:
    tensors = trained(1)
    write(tmp_path / "one" / "model.safetensors", tensors)
    (tmp_path / "three").mkdir()
    three = in_files(tmp_path / "three", tensors, NAMES[9:], NAMES[:4], NAMES[4:9])
    assert weights_digest(three) == weights_digest(tmp_path / "one")


def test_should_not_heed_the_same_weights_in_another_naming_beside_them(tmp_path: Path) -> None:
    write(tmp_path / "plain" / "model.safetensors", trained(1))
    write(tmp_path / "both" / "model.safetensors", trained(1))
    write(tmp_path / "both" / "consolidated.safetensors", {"layers.0.wq": b"1234"})
    assert weights_digest(tmp_path / "both") == weights_digest(tmp_path / "plain")


def test_should_distinguish_other_types(tmp_path: Path) -> None:
    write(tmp_path / "a" / "model.safetensors", trained(1), "F32")
    write(tmp_path / "b" / "model.safetensors", trained(1), "I32")
    assert weights_digest(tmp_path / "a") != weights_digest(tmp_path / "b")


@pytest.mark.parametrize("content", [None, b"", b"12345678", struct.pack("<Q", 1 << 40), struct.pack("<Q", 2) + b"[]"])
def test_should_not_know_what_it_cannot_read(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with caplog.at_level(logging.INFO):
        assert digest_of(str(tmp_path)) == ""
    assert "are not compared" in caplog.text


def test_should_not_compare_weights_that_no_file_has(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", trained(1))
    assert digest_of(str(tmp_path), "dummy") == ""
    assert digest_of(str(tmp_path)) == weights_digest(tmp_path)


def digest_of(model: str, load_format: str = "auto") -> str:
    return digest_of_weights(
        model, revision=None, cache_folder=None, load_format=load_format, logger=logging.getLogger("kv_messenger")
    )


ATTENTION, MLP = [f"self_attn.{part}_proj" for part in "qkvo"], [f"mlp.{part}_proj" for part in ("gate", "up", "down")]


@dataclass(frozen=True)
class Shape:
    """What repeats in a model or an adapter: modules in each layer, and in each of a layer's experts."""

    layers: int
    modules: Sequence[str]
    experts: int = 0
    ends: Sequence[str] = ("weight",)

    def kinds(self) -> list[list[str]]:
        """The names of all layers' tensors, kind by kind."""
        layers = [f"model.layers.{layer}" for layer in range(self.layers)]
        experts = [f"{layer}.mlp.experts.{number}" for layer in layers for number in range(self.experts)]
        of_layers = [[f"{at}.{module}.{end}" for at in layers] for module in self.modules for end in self.ends]
        of_experts = [[f"{at}.{part}.{end}" for at in experts] for part in ("w1", "w2", "w3") for end in self.ends]
        return [*of_layers, *(of_experts if experts else [])]


ADAPTED = ("lora_A.weight", "lora_B.weight")
NORMS = ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"]


def shapes() -> list[Shape]:
    """Those of known models whose kinds even steps miss, and others by chance."""
    draw = random.Random(7)
    modules = [*ATTENTION, *MLP, *NORMS]
    return [
        Shape(64, ATTENTION, ends=ADAPTED),  # of Qwen2.5-32B: each second tensor is a lora_A
        Shape(32, [*ATTENTION, *MLP], ends=ADAPTED),
        Shape(48, ATTENTION, experts=128, ends=ADAPTED),
        Shape(48, [*ATTENTION, "mlp.gate", *NORMS], experts=128),  # Qwen3-30B-A3B
        *(
            Shape(
                draw.randint(2, 130),
                draw.sample(modules, draw.randint(1, len(modules))),
                draw.choice((0, 0, 3, 8, 16)),
                draw.choice((("weight",), ("weight", "bias"), ADAPTED)),
            )
            for _ in range(30)
        ),
    ]


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_should_see_a_training_of_one_kind_of_tensor(shape: Shape) -> None:
    """As by a merged adapter of some modules, perhaps in a half of the layers, or one of which a half is frozen."""
    kinds, read = shape.kinds(), set[str]()

    def tensor(name: str) -> Tensor:
        def sample(_position: int, length: int) -> bytes:
            read.add(name)
            return bytes(length)

        return Tensor("F32 [2]", 8, sample)

    digest_of_tensors({name: tensor(name) for kind in kinds for name in kind})
    halves = [half for kind in kinds for half in (kind[: (len(kind) + 1) // 2], kind[len(kind) // 2 :])]
    missed = [f"{len(half)} such as {half[0]}" for half in halves if read.isdisjoint(half)]
    assert not missed
    assert len(read) <= 256 + 8 * len(kinds)


def test_should_name_models_without_experts_as_earlier_builds_do(tmp_path: Path) -> None:
    """Peers of another build compare the whole: what even steps see well enough has no other name now."""
    write(tmp_path / "model.safetensors", trained(1))
    assert weights_digest(tmp_path) == "db3a0f0eb3e024ea"
    dense = Shape(80, [*ATTENTION, *MLP, *NORMS[:2]]).kinds()
    tensors = {name: Tensor("BF16 [1]", 2, lambda _position, length: b"7" * length) for kind in dense for name in kind}
    assert digest_of_tensors(tensors) == "2a46b8ed3bc2e34b"
