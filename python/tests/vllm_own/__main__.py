"""Runs vLLM's own connector tests with ours in place of the connector that they were written for.

``python python/tests/vllm_own --release 0.33.0 --tests vllm/tests``, where the latter comes with vLLM's sources of that
release. What follows ``--`` goes to pytest.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(TESTS)]

import pytest  # noqa: E402
from engine_loop import vllm_release  # noqa: E402

from vllm_own import re_aimed  # noqa: E402


class Outcomes:
    """What each test came to; a pytest plugin."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.skipped: list[str] = []
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Of each test's preparation, call and end."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self.skipped.append(report.nodeid)
        elif report.when == "call":
            self.passed.append(report.nodeid)

    def surprises(self) -> list[str]:
        """One line for each test that came to something else than is said here, and for each that is said in vain."""
        failed = [f"failed: {name}" for name in self.failed if _function(name) not in re_aimed.NOT_OURS]
        passed = [f"is said not to be ours, and passed: {name}" for name in self.passed if _is_not_ours(name)]
        return failed + passed


def main() -> int:
    """The exit status: 1 when a test came to something else than is said in ``re_aimed``."""
    parser = argparse.ArgumentParser(prog="vllm_own", description=__doc__)
    parser.add_argument("--release", choices=vllm_release.RELEASES, default=vllm_release.INSTALLED, help="of vLLM")
    parser.add_argument("--tests", type=Path, required=True, help="the folder 'tests' of that release's sources")
    parser.add_argument("arguments", nargs="*", help="for pytest")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vllm-own-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            return _run(parsed.release, parsed.tests.resolve(), Path(folder), parsed.arguments)
        except re_aimed.OtherTestsError as other:
            parser.error(str(other))


def _run(release: str, tests: Path, folder: Path, arguments: list[str]) -> int:
    vllm_release.choose(release)
    root = folder / "root"
    re_aimed.re_aim(tests, root)
    (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    cpu_test: vLLM's own, as all here\n")
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    os.chdir(root)
    import vllm

    print(f"vLLM {release}, from {Path(vllm.__file__).parent}")
    made = _count_made()
    outcomes = Outcomes()
    left_out = [name for name, reason in re_aimed.NOT_OURS.items() if reason == re_aimed.TWO_EXAMPLES]
    plain = ["-q", "--tb=short", "-rs", "--rootdir", str(root), "-p", "no:cacheprovider", "-W", "ignore"]
    chosen = [*plain, "-k", " and ".join(f"not {name}" for name in left_out), *arguments]
    status = pytest.main([*chosen, *(str(re_aimed.UNIT / name) for name in re_aimed.RUN)], plugins=[outcomes])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return int(status)
    for name in outcomes.failed:
        if reason := re_aimed.NOT_OURS.get(_function(name)):
            print(f"not ours: {name}: {reason}")
    surprises = outcomes.surprises()
    print(*surprises, sep="\n", end="\n" if surprises else "")
    counts = f"{len(outcomes.passed)} passed, {len(outcomes.failed)} failed, {len(outcomes.skipped)} skipped"
    print(f"{counts}; KvMessengerConnector was made {len(made)} times")
    return 1 if surprises or not made else 0


def _count_made() -> list[object]:
    """Has an entry for each connector of ours that is made from now on."""
    from kv_connector.vllm.connector import KvMessengerConnector

    made: list[object] = []
    make = KvMessengerConnector.__init__

    def counted(self: Any, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        make(self, vllm_config, role, kv_cache_config)
        made.append(role)

    KvMessengerConnector.__init__ = counted  # type: ignore[method-assign]
    return made


def _function(node: str) -> str:
    return node.rpartition("::")[2].partition("[")[0]


def _is_not_ours(node: str) -> bool:
    return _function(node) in re_aimed.NOT_OURS


if __name__ == "__main__":
    sys.exit(main())
