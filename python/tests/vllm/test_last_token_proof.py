"""The comparison of rows in real tensors, with backends that place a token in a page in ways of their own."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.naming.row_limits import LIMITS
from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.last_token_proof import LastTokenProof, ProofLayer, StepProofs, proof_layers
from kv_connector.vllm.proof_messages import ComparedToken, Proof, ShadowProof

torch = pytest.importorskip("torch", reason="torch comes with the engine: see the suite that has vLLM")

PAGES, HEADS, PAGE_TOKENS, HEAD = 6, 2, 16, 8
BLOCK_TOKENS = 2 * PAGE_TOKENS
CONTENT = 2 * HEAD


class Packed:
    """K's numbers lie token by token inside each number's place, as vLLM's packing for CPUs does; V in rows behind."""

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, pages: Any, slots: Any) -> None:
        flat = pages.reshape(pages.shape[0], HEADS, 2, PAGE_TOKENS * HEAD)
        for index, slot in enumerate(slots.tolist()):
            page, token = divmod(slot, PAGE_TOKENS)
            place = torch.arange(HEAD) * PAGE_TOKENS + token
            flat[page, :, 0, place] = (key[index] / layer._k_scale_float).to(flat.dtype)
            flat[page, :, 1, token * HEAD : (token + 1) * HEAD] = (value[index] / layer._v_scale_float).to(flat.dtype)


class Rows:
    """K and V side by side in the token's row."""

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, pages: Any, slots: Any) -> None:  # noqa: ARG002
        for index, slot in enumerate(slots.tolist()):
            page, token = divmod(slot, PAGE_TOKENS)
            pages[page, :, token] = torch.cat((key[index], value[index]), dim=-1).to(pages.dtype)


class Unknown:
    """A backend whose function cannot be called."""


BACKENDS = (Packed(), Rows(), Unknown())


class Engine:
    """Layers with pages, and what a pass writes into them."""

    def __init__(self, backend: Any, dtype: Any = None, *, layers: int = 3, scale: float = 1.0) -> None:
        dtype = dtype or torch.float32
        attention = SimpleNamespace(impl=backend, _k_scale_float=scale, _v_scale_float=scale)
        self.attention = attention
        self.names = [f"model.layers.{index}.self_attn.attn" for index in range(layers)]
        self.group = KvGroup(tuple(self.names), BLOCK_TOKENS)
        torch.manual_seed(5)
        self.tensors = {name: torch.randn(PAGES, HEADS, PAGE_TOKENS, CONTENT).to(dtype) for name in self.names}
        self.model_dtype = dtype if dtype in (torch.float32, torch.bfloat16, torch.float16) else torch.bfloat16
        self.proof = LastTokenProof(
            proof_layers(self.tensors, self.names, [self.group], dict.fromkeys(self.names, attention)),
            cache_dtype="auto" if dtype.is_floating_point and dtype.itemsize > 1 else "fp8",
            model_dtype=self.model_dtype,
            limits=LIMITS[str(dtype).removeprefix("torch.")] if dtype.itemsize > 1 else LIMITS["fp8"],
            logger=logging.getLogger("proof"),
        )

    def rows(self, seed: int = 1) -> dict[str, tuple[Any, Any]]:
        torch.manual_seed(seed)
        return {
            name: tuple(torch.randn(1, HEADS, HEAD).to(self.model_dtype) for _ in "KV")  # type: ignore[misc]
            for name in self.names
        }

    def write(self, rows: dict[str, tuple[Any, Any]], slot: int) -> None:
        backend = self.attention.impl if not isinstance(self.attention.impl, Unknown) else Rows()
        for name, (key, value) in rows.items():
            backend.do_kv_cache_update(self.attention, key, value, self.tensors[name], torch.tensor([slot]))


def place(slot: int, **more: Any) -> Proof:
    block, offset = divmod(slot, BLOCK_TOKENS)
    return Proof("r", [(block, offset)], [1, 2], **more)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("slot", [0, 15, 16, 37, 95])
def test_should_find_rows_equal_that_the_pass_writes_again(backend: Any, slot: int) -> None:
    engine = Engine(backend)
    engine.write(engine.rows(), slot)
    engine.proof.keep([place(slot)])
    engine.write(engine.rows(), slot)
    (proved,) = engine.proof.judge()
    assert (proved.judged, proved.worst, proved.finding) == (True, 0.0, "")
    assert not engine.proof.judge(), "each is judged once"


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("slot", [0, 37, 95])
def test_should_find_any_row_that_differs(backend: Any, layer: int, part: int, slot: int) -> None:
    engine = Engine(backend)
    received = engine.rows()
    received[engine.names[layer]][part].mul_(-1.5)
    engine.write(received, slot)
    engine.proof.keep([place(slot)])
    engine.write(engine.rows(), slot)
    (proved,) = engine.proof.judge()
    assert proved.worst > 0.1
    expected = "KV" if isinstance(backend, Unknown) else "KV"[part]
    assert f"{expected} of layer {engine.names[layer]} " in proved.finding


@pytest.mark.parametrize("backend", [Packed(), Rows()], ids=lambda each: type(each).__name__)
def test_should_not_look_at_other_tokens(backend: Any) -> None:
    engine = Engine(backend)
    engine.write(engine.rows(), 5)
    engine.proof.keep([place(5)])
    for other in (4, 6, 21):
        engine.write(engine.rows(other), other)
    engine.write(engine.rows(), 5)
    (proved,) = engine.proof.judge()
    assert (proved.judged, proved.worst) == (True, 0.0)


def test_should_not_compare_whole_pages_into_which_more_is_written() -> None:
    engine = Engine(Unknown())
    engine.proof.keep([place(5, alone=False)])
    engine.write(engine.rows(), 6)
    (proved,) = engine.proof.judge()
    assert not proved.judged


def test_should_compare_all_heads_of_a_latent_row() -> None:
    engine = Engine(Unknown())
    group = KvGroup(tuple(engine.names), BLOCK_TOKENS, latent=True)
    layers = [ProofLayer(name, engine.tensors[name], 0, group, SimpleNamespace()) for name in engine.names]
    proof = LastTokenProof(
        layers,
        cache_dtype="auto",
        model_dtype=torch.float32,
        limits=LIMITS["float32"],
        logger=logging.getLogger("proof"),
    )
    proof.keep([place(37)])
    engine.write(engine.rows(9), 36)
    assert proof.judge()[0].worst == 0.0
    for head in range(HEADS):
        proof.keep([place(37)])
        engine.tensors[engine.names[1]][2, head, 5].neg_()
        assert proof.judge()[0].finding


@pytest.mark.parametrize("backend", [Packed(), Rows()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_should_find_what_the_numbers_say(backend: Any, dtype: str) -> None:
    engine = Engine(backend, getattr(torch, dtype))
    received = engine.rows()
    received[engine.names[1]][0].mul_(1.5)
    engine.write(received, 3)
    engine.proof.keep([place(3)])
    engine.write(engine.rows(), 3)
    (proved,) = engine.proof.judge()
    assert proved.worst == pytest.approx(0.5, rel=0.02)


def test_should_find_other_scales_of_eight_bits() -> None:
    for factor, found in ((1.0, False), (2.0, True)):
        engine = Engine(Packed(), torch.float8_e4m3fn, scale=0.25)
        engine.write(engine.rows(), 3)
        engine.proof.keep([place(3)])
        engine.attention._k_scale_float = 0.25 * factor
        engine.write(engine.rows(), 3)
        (proved,) = engine.proof.judge()
        assert proved.judged
        assert bool(proved.finding) == found, factor


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_should_learn_a_token_s_place_under_any_scale(scale: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = Engine(Packed(), torch.float8_e4m3fn, scale=scale)
    engine.proof.keep([place(3)])
    assert engine.proof.judge()[0].judged
    assert "whole pages" not in caplog.text


def test_should_prove_nothing_by_numbers_of_its_own_that_are_none() -> None:
    engine = Engine(Rows())
    broken = engine.rows()
    broken[engine.names[0]][0].fill_(math.nan)
    engine.proof.keep([place(3)])
    engine.write(broken, 3)
    assert not engine.proof.judge()[0].judged
    engine.write(broken, 3)
    engine.proof.keep([place(3)])
    engine.write(engine.rows(), 3)
    assert engine.proof.judge()[0].worst == math.inf, "received numbers that are none"


def test_should_harm_only_the_request_that_cannot_be_compared() -> None:
    engine = Engine(Rows())
    beyond = Proof("beyond", [(99, 0)], [])
    engine.proof.keep([beyond, place(3)])
    proved = {each.request: each.judged for each in engine.proof.judge()}
    assert proved == {"beyond": False, "r": True}


def test_should_forget_what_was_kept_for_a_pass_that_failed() -> None:
    engine = Engine(Rows())
    engine.proof.keep([place(3)])
    engine.proof.keep([Proof("next", [(0, 4)], [])])
    assert [each.request for each in engine.proof.judge()] == ["next"]


def test_should_name_the_blocks_of_a_request_that_may_fail() -> None:
    for may_fail in (True, False):
        engine = Engine(Rows())
        step = StepProofs(engine.proof)
        step.begin([place(3, may_fail=may_fail)])
        engine.write(engine.rows(8), 3)
        assert step.end() == ({1, 2} if may_fail else set())
        assert step.end() == set()
        assert [bool(each.finding) for each in step.take()[0]] == [True]
        assert step.take() == ([], [])


def beside(*slots: int, alike_around: bool = True) -> ShadowProof:
    """What a pass wrote into block 0 and what was fetched into block 2, at these offsets."""
    return ShadowProof("7", [ComparedToken([(0, slot)], [(2, slot)], alike_around) for slot in slots])


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("different", "found"), [((), False), ((3,), False), ((3, 4), True), ((3, 4, 31), True)])
def test_should_find_a_shadow_fetch_different_by_most_of_its_tokens(
    backend: Any, different: tuple[int, ...], found: bool
) -> None:
    engine = Engine(backend)
    if isinstance(backend, Unknown):
        for tensor in engine.tensors.values():
            tensor[4:6] = tensor[0:2]
    for slot in (3, 4, 31):
        engine.write(engine.rows(slot), slot)
        engine.write(engine.rows(100 if slot in different else slot), 2 * BLOCK_TOKENS + slot)
    proved = engine.proof.compare(beside(3, 4, 31))
    assert proved.judged
    if not isinstance(backend, Unknown):  # whole pages hold each other's tokens
        assert bool(proved.finding) == found
        assert (proved.worst > 0.1) == found
    assert proved.request == "7"
    assert bool(proved.finding) or not found


def test_should_not_compare_a_shadow_fetch_by_whole_pages_that_hold_other_things() -> None:
    engine = Engine(Unknown())
    assert not engine.proof.compare(beside(3, 4, alike_around=False)).judged
    assert engine.proof.compare(beside(3, 4)).judged


def test_should_compare_a_shadow_fetch_only_in_groups_that_have_the_token() -> None:
    engine = Engine(Rows())
    groups = [KvGroup((engine.names[0],), BLOCK_TOKENS), KvGroup(tuple(engine.names[1:]), BLOCK_TOKENS)]
    layers = proof_layers(engine.tensors, engine.names, groups, dict.fromkeys(engine.names, engine.attention))
    proof = LastTokenProof(
        layers,
        cache_dtype="auto",
        model_dtype=torch.float32,
        limits=LIMITS["float32"],
        logger=logging.getLogger("proof"),
    )
    engine.write(engine.rows(), 3)
    engine.write(engine.rows(), 2 * BLOCK_TOKENS + 3)
    engine.tensors[engine.names[0]][4].neg_()
    only_second = ShadowProof("7", [ComparedToken([None, (0, 3)], [None, (2, 3)], True)])
    assert not proof.compare(only_second).finding
    assert proof.compare(ShadowProof("7", [ComparedToken([(0, 3)] * 2, [(2, 3)] * 2, True)])).finding
    assert not proof.compare(ShadowProof("7", [ComparedToken([None, None], [None, None], True)])).judged


def test_should_report_shadow_fetches_beside_requests() -> None:
    engine = Engine(Rows())
    step = StepProofs(engine.proof)
    step.begin([place(3)], [beside(3)])
    step.begin([place(3)], [ShadowProof("8", [ComparedToken([(99, 0)], [(0, 0)], True)])])
    assert step.end() == set()
    requests, shadows = step.take()
    assert [each.request for each in requests] == ["r"]
    assert {each.request: each.judged for each in shadows} == {"7": True, "8": False}, "a fault is its own"
    assert step.take() == ([], [])
    unable = StepProofs()
    unable.begin([], [beside(3)])
    unable.end()
    assert [each.judged for each in unable.take()[1]] == [False]


def test_should_not_compare_layers_of_which_the_engine_has_no_object() -> None:
    engine = Engine(Rows())
    assert not proof_layers(engine.tensors, engine.names, [engine.group], dict.fromkeys(engine.names))


def test_should_leave_out_states_and_layers_without_pages() -> None:
    engine = Engine(Rows())
    state = KvGroup(("model.layers.9.mixer",), 1 << 30, state=True)
    names = [*engine.names, "model.layers.9.mixer", "model.layers.8.shares"]
    built = dict.fromkeys(names, engine.attention)
    found = proof_layers(engine.tensors, names, [state, engine.group], built)
    assert [layer.name for layer in found] == engine.names
    assert {layer.table for layer in found} == {1}
