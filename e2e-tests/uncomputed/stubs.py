"""Writes what torch's libraries want of CUDA's runtime, of cuBLAS and of NCCL, and what the stand-ins do not have.

    python stubs.py CUDART_C NCCL_C OUT_FOLDER TORCH_LIB_FOLDER

OUT_FOLDER/stubs.c: functions of the runtime that answer cudaErrorNotSupported; nccl_stubs.c: functions of NCCL that
answer ncclInvalidUsage and say so; blas.c: a cuBLAS whose products are whatever was there before.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

WANTED = re.compile(r"\bU (\w+)@(libcudart|libcublas|libcublasLt)\.so|\bU (nccl[A-Z]\w+)$", re.MULTILINE)
DEFINED = re.compile(r"^[\w ]+?[ *]+(\w+)\(", re.MULTILINE)
NOT_SUPPORTED = 801
INVALID_USAGE = 5
MAKES_A_HANDLE = re.compile(r"cublasCreate_v2|cublasLt\w*Create")
BLAS = {
    "cublasLtMatmulAlgoGetHeuristic": "(void *a, void *b, void *c, void *d, void *e, void *f, void *g, int n, void *r,"
    " int *found) { return *found = 1, 0; }",
    "cublasGetMathMode": "(void *handle, int *mode) { return *mode = 0, 0; }",
    "cublasGetPointerMode_v2": "(void *handle, int *mode) { return *mode = 0, 0; }",
    "cublasLtGetVersion": "(void) { return 130000; }",
}


def main() -> None:
    source, collectives, out, libraries = map(Path, sys.argv[1:])
    runtime, blas, nccl = wanted(libraries)
    runtime -= set(DEFINED.findall(source.read_text("utf-8")))
    nccl -= set(DEFINED.findall(collectives.read_text("utf-8")))
    lines = [f"int {name}(void) {{ return {NOT_SUPPORTED}; }}" for name in sorted(runtime)]
    (out / "stubs.c").write_text("\n".join(lines) + "\n", "utf-8")
    lines = ["#include <stdio.h>", *(refusing(name) for name in sorted(nccl))]
    (out / "nccl_stubs.c").write_text("\n".join(lines) + "\n", "utf-8")
    lines = ["#include <stdlib.h>", *(stub(name) for name in sorted(blas))]
    (out / "blas.c").write_text("\n".join(lines) + "\n", "utf-8")


def wanted(libraries: Path) -> tuple[set[str], set[str], set[str]]:
    runtime: set[str] = set()
    blas: set[str] = set()
    nccl: set[str] = set()
    for library in libraries.glob("lib*.so"):
        listed = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        for name, owner, collective in WANTED.findall(listed.stdout):
            if collective:
                nccl.add(collective)
            else:
                (runtime if owner == "libcudart" else blas).add(name)
    return runtime, blas, nccl


def refusing(name: str) -> str:
    report = f'fprintf(stderr, "the stand-in for NCCL does not have {name}\\n")'
    return f'__attribute__((visibility("default"))) int {name}(void) {{ return {report}, {INVALID_USAGE}; }}'


def stub(name: str) -> str:
    if name in BLAS:
        return f"long {name}{BLAS[name]}"
    if MAKES_A_HANDLE.fullmatch(name):
        return f"int {name}(void **made) {{ return *made = calloc(1, 4096), 0; }}"
    return f"int {name}(void) {{ return 0; }}"


if __name__ == "__main__":
    main()
