"""What the proofs of pairs have in common under both engines: states, limits, how many pairs are remembered. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from typing import Literal, TypeVar

Check = Literal["off", "warn", "fail"]
"""The values of the option ``last_token_check``."""

PROBE_TOKENS_MIN = 32
"""Shorter prompts prove nothing: with two tokens even other positions change the KV by less than a tenth."""
REFUTED_SECONDS = 60.0
"""After this time one more prompt of a refuted pair is compared, before it is answered."""
JUDGED_KEPT = 8
DIFFERENT_MAX = 1
"""Of the last ``JUDGED_KEPT`` prompts of a proven pair; one may be due to damaged pages."""
UNJUDGED_MAX = 3
"""After this many consecutive comparisons that came to nothing, requests wait for none for a while."""
PAIRS_MAX = 1024

_Pair = TypeVar("_Pair", bound=Hashable)
_Record = TypeVar("_Record")


class PairState(enum.Enum):
    """What is known of a pair."""

    UNPROVEN = "unproven"
    PROVEN = "proven"
    REFUTED = "refuted"


def record_of(records: dict[_Pair, _Record], pair: _Pair, new: Callable[[], _Record]) -> _Record:
    """The record of a pair, made if there is none; beyond ``PAIRS_MAX`` the one used longest ago is forgotten."""
    record = records.pop(pair, None)
    if record is None:
        record = new()
        if len(records) >= PAIRS_MAX:
            records.pop(next(iter(records)))
    records[pair] = record
    return record
