"""What weights that were changed in a running engine are called."""

from __future__ import annotations

import pytest

from kv_connector.naming.changed_weights import ChangedWeights

START, TRAINED = "0011223344556677", "8899aabbccddeeff"


def weights() -> ChangedWeights:
    made = ChangedWeights()
    made.started_with(START)
    return made


def test_should_have_no_name_at_the_start() -> None:
    assert weights().name("") == ""
    assert weights().name("step 7") == "step 7"


def test_should_be_called_by_the_files_that_were_loaded() -> None:
    here, there = weights(), ChangedWeights()
    here.on_loaded(TRAINED, "")
    there.on_loaded(TRAINED, "")
    assert here.name("") == there.name("") == TRAINED
    here.on_loaded(START, "")
    assert here.name("") == "", "it computes with what it started with again"


def test_should_be_counted_where_nothing_says_what_they_are() -> None:
    once, twice = weights(), weights()
    once.on_changed("")
    twice.on_changed("")
    twice.on_loaded("", "")
    assert len({"", once.name(""), twice.name("")}) == 3
    twice.on_loaded(TRAINED, "")
    assert twice.name("") == TRAINED, "all were loaded anew"
    twice.on_changed("")
    assert twice.name("") not in ("", TRAINED, once.name(""))


def test_should_be_called_by_the_version_alone_where_one_was_given() -> None:
    versioned_first, versioned_after = weights(), weights()
    versioned_first.on_loaded(TRAINED, "")
    versioned_first.on_versioned("step 8")
    versioned_after.on_changed("")
    assert versioned_first.name("step 8") == versioned_after.name("step 8") == "step 8"


def test_should_not_keep_a_version_through_a_change_that_had_none() -> None:
    changed = weights()
    changed.on_versioned("step 8")
    changed.on_changed("step 8")
    assert changed.name("step 8") not in ("", "step 8")
    changed.on_changed("step 9")
    other = weights()
    other.on_versioned("step 9")
    other.on_changed("step 9")
    assert changed.name("step 9") == other.name("step 9"), "what came before the version does not count"


@pytest.mark.parametrize("at_start", ["", "5"])
@pytest.mark.parametrize("before", ["", "5", "6"])
def test_should_not_name_lost_weights_by_the_version_that_they_had(at_start: str, before: str) -> None:
    """SGLang has a version from its start on, which no update has reported."""
    weights = ChangedWeights()
    weights.started_with("d0")
    if before:
        weights.on_versioned(before)
    version = before or at_start
    weights.on_lost("lost by 1", version)
    assert weights.name(version) == ", ".join(filter(None, (version, "lost by 1")))
    weights.on_changed(version)
    assert "lost by 1" in weights.name(version), "only a part of them is known again"
    weights.on_versioned("7")
    assert weights.name("7") == "7"
