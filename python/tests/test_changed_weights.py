"""What weights that were changed in a running engine are called."""

from __future__ import annotations

import itertools

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


Act = tuple[str, str]
ACTS: tuple[Act, ...] = (
    *(("lands as 5", "one"), ("lands as 5", "two"), ("lands as 6", "one")),
    *(("is told", "5"), ("is told", "6"), ("is told", "")),
    *(("changes", "by tensors"), ("changes as", "5"), ("loads", "files"), ("loads", ""), ("loses", "all")),
)
"""What may come of an engine: of two trainers, a user, and itself."""


class Engine:
    """One engine's weights, and what is known of them: what has landed last, and the steps since."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.weights, self.version = weights(), ""
        self.landed, self.since = "", 0
        self.given: set[str] = set()
        """Versions since then."""

    def meets(self, act: Act) -> None:
        what, given = act
        self.since += what not in ("is told",)
        if what.startswith("lands as"):
            self.version, self.landed, self.since = what[-1], given, 0
            self.given = {"", self.version}
            self.weights.on_landed(given, self.version)
        elif what == "is told":
            self.version = given
            self.given.add(given)
            self.weights.on_versioned(given)
        elif what == "changes as":
            self.version = given
            self.weights.on_versioned(given)
        elif what == "changes":
            self.weights.on_changed(self.version)
        elif what == "loads":
            self.landed = "" if given else self.landed
            self.weights.on_loaded(given, self.version)
        else:
            self.weights.on_lost(f"lost by {self._number}", self.version)

    def name(self) -> str:
        return self.weights.name(self.version)


def test_should_never_call_what_one_trainer_has_sent_as_that_of_another() -> None:
    """In all orders: what has landed is in the name until files replace it, whatever number a client gives it."""
    names: dict[str, str] = {}
    for number, acts in enumerate(itertools.product(ACTS, repeat=4)):
        engine = Engine(number)
        for act in acts:
            engine.meets(act)
        name = engine.name()
        assert names.setdefault(name, engine.landed) == engine.landed, acts
        assert name.startswith(f"landed {engine.landed}" if engine.landed else ""), acts
        if engine.landed and not engine.since:
            assert name == f"landed {engine.landed}" or len(engine.given) > 2, acts
    assert len(names) > len(ACTS)


def test_should_call_the_same_bytes_alike_whatever_their_number_is() -> None:
    here, there = weights(), ChangedWeights()
    here.on_versioned("1")
    here.on_landed("ab", "5")
    there.on_changed("")
    there.on_landed("ab", "6")
    assert here.name("5") == there.name("6") == "landed ab"
    here.on_changed("5")
    assert here.name("5") == "landed ab, 1 changes"
    here.on_versioned("5")
    assert here.name("5") == "landed ab", "a user says that it is what landed as 5"
    assert here.name("7") == "landed ab, 7", "and a word for something else is one in addition"


def test_should_keep_the_name_of_weights_whose_version_is_dropped() -> None:
    """SGLang is told ``default``, and reports nothing."""
    changed = weights()
    changed.on_versioned("5")
    assert changed.name("") == "5"
    changed.on_lost("lost by 1", "5")
    assert changed.name("") == "5, lost by 1"
