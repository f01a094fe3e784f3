"""What a turn holds between events: little beyond its text, also when thousands are alive, and however it grew."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import levada
from benchmarks.memory import BAR, idle
from benchmarks.workloads import TURNS, TurnWorkload

# The reference twin's parser and stencils are Python objects, twice as heavy as the compiled ones.
BOUND = BAR if levada.BACKEND == "cython" else 2 * BAR


@pytest.mark.parametrize("make", TURNS)
class TestIdleTurns:
    def test_a_turn_holds_little_beyond_its_text(self, make: Callable[[int], TurnWorkload]) -> None:
        assert idle(make(60), turns=100).beyond <= BOUND

    @pytest.mark.parametrize("deltas", [1, 15, 31, 200, 1_000])
    def test_also_earlier_and_later(self, make: Callable[[int], TurnWorkload], deltas: int) -> None:
        # pieces of text that wait to be joined, and wide characters in them: a few bytes for each byte of a short text
        held = idle(make(deltas + 40), turns=20, deltas=deltas)
        assert held.total <= 2 * BOUND + 4 * held.text

    def test_a_finished_turn_holds_no_more(self, make: Callable[[int], TurnWorkload]) -> None:
        workload = make(60)
        held = idle(workload, turns=100, frames=len(workload.frames))
        assert held.beyond <= BOUND + 1024  # its usage came too


def test_the_measure_itself() -> None:
    # a turn that held every delta's own object would weigh this much and more
    assert idle(TURNS[0](60), turns=20).total > 1_000
