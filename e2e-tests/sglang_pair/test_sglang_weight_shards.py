"""FSDP2's ranks send their own rows into an SGLang server that goes on answering: `make sglang-weights`."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsdp_ranks import Trainer
from sglang_weights_bed import asking, of_versions, old_and_new, sglang_serving
from weights_bed import PROMPTS

pytest_plugins = ["sglang_fixtures"]
pytestmark = pytest.mark.at_length


@pytest.mark.parametrize(("transport", "ranks", "tp_size"), [("shm", 2, 1), ("tcp", 3, 2)])
def test_each_rank_sends_its_own_rows_and_answers_are_whole(
    run_folder: Path, tmp_path: Path, transport: str, ranks: int, tp_size: int
) -> None:
    by = {"KV_MESSENGER_TRANSPORTS": transport}
    served = sglang_serving(f"weight-shards-{transport}", run_folder, tp_size=tp_size, environment=dict(by))
    answers = old_and_new(served, run_folder)
    with served.server:
        served.server.wait_healthy()
        trainer = Trainer([served], tmp_path / "store", ranks=ranks, environment=by)
        try:
            with asking(served.server) as clients:
                clients.go_on()
                for version, folder in enumerate((served.new, served.old), 1):
                    trainer.send_all(folder, version)
                    clients.go_on(16)
                    words = answers[folder == served.new]
                    assert served.answers() == [words[prompt] for prompt in PROMPTS]
                    assert served.version() == str(version)
                versions = of_versions(clients.end(), *answers)
            print("answers of either version:", versions.count(0), versions.count(1))
            assert -1 not in versions
        finally:
            trainer.end()
