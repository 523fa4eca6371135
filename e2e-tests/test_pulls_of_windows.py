"""Engines with layers that attend to a window pull from each other: what lies before the last window does not move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from bed import Side, messenger, start_messengers
from make_model import TinyGemma, cached_model
from prompts import cache_home
from pulls_bed import EXTRA, OPTIONS, PAGE_TOKENS, Engines, whole_pages

MODEL: Final = TinyGemma()
FULL_LAYERS: Final = 1
WINDOWED_LAYERS: Final = 5
HISTORIES: Final = (65, 255, 288, 289, 321, 700)
"""Shorter than the window, around it, and of several."""


def cached_tokens(prompt_tokens: int) -> int:
    """Of a window vLLM keeps, by default, what a prompt needs that is sent again: its last token is computed then."""
    return whole_pages(prompt_tokens - 1)


@pytest.fixture(scope="module")
def engines(run_folder: Path) -> Iterator[Engines]:
    model = cached_model(cache_home(), MODEL)
    with ExitStack() as stack:
        servers = [
            messenger(Side(f"pulls-windows-{core}", "kv_both", core, extra=EXTRA, options=OPTIONS), model, run_folder)
            for core in (0, 1)
        ]
        start_messengers(stack, servers)
        made = Engines(servers)
        made.prove_all()
        yield made


@pytest.mark.parametrize("tokens", HISTORIES)
def test_what_the_layers_need_crosses_and_no_more(engines: Engines, tokens: int) -> None:
    history = engines.prompt(tokens)
    engines.ask(0, history)
    pages = "kv_messenger_pages_received_total"
    before = engines.servers[1].metric(pages)
    prompt = f"{history} {engines.prompt(20)}"
    assert engines.pulled(1, prompt, 0) == cached_tokens(tokens)
    held_pages = cached_tokens(tokens) // PAGE_TOKENS
    in_window = min(held_pages, math.ceil(MODEL.window_tokens / PAGE_TOKENS))
    moved = engines.servers[1].metric(pages) - before
    assert moved == FULL_LAYERS * held_pages + WINDOWED_LAYERS * in_window
    engines.are_at_rest()
