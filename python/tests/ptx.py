"""Runs PTX, as far as this project's kernels use it: thread after thread, one instruction after another.

By NVIDIA's PTX ISA (https://docs.nvidia.com/cuda/parallel-thread-execution): ``ld``, ``st``, ``cvta``, ``cvt``,
``mov``, ``setp``, ``add``, ``sub``, ``mad``, ``min``, ``and``, ``xor``, ``bra``, ``fence``, ``ret``. Anything else is
refused, as is whatever a device would not do: a register that nothing has written, an address in another space than the
instruction's, one that is not aligned, or one that no memory has. Threads that wait for each other are not known, so
that kernels do the same whichever thread comes first.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

WORD_BYTES = 8
MASK = (1 << 64) - 1
STEPS_MAX = 100_000
"""Of one thread: a kernel that needs more does not end."""
ENTRY = re.compile(r"\.visible \.entry (\w+)\(([^)]*)\)\s*\{(.*?)\n\}", re.DOTALL)
PARAMETER = re.compile(r"\.param \.u64 (\w+)")
REGISTERS = re.compile(r"\.reg \.(pred|u32|u64) (.*)")
INSTRUCTION = re.compile(r"(?:@(%\w+) )?([\w.]+)(?: (.*))?")
OPERAND = re.compile(r"\{[^}]*\}|[^,{}]+")
ADDRESS = re.compile(r"\[(%?\w+)(?:\+(\d+))?\]")


class PtxError(Exception):
    """What a device would not do, or this does not know."""


@dataclass(frozen=True)
class Address:
    """A word's, in the generic space or, once converted, in that of global memory."""

    at: int
    space: str = "generic"


class GlobalMemory(Protocol):
    """What a kernel reads and writes; it notes fences too."""

    def load(self, at: int, length_bytes: int) -> int: ...

    def store(self, at: int, value: int, length_bytes: int, how: str) -> None: ...

    def fence(self) -> None: ...


@dataclass
class Memory:
    """The words of global memory, by their addresses, and what was done to them, in order."""

    words: dict[int, int]
    done: list[str] = field(default_factory=list)

    def load(self, at: int, length_bytes: int) -> int:
        if at not in self.words or length_bytes != WORD_BYTES:
            raise PtxError(f"no memory at {at:#x} for {length_bytes} bytes")
        return self.words[at]

    def store(self, at: int, value: int, length_bytes: int, how: str) -> None:
        self.load(at, length_bytes)
        self.words[at] = value & MASK
        self.done.append(f"{how} {at:#x}")

    def fence(self) -> None:
        self.done.append("fence")


@dataclass
class Areas:
    """Areas of bytes, by their first addresses, and how many accesses of each length there were."""

    areas: dict[int, bytearray]
    loads: dict[int, int] = field(default_factory=dict)
    stores: dict[int, int] = field(default_factory=dict)

    def _place(self, at: int, length_bytes: int) -> tuple[bytearray, int]:
        for begin, area in self.areas.items():
            if begin <= at and at + length_bytes <= begin + len(area):
                return area, at - begin
        raise PtxError(f"no memory at {at:#x} for {length_bytes} bytes")

    def load(self, at: int, length_bytes: int) -> int:
        area, offset = self._place(at, length_bytes)
        self.loads[length_bytes] = self.loads.get(length_bytes, 0) + 1
        return int.from_bytes(area[offset : offset + length_bytes], "little")

    def store(self, at: int, value: int, length_bytes: int, how: str) -> None:
        if how != "st":
            raise PtxError(f"{how}: an order that nothing needs")
        area, offset = self._place(at, length_bytes)
        self.stores[length_bytes] = self.stores.get(length_bytes, 0) + 1
        area[offset : offset + length_bytes] = (value & ((1 << 8 * length_bytes) - 1)).to_bytes(length_bytes, "little")

    def fence(self) -> None:
        raise PtxError("a fence that nothing needs")


@dataclass(frozen=True)
class Place:
    """A thread's in its block, its block's in the grid, and how many there are of each."""

    thread: int = 0
    threads: int = 1
    block: int = 0
    blocks: int = 1

    def special(self) -> dict[str, int]:
        return {
            "%tid.x": self.thread,
            "%ntid.x": self.threads,
            "%ctaid.x": self.block,
            "%nctaid.x": self.blocks,
        }


@dataclass(frozen=True)
class Kernel:
    parameters: Sequence[str]
    registers: Mapping[str, str]
    """The type of each."""
    lines: Sequence[str]

    @cached_property
    def instructions(self) -> Sequence[tuple[str | None, str, Sequence[str]] | None]:
        """A predicate, a name and operands for each line; None for a label."""
        return [_parsed(line) for line in self.lines]

    def run(self, memory: GlobalMemory, *given: int, place: Place = Place()) -> None:
        """One thread, to its end."""
        if len(given) != len(self.parameters):
            raise PtxError(f"{len(given)} parameters, expected {len(self.parameters)}")
        thread = _Thread(self, memory, dict(zip(self.parameters, given, strict=True)), place.special())
        at: int | None = 0
        for _ in range(STEPS_MAX):
            if at is None:
                return
            if at >= len(self.lines):
                raise PtxError("the end without ret")
            at = thread.step(at)
        raise PtxError(f"not at its end after {STEPS_MAX} steps")

    def launch(self, memory: GlobalMemory, blocks: int, threads: int, *given: int) -> None:
        """All threads of a grid, one after another."""
        for block in range(blocks):
            for thread in range(threads):
                self.run(memory, *given, place=Place(thread, threads, block, blocks))


def kernels(source: str) -> dict[str, Kernel]:
    """Those of a module, by name."""
    found = {}
    for name, parameters, body in ENTRY.findall(source):
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        declared = [(kind, names) for line in lines for kind, names in REGISTERS.findall(line)]
        registers = {each.strip(" ;"): kind for kind, names in declared for each in names.split(",")}
        code = [line for line in lines if not line.startswith(".")]
        found[name] = Kernel(PARAMETER.findall(parameters), registers, code)
    return found


def _parsed(line: str) -> tuple[str | None, str, Sequence[str]] | None:
    if line.endswith(":"):
        return None
    parsed = INSTRUCTION.fullmatch(line.removesuffix(";"))
    if parsed is None or not line.endswith(";"):
        raise PtxError(f"not an instruction: {line}")
    predicate, name, operands = parsed.groups()
    return predicate, name, [each.strip() for each in OPERAND.findall(operands or "") if each.strip()]


def _pair(operand: str) -> tuple[str, str]:
    low, high = (each.strip() for each in operand.strip("{}").split(","))
    return low, high


COMPUTED: Mapping[str, Callable[[int, int], int]] = {
    "add.u64": operator.add,
    "sub.u64": operator.sub,
    "min.u64": min,
    "and.b64": operator.and_,
    "xor.b64": operator.xor,
}


class _Thread:
    def __init__(
        self, kernel: Kernel, memory: GlobalMemory, parameters: dict[str, int], special: dict[str, int]
    ) -> None:
        self._kernel, self._memory, self._parameters, self._special = kernel, memory, parameters, special
        self._values: dict[str, int | bool | Address] = {}

    def step(self, at: int) -> int | None:
        """Returns the place of the next instruction; None after the last one."""
        instruction = self._kernel.instructions[at]
        if instruction is None:
            return at + 1
        predicate, name, operands = instruction
        if predicate is not None and self._read(predicate, "pred") is not True:
            return at + 1
        if name == "ret":
            return None
        if name == "bra":
            return self._kernel.lines.index(f"{operands[0]}:")
        if not self._reach_memory(name, operands):
            self._compute(name, operands)
        return at + 1

    def _reach_memory(self, name: str, operands: Sequence[str]) -> bool:
        """Whether it is an instruction that does."""
        match name, operands:
            case "ld.global.u64", [to, source]:
                self._write(to, self._memory.load(self._address(source, WORD_BYTES), WORD_BYTES))
            case "ld.global.u8", [to, source]:
                self._write(to, self._memory.load(self._address(source, 1), 1))
            case "ld.global.v2.u64", [pair, source]:
                value = self._memory.load(self._address(source, 2 * WORD_BYTES), 2 * WORD_BYTES)
                low, high = _pair(pair)
                self._write(low, value & MASK)
                self._write(high, value >> 64)
            case (("st.global.u64" | "st.release.sys.global.u64"), [to, source]):
                how = name.split(".global")[0]
                self._memory.store(self._address(to, WORD_BYTES), self._number(source), WORD_BYTES, how)
            case "st.global.u8", [to, source]:
                self._memory.store(self._address(to, 1), self._number(source), 1, "st")
            case "st.global.v2.u64", [to, pair]:
                low, high = (self._number(each) for each in _pair(pair))
                self._memory.store(self._address(to, 2 * WORD_BYTES), high << 64 | low, 2 * WORD_BYTES, "st")
            case "fence.acq_rel.sys", []:
                self._memory.fence()
            case _:
                return False
        return True

    def _compute(self, name: str, operands: Sequence[str]) -> None:
        match name, operands:
            case "ld.param.u64", [to, source]:
                self._write(to, self._parameters[source.strip("[]")])
            case "cvta.to.global.u64", [to, source]:
                self._write(to, Address(self._number(source), "global"))
            case "mov.u32", [to, source] if source in self._special:
                self._write(to, self._special[source], "u32")
            case "mov.u64", [to, source]:
                self._write(to, self._number(source))
            case "cvt.u64.u32", [to, source]:
                self._write(to, int(self._read(source, "u32")))  # type: ignore[arg-type]
            case "setp.eq.u64", [to, left, right]:
                self._write(to, self._number(left) == self._number(right), "pred")
            case "setp.ne.u64", [to, left, right]:
                self._write(to, self._number(left) != self._number(right), "pred")
            case "setp.ge.u64", [to, left, right]:
                self._write(to, self._number(left) >= self._number(right), "pred")
            case (("add.u64" | "sub.u64" | "min.u64" | "and.b64" | "xor.b64"), [to, left, right]):
                self._write(to, COMPUTED[name](self._number(left), self._number(right)) & MASK)
            case "mad.lo.u64", [to, left, right, more]:
                self._write(to, self._number(left) * self._number(right) + self._number(more) & MASK)
            case _:
                raise PtxError(f"{name} {operands} is not known")

    def _write(self, register: str, value: int | bool | Address, kind: str = "u64") -> None:
        if self._kernel.registers.get(register) != kind:
            raise PtxError(f"{register} is no register for {kind}")
        self._values[register] = value

    def _read(self, register: str, kind: str = "u64") -> int | bool | Address:
        if self._kernel.registers.get(register) != kind or register not in self._values:
            raise PtxError(f"nothing has written {register} as {kind}")
        return self._values[register]

    def _number(self, operand: str) -> int:
        value = self._read(operand) if operand.startswith("%") else int(operand) & MASK
        if isinstance(value, Address):
            raise PtxError(f"{operand} is an address of global memory, expected a number")
        return int(value)

    def _address(self, operand: str, length_bytes: int) -> int:
        parsed = ADDRESS.fullmatch(operand)
        value = self._read(parsed[1]) if parsed is not None else None
        if parsed is None or not isinstance(value, Address):
            raise PtxError(f"{operand} is no address of global memory")
        at = value.at + int(parsed[2] or 0)
        if at % length_bytes:
            raise PtxError(f"{at:#x} is not aligned")
        return at


def without_each_instruction(source: str) -> Iterator[tuple[str, str]]:
    """Each module that lacks one instruction, with that instruction; declarations and labels stay."""
    lines = source.splitlines()
    for at, line in enumerate(lines):
        text = line.strip()
        if line.startswith("    ") and text.endswith(";") and not text.startswith("."):
            yield text, "\n".join([*lines[:at], *lines[at + 1 :]])
