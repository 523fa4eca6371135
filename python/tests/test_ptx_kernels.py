"""The instructions of the layer counter's kernels, run one by one; the stand-in for the driver knows only their names.

A device's memory model is not run: that the word's store comes last, behind a fence, is checked by the order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from ptx import WORD_BYTES, Memory, PtxError, kernels, without_each_instruction

from kv_connector.memory.device_word import BUMP, PLACE, PTX

SOURCE = PTX.decode()
STATE = 0x7F00_0000_1000
"""In device memory: the count, its bound and the word's address."""
WORDS = [0x7F00_0000_2000, 0x7F00_0000_2008]
"""In page-locked memory of the host."""
LARGE = (1 << 64) - 2
SHORTER = list(without_each_instruction(SOURCE))


@dataclass
class Device:
    """A module with its memory, and beside it the count as DeviceWord's class docs have it."""

    source: str = SOURCE
    count: int = 0
    bound: int = 0
    word: int = 0
    expected: dict[int, int] = field(default_factory=lambda: dict.fromkeys(WORDS, 0))

    def __post_init__(self) -> None:
        self.kernels = kernels(self.source)
        self.memory = Memory({STATE + WORD_BYTES * index: 0 for index in range(3)} | dict.fromkeys(WORDS, 0))

    def bump(self) -> None:
        self._run(BUMP, STATE)
        if self.count != self.bound:
            self.count += 1
            self.expected[self.word] = self.count
        self._check()

    def place(self, word: int, count: int, bound: int) -> None:
        self._run(PLACE, STATE, word, count, bound)
        self.word, self.count, self.bound = word, count, bound
        self.expected[word] = count
        self._check()

    def _run(self, name: bytes, *parameters: int) -> None:
        self.memory.done.clear()
        self.kernels[name.decode()].run(self.memory, *parameters)
        stores = [each for each in self.memory.done if each != "fence"]
        if stores:  # what came before is seen by whatever has seen the word
            assert self.memory.done[-2] == "fence"
            assert stores[-1].startswith("st.release.sys ")
            assert not any(each.startswith("st.release") for each in stores[:-1])

    def _check(self) -> None:
        assert {word: self.memory.words[word] for word in WORDS} == self.expected
        assert self.memory.words[STATE] == self.count


def counted(source: str) -> None:
    """A step, increments beyond its bound, another word, and a count that is near the end of its numbers."""
    device = Device(source)
    device.bump()  # captured before there is a word: it writes nothing
    device.place(WORDS[0], 2, 4)
    for _ in range(3):
        device.bump()
    device.place(WORDS[1], 7, 7)
    device.bump()
    device.place(WORDS[1], LARGE, LARGE + 1)
    for _ in range(2):
        device.bump()


def test_should_count() -> None:
    counted(SOURCE)


@pytest.mark.parametrize("seed", range(50))
def test_should_count_in_any_order(seed: int) -> None:
    draws, device = random.Random(seed), Device()
    for _ in range(200):
        if draws.random() < 0.2:
            count = draws.choice([draws.randrange(100), draws.randrange(LARGE)])
            device.place(draws.choice(WORDS), count, min(LARGE + 1, count + draws.randrange(5)))
        else:
            device.bump()


@pytest.mark.parametrize("shorter", [pytest.param(source, id=line) for line, source in SHORTER])
def test_each_instruction_is_needed(shorter: str) -> None:
    with pytest.raises((AssertionError, PtxError)):
        counted(shorter)


def test_should_know_all_instructions() -> None:
    assert len(SHORTER) == SOURCE.count(";\n") - SOURCE.count(".reg")


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("add.u64 %count, %count, 1;", "add.u64 %count, %count, 2;"),
        ("setp.eq.u64 %reached, %count, %bound;", "setp.eq.u64 %reached, %count, %own;"),
        ("ld.global.u64 %seen, [%own+16];", "ld.global.u64 %seen, [%own+8];"),
        ("st.release.sys.global.u64 [%seen], %count;", "st.global.u64 [%seen], %count;"),
        ("ld.global.u64 %bound, [%own+8];", "ld.global.u64 %bound, [%own+4];"),
        ("    ret;", "    exit;"),
    ],
)
def test_should_refuse_other_instructions(line: str, other: str) -> None:
    assert line in SOURCE
    with pytest.raises((AssertionError, PtxError)):
        counted(SOURCE.replace(line, other))
