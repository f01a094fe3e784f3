"""What a turn holds while it waits for its next event: thousands of them alive at once, by tracemalloc.

tracemalloc sees what goes through Python's allocators, the compiled twin's objects and buffers included. The text is
counted as the bytes of its UTF-8, the least that it can take; how Python holds it (headers, wide characters, pieces not
yet joined) is part of what lies beyond.
"""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from benchmarks.workloads import TurnWorkload

TURNS_ALIVE: Final = 10_000
QUICK_TURNS_ALIVE: Final = 500
DELTAS: Final = 20
BAR: Final = 4 * 1024  # design, row 8
SUMMIT: Final = 1024


@dataclass(frozen=True)
class Idle:
    """What one turn of a workload holds between events."""

    workload: str
    turns: int
    deltas: int
    total: float  # bytes a turn
    text: int  # of UTF-8

    @property
    def beyond(self) -> float:
        """Bytes a turn beyond its text."""
        return self.total - self.text

    @property
    def verdict(self) -> str:
        if self.beyond > BAR:
            return "NOT MET"
        return "met, and the summit" if self.beyond <= SUMMIT else "met"


def idle(workload: TurnWorkload, *, turns: int = TURNS_ALIVE, deltas: int = DELTAS, frames: int | None = None) -> Idle:
    """Keep so many turns alive, each after its first `deltas` deltas, or `frames` frames; say what one holds."""
    make = import_module("levada").Turn

    def begun() -> Any:
        turn = make(workload.dialect)
        came = 0
        for frame in workload.frames[:frames]:
            came += len(turn.feed(frame))
            if frames is None and came >= deltas:
                break
        return turn

    text = len(begun().answer.encode())  # this one also pays for what all turns share
    gc.collect()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        alive = [begun() for _ in range(turns)]
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        if not tracing:
            tracemalloc.stop()
    del alive
    return Idle(workload.name, turns, deltas, held / turns, text)
