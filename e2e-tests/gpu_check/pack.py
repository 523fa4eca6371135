"""Makes the one file that runs the checks on a bare machine: this package, the engine, the wheel's and a Java runtime.

    python -m gpu_check.pack WHEEL OUT [STAND_IN [ENGINE [KIND [PYTHON]]]]

ENGINE is the interpreter of an environment with an engine, and KIND its name, vllm or sglang; by default vllm. What of
it the file then has is said in vllm_on_torch/gather.py and sglang_on_torch/gather.py. PYTHON: the version that vLLM's
wheels are for, by default the one that a machine with a GPU is expected to have.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_check.sglang_on_torch import gather as of_sglang
from gpu_check.sglang_on_torch.plan import NO_SGLANG, SGLANG
from gpu_check.vllm_on_torch.gather import PYTHON, NotGathered, gather
from gpu_check.vllm_on_torch.plan import NO_VLLM, VLLM

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"
HARDWARE = HERE.parent.parent / "docs" / "hardware.md"
LIMIT_BYTES = 60 << 20
SGLANG_KIND = "sglang"
MODULES = (
    "java.base",
    "java.logging",
    "java.management",
    "java.naming",
    "java.net.http",
    "jdk.jfr",
    "jdk.unsupported",
)
"""What jdeps names for the jar."""
UNPACK = (
    "import sys, tarfile;"
    " sys.version_info >= (3, 11) or sys.exit('Python is ' + sys.version[:6] + ', expected 3.11 or newer: set PYTHON');"
    " tarfile.open(fileobj=sys.stdin.buffer, mode='r|xz').extractall(sys.argv[1])"
)
HEADER = """#!/bin/sh
# The checks of KV Messenger on a GPU, with all that they need but Python, torch and the driver. Nothing is installed.
# PYTHON says with which Python; what is said behind the name goes to the checks.
set -e
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python="${PYTHON:-python3}"
tail -n +%d "$0" | "$python" -c "%s" "$folder"
export GPU_CHECK_CALLED_IN="$PWD"
cd "$folder"
unset PYTHONHOME JAVA_TOOL_OPTIONS
status=0
KV_MESSENGER_JAVA_HOME="$folder/java" PYTHONPATH="$folder" "$python" -m %s %s"$@" || status=$?
exit $status
"""


def main() -> None:
    wheel, out = Path(sys.argv[1]), Path(sys.argv[2])
    stand_in = Path(sys.argv[3]) if len(sys.argv) > 3 and sys.argv[3] else None
    engine = Path(sys.argv[4]) if len(sys.argv) > 4 and sys.argv[4] else None
    kind = sys.argv[5] if len(sys.argv) > 5 else ""
    python = sys.argv[6] if len(sys.argv) > 6 else PYTHON
    module = "gpu_check.sglang_on_torch" if kind == SGLANG_KIND else "gpu_check"
    with TemporaryDirectory() as work:
        folder = Path(work)
        add = add_sglang if kind == SGLANG_KIND else partial(add_vllm, python=python)
        add(engine, folder / "engine")
        java = folder / "java"
        link_java(java)
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder / "wheel")
        payload = io.BytesIO()
        with tarfile.open(fileobj=payload, mode="w:xz", preset=6) as archive:
            archive.add(java, "java")
            for part in sorted((folder / "wheel").iterdir()):
                archive.add(part, part.name)
            for part in sorted((folder / "engine").iterdir()):
                archive.add(part, part.name)
            for package in ("gpu_check", "torch_engine"):
                archive.add(HERE.parent / package, package, filter=source_only)
            archive.add(HARDWARE, HARDWARE.name)
            if stand_in is not None:
                archive.add(stand_in / "libcuda.so.1", "stand-in/libcuda.so.1")
    option = "--stand-in stand-in/libcuda.so.1 " if stand_in is not None else ""
    header = HEADER % (HEADER.count("\n") + 1, UNPACK, module, option)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(header.encode() + payload.getvalue())
    out.chmod(0o755)
    size = out.stat().st_size
    if size > LIMIT_BYTES:
        raise SystemExit(f"{out} has {size / 2**20:.1f} MiB, expected at most {LIMIT_BYTES >> 20}: see what grew")
    print(f"{out}: {size / 2**20:.1f} MiB", file=sys.stderr)


def add_vllm(engine: Path | None, folder: Path, python: str = PYTHON) -> None:
    """A folder with vLLM, or with the reason why there is none."""
    folder.mkdir()
    try:
        if engine is None:
            raise NotGathered("the file was made without an environment that has it")
        version = gather(engine, folder / VLLM, python)
        shutil.copy(EXAMPLES / "make_model.py", folder)
        print(f"with vLLM {version}", file=sys.stderr)
    except (NotGathered, OSError, subprocess.CalledProcessError) as fault:
        shutil.rmtree(folder / VLLM, ignore_errors=True)
        (folder / NO_VLLM).write_text(str(fault), encoding="utf-8")
        print(f"without vLLM: {fault}", file=sys.stderr)


def add_sglang(engine: Path | None, folder: Path) -> None:
    """A folder with SGLang and what starts its servers, or with the reason why there is none."""
    folder.mkdir()
    for name in ("make_model.py", "server_process.py"):
        shutil.copy(EXAMPLES / name, folder)
    try:
        if engine is None:
            raise NotGathered("the file was made without an environment that has it")
        version = of_sglang.gather(engine, EXAMPLES / "sglang-1p1d" / "cpu_kernels", folder / SGLANG)
        print(f"with SGLang {version}", file=sys.stderr)
    except (NotGathered, OSError, subprocess.CalledProcessError) as fault:
        shutil.rmtree(folder / SGLANG, ignore_errors=True)
        (folder / NO_SGLANG).write_text(str(fault), encoding="utf-8")
        print(f"without SGLang: {fault}", file=sys.stderr)


def link_java(home: Path) -> None:
    jlink = Path(os.environ["JAVA_HOME"]) / "bin" / "jlink"
    stripped = ["--strip-debug", "--no-header-files", "--no-man-pages", "--compress", "zip-6"]
    subprocess.run([jlink, "--add-modules", ",".join(MODULES), *stripped, "--output", home], check=True)


def source_only(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name or Path(entry.name).name.startswith("test_") else entry


if __name__ == "__main__":
    main()
