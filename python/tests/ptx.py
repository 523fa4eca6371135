"""Runs PTX, as far as the kernels of the layer counter use it: one thread, 64-bit words, one instruction after another.

By NVIDIA's PTX ISA (https://docs.nvidia.com/cuda/parallel-thread-execution): ``ld``, ``st``, ``cvta``, ``setp``,
``add``, ``bra``, ``fence``, ``ret``. Anything else is refused, as is whatever a device would not do: a register that
nothing has written, an address in another space than the instruction's, or one that no memory has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

WORD_BYTES = 8
MASK = (1 << 64) - 1
ENTRY = re.compile(r"\.visible \.entry (\w+)\(([^)]*)\)\s*\{(.*?)\n\}", re.DOTALL)
PARAMETER = re.compile(r"\.param \.u64 (\w+)")
REGISTERS = re.compile(r"\.reg \.(pred|u64) (.*)")
INSTRUCTION = re.compile(r"(?:@(%\w+) )?([\w.]+)(?: (.*))?")
ADDRESS = re.compile(r"\[(%?\w+)(?:\+(\d+))?\]")


class PtxError(Exception):
    """What a device would not do, or this does not know."""


@dataclass(frozen=True)
class Address:
    """A word's, in the generic space or, once converted, in that of global memory."""

    at: int
    space: str = "generic"


@dataclass
class Memory:
    """The words of global memory, by their addresses, and what was done to them, in order."""

    words: dict[int, int]
    done: list[str] = field(default_factory=list)

    def load(self, at: int) -> int:
        if at not in self.words:
            raise PtxError(f"no memory at {at:#x}")
        return self.words[at]

    def store(self, at: int, value: int, how: str) -> None:
        self.load(at)
        self.words[at] = value & MASK
        self.done.append(f"{how} {at:#x}")


@dataclass(frozen=True)
class Kernel:
    parameters: Sequence[str]
    registers: Mapping[str, str]
    """The type of each."""
    lines: Sequence[str]

    def run(self, memory: Memory, *given: int) -> None:
        """One thread, to its end."""
        if len(given) != len(self.parameters):
            raise PtxError(f"{len(given)} parameters, expected {len(self.parameters)}")
        thread = _Thread(self, memory, dict(zip(self.parameters, given, strict=True)))
        at: int | None = 0
        while at is not None:
            if at >= len(self.lines):
                raise PtxError("the end without ret")
            at = thread.step(at)


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


class _Thread:
    def __init__(self, kernel: Kernel, memory: Memory, parameters: dict[str, int]) -> None:
        self._kernel, self._memory, self._parameters = kernel, memory, parameters
        self._values: dict[str, int | bool | Address] = {}

    def step(self, at: int) -> int | None:
        """Returns the place of the next instruction; None after the last one."""
        line = self._kernel.lines[at]
        if line.endswith(":"):
            return at + 1
        parsed = INSTRUCTION.fullmatch(line.removesuffix(";"))
        if parsed is None or not line.endswith(";"):
            raise PtxError(f"not an instruction: {line}")
        predicate, name, operands = parsed.groups()
        if predicate is not None and self._read(predicate, "pred") is not True:
            return at + 1
        if name == "ret":
            return None
        if name == "bra":
            return self._kernel.lines.index(f"{operands}:")
        self._do(name, [each.strip() for each in (operands or "").split(",")])
        return at + 1

    def _do(self, name: str, operands: Sequence[str]) -> None:
        match name, operands:
            case "ld.param.u64", [to, source]:
                self._write(to, self._parameters[source.strip("[]")])
            case "cvta.to.global.u64", [to, source]:
                self._write(to, Address(self._number(source), "global"))
            case "ld.global.u64", [to, source]:
                self._write(to, self._memory.load(self._address(source)))
            case (("st.global.u64" | "st.release.sys.global.u64"), [to, source]):
                self._memory.store(self._address(to), self._number(source), name.split(".global")[0])
            case "setp.eq.u64", [to, left, right]:
                self._write(to, self._number(left) == self._number(right), "pred")
            case "add.u64", [to, left, right]:
                self._write(to, (self._number(left) + self._number(right)) & MASK)
            case "fence.acq_rel.sys", [""]:
                self._memory.done.append("fence")
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
        value = self._read(operand) if operand.startswith("%") else int(operand)
        if isinstance(value, Address):
            raise PtxError(f"{operand} is an address of global memory, expected a number")
        return int(value)

    def _address(self, operand: str) -> int:
        parsed = ADDRESS.fullmatch(operand)
        value = self._read(parsed[1]) if parsed is not None else None
        if parsed is None or not isinstance(value, Address):
            raise PtxError(f"{operand} is no address of global memory")
        at = value.at + int(parsed[2] or 0)
        if at % WORD_BYTES:
            raise PtxError(f"{at:#x} is not aligned")
        return at


def without_each_instruction(source: str) -> Iterator[tuple[str, str]]:
    """Each module that lacks one instruction, with that instruction; declarations and labels stay."""
    lines = source.splitlines()
    for at, line in enumerate(lines):
        text = line.strip()
        if line.startswith("    ") and text.endswith(";") and not text.startswith("."):
            yield text, "\n".join([*lines[:at], *lines[at + 1 :]])
