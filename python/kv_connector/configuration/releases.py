"""The releases of engines for which this package is made and tested. Importing this imports no engine."""

from __future__ import annotations

VLLM = ("0.32", "0.33")
SGLANG = ("0.5.22", "0.5.23")
