"""The key of a messenger's pages: what it is made of, and which files hold it."""

from __future__ import annotations

import contextlib
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kv_connector.runtime import page_key

PORT = 14800


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Inside, no byte can be written to any file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    made = (tmp_path / "first", tmp_path / "second")
    for folder in made:
        folder.mkdir()
    monkeypatch.setattr(page_key, "FOLDERS", made)
    return made


def test_should_be_that_of_the_secret_and_hide_it() -> None:
    secret = "correct horse battery staple"
    assert page_key.made(secret) == page_key.made(secret) == page_key.derived(secret)
    assert page_key.made(secret) != page_key.made(secret + "s")
    assert secret not in page_key.made(secret)


def test_should_be_random_without_a_secret() -> None:
    assert page_key.made("") != page_key.made("")
    assert len(page_key.made("")) == 64


def test_should_leave_the_key_to_its_own_user_only(folders: tuple[Path, Path]) -> None:
    file = page_key.keep("a key", PORT)
    assert file is not None
    assert file.is_relative_to(folders[0])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(page_key.kept(PORT)) == ["a key"]
    assert list(page_key.kept(PORT + 1)) == []


def test_should_forget_its_own_key_and_no_later_one(folders: tuple[Path, Path]) -> None:
    assert folders[0].is_dir()
    first = page_key.keep("first", PORT)
    second = page_key.keep("second", PORT)
    page_key.forget(first, "first")
    assert list(page_key.kept(PORT)) == ["second"]
    page_key.forget(second, "second")
    assert list(page_key.kept(PORT)) == []
    page_key.forget(second, "second")
    page_key.forget(None, "none")


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_should_not_use_a_folder_that_others_can_enter(folders: tuple[Path, Path], mode: int) -> None:
    kept = page_key.keep("a key", PORT)
    assert kept is not None
    kept.unlink()
    kept.parent.chmod(mode)
    file = page_key.keep("a key", PORT)
    assert file is not None
    assert file.is_relative_to(folders[1])


def test_should_not_follow_a_link_that_stands_in_the_folder_s_place(folders: tuple[Path, Path], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    kept = page_key.keep("a key", PORT)
    assert kept is not None
    name = kept.parent.name
    kept.unlink()
    kept.parent.rmdir()
    (folders[0] / name).symlink_to(elsewhere)
    file = page_key.keep("a key", PORT)
    assert file is not None
    assert file.is_relative_to(folders[1])
    assert list(elsewhere.iterdir()) == []


def test_should_go_on_without_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page_key, "FOLDERS", (tmp_path / "missing", tmp_path / "gone"))
    assert page_key.keep("a key", PORT) is None
    assert list(page_key.kept(PORT)) == []


def test_should_leave_no_file_where_none_can_be_written(folders: tuple[Path, Path]) -> None:
    with no_room():
        assert page_key.keep("a key", PORT) is None
    assert [file for folder in folders for file in folder.glob("*/*")] == []


def test_should_leave_no_other_file_where_the_key_s_name_is_taken(folders: tuple[Path, Path]) -> None:
    kept = page_key.keep("a key", PORT)
    assert kept is not None
    kept.unlink()
    kept.mkdir()
    file = page_key.keep("a key", PORT)
    assert file is not None
    assert file.is_relative_to(folders[1])
    assert list(kept.parent.iterdir()) == [kept]
