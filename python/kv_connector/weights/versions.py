"""The numbers by which weights are told apart: each update has a higher one."""

from __future__ import annotations

import time

from kv_connector.exceptions import WeightsError

VERSION_MAX = (1 << 53) - 1


def version_of_now() -> int:
    """A version for weights that have none of their own: the time in milliseconds."""
    return time.time_ns() // 1_000_000


class Versions:
    """Those of one trainer. For one thread."""

    def __init__(self, first: int) -> None:
        """``first`` is that of the first update, and 0 the time in ms, also later; raises WeightsError."""
        if not 0 <= first <= VERSION_MAX:
            raise WeightsError(f"first_version is {first}, expected 0 or a number to {VERSION_MAX}: correct it")
        self._last = first - 1
        self._timed = first == 0

    def next(self) -> int:
        """The version of another update."""
        self._last = max(self._last + 1, version_of_now() if self._timed else 1)
        return self._last
