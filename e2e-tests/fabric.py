"""The libfabric that the build has unpacked, for servers under test.

What it needs lies beside it, and the loader looks there only if it was told so when the process began: a server that is
forked has the path from its launcher, see `environment_of_fabric`.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import Any

FIND = Path(__file__).resolve().parents[1] / "examples" / "setup" / "find-libfabric"


@functools.cache
def folder() -> Path | None:
    """That of its libraries; None where it cannot be had: it has said so on standard error."""
    found = subprocess.run([FIND], stdout=subprocess.PIPE, text=True, check=False)
    return Path(found.stdout.strip()) / "lib" if found.returncode == 0 else None


def environment_of_fabric() -> dict[str, str]:
    """For a process that is to load it."""
    libraries = folder()
    given = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
    return {"LD_LIBRARY_PATH": os.pathsep.join([*given, str(libraries)])} if libraries else {}


def options() -> dict[str, Any]:
    """Of a messenger that offers libfabric alone."""
    libraries = folder()
    assert libraries is not None, "there is no libfabric"
    return {"transports": ["libfabric"], "libfabric_library": str(libraries / "libfabric.so.1")}
