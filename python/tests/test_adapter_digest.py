"""What two adapters of one name are told apart by."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from test_weights_digest import trained, write

from kv_connector.naming.adapter_digest import adapter_identity

SETTINGS = {"r": 8, "lora_alpha": 16, "base_model_name_or_path": "/a", "use_rslora": False}


def adapter(folder: Path, seed: int = 1, **settings: Any) -> Path:
    write(folder / "adapter_model.safetensors", trained(seed))
    (folder / "adapter_config.json").write_text(json.dumps(SETTINGS | settings))
    return folder


def test_should_distinguish_other_weights_and_other_scales_but_not_a_copy(tmp_path: Path) -> None:
    one = adapter_identity("sql", str(adapter(tmp_path / "one")))
    assert one.startswith("sql\n")
    assert adapter_identity("sql", str(adapter(tmp_path / "copy", base_model_name_or_path="/b"))) == one
    others = [
        adapter_identity("sql", str(adapter(tmp_path / "trained again", seed=2))),
        adapter_identity("sql", str(adapter(tmp_path / "scaled", lora_alpha=32))),
        adapter_identity("sql", str(adapter(tmp_path / "rs", use_rslora=True))),
        adapter_identity("chat", str(tmp_path / "one")),
        adapter_identity("sql", str(tmp_path / "none")),
    ]
    assert len({one, *others}) == 6


def test_should_see_that_the_files_have_changed(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "sql")
    before = adapter_identity("sql", str(folder))
    written = (folder / "adapter_model.safetensors").stat()
    adapter(folder, seed=2)
    os.utime(folder / "adapter_model.safetensors", ns=(written.st_atime_ns, written.st_mtime_ns + 1))
    assert adapter_identity("sql", str(folder)) != before


@pytest.mark.parametrize("left_out", ["adapter_model.safetensors", "adapter_config.json"])
def test_should_go_by_the_name_where_files_are_not_known_and_say_so_once(
    left_out: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = adapter(tmp_path / "sql")
    (folder / left_out).unlink()
    with caplog.at_level(logging.INFO):
        assert [adapter_identity("sql", str(folder)) for _ in range(2)] == ["sql", "sql"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"the adapter in {folder} is identified")


def test_should_take_a_file_that_is_none_for_one_that_is_not_known(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "sql")
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 40)
    assert adapter_identity("sql", str(folder)) == "sql"
    assert adapter_identity("sql", "\0") == "sql"
    assert adapter_identity("sql", "") == "sql"
