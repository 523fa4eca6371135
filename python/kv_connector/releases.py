"""The releases of engines that this package is made for and tested with. Importing this imports no engine."""

from __future__ import annotations

VLLM = ("0.32", "0.33")
SGLANG = ("0.5.23",)
