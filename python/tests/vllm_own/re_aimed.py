"""vLLM's own connector tests, changed so that ours is the connector that they are about.

A copy is changed, and each change must find what it changes: a release whose tests read otherwise is told, and not run
with its own connectors in silence.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from kv_connector.vllm import CONNECTOR_MODULE, CONNECTOR_NAME

UNIT = Path("tests/v1/kv_connector/unit")
COPIED = ("__init__.py", "v1/__init__.py", "v1/core", "v1/kv_connector")

RUN = (
    "test_remote_prefill_lifecycle.py",
    "test_remote_decode_lifecycle.py",
    "test_kv_load_failure_recovery.py",
    "test_error_propagation.py",
    "test_invalid_blocks_correctness.py",
    "test_cache_pollution_prevention.py",
    "test_multi_connector.py",
    "test_nixl_simple_cpu_offload.py",
    "test_hma_auto_config.py",
    "test_config.py",
    "test_kv_connector_lifecycle.py",
    "test_output_aggregator.py",
    "test_handshake_pp_aggregation.py",
    "test_scheduler_kv_connector_override.py",
)
"""Those about connectors in general. The other files are each about one connector's inside, by its name."""

WIRE_FORMAT = "it reads remote_block_ids out of the prefiller's answer, which is NIXL's wire format"
REFUSED = "its KV caches are refused by name: states of drafted tokens, and states that are kept for prefixes"
TWO_EXAMPLES = "it compares the files that two ExampleConnectors leave, of a model from a hub"
NOT_OURS = {
    "test_short_prompt_lifecycle": WIRE_FORMAT,
    "test_prefix_cache_lifecycle": WIRE_FORMAT,
    "test_async_load_does_not_double_reserve_mamba_spec_blocks": REFUSED,
    "test_multi_example_connector_consistency": TWO_EXAMPLES,
}
"""By function, why a test of these files is none for this connector."""

_ANY_HMA = re.compile(r"(?<=_make_multi_connector\()\s*\[[^]]*\]")
_NO_CACHES = re.compile(r"KVCacheConfig\(\s*num_blocks=0,\s*kv_cache_tensors=\[\],\s*kv_cache_groups=\[\],?\s*\)")
_OFFLOAD_SIZE = re.compile(r'"?kv_connector_extra_config"?[=:] *\{"cpu_bytes_to_use": 1 << 30\},')
_THE_ONE = re.compile(r"connector = get_kv_transfer_group\(\)\n(?: +assert isinstance\(connector, \w+\)\n)?")
_CALL_RECORD = re.compile(r" +# Test connector wrapper records.*?(?=    finally)", re.DOTALL)

# A scheduler of these tests is asked to send and to receive: ours keeps to its kv_role, and both is what they need.
_EDITS: dict[str, list[tuple[str | re.Pattern[str], str]]] = {
    "utils.py": [
        ('kv_connector: str = "NixlConnector"', f'kv_connector: str = "{CONNECTOR_NAME}"'),
        ('kv_role: str = "kv_consumer"', 'kv_role: str = "kv_both"'),
    ],
    "test_multi_connector.py": [
        ("import create_vllm_config,", "import create_vllm_config, make_kv_cache_config,"),
        ("import pytest\n", f"import pytest\nfrom {CONNECTOR_MODULE} import {CONNECTOR_NAME}\n"),
    ],
    "test_nixl_simple_cpu_offload.py": [
        ('"kv_connector": "NixlConnector"', f'"kv_connector": "{CONNECTOR_NAME}"'),
        ("vllm.distributed.kv_transfer.kv_connector.v1.nixl import (", "kv_connector.vllm.metadata import ("),
        ("    NixlConnectorMetadata,\n", "    StepMetadata as NixlConnectorMetadata,\n"),
        ("in nixl_meta.reqs_to_recv", "in [fetch.request for fetch in nixl_meta.fetches]"),
    ],
    "test_hma_auto_config.py": [
        ('"SimpleCPUOffloadConnector"', f'"{CONNECTOR_NAME}"'),
        (_OFFLOAD_SIZE, ""),
    ],
    "test_config.py": [
        ('"SomeOOTConnector"', f'"{CONNECTOR_NAME}"'),
        ('_build_config(kv_connector="NixlConnector"', f'_build_config(kv_connector="{CONNECTOR_NAME}"'),
    ],
    "test_kv_connector_lifecycle.py": [
        ('kv_connector="TestExampleConnector"', f'kv_connector="{CONNECTOR_NAME}"'),
        ('        kv_connector_extra_config={"name": "unit"},\n', ""),
        (_NO_CACHES, "make_kv_cache_config(16)"),
        ("create_vllm_config\n", "create_vllm_config, make_kv_cache_config\n"),
        ("kv_connector_metadata=ExampleConnectorMetadata()", "kv_connector_metadata=StepMetadata(step=1)"),
        (_THE_ONE, f"connector = get_kv_transfer_group()\n        assert isinstance(connector, {CONNECTOR_NAME})\n"),
        (_CALL_RECORD, ""),
        (
            "from unittest.mock",
            f"from {CONNECTOR_MODULE} import {CONNECTOR_NAME}\nfrom kv_connector.vllm.metadata import StepMetadata\n"
            "from unittest.mock",
        ),
    ],
}


class OtherTestsError(Exception):
    """The files are not those of the release that this module knows; the message says what is missing."""


def re_aim(tests: Path, into: Path) -> None:
    """Copies what is run of vLLM's ``tests`` and changes it; raises OtherTestsError."""
    for name in COPIED:
        found, copied = tests / name, into / "tests" / name
        if not found.exists():
            raise OtherTestsError(f"{tests} has no {name}, expected the folder 'tests' of vLLM's sources")
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(found, copied) if found.is_dir() else shutil.copyfile(found, copied)
    # As vLLM's general plugin does in every process of a server; the one of vLLM's own tests needs more packages.
    (into / "tests/conftest.py").write_text("import kv_connector.vllm\n\nkv_connector.vllm.register()\n")
    model = json.dumps(str(_model(into / "model")))
    for folder in (into / UNIT, into / "tests/v1/core"):
        _change(folder / "utils.py", [('"facebook/opt-125m"', model)])
    for name, edits in _EDITS.items():
        _change(into / UNIT / name, edits)
    _take_part(into / UNIT / "test_multi_connector.py")


def _change(file: Path, edits: list[tuple[str | re.Pattern[str], str]]) -> None:
    text = file.read_text()
    for old, instead in edits:
        pattern = re.compile(re.escape(old)) if isinstance(old, str) else old
        text, count = pattern.subn(lambda _, instead=instead: instead, text)
        if not count:
            raise OtherTestsError(f"{file.name} has no {pattern.pattern!r}, expected it in the tests of this release")
    file.write_text(text)


def _take_part(file: Path) -> None:
    """Ours is in MultiConnector wherever any connector with several groups of caches will do, and has caches there."""
    text = file.read_text()
    start = text.index("def _make_multi_connector")
    head, rest = text[:start], text[start:]
    rest, caches = _NO_CACHES.subn("make_kv_cache_config(16)", rest)
    rest, lists = _ANY_HMA.subn(lambda found: found[0].replace('"MockHMAConnector"', f'"{CONNECTOR_NAME}"'), rest)
    if not caches or CONNECTOR_NAME not in rest:
        raise OtherTestsError(f"{file.name} makes no connector of MockHMAConnector ({lists} lists were looked at)")
    file.write_text(head + rest)


def _model(folder: Path) -> Path:
    """A configuration of OPT's kind, in place of one from a hub: no weight is read."""
    folder.mkdir()
    described = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "ffn_dim": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 2048,
        "vocab_size": 50272,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(described))
    return folder
