"""An event loop whose time passes at once: what sleeps wakes at exactly its time, and no test waits for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Turned(selectors.SelectSelector):
    """A selector that turns its loop's clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing would ever happen again"
        self.now += timeout
        return super().select(0)


class TurnedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once. What happens at one moment happens at exactly that time."""

    def __init__(self) -> None:
        self._turned = _Turned()
        super().__init__(self._turned)

    def time(self) -> float:
        return self._turned.now


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` in such a loop; nothing in it may wait for a thread or a socket."""
    with asyncio.Runner(loop_factory=TurnedLoop) as runner:
        return runner.run(main)
