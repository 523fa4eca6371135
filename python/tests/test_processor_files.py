"""Two sides that make another input of one image are told apart: engines name images by their own bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kv_connector.naming.processor_files import FILES, of_folder

VALUES: dict[str, Any] = {"image_mean": [0.5, 0.5, 0.5], "do_resize": True, "size": {"max_pixels": 1024}}
OTHERS: dict[str, Any] = {"image_mean": [0.4, 0.5, 0.5], "do_resize": False, "size": {"max_pixels": 2048}}


def written(folder: Path, file: str, values: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("field", list(VALUES))
def test_should_see_a_change_of_each_value_of_each_file(tmp_path: Path, file: str, field: str) -> None:
    one = of_folder(written(tmp_path / "one", file, VALUES))
    other = of_folder(written(tmp_path / "other", file, {**VALUES, field: OTHERS[field]}))
    assert one != other
    assert all(name.startswith(f"{file}: {field}") for name in one if one[name] != other[name])
    assert of_folder(written(tmp_path / "same", file, dict(reversed(VALUES.items())))) == one


def test_should_see_nothing_where_there_is_no_such_file_or_no_object_in_it(tmp_path: Path) -> None:
    assert of_folder(tmp_path / "missing") == {}
    assert of_folder(written(tmp_path / "list", FILES[0], [1])) == {}
    (tmp_path / "list" / FILES[0]).write_bytes(b"\xff{")
    assert of_folder(tmp_path / "list") == {}
