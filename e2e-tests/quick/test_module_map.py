"""The Java packages import each other in one direction only, and docs/architecture.md draws them as they are."""

from __future__ import annotations

import pytest
from module_map import BEGIN, PAGE, ROOT, arrows_of, faults, production_sources, reduced, section, with_map


def test_no_arrow_goes_back_and_none_closes_a_cycle() -> None:
    assert faults(arrows_of(production_sources(ROOT))) == []


def test_every_production_package_was_looked_at() -> None:
    arrows = arrows_of(production_sources(ROOT))
    assert {"kvlayout", "hooks", "foreign", "transfer.engine", "messenger.session", "connector"} <= set(arrows)


def test_the_page_draws_the_imports() -> None:
    page = PAGE.read_text(encoding="utf-8")
    drawn = with_map(page, arrows_of(production_sources(ROOT)))
    assert page == drawn, "stale: run python e2e-tests/quick/module_map.py"


def test_an_import_of_a_module_above_is_found() -> None:
    arrows = arrows_of(
        ["package io.kvmessenger.transfer.spi;\n\nimport static io.kvmessenger.messenger.port.Tally.add;\n"]
    )
    assert len(faults(arrows)) == 1
    assert "transfer.spi imports messenger.port" in faults(arrows)[0]


def test_a_cycle_of_packages_is_found() -> None:
    back = {"messenger.port": {"messenger.wire"}, "messenger.wire": {"messenger.port"}}
    assert len(faults(back)) == 1
    assert "cycle" in faults(back)[0]


def test_a_new_import_makes_the_page_stale() -> None:
    arrows = {"transfer": {"foreign"}, "foreign": set[str]()}
    page = f"# A\n{section(arrows)}\nB\n"
    assert with_map(page, arrows) == page
    assert with_map(page, {**arrows, "kvlayout": {"foreign"}}) != page


def test_an_arrow_that_follows_from_two_others_is_left_out() -> None:
    arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert reduced(arrows) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_a_page_without_a_place_for_the_map_is_refused() -> None:
    with pytest.raises(ValueError, match="has no lines"):
        with_map(f"# A\n{BEGIN}\n", {})
