"""What weights that have landed are called: the same on all engines in which the same bytes have landed. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kv_connector.weights.shares import Share

_LETTERS = 32


def landed_name(share: Share, digests: Sequence[str]) -> str:
    """``digests`` are those of the landings' bytes, by the trainer's ranks; ``share`` is one of theirs.

    It depends on nothing that a sender merely says: two trainers may give one number to different weights. The same
    weights in other types, in another order or divided otherwise have another name.
    """
    divided = [index for index, split in enumerate(share.split) if split] if share.count > 1 else []
    made = f"{share.whole.digest} {share.count} {divided} {' '.join(digests)}"
    return hashlib.sha256(made.encode()).hexdigest()[:_LETTERS]
