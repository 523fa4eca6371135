"""Compares received KV with what this engine computes for the same tokens, on one rank.

A decoder computes the last prompt token again, into the place where the prefiller's KV of that token lies. The received
rows are copied before the pass overwrites them, and compared after it. Of a shadow fetch several tokens are compared,
which lie in blocks of their own. Used by the worker's main thread only; moves no
page and changes none. It decides about one request; ``PairProofs`` decides about the pair of engines.
"""

from __future__ import annotations

import importlib
import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.naming.row_limits import Limits, Part, RowDifference, compared, first_finding, limits_of, worst_of
from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.proof_messages import ComparedToken, Place, Proof, Proved, ShadowProof

_FP8_FORMATS = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


@dataclass(frozen=True, slots=True)
class ProofLayer:
    """A layer whose rows are compared."""

    name: str
    tensor: Any
    """Its pages: (pages, heads, tokens, content)."""
    table: int
    """The index of its KV cache group."""
    group: KvGroup
    attention: Any
    """The engine's own layer, whose backend writes K and V into pages; None if there is none."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """The elements of one token's slot in a page, as indices into the flattened page, part by part."""

    parts: tuple[Part, ...]
    counts: tuple[int, ...]
    elements: Any
    whole_page: bool = False


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of layers whose slots have the same elements, one below the other."""

    layers: Sequence[ProofLayer]
    slot: _Slot
    numbers: Any


class LastTokenProof:
    """The rows that were kept for the current step, and their comparison after it."""

    def __init__(
        self,
        layers: Sequence[ProofLayer],
        *,
        cache_dtype: str,
        model_dtype: Any,
        limits: Limits,
        logger: logging.Logger,
    ) -> None:
        self._torch = importlib.import_module("torch")
        self._layers = layers
        self._as_float = _FP8_FORMATS.get(cache_dtype)
        self._model_dtype = model_dtype
        self._limits = limits
        self._logger = logger
        self._slots: dict[tuple[object, ...], _Slot] = {}
        self._kept: dict[str, tuple[Proof, list[_Rows]]] = {}
        self._noted_opaque = False

    def keep(self, proofs: Sequence[Proof]) -> None:
        """Copies the received rows; called before the pass that overwrites them."""
        self._kept.clear()  # those of a pass that failed
        for proof in proofs:
            rows: list[_Rows] = []
            try:
                rows = self._rows(proof.places, alike_around=proof.alone)
            except Exception:
                self._logger.exception("the last token of request %s is not compared", proof.request)
            self._kept[proof.request] = proof, rows

    def judge(self) -> list[Proved]:
        """Compares the rows that were kept with those that the pass has written; once for each proof."""
        kept, self._kept = self._kept, {}
        return [self._judged(proof, rows) for proof, rows in kept.values()]

    def _judged(self, proof: Proof, received: Sequence[_Rows]) -> Proved:
        try:
            differences = self._compared_again(proof, received) if received else []
        except Exception:
            self._logger.exception("the last token of request %s could not be compared", proof.request)
            differences = []
        if not differences:
            return Proved(proof.request, judged=False)
        finding = first_finding(differences, self._limits)
        return Proved(proof.request, True, worst_of(differences), finding.sentence if finding else "")

    def _compared_again(self, proof: Proof, received: Sequence[_Rows]) -> list[RowDifference]:
        return self._differences(received, self._rows(proof.places, alike_around=proof.alone))

    def compare(self, shadow: ShadowProof) -> Proved:
        """Compares the tokens of a shadow fetch; called when both sides' KV of them is there.

        Most of them have to differ: right engines may send a single token to different experts.
        """
        seen = [differences for token in shadow.tokens if (differences := self._of_token(token))]
        if not seen:
            return Proved(shadow.request, judged=False)
        findings = [found for differences in seen if (found := first_finding(differences, self._limits))]
        sentence = findings[-1].sentence if 2 * len(findings) > len(seen) else ""
        return Proved(shadow.request, True, statistics.median_low(map(worst_of, seen)), sentence)

    def _of_token(self, token: ComparedToken) -> list[RowDifference]:
        own = self._rows(token.own, alike_around=token.alike_around)
        return self._differences(self._rows(token.received, alike_around=token.alike_around), own)

    def _differences(self, received: Sequence[_Rows], own: Sequence[_Rows]) -> list[RowDifference]:
        """Empty if one of this engine's own numbers is NaN: then a comparison proves nothing."""
        differences = []
        for theirs, ours in zip(received, own, strict=True):
            start = 0
            for part, count in zip(ours.slot.parts, ours.slot.counts, strict=True):
                place = slice(start, start + count)
                start += count
                for layer, sums in zip(
                    ours.layers, self._sums(theirs.numbers[:, place], ours.numbers[:, place]), strict=True
                ):
                    if math.isnan(sums[1]):
                        return []
                    differences.append(compared(layer.name, part, sums))
        return differences

    def _sums(self, received: Any, own: Any) -> list[list[float]]:
        """For each layer what ``compared`` takes, computed on the device and fetched at once."""
        a, b = self._floats(received), self._floats(own)
        sums = ((a - b).abs().amax(1), b.abs().amax(1), (a * b).sum(1), (a * a).sum(1), (b * b).sum(1))
        fetched: list[list[float]] = self._torch.stack(sums, dim=1).tolist()
        return fetched

    def _floats(self, numbers: Any) -> Any:
        if self._as_float is not None:
            numbers = numbers.contiguous().view(getattr(self._torch, self._as_float))
        return numbers.to(self._torch.float32)

    # ---- where a token lies

    def _rows(self, places: Sequence[Place | None], *, alike_around: bool) -> list[_Rows]:
        """Layers with the same slot are copied together: a layer at a time would cost as many calls as there are."""
        alike: dict[int, tuple[_Slot, list[ProofLayer], list[int]]] = {}
        for layer in self._layers:
            if (place := places[layer.table]) is None:
                continue
            page, offset = self._place(layer, place)
            slot = self._slot(layer, offset)
            _, layers, pages = alike.setdefault(id(slot), (slot, [], []))
            layers.append(layer)
            pages.append(page)
            if slot.whole_page and not alike_around:
                return []  # other tokens of the page differ
        rows = []
        for slot, layers, pages in alike.values():
            held = (layer.tensor[page].reshape(-1) for layer, page in zip(layers, pages, strict=True))
            numbers = self._torch.stack([page.index_select(0, slot.elements) for page in held])
            rows.append(_Rows(layers, slot, numbers))
        return rows

    @staticmethod
    def _place(layer: ProofLayer, place: Place) -> Place:
        """(page, slot in it) of a token."""
        page_tokens = int(layer.tensor.shape[2])
        block, offset = place
        return block * (layer.group.block_tokens // page_tokens) + offset // page_tokens, offset % page_tokens

    def _slot(self, layer: ProofLayer, offset: int) -> _Slot:
        tensor = layer.tensor
        key = (tuple(tensor.shape[1:]), tuple(tensor.stride()[1:]), str(tensor.dtype), layer.group.latent, offset)
        if (known := self._slots.get(key)) is None:
            known = self._slots[key] = self._latent(layer, offset) if layer.group.latent else self._learn(layer, offset)
        return known

    def _latent(self, layer: ProofLayer, offset: int) -> _Slot:
        """All heads hold the same token at the same offset."""
        torch, tensor = self._torch, layer.tensor
        chosen = torch.zeros(tuple(tensor.shape[1:]), dtype=torch.bool, device=tensor.device)
        chosen[:, offset] = True
        elements = chosen.reshape(-1).nonzero().flatten()
        return _Slot(("KV",), (len(elements),), elements)

    def _learn(self, layer: ProofLayer, offset: int) -> _Slot:
        """Writes a token into an empty page with the backend's own function: a slot need not be a row of the tensor."""
        try:
            keys, values = (self._written(layer, offset, which) for which in ("K", "V"))
            if not len(keys) or not len(values):
                raise ValueError(f"the backend wrote {len(keys)} elements of K and {len(values)} of V")
        except Exception as fault:
            if not self._noted_opaque:
                self._noted_opaque = True
                self._logger.info("whole pages are compared, because a token's place in them is not known: %s", fault)
            return self._whole_page(layer)
        return _Slot(("K", "V"), (len(keys), len(values)), self._torch.cat((keys, values)))

    def _whole_page(self, layer: ProofLayer) -> _Slot:
        """The other tokens of the page are equal on both sides, and cost time only."""
        count = math.prod(layer.tensor.shape[1:])
        elements = self._torch.arange(count, device=layer.tensor.device)
        return _Slot(("KV",), (count,), elements, whole_page=True)

    def _written(self, layer: ProofLayer, offset: int, part: str) -> Any:
        torch, tensor, attention = self._torch, layer.tensor, layer.attention
        _, heads, _, content = tensor.shape
        page = torch.empty_strided((1, *tensor.shape[1:]), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        page.zero_()
        scale = {"K": attention._k_scale_float, "V": attention._v_scale_float}[part]
        ones, nothing = (
            torch.full((1, heads, content // 2), value, dtype=self._model_dtype, device=tensor.device)
            for value in (float(scale), 0.0)
        )
        key, value = (ones, nothing) if part == "K" else (nothing, ones)
        slots = torch.tensor([offset], dtype=torch.int64, device=tensor.device)
        attention.impl.do_kv_cache_update(attention, key, value, page, slots)
        flat = page.reshape(-1)
        return (flat.view(torch.uint8) if flat.element_size() == 1 else flat).nonzero().flatten()


class StepProofs:
    """A rank's comparisons in each step: what they find, and which blocks the engine must not use. May be unable."""

    def __init__(self, judge: LastTokenProof | None = None, logger: logging.Logger | None = None) -> None:
        self._judge = judge
        self._logger = logger or logging.getLogger(__name__)
        self._due: dict[str, Proof] = {}
        self._shadows_due: list[ShadowProof] = []
        self._proved: list[Proved] = []
        self._shadows_proved: list[Proved] = []

    @classmethod
    def over(cls, layers: Sequence[ProofLayer], vllm_config: Any, logger: logging.Logger) -> StepProofs:
        """Compares the rows of these layers, if their number format is known."""
        if not layers:
            return cls()
        cache_dtype = str(vllm_config.cache_config.cache_dtype)
        tensor_format = str(layers[0].tensor.dtype).removeprefix("torch.")
        limits = limits_of(tensor_format) or limits_of(cache_dtype)
        if limits is None:
            logger.info("received KV is not compared: no limits are known for its format, %s", cache_dtype)
            return cls()
        model_dtype = vllm_config.model_config.dtype
        return cls(
            LastTokenProof(layers, cache_dtype=cache_dtype, model_dtype=model_dtype, limits=limits, logger=logger),
            logger,
        )

    @property
    def able(self) -> bool:
        """Whether rows can be compared."""
        return self._judge is not None

    def begin(self, proofs: Sequence[Proof], shadows: Sequence[ShadowProof] = ()) -> None:
        """Keeps the received rows, before the pass. Those of shadow fetches stay where they are."""
        self._due = {proof.request: proof for proof in proofs}
        self._shadows_due += shadows
        if self._judge is not None:
            self._judge.keep(proofs)

    def end(self) -> set[int]:
        """Compares after the pass; returns the blocks whose KV must not be used. A second call finds nothing."""
        due, self._due = self._due, {}
        shadows, self._shadows_due = self._shadows_due, []
        self._shadows_proved += map(self._compared, shadows)
        if self._judge is None:
            self._proved += [Proved(request, judged=False) for request in due]
            return set()
        blocks: set[int] = set()
        for proved in self._judge.judge():
            self._proved.append(proved)
            if proved.finding and proved.request in due and due[proved.request].may_fail:
                blocks.update(due[proved.request].blocks)
        return blocks

    def _compared(self, shadow: ShadowProof) -> Proved:
        if self._judge is not None:
            try:
                return self._judge.compare(shadow)
            except Exception:
                self._logger.exception("the tokens of shadow fetch %s could not be compared", shadow.request)
        return Proved(shadow.request, judged=False)

    def take(self) -> tuple[list[Proved], list[Proved]]:
        """What was found since the last call: of requests, and of shadow fetches."""
        (proved, shadows), self._proved, self._shadows_proved = (self._proved, self._shadows_proved), [], []
        return proved, shadows


def proof_layers(
    tensors: Mapping[str, Any],
    layer_names: Sequence[str],
    groups: Sequence[KvGroup],
    attention_layers: Mapping[str, Any],
) -> list[ProofLayer]:
    """The layers of this rank that both sides compute alike, in order; empty if this engine's cannot be compared."""
    of_group = {name: index for index, group in enumerate(groups) if not group.state for name in group.layer_names}
    found = [
        ProofLayer(name, tensors[name], of_group[name], groups[of_group[name]], attention_layers.get(name))
        for name in layer_names
        if name in tensors and name in of_group
    ]
    usable = all(getattr(layer.attention, "impl", None) is not None and len(layer.tensor.shape) == 4 for layer in found)
    return found if usable else []
