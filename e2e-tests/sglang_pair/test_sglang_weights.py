"""A checkpoint's folder is sent into an SGLang server that goes on answering: each answer is whole of one version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from faults import STEP_LIMIT_SECONDS, Gate
from server_process import start_all, wait_until
from sglang_weights_bed import Answers, SglangServed, asking, of_versions, old_and_new, sglang_serving
from weights_bed import PROMPTS, held_sender, killed_at

pytest_plugins = ["sglang_fixtures"]


@pytest.fixture(scope="module")
def served(run_folder: Path) -> Iterator[SglangServed]:
    made = sglang_serving("weights", run_folder)
    with ExitStack() as stack:
        stack.callback(made.server.stop)
        start_all([made.server], print)
        yield made


@pytest.fixture(scope="module")
def answers(run_folder: Path, served: SglangServed) -> tuple[Answers, Answers]:
    """Of the old model and of the new one, by plain servers."""
    return old_and_new(served, run_folder)


def test_a_checkpoint_is_sent_into_a_server_that_goes_on_answering(
    served: SglangServed, answers: tuple[Answers, Answers], tmp_path: Path
) -> None:
    old, new = ([each[prompt] for prompt in PROMPTS] for each in answers)
    assert served.answers() == old
    with asking(served.server) as clients:
        clients.go_on()
        with held_sender(served, Gate(tmp_path / "gate")) as sender:
            clients.go_on()
            sender.kill()
            clients.go_on()
        wait_until(lambda: served.ended("sender_lost") == 1, STEP_LIMIT_SECONDS, "the loss of the sender")
        killed_at(served, "/update_weights_from_tensor", served.new)
        clients.go_on()
        assert set(of_versions(clients.answered, *answers)) == {0}

        sent = served.send(served.new, "--version", "7")
        assert sent.returncode == 0, sent.stderr
        clients.go_on(16)
        versions = of_versions(clients.end(), *answers)
    assert -1 not in versions
    assert set(versions[-8:]) == {1}
    assert served.answers() == new
    assert served.version() == "7"
    assert f"{served.server.url}: version 7" in sent.stdout
    assert served.metric("kv_messenger_weights_version") == 7

    killed_at(served, "/update_weights_from_tensor answered", served.old)
    assert served.answers() == old
    assert served.begins_session()["success"], "a session of SGLang's was left open"
