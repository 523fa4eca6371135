"""The layer counter's kernels and the one that copies runs, through NVIDIA's assemblers of CUDA 12.8 and 13.1."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from kv_connector.memory.device_word import PTX

REPOSITORY = Path(__file__).parents[3]
COPY_RUNS = REPOSITORY / "connector-java/transfer/src/main/resources/io/kvmessenger/transfer/device/copy_runs.ptx"
SOURCES = {"counter": PTX, "copy_runs": COPY_RUNS.read_bytes()}
ASSEMBLERS = {
    "ptxas": ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"),
    "ptxas-blackwell": ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"),
}
"""Those that come with triton, and the architectures of GPUs that each is to know."""


def assembler(name: str) -> Path:
    spec = importlib.util.find_spec("triton")
    found = Path(spec.origin or "").parent / "backends" / "nvidia" / "bin" / name if spec is not None else Path()
    if not found.is_file():
        pytest.skip(f"no {name}: it comes with triton, which the engine's environment has")
    return found


@pytest.mark.parametrize("kernels", SOURCES)
@pytest.mark.parametrize(
    ("name", "architecture"), [(name, each) for name, known in ASSEMBLERS.items() for each in known]
)
def test_should_compile_for(name: str, architecture: str, kernels: str, tmp_path: Path) -> None:
    source = tmp_path / "kernels.ptx"
    source.write_bytes(SOURCES[kernels])
    compiled = tmp_path / "kernels.cubin"
    assembled = subprocess.run(
        [assembler(name), f"-arch={architecture}", "-v", "-o", compiled, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert assembled.returncode == 0, assembled.stderr
    assert compiled.stat().st_size > 0
    assert "spill" not in assembled.stderr or "0 bytes spill stores" in assembled.stderr
