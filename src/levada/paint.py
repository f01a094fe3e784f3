"""The painter: text that grows at any speed, to at most one provisional paint per interval.

Rules this file keeps (docs/gates-and-painting.md):
- The interval lies between the beginnings of provisional paints. The first one comes at once; of the texts that come
  meanwhile, the newest one is painted, and a text that is on the screen already is not painted again.
- `clear` and `finish` paint at once and cancel what is pending. They are no provisional paints, nor counted as such.
- Nothing is painted after `finish`, or after `close`.
- The drivers make one paint at a time: while one runs, the newest text waits, so slow paints do not pile up. What
  `clear` and `finish` paint waits for the one that runs, never for the interval.
- An exception in `paint` is the screen's trouble, not the stream's: it is logged once per painter, to the logger
  `levada.paint`, the first one is kept as the painter's `error`, and painting goes on.

`PaintClock` decides, sans-IO; `Painter` drives it with asyncio, `ThreadPainter` with a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from time import monotonic
from typing import Final

from levada.errors import UsageError

DEFAULT_INTERVAL_MS: Final = 40.0  # 25 paints a second: text flows for the eye, and a phone still scrolls

_log = logging.getLogger("levada.paint")


class PaintClock:
    """Decides what to paint and when. Time is an argument, in milliseconds from any fixed moment.

    Each call returns the text to paint now, or None. `interval_ms`: between two provisional paints; 0 paints every
    text. Raises UsageError for a negative interval.
    """

    __slots__ = ("_finished", "_interval_ms", "_painted", "_painted_ms", "_pending")

    def __init__(self, interval_ms: float = DEFAULT_INTERVAL_MS) -> None:
        if not interval_ms >= 0:
            raise UsageError(f"interval_ms must be 0 or more, not {interval_ms!r:.100}")
        self._interval_ms = interval_ms
        self._painted = ""  # what is on the screen
        self._painted_ms: float | None = None  # when the last provisional paint began
        self._pending: str | None = None
        self._finished = False

    @property
    def due_ms(self) -> float | None:
        """When tick() has something to paint; None: nothing is pending."""
        if self._pending is None or self._painted_ms is None:
            return None
        return self._painted_ms + self._interval_ms

    def offer(self, so_far: str, now_ms: float) -> str | None:
        """Take the text so far; return it if it is to be painted now, else keep it for tick()."""
        if self._finished:
            return None
        self._pending = None if so_far == self._painted else so_far
        return self.tick(now_ms)

    def tick(self, now_ms: float) -> str | None:
        """Return the pending text if it is due."""
        due_ms = self.due_ms
        if self._pending is None or (due_ms is not None and now_ms < due_ms):
            return None
        self._painted, self._pending = self._pending, None
        self._painted_ms = now_ms
        return self._painted

    def clear(self, now_ms: float) -> str | None:
        """Empty the draft, for another attempt: return "" to be painted now; None after the end."""
        return None if self._finished else self._paint_at_once("")

    def finish(self, text: str, now_ms: float) -> str | None:
        """Return the final text, to be painted now; None if it was finished before."""
        if self._finished:
            return None
        self._finished = True
        return self._paint_at_once(text)

    def close(self) -> None:
        """End without a final paint: drop what is pending, and paint nothing any more."""
        self._finished = True
        self._pending = None

    def _paint_at_once(self, text: str) -> str:
        self._painted, self._pending = text, None
        return text


class _Easel:
    """What both drivers share: what waits for the paint that runs, in the order in which it must be painted.

    `offer`, `clear` and `finish` return whether that is still possible: nothing is after the end.
    """

    def __init__(self, interval_ms: float) -> None:
        self._clock = PaintClock(interval_ms)
        self._newest: str | None = None
        self._clearing = False
        self._final: str | None = None
        self.ended = False
        self.error: BaseException | None = None

    @property
    def due_ms(self) -> float | None:
        """When `next` has something to paint, if nothing else comes."""
        return self._clock.due_ms

    def offer(self, so_far: str) -> bool:
        if not self.ended:
            self._newest = so_far
        return not self.ended

    def clear(self) -> bool:
        if not self.ended:
            self._newest, self._clearing = None, True
        return not self.ended

    def finish(self, text: str) -> bool:
        if self.ended:
            return False
        self._final, self.ended = text, True
        return True

    def close(self) -> None:
        if not self.ended:
            self._clock.close()
            self._newest, self._clearing, self.ended = None, False, True

    def next(self, now_ms: float) -> str | None:
        """Return what to paint now. Only for when nothing is being painted."""
        if self._final is not None:
            final, self._final = self._final, None
            return self._clock.finish(final, now_ms)
        if self._clearing:
            self._clearing = False
            return self._clock.clear(now_ms)
        if self._newest is not None:
            newest, self._newest = self._newest, None
            return self._clock.offer(newest, now_ms)
        return self._clock.tick(now_ms)

    def failed(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            _log.error("paint failed; the stream goes on, and this painter logs no further failures", exc_info=error)


class Painter:
    """Paints with asyncio. `paint(text)` gets the whole text each time; it may be sync or async.

    All calls come from one running event loop. `offer` returns at once. What `clear` and `finish` return may be
    awaited: it is done when their paint is. A sync `paint` has run by then, unless `paint` itself called them.
    A sync `paint` should be quick, because it runs in the event loop.
    """

    def __init__(
        self, paint: Callable[[str], Awaitable[object] | object], *, interval_ms: float = DEFAULT_INTERVAL_MS
    ) -> None:
        self._paint = paint
        self._easel = _Easel(interval_ms)
        self._busy = False  # a paint runs
        self._running: asyncio.Task[None] | None = None  # it, if it is async: the loop itself keeps no hold of a task
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def error(self) -> BaseException | None:
        """The first exception that `paint` raised, or None."""
        return self._easel.error

    def offer(self, so_far: str) -> None:
        """Take the text so far; it is painted now or within the interval, unless a newer one comes."""
        if self._easel.offer(so_far) and self._timer is None:  # the timer would find it
            self._go()

    def clear(self) -> Awaitable[None]:
        """Paint "" now, because another attempt begins."""
        self._easel.clear()
        return self._go_and_tell()

    def finish(self, text: str) -> Awaitable[None]:
        """Cancel what is pending and paint the final text now. Nothing is painted after it."""
        self._easel.finish(text)
        return self._go_and_tell()

    def close(self) -> None:
        """End without a final paint; one that runs is left to end. After finish() it does nothing."""
        self._easel.close()
        self._cancel_timer()

    def _go_and_tell(self) -> Awaitable[None]:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._go()
        return done

    def _go(self) -> None:
        """Paint what is to be painted, if no paint runs; then wait for what is pending, and tell who waits."""
        if self._busy:
            return
        loop = asyncio.get_running_loop()
        self._cancel_timer()
        self._busy = True
        while (text := self._easel.next(loop.time() * 1000)) is not None:
            try:
                painting = self._paint(text)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # CancelledError too: nobody can cancel a call that does not await
                self._easel.failed(error)
                continue
            if isawaitable(painting):
                self._running = loop.create_task(self._await(painting))
                self._running.add_done_callback(self._painted)
                return
        self._busy = False
        if (due_ms := self._easel.due_ms) is not None:
            self._timer = loop.call_at(due_ms / 1000, self._go)
        self._tell()

    async def _await(self, painting: Awaitable[object]) -> None:
        try:
            await painting
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the event loop ends
            self._easel.failed(error)
        except Exception as error:
            self._easel.failed(error)

    def _painted(self, task: asyncio.Task[None]) -> None:
        self._running, self._busy = None, False
        if task.cancelled():
            self.close()
            self._tell()
        else:
            self._go()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            if not done.done():  # who awaits may have been cancelled
                done.set_result(None)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ThreadPainter:
    """Paints in a thread of its own, begun with the first text. `paint(text)` gets the whole text each time.

    Any thread may call it. `offer` returns at once; `clear`, `finish` and `close` return when the paint is done, but
    inside `paint` itself at once. `finish` or `close` ends the thread, and so does leaving a `with` block.
    """

    def __init__(self, paint: Callable[[str], object], *, interval_ms: float = DEFAULT_INTERVAL_MS) -> None:
        self._paint = paint
        self._easel = _Easel(interval_ms)
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._timed = False  # the thread waits for the moment when a paint is due
        self._cleared = self._painted = 0  # how often clear() was called, and up to which call it was painted

    def __enter__(self) -> ThreadPainter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def error(self) -> BaseException | None:
        """The first exception that `paint` raised, or None."""
        return self._easel.error

    def offer(self, so_far: str) -> None:
        """Take the text so far; it is painted now or within the interval, unless a newer one comes."""
        with self._change:
            if self._easel.offer(so_far) and not self._timed:  # at that moment the thread would find it
                self._wake()

    def clear(self) -> None:
        """Paint "" now, because another attempt begins."""
        with self._change:
            if self._easel.clear():
                self._cleared += 1
                mine = self._cleared
                self._wake()
                if self._thread is not threading.current_thread():
                    self._change.wait_for(lambda: self._painted >= mine)

    def finish(self, text: str) -> None:
        """Cancel what is pending and paint the final text now. Nothing is painted after it."""
        with self._change:
            if self._easel.finish(text):
                self._wake()
        self._join()

    def close(self) -> None:
        """End without a final paint. After finish() it does nothing."""
        with self._change:
            self._easel.close()
            self._change.notify_all()
        self._join()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="levada painter", daemon=True)
            self._thread.start()
        self._change.notify_all()

    def _join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (text := self._wait()) is not None:
            try:
                self._paint(text)
            except BaseException as error:  # a dead thread would leave clear() waiting for ever
                self._easel.failed(error)

    def _wait(self) -> str | None:
        """Return the next text to paint, as soon as there is one; None at the end."""
        with self._change:
            while (text := self._easel.next(monotonic() * 1000)) is None:
                self._painted = self._cleared
                self._change.notify_all()
                if self._easel.ended:
                    return None
                due_ms = self._easel.due_ms
                self._timed = due_ms is not None
                self._change.wait(None if due_ms is None else max(0.0, due_ms / 1000 - monotonic()))
                self._timed = False
            return text
