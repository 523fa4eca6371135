"""Faults put into the Python part on purpose, one at a time: what runs random worlds must find them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock


@dataclass(frozen=True)
class Mutant:
    """One fault: an attribute that is something else."""

    what: str
    where: Any
    name: str
    otherwise: Any

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The fault is there."""
        with mock.patch.object(self.where, self.name, self.otherwise):
            yield

    @property
    def must_be_found(self) -> bool:
        return True


AnyMutant = TypeVar("AnyMutant", bound=Mutant)


def living(mutants: Sequence[AnyMutant], find: Callable[[AnyMutant], tuple[bool, str]]) -> int:
    """How many live that should not. ``find`` runs with the fault: whether it was found, and what was seen."""
    count = 0
    for mutant in mutants:
        began = time.monotonic()
        with mutant.applied():
            found, seen = find(mutant)
        count += not found and mutant.must_be_found
        took = time.monotonic() - began
        print(f"{'found' if found else 'LIVES'}: {mutant.what} ({took:.1f} s): {seen[:200]}", flush=True)
    print(f"{len(mutants)} mutants, {count} live that should not")
    return count
