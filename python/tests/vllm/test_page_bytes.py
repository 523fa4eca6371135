"""What vLLM's own functions write into pages, run for each backend, layout and number format of each release."""

from __future__ import annotations

import ast
import importlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from release import Release

torch = pytest.importorskip("torch", reason="torch comes with the engine")

BACKENDS = "vllm.v1.attention.backends"
LATENT_WRITER = "vllm.v1.attention.backend.MLAAttentionImpl.do_kv_cache_update"
FLASH_INFER = f"{BACKENDS}.flashinfer.FlashInferImpl.do_kv_cache_update"
HEADED = [
    f"{BACKENDS}.flash_attn.FlashAttentionImpl.do_kv_cache_update",
    FLASH_INFER,
    f"{BACKENDS}.flex_attention.FlexAttentionImpl.do_kv_cache_update",
    f"{BACKENDS}.triton_attn.TritonAttentionImpl.do_kv_cache_update",
]
WRITERS = [*HEADED, LATENT_WRITER]
PAGES, HEADS, TOKENS, SIZE = 3, 2, 4, 8
LATENT, ROPE = 6, 2
SLOTS = torch.tensor([1, 4, 5, 6, 7, 8])
SCALE = 0.5
LAYOUTS = {"HND": (0, 1, 2, 3), "NHD": (0, 2, 1, 3)}
"""The order of (pages, heads, tokens, content) in memory."""
FORMATS = {
    "auto": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8": torch.uint8,
    "fp8_e4m3": torch.uint8,
    "fp8_e5m2": torch.uint8,
}
"""vLLM's names of number formats, with the element type of the pages' tensor."""
UNKNOWN = ("fp8_e5m2", "nvfp4", "int8_per_token_head", "fp8_per_token_head", "turboquant_k8v4", "fp8_inc")
FP8 = torch.float8_e4m3fn


def stored(cache: Any, slots: Any, rows: Any, cache_dtype: str, scale: Any) -> None:
    """What vLLM's operators do for a tensor of rows: a row at each slot, in the number format that is named."""
    if cache_dtype.startswith("fp8"):
        element = torch.float8_e5m2 if cache_dtype == "fp8_e5m2" else FP8
        element = cache.dtype if cache.dtype != torch.uint8 else element
        cache, rows = cache.view(element), (rows / scale).to(element)
    for slot, row in zip(slots.tolist(), rows, strict=True):
        cache[slot // cache.shape[1], slot % cache.shape[1]].view(torch.uint8).copy_(
            row.to(cache.dtype).view(torch.uint8)
        )


def reshape_and_cache_flash(key: Any, value: Any, keys: Any, values: Any, slots: Any, dtype: str, *scales: Any) -> None:
    for rows, cache, scale in ((key, keys, scales[0]), (value, values, scales[1])):
        stored(cache, slots, rows, dtype, scale)


def concat_and_cache_mla(*given: Any, kv_cache_dtype: str, scale: Any, **_: Any) -> None:
    latent, rope, cache, slots = given
    stored(cache, slots, torch.cat([latent, rope], dim=-1), kv_cache_dtype, scale)


class ScaledOperators:
    """In place of `torch.ops` in a function of vLLM's."""

    _C_cache_ops = SimpleNamespace(reshape_and_cache_flash=reshape_and_cache_flash)


def writer(folder: Path, name: str) -> Any:
    """A class with vLLM's function in it, as the folder's sources have it, and this test's operators behind it."""
    module, of_class, function = name.rsplit(".", 2)
    path = folder / Path(*module.split(".")).with_suffix(".py")
    classes = [each for each in ast.parse(path.read_text("utf-8")).body if isinstance(each, ast.ClassDef)]
    found = next(each for each in classes if each.name == of_class)
    found.bases, found.decorator_list, found.keywords = [], [], []
    found.body = [each for each in found.body if isinstance(each, ast.FunctionDef) and each.name == function]
    assert found.body, f"{path} has no {name}"
    names = {
        "__name__": module,
        "torch": SimpleNamespace(ops=ScaledOperators),
        "AttentionType": SimpleNamespace(ENCODER_ONLY=1, ENCODER=2),
        "is_quantized_kv_cache": lambda dtype: dtype.startswith("fp8"),
        "reshape_and_cache_flash": reshape_and_cache_flash,
        "triton_reshape_and_cache_flash": reshape_and_cache_flash,
    }
    source = "from __future__ import annotations\n" + ast.unparse(found)
    source = source.replace("from vllm import _custom_ops as ops", "ops = OPS")
    names["OPS"] = SimpleNamespace(concat_and_cache_mla=concat_and_cache_mla)
    exec(compile(source, str(path), "exec"), names)
    return names[of_class]


def layer_of(implementation: Any, cache_dtype: str, **changed: Any) -> SimpleNamespace:
    """A layer with what vLLM's have, and its implementation with what vLLM's functions read."""
    made = implementation()
    made.__dict__.update(
        attn_type=0,
        head_size=SIZE,
        num_kv_heads=HEADS,
        kv_sharing_target_layer_name=None,
        nvfp4_fa2=False,
        is_kvcache_nvfp4=False,
        _is_per_token_head_quant=False,
        _set_kv_ptr_range=False,
        fp8_dtype=FP8,
        kv_cache_dtype=cache_dtype,
        cache_dtype=cache_dtype,
    )
    backend = SimpleNamespace(forward_includes_kv_cache_update=False, get_name=lambda: implementation.__name__)
    scale = torch.tensor(SCALE)
    given = {"head_size": SIZE, "head_size_v": SIZE, "kv_cache_dtype": cache_dtype, "_k_scale": scale}
    return SimpleNamespace(**{"impl": made, "attn_backend": backend, "_v_scale": 2 * scale, **given, **changed})


def empty_pages(layout: str, cache_dtype: str) -> Any:
    sizes, order = (PAGES, HEADS, TOKENS, 2 * SIZE), LAYOUTS[layout]
    memory = torch.zeros([sizes[axis] for axis in order], dtype=FORMATS[cache_dtype])
    return memory.permute([order.index(axis) for axis in range(4)])


@dataclass(frozen=True)
class Installed:
    """A release, with the module under test on top of it."""

    release: Release
    module: Any

    def layer(self, name: str, cache_dtype: str, **changed: Any) -> SimpleNamespace:
        return layer_of(writer(self.release.folder, name), cache_dtype, **changed)

    def named(self, layer: Any, release: str = "") -> str:
        fp8 = str(FP8).removeprefix("torch.")
        found: str = self.module.page_bytes({"layer": layer}, ["layer"], release or self.release.name, lambda: fp8)
        return found

    def written(self, name: str, layout: str, cache_dtype: str) -> tuple[str, bytes]:
        """The name of what pages hold, and those pages."""
        layer, pages = self.layer(name, cache_dtype), empty_pages(layout, cache_dtype)
        generator = torch.Generator().manual_seed(7)
        dtype = torch.float16 if cache_dtype == "float16" else torch.bfloat16
        key, value = (torch.randn((len(SLOTS), HEADS, SIZE), generator=generator).to(dtype) for _ in "kv")
        layer.impl.do_kv_cache_update(layer, key, value, pages, SLOTS)
        memory = pages.permute(LAYOUTS[layout])
        assert memory.is_contiguous()
        return self.named(layer), memory.view(torch.uint8).numpy().tobytes()

    def latent_written(self, cache_dtype: str) -> tuple[str, bytes]:
        layer = self.layer(LATENT_WRITER, cache_dtype)
        pages = torch.zeros((PAGES, TOKENS, LATENT + ROPE), dtype=FORMATS[cache_dtype])
        generator = torch.Generator().manual_seed(7)
        latent = torch.randn((len(SLOTS), LATENT), generator=generator).to(torch.bfloat16)
        rope = torch.randn((len(SLOTS), 1, ROPE), generator=generator).to(torch.bfloat16)
        layer.impl.do_kv_cache_update(latent, rope, pages, SLOTS, cache_dtype, layer._k_scale)
        return self.named(layer), pages.view(torch.uint8).numpy().tobytes()


@pytest.fixture
def installed(vllm_release: Release) -> Installed:
    module = importlib.import_module(f"{vllm_release.package.__name__}.page_bytes")
    assert sorted(module.WRITERS) == sorted(WRITERS)
    return Installed(vllm_release, module)


@pytest.mark.parametrize("cache_dtype", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_should_name_pages_alike_only_if_their_bytes_are(installed: Installed, layout: str, cache_dtype: str) -> None:
    made = {name: installed.written(name, layout, cache_dtype) for name in HEADED}
    for (_, (one, its)), (_, (other, others)) in itertools.combinations(made.items(), 2):
        assert not one or one != other or its == others
    assert {bool(held) for held, _ in made.values()} == {cache_dtype not in UNKNOWN}
    assert all(any(pages) for _, pages in made.values())
    if cache_dtype == "fp8_e5m2":
        assert len({pages for _, pages in made.values()}) == 2, "what one name of a format hides: Triton's is another"


def test_should_name_no_two_formats_or_shapes_alike(installed: Installed) -> None:
    names = {held for dtype in FORMATS for held in (installed.written(HEADED[0], "HND", dtype)[0],) if held}
    latent = {held for dtype in FORMATS for held in (installed.latent_written(dtype)[0],) if held}
    assert names == {"key|value", "key|value float8_e4m3fn"}
    assert latent == {"latent|rope", "latent|rope float8_e4m3fn"}


def test_should_lay_a_tokens_latent_vector_before_its_rope(installed: Installed) -> None:
    _, pages = installed.latent_written("auto")
    rows = torch.frombuffer(bytearray(pages), dtype=torch.bfloat16).view(PAGES * TOKENS, LATENT + ROPE)
    assert [int(slot) for slot in rows.any(dim=1).nonzero()] == SLOTS.tolist()
    assert rows[SLOTS].all()


@pytest.mark.parametrize("cache_dtype", UNKNOWN)
@pytest.mark.parametrize("name", WRITERS)
def test_should_keep_the_backends_name_for_a_format_that_it_does_not_know(
    installed: Installed, name: str, cache_dtype: str
) -> None:
    assert installed.named(installed.layer(name, cache_dtype)) == ""


@pytest.mark.parametrize("scale", ["_k_scale", "_v_scale"])
@pytest.mark.parametrize("name", WRITERS)
def test_should_keep_the_backends_name_where_each_head_has_a_scale(installed: Installed, name: str, scale: str) -> None:
    heads = {scale: torch.ones(HEADS)}
    assert installed.named(installed.layer(name, "fp8", **heads)) == ""
    assert installed.named(installed.layer(name, "auto", **heads)) != ""


def kernels_write() -> SimpleNamespace:
    return SimpleNamespace(forward_includes_kv_cache_update=True, get_name=lambda: "WRITES")


@pytest.mark.parametrize("name", HEADED)
def test_should_keep_the_backends_name_where_something_else_decides(installed: Installed, name: str) -> None:
    known = writer(installed.release.folder, name)

    class Overriding(known):  # type: ignore[misc]
        def do_kv_cache_update(self) -> None:
            """Another function than vLLM's."""

    class Inheriting(known):  # type: ignore[misc]
        """Of a backend with other metadata and the same pages."""

    assert installed.named(layer_of(Inheriting, "auto")) == installed.named(layer_of(known, "auto")) != ""
    assert installed.named(layer_of(Overriding, "auto")) == ""
    assert installed.named(layer_of(known, "auto", head_size_v=SIZE // 2)) == ""
    assert installed.named(layer_of(known, "auto", attn_backend=kernels_write())) == ""
    assert installed.named(layer_of(known, "auto"), "0.99.0") == ""
    assert installed.named(None) == ""


def test_should_name_layers_that_it_does_not_know_beside_those_that_it_does(installed: Installed) -> None:
    known = installed.layer(HEADED[0], "auto")
    state = SimpleNamespace(attn_backend=SimpleNamespace(get_name=lambda: "MAMBA2_ATTN"))
    layers = {"a": known, "b": state, "c": known}
    assert installed.module.page_bytes(layers, "abc", "0.33.0", str) == "MAMBA2_ATTN+key|value"
    assert installed.module.page_bytes(layers, "b", "0.33.0", str) == ""
