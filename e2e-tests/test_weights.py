"""A checkpoint's folder is sent into a server that goes on answering: what it answers before, meanwhile, afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import asked
from faults import STEP_LIMIT_SECONDS, Gate
from make_model import TinyModel, cached_model
from prompts import cache_home
from server_process import complete, start_all, wait_until, words_of
from weights_bed import (
    FAULTS_ARGUMENTS,
    FAULTS_ENVIRONMENT,
    PROMPTS,
    STREAMED,
    Served,
    Stream,
    held_sender,
    killed_at,
    serving,
)

OTHER = TinyModel(layer_count=3)
FAR_VERSION = 1 << 50
"""Newer than any time in milliseconds."""


@pytest.fixture(scope="module", params=[1])
def served(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[Served]:
    made = serving(f"weights-tp{request.param}", run_folder, tp_size=request.param)
    with ExitStack() as stack:
        stack.callback(made.server.stop)
        start_all([made.server], print)
        yield made


def test_a_checkpoint_is_sent_into_a_server_that_goes_on_answering(served: Served, tmp_path: Path) -> None:
    old, new = answers_of(served.old), answers_of(served.new)
    assert old != new
    assert served.answers() == old
    stream = Stream(served.server)
    stream.go_on()

    with held_sender(served, Gate(tmp_path / "gate")) as sender:
        stream.go_on()
        assert " bytes, is written to\n" in served.status()
        sender.kill()
        stream.go_on()
    wait_until(
        lambda: served.metric("kv_messenger_weight_updates_ended_total", reason="sender_lost") == 1,
        STEP_LIMIT_SECONDS,
        "the loss of the sender",
    )
    assert served.answers() == old
    assert not served.paused()
    before = list(stream.answers[0])

    sent = served.send(served.new, "--version", "7")
    assert sent.returncode == 0, sent.stderr
    stream.go_on()
    stream.end()
    assert served.answers() == new
    assert not served.paused()
    assert f"{served.server.url}: version 7" in sent.stdout
    assert served.metric("kv_messenger_weights_version") == 7

    again = served.send(served.old)
    assert again.returncode == 0, again.stderr
    assert served.answers() == old
    assert words_of(complete(served.server, STREAMED, len(before))) == before
    shown = served.status()
    assert " bytes, is not written to\n" in shown
    assert "updates applied: 2\n" in shown
    assert "updates sender lost: 1\n" in shown


def test_what_does_not_fit_is_refused_and_changes_nothing(served: Served) -> None:
    first = served.send(served.old)
    assert first.returncode == 0, first.stderr
    answers = served.answers()
    late = served.send(served.new, "--version", "1")
    assert late.returncode == 1
    assert "version is 1, expected one above" in late.stderr
    other = served.send(cached_model(cache_home(), OTHER))
    assert other.returncode == 1
    assert (
        "tensor model.layers.3.input_layernorm.weight is missing, and of shape [512] in the checkpoint" in other.stderr
    )
    assert served.answers() == answers


def test_ranks_load_together_or_not_at_all(run_folder: Path) -> None:
    """Two ranks: a sender that died within vLLM's update, a rank without the landing, a rank that loads half of it."""
    served = serving(
        "weights-tp2", run_folder, tp_size=2, arguments=FAULTS_ARGUMENTS, environment=dict(FAULTS_ENVIRONMENT)
    )
    with served.server:
        served.server.wait_healthy()
        old, new = answers_of(served.old), answers_of(served.new)
        assert served.answers() == old
        killed_at(served, "/update_weights", served.new)

        served.fails_at("map", rank=1)
        unmapped = served.send(served.new)
        assert unmapped.returncode == 1
        assert "rank 1 cannot map the landing of process" in unmapped.stderr
        assert served.answers() == old
        served.fails_at("nothing", rank=1)

        sent = served.send(served.new, "--version", str(FAR_VERSION))
        assert sent.returncode == 0, sent.stderr
        assert served.answers() == new
        assert served.version() == str(FAR_VERSION)

        served.fails_at("load", rank=1)
        half = served.send(served.old, "--version", str(FAR_VERSION + 1))
        assert half.returncode == 1
        assert "weights may be loaded in part (MemoryError: as when memory runs out half-way)" in half.stderr
        served.server.wait_ended()


def answers_of(model: Path) -> Sequence[list[str]]:
    reference = asked(model, list(PROMPTS))
    return [reference.to(prompt) for prompt in PROMPTS]
