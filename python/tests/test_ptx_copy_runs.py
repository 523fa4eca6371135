"""The instructions of the kernel that copies runs, one by one; the stand-in for the driver knows only its name."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from ptx import Areas, PtxError, kernels, without_each_instruction

RESOURCES = Path(__file__).parents[2] / "connector-java" / "transfer" / "src" / "main" / "resources"
SOURCE = (RESOURCES / "io" / "kvmessenger" / "transfer" / "device" / "copy_runs.ptx").read_text()
NAME = "kv_messenger_copy_runs"
TABLE, FROM, TO = 0x7F00_0000_0000, 0x7E00_0000_0000, 0x7D00_0000_0000
VECTOR_BYTES = 16
SHORTER = list(without_each_instruction(SOURCE))


@dataclass(frozen=True)
class Run:
    target: int
    source: int
    length_bytes: int

    def singles(self) -> int:
        """Bytes that go one by one: all where the ends are not aligned alike, otherwise those before and behind."""
        if (self.target - self.source) % VECTOR_BYTES:
            return self.length_bytes
        head = min(-self.target % VECTOR_BYTES, self.length_bytes)
        return head + (self.length_bytes - head) % VECTOR_BYTES


def spread(shapes: Sequence[tuple[int, int, int]]) -> Iterator[Run]:
    """Runs of (alignment of the target, of the source, length), with unused bytes between them."""
    target = source = 0
    for to, of, length_bytes in shapes:
        target += -(target + 1) % VECTOR_BYTES + 1 + to
        source += -(source + 1) % VECTOR_BYTES + 1 + of
        yield Run(TO + target, FROM + source, length_bytes)
        target, source = target + length_bytes, source + length_bytes


def copied(runs: Sequence[Run], blocks: int = 2, threads: int = 3, source: str = SOURCE) -> Areas:
    """Launches the kernel; every byte of the target area is compared, those between the runs too."""
    end = max((run.target + run.length_bytes - TO for run in runs), default=0)
    read = max((run.source + run.length_bytes - FROM for run in runs), default=0)
    given = bytes(random.Random(read).choices(range(1, 256), k=read))
    expected, target = bytearray(end), bytearray(end)
    for run in runs:
        offset = run.target - TO
        expected[offset : offset + run.length_bytes] = given[run.source - FROM :][: run.length_bytes]
    table = bytearray()
    for run in runs:
        for word in (run.target, run.source, run.length_bytes):
            table += word.to_bytes(8, "little")
    memory = Areas({TABLE: table, FROM: bytearray(given), TO: target})
    kernels(source)[NAME].launch(memory, blocks, threads, TABLE, len(runs))
    assert target == expected
    assert memory.areas[FROM] == given
    singles = sum(run.singles() for run in runs)
    vectors = (sum(run.length_bytes for run in runs) - singles) // VECTOR_BYTES
    expected_stores = {1: singles, VECTOR_BYTES: vectors}
    assert memory.stores == {length: count for length, count in expected_stores.items() if count}
    assert memory.loads.get(VECTOR_BYTES, 0) == vectors
    return memory


@pytest.mark.parametrize("alignment", range(VECTOR_BYTES))
def test_should_copy_each_length_where_both_ends_are_aligned_alike(alignment: int) -> None:
    copied(list(spread([(alignment, alignment, length) for length in range(67)])))


@pytest.mark.parametrize("target", range(VECTOR_BYTES))
def test_should_copy_from_each_alignment_to_each_other(target: int) -> None:
    copied(list(spread([(target, source, length) for source in range(16) for length in (0, 1, 15, 16, 17, 34)])))


@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (1, 7), (5, 1), (3, 4), (40, 2), (2, 64)])
def test_should_copy_all_runs_whatever_the_grid(blocks: int, threads: int) -> None:
    draws = random.Random(blocks * threads)
    shapes = [(draws.choice([0, 0, draws.randrange(16)]), 0, draws.randrange(200)) for _ in range(37)]
    copied(list(spread(shapes)), blocks, threads)


def test_should_copy_a_page_in_whole_vectors() -> None:
    memory = copied(list(spread([(0, 0, 2048)] * 3)), blocks=2, threads=128)
    assert memory.stores == {VECTOR_BYTES: 3 * 128}


def test_should_copy_nothing_for_an_empty_table() -> None:
    assert copied([]).loads == {}


def story(source: str) -> None:
    """Short, long, aligned and unaligned runs, more than blocks, some of them longer than a block copies at once."""
    shapes = [(0, 0, 160), (3, 3, 100), (3, 3, 5), (5, 9, 40), (0, 8, 33), (15, 15, 1), (1, 1, 0), (0, 0, 17)]
    copied(list(spread(shapes)), blocks=3, threads=4, source=source)


def test_should_copy_the_story() -> None:
    story(SOURCE)


@pytest.mark.parametrize("shorter", [pytest.param(source, id=line) for line, source in SHORTER])
def test_each_instruction_is_needed(shorter: str) -> None:
    with pytest.raises((AssertionError, PtxError)):
        story(shorter)


def test_should_know_all_instructions() -> None:
    assert len(SHORTER) == SOURCE.count(";\n") - SOURCE.count(".reg ")


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("and.b64 %whole, %whole, -16;", "and.b64 %whole, %whole, -32;"),
        ("and.b64 %here, %here, 15;", "and.b64 %here, %here, 7;"),
        ("mad.lo.u64 %entry, %run, 24, %first;", "mad.lo.u64 %entry, %run, 16, %first;"),
        ("sub.u64 %end, %length, %whole;", "sub.u64 %end, %head, 0;"),
        ("@%behind add.u64 %place, %place, %whole;", "add.u64 %place, %place, %whole;"),
        ("mad.lo.u64 %at, %threads, 16, %at;", "add.u64 %at, %at, 16;"),
        ("ld.global.v2.u64 {%low, %high}, [%here];", "ld.global.v2.u64 {%high, %low}, [%here];"),
        ("ld.global.u64 %length, [%entry+16];", "ld.global.u64 %length, [%entry+12];"),
        ("mov.u32 %special, %ctaid.x;", "mov.u32 %special, %clock;"),
    ],
)
def test_should_refuse_other_instructions(line: str, other: str) -> None:
    assert line in SOURCE
    with pytest.raises((AssertionError, PtxError)):
        story(SOURCE.replace(line, other, 1))
