"""What lies in a packed vLLM where its wheels have compiled extensions. Needs neither vLLM nor torch."""

from __future__ import annotations

from pathlib import Path

MODULES = {
    "_C_stable_libtorch.py": "from gpu_check.vllm_on_torch.operators import register\n\nREGISTERED = register()\n",
    "_moe_C_stable_libtorch.py": "",
    "vllm_flash_attn/_vllm_fa2_C.py": "",
}
"""The last is looked for by modules that are imported whichever attention is used."""
PLACEHOLDERS = ("llguidance",)
"""Large packages of which vLLM imports names, for requests that are not made here."""
PLACEHOLDER = """def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
"""


def place(vllm: Path, version: str) -> None:
    """Files beside those of the package `vllm`, and what importlib.metadata says of it: a build for CUDA."""
    for name, text in MODULES.items():
        (vllm / name).write_text(text, encoding="utf-8")
    for name in PLACEHOLDERS:
        vllm.with_name(f"{name}.py").write_text(PLACEHOLDER, encoding="utf-8")
    described = vllm.with_name(f"vllm-{version}.dist-info")
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
