"""Compares what was received of a prompt with what an own pass has computed for the same tokens, on one rank.

Used by the scheduler's thread only, on the stream of forward passes. Reads SGLang's pools and changes nothing.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.naming.row_limits import Limits, Part, RowDifference, SettingNames, first_finding, limits_of, worst_of
from kv_connector.sglang.pair_states import Verdict

SGLANG_NAMES = SettingNames("--json-model-override-args", "--context-length")

EXCEEDING_PART = 0.25
"""The part of a layer's rows that must differ. In a right pair single tokens do, whose experts were nearly a tie."""

_PLAIN = ("MHATokenToKVPool", "MLATokenToKVPool", "DSATokenToKVPool")
_WINDOWED = "SWAKVPool"
_BESIDE_STATE = ("HybridLinearKVPool", "QSATokenToKVPool")


class IncomparableError(Exception):
    """The rows of this model's pools cannot be compared."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Which tokens of a prompt were received and computed, and where they are."""

    received_row: int
    """In SGLang's table of requests."""
    own_row: int
    first_token: int
    """The tokens before this one were not received for this request."""
    computed_tokens: int
    """The tokens before this one were computed."""
    received_tokens: int
    """The number of tokens of which this rank holds the KV."""
    window_tokens: int
    """0: the model has no pool of layers with a sliding window."""


@dataclass(frozen=True, slots=True)
class _Buffer:
    layer: int
    part: Part
    tensor: Any
    """One row for each slot."""
    number_format: Any
    """The torch dtype of the numbers, which SGLang may store as bytes."""
    windowed: bool = False

    def numbers(self, slots: Any) -> Any:
        """A row for each of these slots."""
        chosen = self.tensor.index_select(0, slots).flatten(1)
        return chosen if chosen.dtype == self.number_format else chosen.view(self.number_format)


class ReceivedRows:
    """The buffers of one rank's pools, and their comparison."""

    def __init__(self, scheduler: Any) -> None:
        """Raises IncomparableError if the layout or the number format of a pool is not known."""
        self._torch: Any = importlib.import_module("torch")
        self._requests = scheduler.req_to_token_pool
        pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
        self._windowed_pool = pool if type(pool).__name__ == _WINDOWED else None
        self._has_state = hasattr(self._requests, "mamba_pool")
        self._buffers = list(_buffers(pool))
        self._limits = _limits(pool)

    def verdict(self, rows: Rows) -> Verdict:
        """How the two computations differ. Not judged if nothing can be compared, or an own number is NaN."""
        return self._judged(list(self._places(rows)))

    def _judged(self, places: Sequence[tuple[str, Part, Any, Any]]) -> Verdict:
        differences = self._differences(places)
        if not differences:
            return Verdict(judged=False)
        finding = first_finding(differences, self._limits, SGLANG_NAMES)
        return Verdict(True, worst_of(differences), finding.sentence if finding else "")

    def landed_verdict(self, slots: Any, own_row: int, first_token: int, computed_tokens: int) -> Verdict:
        """As ``verdict``, of tokens that no request has: ``slots`` has theirs, from ``first_token`` on."""
        theirs = slots[: computed_tokens - first_token].to(self._torch.int64)
        ours = self._requests.req_to_token[own_row, first_token:computed_tokens].to(self._torch.int64)
        places = [(str(each.layer), each.part, each.numbers(theirs), each.numbers(ours)) for each in self._buffers]
        return self._judged(places if len(theirs) else [])

    def _differences(self, places: Sequence[tuple[str, Part, Any, Any]]) -> list[RowDifference]:
        if not places:
            return []
        measured = self._torch.stack([self._measured(theirs, ours) for _, _, theirs, ours in places]).tolist()
        if any(math.isnan(own_sum) for _, _, _, own_sum in measured):
            return []
        return [
            RowDifference(layer, part, relative, cosine, ratio)
            for (layer, part, _, _), (relative, cosine, ratio, _) in zip(places, measured, strict=True)
        ]

    def _places(self, rows: Rows) -> Iterator[tuple[str, Part, Any, Any]]:
        """(layer, part, received numbers, own numbers) of everything that both sides have computed."""
        full = self._slots(rows, rows.first_token)
        windowed_first = max(rows.first_token, rows.received_tokens - rows.window_tokens)
        windowed = self._slots(rows, windowed_first, windowed=True) if self._windowed_pool is not None else None
        for buffer in self._buffers:
            slots = windowed if buffer.windowed else full
            if slots is not None and len(slots[0]):
                yield str(buffer.layer), buffer.part, buffer.numbers(slots[0]), buffer.numbers(slots[1])
        if self._has_state and rows.computed_tokens == rows.received_tokens:
            yield from self._states(rows)

    def _slots(self, rows: Rows, first_token: int, *, windowed: bool = False) -> tuple[Any, Any]:
        table, end = self._requests.req_to_token, rows.computed_tokens
        slots = [
            table[row, min(first_token, end) : end].to(self._torch.int64) for row in (rows.received_row, rows.own_row)
        ]
        if windowed and self._windowed_pool is not None:
            slots = [self._windowed_pool.translate_loc_from_full_to_swa(each).to(self._torch.int64) for each in slots]
            held = (slots[0] > 0) & (slots[1] > 0)  # 0: the layers' pool has no page for the token
            slots = [each[held] for each in slots]
        return slots[0], slots[1]

    def _states(self, rows: Rows) -> Iterator[tuple[str, Part, Any, Any]]:
        pool = self._requests
        table_rows = self._torch.tensor([rows.received_row, rows.own_row], device=pool.device)
        slots = pool.translate_mamba_indices(pool.get_mamba_indices(table_rows)).to(self._torch.int64)
        for field, tensor, _axis, layer in pool.mamba_pool._iter_transfer_state_entries():
            both = tensor.index_select(0, slots).flatten(1)
            yield f"{layer}.{field}", "KV", both[:1], both[1:]

    def _measured(self, received: Any, own: Any) -> Any:
        """(relative difference, cosine, length ratio) that a part of the rows exceeds, and the sum of own numbers."""
        torch = self._torch
        a, b = received.to(torch.float32), own.to(torch.float32)
        relative = (a - b).abs().amax(1) / b.abs().amax(1).clamp_min(1e-30)
        lengths = a.norm(dim=1).clamp_min(1e-30), b.norm(dim=1).clamp_min(1e-30)
        both_empty = (lengths[0] <= 1e-30) & (lengths[1] <= 1e-30)
        cosine = torch.where(both_empty, 1.0, (a * b).sum(1) / (lengths[0] * lengths[1]))
        rank = min(int((1 - EXCEEDING_PART) * len(a)), len(a) - 1)
        exceeded = torch.where(relative.isnan().any(), math.nan, relative.sort().values[rank])
        undercut = cosine.sort(descending=True).values[rank]
        return torch.stack((exceeded, undercut, (lengths[0] / lengths[1]).median(), b.sum()))


def _buffers(pool: Any) -> Iterator[_Buffer]:
    kind = type(pool).__name__
    if kind in _PLAIN:
        yield from _of_plain(pool, [pool.start_layer + index for index in range(pool.layer_num)])
    elif kind == _WINDOWED:
        of_pools: dict[bool, dict[int, int]] = {False: {}, True: {}}
        for layer, (index, windowed) in pool.layers_mapping.items():
            of_pools[windowed][index] = layer
        for windowed, inner in ((False, pool.full_kv_pool), (True, pool.swa_kv_pool)):
            layers = [of_pools[windowed][index] for index in range(len(of_pools[windowed]))]
            yield from _of_plain(inner, layers, windowed=windowed)
    elif kind in _BESIDE_STATE:
        layers_by_index = {index: layer for layer, index in pool.full_attention_layer_id_mapping.items()}
        yield from _of_plain(pool.full_kv_pool, [layers_by_index[index] for index in range(len(layers_by_index))])
    else:
        raise IncomparableError(
            f"its pool is a {kind}, expected one of {', '.join((*_PLAIN, _WINDOWED, *_BESIDE_STATE))}"
        )


def _of_plain(pool: Any, layers: Sequence[int], *, windowed: bool = False) -> Iterator[_Buffer]:
    if type(pool).__name__ not in _PLAIN:
        raise IncomparableError(f"its inner pool is a {type(pool).__name__}, expected one of {', '.join(_PLAIN)}")
    if getattr(pool, "dsa_kv_cache_store_fp8", False):
        raise IncomparableError("its latent KV is stored with scales beside the numbers")
    latent = hasattr(pool, "kv_buffer")
    parts: tuple[tuple[Part, Any], ...] = (
        (("KV", pool.kv_buffer),) if latent else (("K", pool.k_buffer), ("V", pool.v_buffer))
    )
    for part, tensors in parts:
        for layer, tensor in zip(layers, tensors, strict=True):
            if tensor.shape[0] < pool.size:
                raise IncomparableError(f"its pages are of shape {list(tensor.shape)}, expected a row for each token")
            yield _Buffer(layer, part, tensor, pool.dtype, windowed)


def _limits(pool: Any) -> Limits:
    number_format = str(pool.dtype).removeprefix("torch.")
    limits = limits_of(number_format)
    if limits is None:
        raise IncomparableError(f"no limits are known for its format, {number_format}")
    return limits
