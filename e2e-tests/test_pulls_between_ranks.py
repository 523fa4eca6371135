"""Engines of one tensor-parallel rank and of two pull from each other: each rank's share of the KV crosses.

The two ranks have one messenger or one each; of several, the first asks and is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bed import Side, messenger, start_messengers
from pulls_bed import EXTRA, OPTIONS, Engines, whole_pages


@pytest.fixture(scope="module", params=["node", "rank"])
def engines(request: pytest.FixtureRequest, model: Path, run_folder: Path) -> Iterator[Engines]:
    sides = [
        Side(
            f"pulls-ranks-{ranks}-{request.param}",
            "kv_both",
            core,
            messenger_count=ranks if request.param == "rank" else 1,
            extra={**EXTRA, "messenger_per": request.param},
            options={**OPTIONS, "tp_size": ranks},
        )
        for core, ranks in enumerate((1, 2))
    ]
    with ExitStack() as stack:
        servers = [messenger(side, model, run_folder) for side in sides]
        start_messengers(stack, servers)
        made = Engines(servers)
        made.prove_all()
        yield made


@pytest.mark.parametrize(("asker", "source"), [(0, 1), (1, 0)], ids=["from two ranks", "from one rank"])
def test_a_beginning_crosses_between_unequal_engines(engines: Engines, asker: int, source: int) -> None:
    for tokens in (65, 300):
        history = engines.prompt(tokens)
        engines.ask(source, history)
        prompt = f"{history} {engines.prompt(20)}"
        assert engines.pulled(asker, prompt, source) == whole_pages(tokens)
        assert engines.pulled(asker, f"{prompt} {engines.prompt(40)}", source) == 0, "its own cache has more"
    engines.are_at_rest()
