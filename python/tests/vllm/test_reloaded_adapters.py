"""Adapters that are loaded anew while prompts with them wait: what is exchanged is of one adapter, or not at all.

What names a prompt is read when it is queued, and what computes it is what the engine has at its passes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill
from test_adapter_digest import adapter
from test_loaded_adapters import asked, trained_again

REQUEST, LATER = "cmpl-a-0-11111111", "cmpl-a-0-22222222"
TOKENS = 300
"""Of two passes."""
QUEUED, BEGUN, COMPUTED = range(3)
"""How many passes of its prompt have run when the adapter is loaded anew."""

Reload = Callable[[SimulatedEngine, Path], None]


def in_place(engine: SimulatedEngine, folder: Path) -> None:
    """Of a new path, as vLLM advises."""
    engine.scheduler.on_adapter_added(asked(adapter(folder.with_name("next"), seed=2), load_inplace=True))


def in_place_where_it_was(engine: SimulatedEngine, folder: Path) -> None:
    trained_again(folder, 2)
    engine.scheduler.on_adapter_added(asked(folder, load_inplace=True))


def dropped(engine: SimulatedEngine, folder: Path) -> None:
    """The next pass reads its files, which are others."""
    trained_again(folder, 2)
    engine.scheduler.on_adapter_removed(1)


def same_again(engine: SimulatedEngine, folder: Path) -> None:
    engine.scheduler.on_adapter_added(asked(folder, load_inplace=True))


def another(engine: SimulatedEngine, folder: Path) -> None:
    engine.scheduler.on_adapter_added(asked(adapter(folder.with_name("chat"), seed=3), 2, name="chat"))


def overwritten(_: SimulatedEngine, folder: Path) -> None:
    """No pass reads the files of an adapter that was not loaded in place."""
    trained_again(folder, 2)


CHANGING: tuple[Reload, ...] = (in_place, in_place_where_it_was, dropped)
HARMLESS: tuple[Reload, ...] = (same_again, another, overwritten)


def outcome(prefiller: SimulatedEngine, *, is_whole: bool = True) -> str:
    """How it has ended by its first name; ``is_whole``: whether its passes are all of one adapter."""
    prefiller.steps(4)
    for request in prefiller.messenger.owes():
        prefiller.messenger.release(request)
    prefiller.steps(2)
    assert prefiller.at_rest()
    first, *others = prefiller.messenger.outcomes().values()
    by_the_name_of_then = "finished" if is_whole else "failed"
    assert others == [by_the_name_of_then] * (first == "failed"), "what is computed whole is sent by it"
    return first


def made(engine: EngineMaker, kv_role: str) -> SimulatedEngine:
    """An engine with room for all adapters here: it drops none to read it again."""
    found = engine(kv_role)
    found.own_scheduler._adapters._kept_max = 4
    return found


@pytest.fixture
def prefiller(engine: EngineMaker) -> SimulatedEngine:
    return made(engine, "kv_producer")


@pytest.mark.parametrize("passes", [QUEUED, BEGUN, COMPUTED])
@pytest.mark.parametrize("reload", [*CHANGING, *HARMLESS], ids=lambda each: each.__name__)
def test_should_send_no_prompt_that_was_computed_with_another_adapter_than_names_it(
    prefiller: SimulatedEngine, tmp_path: Path, reload: Reload, passes: int
) -> None:
    folder = adapter(tmp_path / "sql")
    prefiller.add(REQUEST, TOKENS, remote_decode(), lora=asked(folder), max_tokens=2)
    prefiller.steps(passes)
    reload(prefiller, folder)
    expected = "failed" if reload in CHANGING and passes < COMPUTED else "finished"
    assert outcome(prefiller, is_whole=passes != BEGUN) == expected


@pytest.mark.parametrize("passes", [QUEUED, BEGUN, COMPUTED])
def test_should_look_at_files_that_are_read_for_each_pass(
    prefiller: SimulatedEngine, tmp_path: Path, passes: int
) -> None:
    folder = adapter(tmp_path / "sql")
    prefiller.add(REQUEST, TOKENS, remote_decode(), lora=asked(folder, load_inplace=True), max_tokens=2)
    prefiller.steps(passes)
    trained_again(folder, 2)
    assert outcome(prefiller, is_whole=passes != BEGUN) == ("finished" if passes == COMPUTED else "failed")


def test_should_not_send_what_may_have_been_read_again(prefiller: SimulatedEngine, tmp_path: Path) -> None:
    """vLLM keeps so many adapters, and reads the files of one that it has dropped."""
    folder = adapter(tmp_path / "sql")
    prefiller.own_scheduler._adapters._kept_max = 1
    prefiller.add(REQUEST, TOKENS, remote_decode(), lora=asked(folder), max_tokens=2)
    another(prefiller, folder)
    overwritten(prefiller, folder)
    assert outcome(prefiller) == "failed"


def test_should_send_again_only_what_names_it_after_a_preemption(prefiller: SimulatedEngine, tmp_path: Path) -> None:
    """Its prompt is computed once more, with the adapter that is there now."""
    folder = adapter(tmp_path / "sql")
    prefiller.add(REQUEST, TOKENS, remote_decode(), lora=asked(folder), max_tokens=3)
    prefiller.steps(COMPUTED)
    in_place(prefiller, folder)
    prefiller.preempt(REQUEST)
    assert outcome(prefiller) == "failed"


@pytest.mark.parametrize("reload", [*CHANGING, *HARMLESS], ids=lambda each: each.__name__)
@pytest.mark.parametrize("is_known", [False, True])
def test_should_fetch_what_the_adapter_that_is_there_computes(
    engine: EngineMaker, tmp_path: Path, reload: Reload, is_known: bool
) -> None:
    """``is_known``: whether the prefiller was told that the decoder waits for the prompt by its name of before."""
    folder, decoder = adapter(tmp_path / "sql"), made(engine, "kv_consumer")
    decoder.paused = True
    decoder.add(REQUEST, TOKENS, remote_prefill(), lora=asked(folder))
    if is_known:
        decoder.step()
    reload(decoder, folder)
    decoder.add(LATER, TOKENS, remote_prefill(), lora=asked(folder))
    decoder.paused = False
    decoder.steps(2)
    waited, came_later = (fetch["promptDigest"] for fetch in decoder.messenger.of_kind("fetch"))
    assert waited == came_later
    declined = [decline["promptDigest"] for decline in decoder.messenger.of_kind("decline")]
    assert len(declined) == (is_known and reload in CHANGING)
    assert waited not in declined
    end_all(decoder)
    assert decoder.at_rest()


def end_all(engine: SimulatedEngine) -> None:
    for request in list(engine.messenger.owes()):
        engine.messenger.arrive(request)
    engine.steps(4)


def test_should_keep_names_of_prompts_without_their_last_token(prefiller: SimulatedEngine, tmp_path: Path) -> None:
    """The engine of a model with state does not get it; the name has it."""
    folder = adapter(tmp_path / "sql")
    prefiller.add(REQUEST, TOKENS, remote_decode(), lora=asked(folder))
    cut: Any = prefiller.requests[REQUEST]
    cut.num_prompt_tokens -= 1
    prefiller.own_scheduler._half._prefills[REQUEST].prompt_tokens -= 1
    same_again(prefiller, folder)
    assert outcome(prefiller) == "finished"
