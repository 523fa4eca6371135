"""What two adapters of one name are told apart by."""

from __future__ import annotations

import io
import json
import logging
import os
import zipfile
from collections.abc import Mapping
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


def archive(tensors: Mapping[str, bytes], written_as: str) -> bytes:
    """As ``torch.save`` lays tensors out; torch's own writes are in test_loaded_adapters.py."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as members:
        members.writestr(f"{written_as}/data.pkl", "\n".join(tensors))
        for index, numbers in enumerate(tensors.values()):
            members.writestr(f"{written_as}/data/{index}", numbers)
        members.writestr(f"{written_as}/.data/serialization_id", written_as)
    return content.getvalue()


def stream(tensors: Mapping[str, bytes], _written_as: str) -> bytes:
    """A file of an earlier torch, which is no archive."""
    return b"\x80\x02" + b"".join(name.encode() + numbers for name, numbers in tensors.items())


def torch_adapter(folder: Path, content: bytes, file: str) -> str:
    adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    (folder / file).write_bytes(content)
    return adapter_identity("sql", str(folder))


@pytest.mark.parametrize("layout", [archive, stream])
@pytest.mark.parametrize("file", ["adapter_model.bin", "adapter_model.pt"])
def test_should_distinguish_trainings_in_files_of_torch(tmp_path: Path, file: str, layout: Any) -> None:
    one = torch_adapter(tmp_path / "one", layout(trained(1), "adapter_model"), file)
    assert one.startswith("sql\n")
    assert torch_adapter(tmp_path / "copy", layout(trained(1), "adapter_model"), file) == one
    if layout is archive:
        assert torch_adapter(tmp_path / "renamed", layout(trained(1), "checkpoint"), file) == one
    others = {torch_adapter(tmp_path / f"seed-{seed}", layout(trained(seed), "adapter_model"), file) for seed in (2, 3)}
    assert len({one, *others}) == 3


@pytest.mark.parametrize("name", trained(1))
def test_should_see_any_number_of_an_archive_of_torch(tmp_path: Path, name: str) -> None:
    """A checksum covers what no sample does."""
    before = trained(1)
    after = before | {name: before[name][:-1] + bytes([before[name][-1] ^ 1])}
    named = {
        torch_adapter(tmp_path / str(index), archive(tensors, "a"), "adapter_model.bin")
        for index, tensors in enumerate((before, after))
    }
    assert len(named) == 2


def test_should_see_numbers_of_an_archive_that_has_no_checksums(tmp_path: Path) -> None:
    """``torch.serialization.set_crc32_options(False)`` leaves them out."""
    named = set()
    for seed in (1, 2):
        content = bytearray(archive(trained(seed), "a"))
        with zipfile.ZipFile(io.BytesIO(content)) as members:
            checksums = [member.CRC for member in members.infolist()]
        for checksum in checksums:
            content = content.replace(checksum.to_bytes(4, "little"), bytes(4))
        named.add(torch_adapter(tmp_path / str(seed), bytes(content), "adapter_model.bin"))
    assert len(named) == 2


def test_should_go_by_what_engines_read_first(tmp_path: Path) -> None:
    one = adapter_identity("sql", str(adapter(tmp_path / "one")))
    (tmp_path / "one" / "adapter_model.bin").write_bytes(archive(trained(9), "a"))
    assert adapter_identity("sql", str(tmp_path / "one")) == one
