"""FSDP2's ranks send their own rows into two servers that go on answering: `make weight-shards`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import asked
from faults import STEP_LIMIT_SECONDS, Gate
from fsdp_ranks import RANKS, Trainer
from make_model import cached_model
from prompts import cache_home
from server_process import start_all, wait_until
from weights_bed import NEW, OLD, PROMPTS, Served, Stream, serving

pytestmark = pytest.mark.at_length


@pytest.fixture(scope="module")
def answers() -> dict[Path, list[list[str]]]:
    """What plain servers answer, by the model's folder."""
    folders = [cached_model(cache_home(), shape) for shape in (OLD, NEW)]
    references = {folder: asked(folder, list(PROMPTS)) for folder in folders}
    return {folder: [reference.to(prompt) for prompt in PROMPTS] for folder, reference in references.items()}


@pytest.fixture(scope="module")
def servers(run_folder: Path, answers: dict[Path, list[list[str]]]) -> Iterator[list[Served]]:
    """Started when the plain ones have ended."""
    assert len(answers) > 1
    made = [serving(f"weight-shards-{number}", run_folder) for number in range(2)]
    with ExitStack() as stack:
        for served in made:
            stack.callback(served.server.stop)
        start_all([served.server for served in made], print)
        yield made


def test_each_rank_sends_its_own_rows_and_servers_load_those_of_all_ranks(
    servers: list[Served], answers: dict[Path, list[list[str]]], tmp_path: Path
) -> None:
    old, new = (answers[folder] for folder in (servers[0].old, servers[0].new))
    assert old != new
    streams = [Stream(served.server) for served in servers]
    trainer = Trainer(servers, tmp_path / "store")
    try:
        sent = trainer.send_all(servers[0].new, 1)
        for served in servers:
            assert served.answers() == new
            assert served.version() == "1"
            landed = landed_bytes(served)
            print("of rank 0:", landed, "of the model's", sent[0]["whole"])
            assert sent[0]["bytes"] <= landed < sent[0]["bytes"] + (1 << 20)
        again = trainer.send(servers[0].old, 2)
        assert [each["failure"] for each in again] == [""] * RANKS
        for served in servers:
            assert served.answers() == old
    finally:
        trainer.end()
    for stream in streams:
        stream.go_on()
        stream.end()


@pytest.mark.parametrize("dying", range(RANKS))
@pytest.mark.parametrize("step", ["take", "_connected", "_written", "_loaded"])
def test_a_rank_that_dies_leaves_servers_that_answer_and_take_the_next_update(
    servers: list[Served], answers: dict[Path, list[list[str]]], tmp_path: Path, step: str, dying: int
) -> None:
    old, new = (answers[folder] for folder in (servers[0].old, servers[0].new))
    version = max(int(served.version().replace("default", "0")) for served in servers) + 1
    before = [served.answers() for served in servers]
    assert all(given in (old, new) for given in before)
    folder, words = (servers[0].old, old) if before[0] == new else (servers[0].new, new)
    trainer = Trainer(servers, tmp_path / "store")
    try:
        sent = trainer.send(folder, version, step, dying)
        print("trainer:", sent)
        assert "a rank of the trainer is lost" in sent[1 - dying]["failure"]
        all_landed = (step, dying) == ("_loaded", 1)  # rank 0 has them loaded
        assert [served.answers() for served in servers] == ([words] * len(servers) if all_landed else before)
    finally:
        trainer.end()
    trainer = Trainer(servers, tmp_path / "next")
    try:
        sent = trainer.send(folder, version + 1)
        assert [each["failure"] for each in sent] == [""] * RANKS
        for served in servers:
            assert served.answers() == words
            assert not served.paused()
    finally:
        trainer.end()


@pytest.mark.parametrize("sent_signal", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_that_ends_while_it_writes_leaves_servers_that_take_the_next_update(
    servers: list[Served], answers: dict[Path, list[list[str]]], tmp_path: Path, sent_signal: signal.Signals
) -> None:
    """The last rank's second write is held back. Pages show rank 0's share, which has landed by then."""
    before = [served.answers() for served in servers]
    version = max(int(served.version().replace("default", "0")) for served in servers) + 1
    folder = servers[0].new if before[0] == answers[servers[0].old] else servers[0].old
    landed_before = [landed_bytes(served) for served in servers]
    gate = Gate(tmp_path / "gate")
    trainer = Trainer(servers, tmp_path / "store", gate)
    try:
        with gate.closed(after=1):
            trainer.begin(folder, version)
            wait_until(
                lambda: all(
                    landed_bytes(served) > bytes_before
                    for served, bytes_before in zip(servers, landed_before, strict=True)
                ),
                STEP_LIMIT_SECONDS,
                "rank 0's share has landed",
            )
            wait_until(
                lambda: all(", is written to\n" in served.status() for served in servers),
                STEP_LIMIT_SECONDS,
                "the status shows that rank 1 writes",
            )
            assert all(", is not written to; of the trainer's rank 1: " in served.status() for served in servers)
            trainer.ranks[-1].send_signal(sent_signal)
            assert [served.answers() for served in servers] == before
            if sent_signal == signal.SIGKILL:
                assert "a rank of the trainer is lost" in trainer.reports()[0]["failure"]
            trainer.end()
        assert [served.answers() for served in servers] == before
        assert all(served.version() != str(version) for served in servers)
    finally:
        trainer.end()
    trainer = Trainer(servers, tmp_path / "next")
    try:
        assert [each["failure"] for each in trainer.send(folder, version + 1)] == [""] * RANKS
        assert [served.answers() for served in servers] == [answers[folder]] * len(servers)
    finally:
        trainer.end()


def landed_bytes(served: Served) -> float:
    return served.metric("kv_messenger_weights_landed_bytes_total")


def test_a_sender_of_whole_tensors_is_refused_after_a_split_trainer(servers: list[Served]) -> None:
    sent = servers[0].send(servers[0].new)
    assert sent.returncode == 1
    assert "the tensors come from 1 trainer ranks, and came from 2" in sent.stderr


@pytest.mark.parametrize("shape", [("tcp", 3, 1), ("tcp", 2, 2), ("shm", 4, 2)])
def test_shares_land_by_either_transport_and_in_a_server_of_several_ranks(
    run_folder: Path, answers: dict[Path, list[list[str]]], tmp_path: Path, shape: tuple[str, int, int]
) -> None:
    """A transport, the trainer's ranks and the server's; three trainer ranks have unlike numbers of rows."""
    transport, ranks, tp_size = shape
    by = {"KV_MESSENGER_TRANSPORTS": transport}
    served = serving(f"weight-shards-{transport}-{tp_size}", run_folder, tp_size=tp_size, environment=dict(by))
    with served.server:
        served.server.wait_healthy()
        trainer = Trainer([served], tmp_path / "store", ranks=ranks, environment=by)
        try:
            for version, folder in enumerate((served.new, served.old), 1):
                trainer.send_all(folder, version)
                assert served.answers() == answers[folder]
                assert served.version() == str(version)
        finally:
            trainer.end()
