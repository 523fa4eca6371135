"""The environments of the tests are made, listed and removed by several processes at once."""

import concurrent.futures
import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
AT_ONCE = 8
WHEELS_EACH = 12


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a cache of its own and venvs that are made of folders alone."""
    spec = importlib.util.spec_from_file_location("environment", REPOSITORY / "examples" / "setup" / "environment.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "environment", module)
    spec.loader.exec_module(module)
    monkeypatch.setenv("KV_MESSENGER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "new_venv", lambda home, *_: module.site_packages_of(home).mkdir(parents=True))
    monkeypatch.setattr(module, "run_step", lambda *_: None)
    return module


def test_should_give_each_process_its_venv_while_others_are_removed(environment: ModuleType, tmp_path: Path) -> None:
    base = environment.python_of(tmp_path / "cache" / "engine-0")
    numbers = itertools.count()

    def makes_venvs() -> None:
        for _ in range(WHEELS_EACH):
            wheel = tmp_path / f"{next(numbers)}.whl"
            wheel.write_text(wheel.name, encoding="utf-8")
            environment.with_wheel(base, wheel)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as processes:
        for made in [processes.submit(makes_venvs) for _ in range(AT_ONCE)]:
            made.result()
    left = list((tmp_path / "cache" / "wheels").glob("*/.complete"))
    assert len(left) == environment.VENVS_KEPT


def test_should_put_another_release_above_the_pinned_packages(
    environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = environment.python_of(tmp_path / "cache" / "sglang-0")
    steps: list[list[str]] = []
    monkeypatch.setattr(environment, "run_step", lambda _what, command, _log: steps.append(command))
    monkeypatch.setattr(environment, "newest", lambda _base, _distribution: "9.9.9")
    earlier = environment.with_release("sglang", base, "0.5.22")
    assert environment.with_release("sglang", base, "0.5.22") == earlier
    latest = environment.with_release("sglang", base, environment.NEWEST)
    assert [(step[-1], step[step.index("--python") + 1]) for step in steps] == [
        ("sglang==0.5.22", str(earlier)),
        ("sglang==9.9.9", str(latest)),
    ]
    beneath = environment.site_packages_of(earlier.parent.parent) / "beneath.pth"
    assert str(environment.site_packages_of(base.parent.parent)) in beneath.read_text(encoding="utf-8")


def test_should_refuse_another_release_where_there_is_one(environment: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^--release is 0\.31, and 'engine' has one release only: run one of sglang$"):
        environment.with_release("engine", environment.python_of(tmp_path), "0.31")
