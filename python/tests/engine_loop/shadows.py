"""Has each decoder prove each of its pairs again and again, by shadow fetches whose rows are compared bit by bit.

In the loop a row has one right content, so the received one must be equal to this engine's own. No pair stays proven,
and no running request counts as one that can be stopped.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from engine_loop import engines
from kv_connector.vllm import connector
from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.pair_proofs import PairProofs
from kv_connector.vllm.proof_messages import Proof, Proved, ShadowProof

_initialize: Callable[..., Any] = engines.LoopExecutor._initialize_from_config
_conclude: Callable[..., Any] = PairProofs._conclude


class BitByBit:
    """In place of ``LastTokenProof``."""

    def __init__(self, tensors: Any, groups: Sequence[KvGroup], seen: Counter[str]) -> None:
        self._tensors = tensors
        self._groups = groups
        self._seen = seen
        self._due: Sequence[Proof] = ()

    def keep(self, proofs: Sequence[Proof]) -> None:
        """Last tokens are not this stand-in's matter."""
        self._due = proofs

    def judge(self) -> list[Proved]:
        """They are as they should be: what the pass reads is checked elsewhere."""
        due, self._due = self._due, ()
        return [Proved(proof.request, judged=True) for proof in due]

    def compare(self, shadow: ShadowProof) -> Proved:
        """Whether all rows are equal."""
        rows = [rows for token in shadow.tokens for rows in self._rows(token.own, token.received)]
        different = sum(not torch.equal(own, received) for own, received in rows)
        self._seen.update({"compared": 1, "rows": len(rows), "different rows": different})
        return Proved(shadow.request, bool(rows), 0.0, f"{different} rows differ" if different else "")

    def _rows(self, own: Sequence[Any], received: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        for group, mine, theirs in zip(self._groups, own, received, strict=True):
            for name in group.layer_names if mine is not None else ():
                row, other = (self._tensors[name][block][:, offset].contiguous() for block, offset in (mine, theirs))
                yield row.view(torch.int32), other.view(torch.int32)  # as bits: some are no number


@contextlib.contextmanager
def everywhere() -> Iterator[Counter[str]]:
    """Yields what was seen; a finding is a fault, because all engines here compute the same."""
    seen: Counter[str] = Counter()

    def initialize(executor: Any, configs: Any) -> None:
        _initialize(executor, configs)
        for rank in executor.ranks:
            groups = rank.connector._facts.kv_groups
            rank.connector._part.proofs._judge = BitByBit(rank.pages.tensors, groups, seen)

    def conclude(proofs: PairProofs, request: str, judged: Any, ranks: Any, **more: Any) -> None:
        _conclude(proofs, request, judged, ranks, **more)
        proofs._start_anew(proofs._record(judged.pair))

    with (
        mock.patch.object(engines.LoopExecutor, "_initialize_from_config", initialize),
        mock.patch.object(PairProofs, "_conclude", conclude),
        mock.patch.object(connector, "can_stop", return_value=False),
    ):
        yield seen
