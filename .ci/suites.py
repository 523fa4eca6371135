"""Runs the project's test suites and prints one true total over Java and Python.

    suites.py quick|all

A suite is a command and, where it has one, the JUnit reports that it writes. The run fails when a test fails, when a
command fails or does not end in its time, when a suite that should write reports ran nothing, and when a test was
skipped that ``.ci/allowed-skips.txt`` does not name. Later suites run although earlier ones failed.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
ENVIRONMENT = "examples/setup/environment"
MAVEN = ("examples/setup/with-jdk", "mvn", "-B", "-q", "-Dstyle.color=never")
PYTHON_FOLDERS = ("python", "examples", "dashboards", "e2e-tests", ".ci")
EXAMPLE_FOLDERS = ("examples", "dashboards", "e2e-tests", ".ci")
CPU_KERNELS = ("-o", f"pythonpath=. tests {ROOT}/examples/sglang-1p1d/cpu_kernels")
"""SGLang without a GPU needs a stand-in for its kernels, beside what python/pyproject.toml puts on the path."""

NEED_TORCH = [
    f"python/tests/vllm/test_{what}.py"
    for what in (
        *("shareable_memory", "prompts", "kernels_compile", "device_allocation", "settings"),
        *("last_token_proof", "page_bytes", "weights_shares", "weights_staging", "tied_layers"),
        *("loaded_adapters", "cut_prompts", "reloaded_names", "written_landings", "absent_media"),
    )
]
"""Tests of the vLLM connector that want what comes with vLLM; elsewhere they, or some of them, are skipped."""

ENGINES_APART = [
    f"e2e-tests/test_{what}.py"
    for what in (
        *("examples", "faults", "images", "links", "load", "pull_faults"),
        *("sharding", "speculation", "states", "transfer", "wrong_setups"),
    )
]
"""Half of the tests between vLLM servers, by the time they take: each half waits for a part of it."""

LOOP_APART = "0.32.0"
"""The release of vLLM whose loop has a suite of its own; the other suite has whatever is not of it."""

SGLANG_EARLIER = "0.5.22"
"""The release of SGLang before the pinned one, which is installed above the same packages."""

LIMIT_SECONDS = 45 * 60.0
"""Five times what the longest of them needs on two quiet cores: one that is still at it then will not end."""
ENGINES_LIMIT_SECONDS = 60 * 60.0
INTERRUPTED_SECONDS = 90.0
"""What an interrupted suite has to say where it stood, and to end the servers that it started."""
TIMED_OUT = 124
INTERRUPTED = 130
POLL_SECONDS = 0.2
SIDE_BY_SIDE = 3
"""Suites that run at a time, where they may: on two cores, since those of the loop wait for a third of their time."""
STOPPED = threading.Event()
"""Set by an interrupt, for the threads of suites that run side by side."""


@dataclass(frozen=True)
class Suite:
    """A command with `reports` (a glob) is judged by them and its status; one without counts as a single test."""

    name: str
    command: Sequence[str]
    reports: str | None = None
    quick: bool = True
    limit_seconds: float = LIMIT_SECONDS
    beside: bool = False
    """Neighbours in the list that have it run side by side, begun in the order of the list; any other runs alone."""


@dataclass
class Outcome:
    passed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def count(self) -> int:
        return self.passed + len(self.skipped) + len(self.failed)


def in_tools(*arguments: str) -> list[str]:
    return [ENVIRONMENT, "run", "tools", "--", *arguments]


def with_wheel(environment: str, *arguments: str) -> list[str]:
    wheel = '"$(cat python/dist/.wheel)"'
    return ["bash", "-c", f'exec {ENVIRONMENT} run {environment} --wheel {wheel} -- "$@"', environment, *arguments]


def in_engine(*arguments: str) -> list[str]:
    return with_wheel("engine", *arguments)


def in_sglang(*arguments: str) -> list[str]:
    return with_wheel("sglang", *arguments)


def pytest(folder: str, report: str) -> list[str]:
    return ["-m", "pytest", folder, "-p", "no:cacheprovider", "--durations=12", f"--junitxml={REPORTS / report}.xml"]


def folder_by(script: str) -> str:
    """What the script has found; "" when it cannot be had, which is printed: tests that need it are skipped then."""
    found = subprocess.run([f"examples/setup/{script}"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ""


def java_properties() -> list[str]:
    found = ("jep", "libfabric", "cuda-stand-in", "cuda-header")
    return [f"-Dkvmessenger.{what}={folder_by(f'find-{what}')}" for what in found]


def suites() -> list[Suite]:
    return [*java_and_wheel(), *rdma(), *without_servers(), *style(), *with_servers()]


def java_and_wheel() -> list[Suite]:
    return [
        Suite(
            "java",
            [*MAVEN, "-Dmaven.test.failure.ignore=true", "verify", *java_properties()],
            "**/target/surefire-reports/TEST-*.xml",
        ),
        Suite("wheel", ["make", "--no-print-directory", "wheel"]),
        Suite("java library", ["make", "--no-print-directory", "library"], quick=False),
    ]


def style() -> list[Suite]:
    """Short ones: they fill what is left of a core beside the last of the others."""
    return [
        Suite("java format", [*MAVEN, "spotless:check"], beside=True),
        Suite("python format", in_tools("-m", "ruff", "format", "--check", *PYTHON_FOLDERS), beside=True),
        Suite("python lint", in_tools("-m", "ruff", "check", *PYTHON_FOLDERS), beside=True),
        Suite(
            "python types",
            in_tools(
                "-m",
                "mypy",
                "--config-file",
                "python/pyproject.toml",
                "python/kv_connector",
                "python/kv_connector_door.py",
            ),
            beside=True,
        ),
        Suite(
            "example types",
            in_tools("-m", "mypy", "--config-file", "e2e-tests/pyproject.toml", *EXAMPLE_FOLDERS),
            beside=True,
        ),
    ]


def rdma() -> list[Suite]:
    """The tests of verbs on soft-RoCE devices, where their bed has been built; elsewhere Java's run skips them.

    The bed's machine has a /tmp and a /run of its own, in which it would not find a tree.
    """
    if ROOT.is_relative_to("/tmp") or ROOT.is_relative_to("/run"):
        return []
    found = subprocess.run(["examples/setup/find-rdma-bed", "--built"], cwd=ROOT, capture_output=True, check=False)
    in_bed = Suite("verbs on soft-RoCE", ["make", "--no-print-directory", "test-rdma"], quick=False)
    return [in_bed] if found.returncode == 0 else []


def in_the_loop() -> list[Suite]:
    return [
        Suite(
            "engine in the loop",
            in_engine(*pytest("python/tests/engine_loop", "engine-loop"), "-k", f"not {LOOP_APART}"),
            "build/reports/engine-loop.xml",
            quick=False,
            limit_seconds=ENGINES_LIMIT_SECONDS,
            beside=True,
        ),
        Suite(
            f"engine in the loop, vLLM {LOOP_APART}",
            in_engine(*pytest("python/tests/engine_loop", "engine-loop-apart"), "-k", LOOP_APART),
            "build/reports/engine-loop-apart.xml",
            quick=False,
            limit_seconds=ENGINES_LIMIT_SECONDS,
            beside=True,
        ),
    ]


def without_servers() -> list[Suite]:
    """Some at a time, the longest first, so that their ends come at about the same moment."""
    return [
        *in_the_loop(),
        *with_sglang(),
        Suite(
            "python",
            in_tools(
                *pytest("python/tests", "python"),
                *("--ignore=python/tests/sglang", "--ignore=python/tests/engine_loop"),
            ),
            "build/reports/python.xml",
            beside=True,
        ),
        Suite(
            "engine of plain torch",
            in_engine(*pytest("e2e-tests/torch_engine", "torch-engine")),
            "build/reports/torch-engine.xml",
            quick=False,
            beside=True,
        ),
        Suite(
            "vLLM on a CUDA that computes nothing",
            in_engine(*pytest("e2e-tests/uncomputed", "uncomputed")),
            "build/reports/uncomputed.xml",
            quick=False,
            beside=True,
        ),
        Suite(
            "SGLang on a CUDA that computes nothing",
            in_sglang(*pytest("e2e-tests/uncomputed/test_sglang.py", "uncomputed-sglang")),
            "build/reports/uncomputed-sglang.xml",
            quick=False,
            beside=True,
        ),
        Suite(
            "house rules and test bed",
            in_tools(*pytest("e2e-tests/quick", "quick")),
            "build/reports/quick.xml",
            beside=True,
        ),
        Suite(
            "python, with vLLM",
            in_engine(*pytest(NEED_TORCH[0], "vllm"), *NEED_TORCH[1:]),
            "build/reports/vllm.xml",
            quick=False,
            beside=True,
        ),
    ]


def with_sglang() -> list[Suite]:
    """SGLang's own classes in one process: all tests with the pinned release, and some with the one before."""
    return [
        Suite(
            "python, with SGLang",
            in_sglang(*pytest("python/tests/sglang", "python-sglang"), *CPU_KERNELS),
            "build/reports/python-sglang.xml",
            quick=False,
            beside=True,
        ),
        Suite(
            f"python, with SGLang {SGLANG_EARLIER}",
            with_wheel(
                f"sglang --release {SGLANG_EARLIER}",
                *pytest("python/tests/sglang/test_sglang_interface.py", "python-sglang-earlier"),
                *("python/tests/sglang/test_pair_check.py", "python/tests/sglang/test_transfers.py"),
                *("python/tests/sglang/test_sglang_pulls.py", *CPU_KERNELS),
            ),
            "build/reports/python-sglang-earlier.xml",
            quick=False,
            beside=True,
        ),
    ]


def with_servers() -> list[Suite]:
    """Side by side, the longest first: each waits for a part of its time, SGLang's for half of it."""
    pair = "e2e-tests/sglang_pair"
    return [
        of_servers(
            "engines",
            "engine",
            "e2e-tests",
            "engines",
            *(f"--ignore={tests}" for tests in ENGINES_APART),
            beside=True,
        ),
        of_servers("engines, apart", "engine", ENGINES_APART[0], "engines-apart", *ENGINES_APART[1:], beside=True),
        of_servers(
            "engines, SGLang, recorded",
            "sglang",
            f"{pair}/test_recorded_calls.py",
            "sglang-recorded",
            f"{pair}/test_drafts.py",
            f"{pair}/test_role_switches.py",
            f"{pair}/test_sglang_pulls.py",
            f"{pair}/test_sglang_pull_ranks.py",
            f"{pair}/test_sglang_weights.py",
            f"{pair}/test_sglang_waiting_weights.py",
            beside=True,
        ),
        of_servers("engines, SGLang", "sglang", f"{pair}/test_sglang.py", "sglang", beside=True),
    ]


def of_servers(name: str, environment: str, tests: str, report: str, *more: str, beside: bool = False) -> Suite:
    return Suite(
        name,
        with_wheel(environment, *pytest(tests, report), *more),
        f"build/reports/{report}.xml",
        quick=False,
        limit_seconds=ENGINES_LIMIT_SECONDS,
        beside=beside,
    )


def report_files(suite: Suite) -> list[Path]:
    return sorted(Path(found) for found in glob.glob(str(ROOT / (suite.reports or "")), recursive=True))


def cases(report: Path) -> Iterator[tuple[str, ElementTree.Element]]:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        yield f"{case.get('classname')}::{case.get('name')}", case


def read_reports(suite: Suite) -> Outcome:
    outcome = Outcome()
    for report in report_files(suite):
        for name, case in cases(report):
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                outcome.failed.append(name)
            elif skip is not None:
                outcome.skipped.append((name, reason_of(skip)))
            else:
                outcome.passed += 1
    return outcome


def reason_of(skip: ElementTree.Element) -> str:
    """pytest gives the reason for skipping a whole module in the text, behind the place."""
    reasons = [
        part.strip() for part in (skip.get("message"), skip.text) if part and part.strip() != "collection skipped"
    ]
    return reasons[0] if reasons else "no reason given"


def allowed_skips() -> list[str]:
    lines = (ROOT / ".ci" / "allowed-skips.txt").read_text(encoding="utf-8").splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]


def run_suite(suite: Suite, beside: bool = False) -> Outcome:
    """`beside` others: their lines would be mixed."""
    if suite.reports:
        for stale in report_files(suite):
            stale.unlink()
    begun = time.monotonic()
    if beside:
        status = status_of_captured(suite)
    else:
        print(f"\n=== {suite.name}", flush=True)
        status = status_of(suite)
    outcome = read_reports(suite) if suite.reports else Outcome(passed=1 if status == 0 else 0)
    if status == TIMED_OUT:
        outcome.failed.append(f"{suite.name}: had not ended after {suite.limit_seconds:.0f} s")
    elif outcome.count() == 0 and suite.reports:
        outcome.failed.append(f"{suite.name}: wrote no test report")
    elif status != 0 and not outcome.failed:
        outcome.failed.append(f"{suite.name}: status {status}")
    print(f"\n=== {suite.name}: {totals(outcome)} in {time.monotonic() - begun:.0f} s", flush=True)
    return outcome


def run_side_by_side(neighbours: Sequence[Suite]) -> list[Outcome]:
    """Each in a thread. An interrupt ends what runs, and nothing more begins."""
    print(f"\n=== side by side: {', '.join(suite.name for suite in neighbours)}", flush=True)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        running: list[Future[Outcome]] = [pool.submit(run_suite, suite, True) for suite in neighbours]
        try:
            return [suite.result() for suite in running]
        except BaseException:
            STOPPED.set()
            raise


def status_of_captured(suite: Suite) -> int:
    """Prints what the command said when it has ended."""
    with tempfile.TemporaryFile() as output:
        status = status_of(suite, output)
        output.seek(0)
        text = output.read().decode(errors="replace")
    print(f"\n=== {suite.name}\n{text}", end="", flush=True)
    return status


def status_of(suite: Suite, output: IO[bytes] | None = None) -> int:
    """What its command ended with. One that does not end in time is interrupted, so that it says where it stood."""
    if STOPPED.is_set():
        return INTERRUPTED
    try:
        command = subprocess.Popen(suite.command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    except OSError as missing:
        print(missing)
        return 127
    try:
        return wait_for(command, suite.limit_seconds)
    except subprocess.TimeoutExpired:
        print(f"\n=== {suite.name}: not at its end after {suite.limit_seconds:.0f} s, interrupted", flush=True)
        end(command)
        return TIMED_OUT
    except BaseException:
        end(command)
        raise


def wait_for(command: subprocess.Popen[bytes], limit_seconds: float) -> int:
    """Beside others the interrupt comes to another thread, which says so by `STOPPED`."""
    deadline = time.monotonic() + limit_seconds
    while not STOPPED.is_set():
        try:
            return command.wait(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise
    end(command)
    return INTERRUPTED


def end(command: subprocess.Popen[bytes]) -> None:
    """SIGINT to all its processes, and SIGKILL to those that do not heed it."""
    os.killpg(command.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(INTERRUPTED_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)
    command.wait()


def totals(outcome: Outcome) -> str:
    return f"{outcome.passed} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} skipped"


def run(chosen: Sequence[Suite]) -> int:
    """Runs them all; the exit status."""
    os.environ.pop("PYTHONPATH", None)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored, by all below it
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    whole = Outcome()
    STOPPED.clear()
    for outcome in outcomes(chosen):
        whole.passed += outcome.passed
        whole.failed += outcome.failed
        whole.skipped += outcome.skipped
    print("\n=== summary")
    judge_skips(whole)
    for name in whole.failed:
        print(f"failed: {name}")
    print(totals(whole))
    return 1 if whole.failed else 0


def outcomes(chosen: Sequence[Suite]) -> Iterator[Outcome]:
    for beside, group in itertools.groupby(chosen, lambda suite: suite.beside):
        neighbours = list(group)
        if beside and len(neighbours) > 1:
            yield from run_side_by_side(neighbours)
        else:
            yield from map(run_suite, neighbours)


def judge_skips(whole: Outcome) -> None:
    allowed = allowed_skips()
    for name, reason in whole.skipped:
        known = any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed)
        print(f"skipped{'' if known else ' and not allowed to'}: {name}: {reason}")
        if not known:
            whole.failed.append(f"{name}: skipped, and .ci/allowed-skips.txt does not allow it")


def main() -> int:
    if sys.argv[1:] not in (["quick"], ["all"]):
        print(__doc__)
        return 2
    return run([suite for suite in suites() if suite.quick or sys.argv[1] == "all"])


if __name__ == "__main__":
    sys.exit(main())
