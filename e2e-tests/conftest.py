"""The servers that most end-to-end tests share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bed import Bed, Messenger, decoder, messenger, prefiller, start_messengers
from make_model import cached_model
from plain_vllm import reference_answers
from prompts import cache_home
from traffic import DEFAULT_REQUESTS, DEFAULT_SEED, Traffic
from warm_starts import LAUNCHER
from workload import ALL, ANSWER_TOKENS, OF_EVERYDAY, prompts_of

ROOT = Path(__file__).resolve().parent.parent
INSTALL_LIMIT_SECONDS = 600


class Reference:
    """What a single plain vLLM answers."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self._answers = answers

    def to(self, prompt: str, tokens: int = ANSWER_TOKENS) -> list[str]:
        return self._answers[prompt][:tokens]


@pytest.fixture(scope="session")
def run_folder() -> Path:
    """Where the logs of this run's servers stay."""
    return ROOT / "build" / "e2e" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


@pytest.fixture(scope="session")
def bare_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed by pip, with what it asks for, and nothing else."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    wheel = (ROOT / "python" / "dist" / ".wheel").read_text(encoding="utf-8").strip()
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=INSTALL_LIMIT_SECONDS)
    install = [str(home / "bin" / "python"), "-m", "pip", "-q", "install", wheel]
    subprocess.run(install, check=True, timeout=INSTALL_LIMIT_SECONDS)
    return home


@pytest.fixture(scope="session")
def model() -> Path:
    return cached_model(cache_home())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everyday-requests", type=int, default=DEFAULT_REQUESTS, help="how many test_everyday.py sends")
    parser.addoption("--everyday-seed", type=int, default=DEFAULT_SEED, help="what test_everyday.py draws them from")
    parser.addoption("--all-stores", action="store_true", help="test_stores.py: every set-up, and faults of the store")
    parser.addoption("--all-pulls", action="store_true", help="test_pull_faults.py: every fault in every state")
    parser.addoption("--all-weights", action="store_true", help="test_weight_faults.py: every fault in every state")
    parser.addoption("--all-formats", action="store_true", help="test_structured_output.py: JSON")
    parser.addoption("--at-length", action="store_true", help="also what an ordinary run leaves out")
    parser.addoption("--all-pairs", action="store_true", help="uncomputed: all pairs, also those of `make uncomputed`")
    parser.addoption("--guests", type=int, default=20, help="uncomputed: peers that come and go beside captures")
    parser.addoption("--role-switches", type=int, default=2, help="sglang_pair: how often two servers change roles")
    parser.addoption("--silence-seconds", type=float, default=0.0, help="test_firewall.py: how long connections idle")
    parser.addoption("--record", action="store_true", help="sglang_pair: write the scheduler's calls anew")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long is no part of an ordinary run, so it is not skipped there either."""
    lengths = ("--all-stores", "--all-pulls", "--all-weights", "--all-formats", "--all-pairs", "--at-length")
    if any(config.getoption(name) for name in lengths):
        return
    left_out = [item for item in items if item.get_closest_marker("at_length")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def traffic(request: pytest.FixtureRequest) -> Traffic:
    return Traffic(request.config.getoption("--everyday-seed"), request.config.getoption("--everyday-requests"))


@pytest.fixture(scope="session")
def reference(model: Path) -> Reference:
    return asked(model, prompts_of(ALL))


@pytest.fixture(scope="session")
def everyday_reference(model: Path, traffic: Traffic) -> Reference:
    """Asked apart: its prompts change with the seed, and these tests want no other."""
    return asked(model, [*prompts_of(OF_EVERYDAY), *traffic.prompts()])


def asked(model: Path, prompts: list[str]) -> Reference:
    answers = reference_answers(model, prompts, ANSWER_TOKENS, lambda line: print(line, flush=True))
    return Reference(dict(zip(prompts, answers, strict=True)))


@pytest.fixture(scope="session")
def bed(model: Path, run_folder: Path, reference: Reference) -> Iterator[Bed]:
    """`reference` comes first: three engines at once would only slow each other down. The demo starts as users do."""
    with ExitStack() as stack:
        source = messenger(prefiller("prefiller"), model, run_folder)
        target = messenger(decoder("decoder"), model, run_folder)
        start_messengers(stack, [source, target])
        yield Bed(source, target, model, run_folder)


@pytest.fixture(scope="session")
def tcp_decoder(bed: Bed) -> Iterator[Messenger]:
    """A decoder of the same prefiller whose messenger offers tcp alone; the shared one gets shm, the faster.

    It uses KV that is not what it computes itself, so that a test can see such KV in the tokens.
    """
    extra = {"transports": ["tcp"], "last_token_check": "warn"}
    with ExitStack() as stack:
        (made,) = bed.started(stack, decoder("decoder-tcp", extra=extra))
        yield made


@pytest.fixture(scope="session", autouse=True)
def launcher() -> Iterator[None]:
    """Whatever started warm servers is gone with the session."""
    yield
    LAUNCHER.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What one test starts, it ends."""
    with ExitStack() as held:
        yield held


@pytest.fixture(autouse=True)
def name_run_folder(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[None]:
    yield
    if request.session.testsfailed and run_folder.exists():
        print(f"the servers' logs are in {run_folder}")
