"""Each process of Python that has this folder on its path computes by the host (by_host.py), but for vLLM's.

That one is on its command line as `uncomputed`, has no kernels, and finds the package behind all that was packed.
"""

import importlib
import sys
from pathlib import Path

if "uncomputed" in sys.orig_argv:
    sys.path.append(str(Path(__file__).resolve().parents[2]))
else:
    importlib.import_module("by_host").enter()  # beside this file, which is in no package
