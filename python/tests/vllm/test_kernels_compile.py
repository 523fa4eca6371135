"""The layer counter's kernels through NVIDIA's assembler, which comes with an engine's environment. None has run."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from kv_connector.memory.device_word import PTX


def assembler() -> Path:
    spec = importlib.util.find_spec("triton")
    found = Path(spec.origin or "").parent / "backends" / "nvidia" / "bin" / "ptxas" if spec is not None else Path()
    if not found.is_file():
        pytest.skip("no ptxas: it comes with triton, which the engine's environment has")
    return found


@pytest.mark.parametrize("architecture", ["sm_70", "sm_80", "sm_90", "sm_100"])
def test_should_compile_for(architecture: str, tmp_path: Path) -> None:
    source = tmp_path / "counter.ptx"
    source.write_bytes(PTX)
    compiled = tmp_path / "counter.cubin"
    assembled = subprocess.run(
        [assembler(), f"-arch={architecture}", "-v", "-o", compiled, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert assembled.returncode == 0, assembled.stderr
    assert compiled.stat().st_size > 0
    assert "spill" not in assembled.stderr or "0 bytes spill stores" in assembled.stderr
