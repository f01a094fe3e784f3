"""The three drivers: each plays programs until it has had its time or number, or raises a FindingError."""

from __future__ import annotations

import ctypes
import mmap
import pickle
from collections import deque
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final, NamedTuple

from tests.fuzz import sanitized
from tests.fuzz.play import broken_cut, difference, exercise
from tests.fuzz.programs import Program, mutated, random_program

COMPARE_ONE_IN: Final = 4  # programs of the sanitizer drivers that the reference plays too: it is slower than the core
NOTE_SIZE: Final = 1 << 20
LEAK_ROUNDS: Final = 4
LEAK_NOISE: Final = 256  # bytes; measured: 28 a round, of this very list


class FindingError(Exception):
    """What a driver found, in words, with the program that shows it."""


class Budget(NamedTuple):
    """How long a driver runs: `seconds`, or exactly `executions` where that is given."""

    seconds: float
    executions: int | None

    def rounds(self) -> Iterator[int]:
        """Count from 1 until it is used up."""
        end, number = monotonic() + self.seconds, 0
        while number < self.executions if self.executions is not None else monotonic() < end:
            number += 1
            yield number


class Note:
    """The program that is being played, in a file that outlives the process, which a sanitizer ends at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(NOTE_SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), NOTE_SIZE)

    def write(self, program: Program) -> None:
        note = pickle.dumps(program)  # a tenth of the time of repr
        self._map[: len(note)] = note


def differential(budget: Budget, random: Random, note: Note) -> str:
    """Play each program on both twins, and cut another stream in several ways on both."""
    reference, compiled = import_module("levada._hotpath_py"), import_module("levada._hotpath_c")
    executions = 0
    for executions in budget.rounds():  # noqa: B007  # the last one is what is reported
        program = random_program(random)
        note.write(program)
        found = difference(reference, compiled, program) or broken_cut((reference, compiled), random)
        if found:
            raise FindingError(found)
    return f"{executions} executions, each of a program on both twins and a stream in four cuts on both"


def random_programs(budget: Budget, random: Random, note: Note) -> str:
    """Play random programs on the sanitizer build, fed from exact memory; at the end, look for leaks."""
    reference, core, exact = import_module("levada._hotpath_py"), sanitized.load(), sanitized.exact_maker()
    executions, calls = 0, 0
    last: deque[Program] = deque(maxlen=1_000)
    for executions in budget.rounds():
        program = random_program(random)
        note.write(program)
        if executions % COMPARE_ONE_IN:
            exercise(core, program, exact)
        elif found := difference(reference, core, program, exact):
            raise FindingError(found)
        calls += len(program.calls)
        last.append(program)
    allocated = sanitized.function("__sanitizer_get_current_allocated_bytes", ctypes.c_size_t)
    sizes = []
    for _ in range(LEAK_ROUNDS):
        for program in last:
            exercise(core, program, exact)
        sizes.append(allocated())
    if sizes[-1] - sizes[1] > LEAK_NOISE:  # from the second on: the first fills Python's own caches
        raise FindingError(f"memory leaks: {sizes} bytes after each of {LEAK_ROUNDS} rounds of {len(last)} programs")
    return f"{executions} executions of {calls} calls; no leak in {len(last)} programs played {LEAK_ROUNDS} times"


def coverage(budget: Budget, random: Random, note: Note) -> str:
    """Breed programs: keep those that take new edges of the sanitizer build, and mutate what is kept."""
    reference, core, exact = import_module("levada._hotpath_py"), sanitized.load(), sanitized.exact_maker()
    new_edges = sanitized.function("levada_coverage_new", ctypes.c_int)
    edges = sanitized.function("levada_coverage_edges", ctypes.c_int)
    kept: list[Program] = []
    executions = 0
    for executions in budget.rounds():
        if len(kept) < 10 or executions % 50 == 0:
            program = random_program(random)
        else:
            # the latest are where the search is, so half the parents come from the last tenth
            first = random.choice([0, len(kept) * 9 // 10])
            program = mutated(random, kept[random.randrange(first, len(kept))], random.choice(kept))
        note.write(program)
        exercise(core, program, exact)
        is_new = new_edges() > 0
        if is_new:
            kept.append(program)
        if is_new or executions % COMPARE_ONE_IN == 0:
            found = difference(reference, core, program, exact)
            new_edges()  # this was the same program again
            if found:
                raise FindingError(found)
    return f"{executions} executions, {len(kept)} programs kept for what they took first, {edges()} edges"
