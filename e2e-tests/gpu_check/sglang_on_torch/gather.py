"""Gathers SGLang for a bare machine: its Python and the wheels that such a machine lacks, each downloaded once."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from gpu_check.vllm_on_torch.gather import FOR_PYTHON, PYTHON, NotGathered, downloaded, installed_in

WHEELS = (
    "annotated-doc",
    "annotated-types",
    "apache-tvm-ffi",
    "compressed-tensors",
    "dill",
    "distro",
    "docstring_parser",
    "easydict",
    "fastapi",
    "httpcore2",
    "httpx2",
    "interegular",
    "jiter",
    "loguru",
    "msgspec",
    "openai",
    "opentelemetry-api",
    "orjson",
    "partial-json-parser",
    "pybase64",
    "pydantic",
    "pydantic-core",
    "python-multipart",
    "pyzmq",
    "setproctitle",
    "sniffio",
    "starlette",
    "truststore",
    "typing-inspection",
    "uvicorn",
    "watchfiles",
    "zstandard",
)
"""What SGLang imports beyond what a machine with torch and transformers has, and beyond placeholders."""
LEFT_OUT = ("*.so", "__pycache__", "multimodal_gen", "benchmark", "csrc", "include", "E=*.json", "N=*.json", "*.md")
"""Of SGLang: what is compiled, what makes pictures, sources of kernels, and tuned sizes of those not called."""
KERNELS = "sgl_kernel"
STARTED_BY_PYTHON = """import kv_connector_door
from gpu_check.sglang_on_torch.absent import install

install()
"""
"""What each process of SGLang runs first; the door is otherwise opened by an installed wheel's `.pth`."""
JIT = "kernels/jit/utils/__init__.py"
REFUSED = "\n\nfrom gpu_check.sglang_on_torch.kernels import load_jit\n"
DUAL_GEMM = "srt/layers/dual_gemm.py"
APART = "\n\nDualGemm._select_mode = lambda *_asked: None\n"
"""Its kernel is imported before it is asked whether it fits, and needs NVIDIA's CUTLASS."""
SOURCES = ("kernels/jit/csrc", "kernels/jit/include")
"""Folders of sources that SGLang looks for when it is imported, and does not read where nothing is compiled."""
ADDED = {JIT: REFUSED, DUAL_GEMM: APART}
"""What is written behind modules of SGLang."""
ANSWERED = """

from gpu_check.sglang_on_torch.kernels import is_arch_support_pdl

sys.modules[f"{__name__}.utils"].is_arch_support_pdl = is_arch_support_pdl
"""
"""The one function of the kernel package that a server on a GPU calls: behind the stand-in for it."""


def gather(engine: Path, kernels: Path, site: Path) -> str:
    """Fills the folder `site` from the environment of this interpreter; returns SGLang's version."""
    installed, versions = installed_in(engine)
    version = versions.get("sglang")
    if version is None:
        raise NotGathered(f"{engine} has no SGLang")
    missing = [name for name in WHEELS if name.replace("_", "-") not in versions]
    if missing:
        raise NotGathered(f"{engine} has no {', '.join(missing)}")
    for wheel in downloaded([f"{name}=={versions[name.replace('_', '-')]}" for name in WHEELS]):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)
    shutil.copytree(installed / "sglang", site / "sglang", ignore=shutil.ignore_patterns(*LEFT_OUT))
    place(site, kernels, version)
    (site / FOR_PYTHON).write_text(PYTHON, encoding="utf-8")
    return version


def place(site: Path, kernels: Path, version: str) -> None:
    """Beside the package `sglang`: the stand-in for its kernels, what Python runs first, and its name and version."""
    shutil.copytree(kernels / KERNELS, site / KERNELS, ignore=shutil.ignore_patterns("__pycache__"))
    with (site / KERNELS / "__init__.py").open("a", encoding="utf-8") as stand_in:
        stand_in.write(ANSWERED)
    (site / "sitecustomize.py").write_text(STARTED_BY_PYTHON, encoding="utf-8")
    for name in SOURCES:
        (site / "sglang" / name).mkdir(parents=True, exist_ok=True)
    for name, added in ADDED.items():
        module = site / "sglang" / name
        module.write_text(module.read_text(encoding="utf-8") + added, encoding="utf-8")
    described = site / f"sglang-{version}.dist-info"
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n", encoding="utf-8")
