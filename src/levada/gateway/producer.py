"""One turn that belongs to the gateway, not to a request: reads its upstream, and writes what it tells into the log.

Rules this file keeps:
- Every reader reads the log (telling.py), here as on other replicas; nothing goes to a client past it.
- Reading the upstream waits neither for readers nor for the log: what the log has not taken is merged.
- A turn ends in the log once, with its state. A writer that lost its lease writes nothing more, and the log tells the
  readers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final

from levada.errors import ProtocolError, TooLarge, TransportError, TurnError, UsageError
from levada.gateway.frames import Frames
from levada.gateway.normal import ending
from levada.lifecycle import State
from levada.live import Fenced, LiveLimit, LiveLogError, LiveLogUnavailable, Writer

__all__ = ["Producer"]

AT_LEAST_EVERY_S: Final = 1.0  # how often is asked whether somebody reads
_MOST_CHARACTERS: Final = 1024 * 1024  # in one write to the log; a batch is usually some hundred
_MOST_EVENTS: Final = 1000

_log = logging.getLogger("levada.gateway")


class Producer:
    """The producer of one turn. `owner`: its name to the log. `ended` is called once the upstream is closed.

    `readers` counts those of this process. Without a reader, on any replica, for `linger_s`, the turn is cancelled;
    with 0 as soon as this process has none.
    """

    def __init__(self, frames: Frames, owner: str, *, linger_s: float, ended: Callable[[Producer], object]) -> None:
        self.frames = frames
        self.owner = owner
        self.readers = 0
        self._linger_s = linger_s
        self._ended = ended
        self._untold: TransportError | None = None  # once the log takes no more
        self._task: asyncio.Task[None] | None = None

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.frames.turn_id

    @property
    def state(self) -> State:
        """The turn's state. An end that the log has not taken is an error: no reader will ever see it."""
        return self.frames.turn.state if self._untold is None else State.ERROR

    @property
    def error(self) -> TurnError | None:
        """Why the turn ended as an error; None where it did not."""
        return self._untold or self.frames.turn.error

    def begin(self, writer: Writer) -> None:
        """Open the upstream, and tell the turn to `writer`."""
        self._task = asyncio.create_task(self._run(writer), name=f"levada producer {self.turn_id}")

    def read(self) -> Callable[[], None]:
        """Count a reader; return what it calls when it leaves, once or more often."""
        self.readers += 1
        reading = True

        def leave() -> None:
            nonlocal reading
            if not reading:
                return
            reading = False
            self.readers -= 1
            if not self.readers and not self._linger_s:
                self.frames.cancel()

        return leave

    async def closed(self) -> None:
        """Wait until the turn has ended, its upstream is closed and the log knows."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self, writer: Writer) -> None:
        helpers = [asyncio.create_task(self._keep(writer)), asyncio.create_task(self._obey(writer))]
        try:
            async with aclosing(self.frames.batches()) as batches:
                async for events in batches:
                    try:
                        await self._write(writer, events)
                    except LiveLogError as error:
                        self._lost(error, written=False)  # before the batches are closed, which cancels the turn
                        break
        except Exception:
            _log.exception("turn %s: the producer failed", self.turn_id)
            await self._give_up(writer)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.wait(helpers)
            self.frames.cancel()
            self._ended(self)

    async def _write(self, writer: Writer, events: list[tuple[str, str]]) -> None:
        try:
            *some, last = _parts(events)
            for part in some:
                await writer.append(part)
            if not self.frames.ended:
                await writer.append(last)
                return
            await _close(writer, self.state, self.frames.turn.error, last)
        except LiveLimit as limit:  # nothing of this part was written
            error = TooLarge(f"more than the live log takes: {limit}", type="live_limit")
            if not self.frames.fail(error):  # else the end comes next
                await _close(writer, State.ERROR, error, ending(self.turn_id, error))

    async def _give_up(self, writer: Writer) -> None:
        """End a turn that a bug of ours has broken, so that nobody waits for the lease."""
        error = ProtocolError("this gateway could not tell the turn", type="gateway_failed")
        with suppress(LiveLogError, UsageError):
            await _close(writer, State.ERROR, error, ending(self.turn_id, error))

    async def _keep(self, writer: Writer) -> None:
        """Take the lease again and again, and look whether somebody reads."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            while True:
                await asyncio.sleep(min(writer.renew_every_s, AT_LEAST_EVERY_S))
                signals = await writer.renew()
                alone_s = loop.time() - began_s if signals.watched_s is None else signals.watched_s
                if self._linger_s and not self.readers and alone_s > self._linger_s:
                    _log.info("turn %s: nobody reads; stopped", self.turn_id)
                    self.frames.cancel()
        except LiveLogError as error:
            self._lost(error)
        except UsageError:
            pass  # the log was closed

    async def _obey(self, writer: Writer) -> None:
        """Stop when somebody asks for it, on whatever replica."""
        try:
            await writer.wait_stop()
        except (LiveLogError, UsageError):
            return  # whoever writes is told too
        self.frames.cancel()

    def _lost(self, error: LiveLogError, *, written: bool = True) -> None:
        """Give up: the log takes no more of this turn. `written`: whether all that was to be written is."""
        if self._untold is not None or not isinstance(error, (Fenced, LiveLogUnavailable)):
            return
        lost = TransportError("the live log takes no more of this turn", type="live_log_lost", retryable=True)
        if self.frames.fail(lost) or not written:
            self._untold = lost
            _log.warning("turn %s: %s", self.turn_id, error)


async def _close(writer: Writer, state: State, error: TurnError | None, events: list[tuple[str, str]]) -> None:
    *final, (event, data) = events
    kind, type = (None, None) if error is None else (error.kind, _word(error.type))
    await writer.close(state, data, event=event, final=final, kind=kind, type=type)


def _word(type: str | None) -> str | None:
    """Return a provider's word as the log takes it."""
    return "".join(character for character in type or "" if character.isprintable())[:200] or None


def _parts(events: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Cut a batch into what the log takes at once; one part for almost every one."""
    parts: list[list[tuple[str, str]]] = [[]]
    size = 0
    for event, data in events:
        size += len(data)
        if parts[-1] and (size > _MOST_CHARACTERS or len(parts[-1]) >= _MOST_EVENTS):
            parts.append([])
            size = len(data)
        parts[-1].append((event, data))
    return parts
