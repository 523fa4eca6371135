"""vLLM's checks where no kernel computes: rows of KV are judged as attention reads them, in place of tokens.

The engine is that of e2e-tests/uncomputed, which writes rows and makes all tokens up; everything else is as on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_check.counter_checks import expect
from gpu_check.report import InPart

MODULE = "uncomputed"
"""What is started in place of gpu_check.vllm_on_torch."""
ARITHMETIC = "tokens and the comparison of last tokens, since nothing computes them"


def without_arithmetic(seen: str, *sides: Mapping[str, Any], rows_read_min: int) -> InPart:
    """What engines at rest have read; the last one reads so many rows at least. Raises if one of them is wrong."""
    for side in sides:
        figures = side["figures"]
        expect(figures["rows_wrong"], 0, f"the number of wrong rows, the first in {figures['first_wrong'] or 'none'},")
    written, read = sides[0]["figures"]["rows_written"], sides[-1]["figures"]["rows_read"]
    if not written or read < rows_read_min:
        raise AssertionError(f"{written} rows were written and {read} read, expected {rows_read_min} at least")
    return InPart(f"{read} rows read, none wrong, {seen}", ARITHMETIC)
