"""Measuring: contestants take turns in each round, and only ratios of turns of one round are ever compared."""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.rivals import Chunks, Contestant
from benchmarks.workloads import Workload

TURN_S: Final = (
    0.005  # a turn lasts this long at least: a quick contestant reads again, so that the clock's grain is small
)
BUDGET_S: Final = 2.0  # of one contestant in one series of one cell: who is this slow sits the remaining rounds out


@dataclass(frozen=True)
class Ratio:
    """How many times as long one contestant takes as another."""

    medians: tuple[float, ...]  # one a series, over its rounds
    low: float  # over all rounds
    high: float

    @property
    def best(self) -> float:
        """The largest median: the best for whom the ratio speaks."""
        return max(self.medians)


@dataclass(frozen=True)
class Cell:
    """One workload in one delivery: the seconds of every contestant's turns, by series and round."""

    workload: str
    delivery: str
    events: int
    size: int
    chunks: int
    seconds: Mapping[str, Sequence[Mapping[int, float]]]  # name -> series -> round -> seconds of one reading
    faults: Mapping[str, str]  # name -> why it is out

    def ratio(self, slower: str, faster: str) -> Ratio | None:
        """Return the time of `slower` in times of `faster`; None where one of them was not measured here."""
        if slower not in self.seconds or faster not in self.seconds:
            return None
        series = [
            [seconds / below[number] for number, seconds in above.items() if number in below]
            for above, below in zip(self.seconds[slower], self.seconds[faster], strict=True)
        ]
        every = [ratio for rounds in series for ratio in rounds]
        return Ratio(tuple(median(rounds) for rounds in series), min(every), max(every))

    def median_seconds(self, name: str) -> float:
        return median(seconds for rounds in self.seconds[name] for seconds in rounds.values())


def measure(
    workload: Workload,
    delivery: str,
    chunks: Chunks,
    contestants: Sequence[Contestant],
    *,
    series: int,
    rounds: int,
    budget_s: float = BUDGET_S,
) -> Cell:
    """Check every contestant's answer, then let those that are right take turns, in a new order in each round."""
    faults: dict[str, str] = {}
    ready: list[Contestant] = []
    for contestant in contestants:
        contestant.load(workload, chunks)
        fault = contestant.fault()
        if fault is None:
            ready.append(contestant)
        else:
            faults[contestant.name] = fault
    seconds: dict[str, list[dict[int, float]]] = {contestant.name: [] for contestant in ready}
    rng = random.Random(0)
    # What the imports left is no garbage of the contest's; the collector stays on, as in a program.
    gc.collect()
    gc.freeze()
    for _ in range(series):
        spent = dict.fromkeys(seconds, 0.0)
        for by_series in seconds.values():
            by_series.append({})
        for number in range(rounds):
            for contestant in rng.sample(ready, len(ready)):
                if spent[contestant.name] < budget_s:
                    turn = contestant.turn(TURN_S)
                    seconds[contestant.name][-1][number] = turn
                    spent[contestant.name] += max(turn, TURN_S)
    gc.unfreeze()
    size = sum(len(chunk) for chunk in chunks)
    return Cell(workload.name, delivery, len(workload.events), size, len(chunks), seconds, faults)
