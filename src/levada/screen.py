"""What a run does with its painter, if it has one.

Whatever a painter raises is the screen's trouble, not the answer's: it is logged once, and the run goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Protocol

from levada.paint import DEFAULT_INTERVAL_MS

__all__ = ["Paints", "Screen"]

_log = logging.getLogger("levada.run")

PAINT_S: Final = 5.0  # for one paint that is waited for; a screen that takes longer has its own troubles


class Paints(Protocol):
    """A painter, as `levada.Painter`. What `clear` and `finish` return may be awaitable; nobody waits for `offer`."""

    def offer(self, so_far: str, /) -> object:
        """Take the text so far, to be painted soon."""

    def clear(self) -> object:
        """Paint "" now."""

    def finish(self, text: str, /) -> object:
        """Paint the last text now."""


class Screen:
    """Offers a painter 25 texts a second at most, because joining what was released takes time."""

    def __init__(self, painter: Paints | None) -> None:
        self.finished = False
        self._painter = painter
        self._newest: Callable[[], str] | None = None
        self._offered_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._used = False
        self._failed = False

    def offer(self, so_far: Callable[[], str]) -> None:
        """Take what gives the text so far; it is asked when the painter is offered the text: now or within 40 ms."""
        if self._painter is None or self.finished:
            return
        self._newest = so_far
        if self._timer is None:
            loop = asyncio.get_running_loop()
            due_s = 0.0 if self._offered_s is None else self._offered_s + DEFAULT_INTERVAL_MS / 1000
            if due_s <= loop.time():
                self._offer()
            else:
                self._timer = loop.call_at(due_s, self._offer)

    def clear(self) -> Awaitable[Any] | None:
        """Empty the screen, if anything was offered; return what to wait for."""
        self._forget()
        used, self._used = self._used, False
        return self._begun(self._painter.clear) if self._painter is not None and used else None

    def finish(self, text: str) -> Awaitable[Any] | None:
        """Paint the last text; return what to wait for."""
        self._forget()
        self.finished = True
        return self._begun(partial(self._painter.finish, text)) if self._painter is not None else None

    def _offer(self) -> None:
        newest = self._newest
        self._forget()
        if self._painter is not None and newest is not None:
            self._offered_s = asyncio.get_running_loop().time()
            text = newest()
            if text or self._used:
                self._used = True
                self._painting(partial(self._painter.offer, text))

    def _painting(self, paint: Callable[[], object]) -> object:
        try:
            return paint()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # CancelledError too: nobody can cancel a call that does not await
            if not self._failed:
                self._failed = True
                _log.error("the painter raised; the run goes on, and logs no more of it", exc_info=exc)
            return None

    def _begun(self, paint: Callable[[], object]) -> asyncio.Future[Any] | None:
        painting = self._painting(paint)
        return asyncio.ensure_future(painting) if isawaitable(painting) else None

    def _forget(self) -> None:
        self._newest = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def painted(painting: Awaitable[Any] | None) -> None:
    """Wait for what `clear` or `finish` returned."""
    if painting is not None:
        await asyncio.wait({asyncio.ensure_future(painting)}, timeout=PAINT_S)
