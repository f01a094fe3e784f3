"""The frames of one turn under asyncio: reads an upstream's response into a turn and tells it in the normal form.

    frames = Frames(session.post(url, json=body), Turn("openai_chat"))
    async for frame in frames:
        await send(frame)

Rules this file keeps:
- The first frame comes at once, then at most one per interval; the end waits for no interval.
- Reading never waits for the reader of the frames: what was not taken yet is merged into the next frame.
- Whoever stops taking frames closes the upstream.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Any, Final

from levada.errors import TransportError, TurnError, TurnTimeout
from levada.gateway.normal import KEEP_ALIVE, NormalForm
from levada.io import Timeouts, astream_turn, note_failure
from levada.lifecycle import ENDS
from levada.turn import Turn

__all__ = ["Frames"]

INTERVAL_S: Final = 0.04  # 25 frames a second, the pace of the painter
HEARTBEAT_S: Final = 15.0  # below the 30 to 60 s after which proxies give up a silent connection

_log = logging.getLogger("levada.gateway")


class Frames:
    """The frames of one turn, each the bytes of one or more whole events. An async iterable, to be iterated once.

    `opening`: an async context manager that gives the response, as `session.post(…)` of aiohttp or `client.stream(…)`
    of httpx do. `timeouts`: as for `astream_turn`. Nothing is opened before the first frame is taken.
    """

    def __init__(
        self,
        opening: AbstractAsyncContextManager[Any],
        turn: Turn,
        *,
        turn_id: str | None = None,
        upstream: str | None = None,
        timeouts: Timeouts | None = None,
        interval_s: float = INTERVAL_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.turn = turn
        self.turn_id = turn_id or secrets.token_urlsafe(16)
        self.upstream_closed: bool | None = None  # once the turn was cancelled: what is known
        self.upstream = upstream
        self._opening = opening
        self._timeouts = timeouts
        self._interval_s = interval_s
        self._heartbeat_s = heartbeat_s
        self._form: NormalForm | None = None
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # there may be something to tell
        self._over = asyncio.Event()  # the turn has ended: tell it now

    def __aiter__(self) -> AsyncIterator[bytes]:
        # a generator, because asyncio closes one that was dropped
        return self._tell()

    def batches(self) -> AsyncGenerator[list[tuple[str, str]], None]:
        """Tell the turn as lists of events, type and JSON text of each, for a log (levada.live); no heartbeats.

        In the place of the iterator: either is iterated once. Close it where it is left early.
        """
        return self._batches(None)

    @property
    def ended(self) -> bool:
        """Whether the frame that was taken last is the last one."""
        return self._form is not None and self._form.ended

    @property
    def pending_characters(self) -> int:
        """How much text was read and not taken yet."""
        return self._form.pending_characters if self._form is not None else 0

    def cancel(self) -> bool:
        """Stop the turn; the last frame says so, and the upstream is closed. False where it had ended."""
        return self._stop(self.turn.cancel())

    def fail(self, error: TurnError) -> bool:
        """End the turn with an error of our own: this gateway shuts down. False where it had ended."""
        return self._stop(self.turn.fail(error))

    async def aclose(self) -> None:
        """Stop reading, cancel the turn unless it has ended, and wait until the upstream is closed."""
        self.turn.cancel()
        await self._close()

    def _stop(self, stopped: bool) -> bool:
        if stopped:
            self._wake()
            if self._reading is not None:
                self._reading.cancel()
        return stopped

    async def closed(self) -> None:
        """Wait until the upstream is closed, after `cancel` or `fail`."""
        if self._reading is not None:
            await asyncio.wait({self._reading})

    async def _tell(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._batches(self._heartbeat_s)) as batches:
            async for events in batches:
                assert self._form is not None  # made before the first batch
                yield self._form.encoded(events) if events else KEEP_ALIVE

    async def _batches(self, heartbeat_s: float | None) -> AsyncGenerator[list[tuple[str, str]], None]:
        """Yield the events of one frame after the other, [] at each heartbeat."""
        loop = asyncio.get_running_loop()
        form = self._form = NormalForm(
            self.turn, turn_id=self.turn_id, now_ms=loop.time() * 1000, upstream=self.upstream
        )
        try:
            told_s = loop.time()
            yield form.events(told_s * 1000)
            if self.turn.state not in ENDS:
                self._reading = asyncio.create_task(self._read(form), name=f"levada turn {self.turn_id}")
            while not form.ended:
                try:
                    async with asyncio.timeout(heartbeat_s):
                        await self._news.wait()
                except TimeoutError:
                    yield []
                    continue
                wait_s = told_s + self._interval_s - loop.time()
                if wait_s > 0 and not self._over.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._over.wait()
                self._news.clear()
                told_s = loop.time()
                events = form.events(told_s * 1000)
                if events:
                    yield events
            if self._reading is not None:  # the rest of the body, so that the connection can be used again
                await asyncio.wait({self._reading})
        finally:
            self.turn.cancel()
            await self._close()

    async def _close(self) -> None:
        reading = self._reading
        if reading is not None and not reading.done():
            reading.cancel()
            await asyncio.wait({reading})

    async def _read(self, form: NormalForm) -> None:
        turn, loop = self.turn, asyncio.get_running_loop()
        try:
            async with self._opening as response, astream_turn(response, turn, timeouts=self._timeouts) as stream:
                try:
                    async for deltas in stream:
                        form.take(deltas, loop.time() * 1000)
                        self._wake()
                finally:
                    await stream.aclose()
                    if stream.cancelled is not None:
                        self.upstream_closed = stream.cancelled.upstream_closed
        except TurnError as error:
            turn.fail(error)
        except Exception as error:
            turn.fail(_in_our_words(error, turn))
        finally:
            turn.cancel()  # where it has not ended: somebody stopped us
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        if self.turn.state in ENDS:
            self._over.set()


def _in_our_words(error: Exception, turn: Turn) -> TurnError:
    """Return why there was no response; the client's own words name hosts, which are nobody's business."""
    scratch = Turn(turn.dialect)
    try:
        note_failure(scratch, error)
    except Exception:  # none of the network: somebody's bug
        _log.exception("reading failed")
    if scratch.error is not None and scratch.error.kind == "timeout":
        return TurnTimeout("the upstream did not answer in time", retryable=True)
    return TransportError(f"the connection to the upstream failed ({type(error).__name__})", retryable=True)
