"""What is promised: the bars that we hold ourselves to, and whether a run met them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.measure import Cell, Ratio
from benchmarks.node_rival import NODE_PARSER
from benchmarks.rivals import CYTHON, HTTPX_SSE, JOIN_DECODE, PYTHON
from benchmarks.turns import ANTHROPIC, OPENAI, TURN, TYPED
from benchmarks.workloads import BIG_SIZES_MIB, DELIVERIES, TURN_DELIVERIES, chat, chat_turn, named, named_turn

_STREAMS: Final = (chat(1).name, named(1).name)
_TURNS: Final = (chat_turn(9).name, named_turn(9).name)


@dataclass(frozen=True)
class Bar:
    """`slower` takes at least `bar` times as long as `faster`; or, where `at_most`, no longer than that."""

    workload: str
    delivery: str
    slower: str
    faster: str
    bar: float
    summit: float | None = None
    at_most: bool = False


@dataclass(frozen=True)
class Verdict:
    """A bar and what a run says of it; `ratio` is None where the run did not measure it."""

    bar: Bar
    ratio: Ratio | None

    @property
    def value(self) -> float:
        """The best of the medians: the smallest one where the bar is an upper bound."""
        assert self.ratio is not None
        return min(self.ratio.medians) if self.bar.at_most else self.ratio.best

    @property
    def text(self) -> str:
        if self.ratio is None:
            return "not measured"
        if self.bar.summit is not None and self._reaches(self.bar.summit):
            return "met, and the summit"
        return "met" if self._reaches(self.bar.bar) else "NOT MET"

    def _reaches(self, number: float) -> bool:
        return self.value <= number if self.bar.at_most else self.value >= number


def _row(slower: str, faster: str, *numbers: Sequence[float | None]) -> Iterator[Bar]:
    """Make the bars of one row from (bar, summit) pairs: the deliveries of the chat stream, then of the named one."""
    places = [(workload, delivery) for workload in _STREAMS for delivery in DELIVERIES]
    for (workload, delivery), (bar, summit) in zip(places, numbers, strict=True):
        assert bar is not None
        yield Bar(workload, delivery, slower, faster, bar, summit)


def _turn_row(
    workload: str, slower: str, faster: str, *numbers: tuple[float, float], at_most: bool = False
) -> Iterator[Bar]:
    for delivery, (bar, summit) in zip(TURN_DELIVERIES, numbers, strict=True):
        yield Bar(workload, delivery, slower, faster, bar, summit, at_most)


BARS: Final = (
    *_row(HTTPX_SSE, CYTHON, (10, 12), (7.5, 9), (9, 12), (14, 17), (9, 13), (10, 14)),
    *_row(NODE_PARSER, CYTHON, (1.5, 2.5), (1.5, 2.5), (1.3, 2.5), (1.5, 2.5), (1.5, 2.5), (1.5, 2.5)),
    *_row(HTTPX_SSE, PYTHON, (1.5, None), (1.2, None), (1.05, None), (1.5, None), (1.2, None), (1.05, None)),
    *(
        Bar(f"one event of {mib} MiB", next(iter(DELIVERIES)), CYTHON, JOIN_DECODE, 3, at_most=True)
        for mib in BIG_SIZES_MIB
    ),
    *_turn_row(_TURNS[0], OPENAI, TURN, (100, 500), (80, 500)),
    *_turn_row(_TURNS[1], ANTHROPIC, TURN, (30, 150), (20, 150)),
    *_turn_row(_TURNS[0], TURN, TYPED, (2, 0.5), (3, 0.7), at_most=True),
    *_turn_row(_TURNS[1], TURN, TYPED, (2, 0.5), (3, 0.7), at_most=True),
)


def verdicts(cells: Sequence[Cell]) -> list[Verdict]:
    """Judge every bar by the cell that it speaks of."""
    by_place = {(cell.workload, cell.delivery): cell for cell in cells}
    found = []
    for bar in BARS:
        cell = by_place.get((bar.workload, bar.delivery))
        found.append(Verdict(bar, cell.ratio(bar.slower, bar.faster) if cell else None))
    return found
