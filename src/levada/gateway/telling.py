"""Tells one turn to one client, out of the live log: the stream of POST /turns and of GET /turns/{id}/events.

Rules this file keeps:
- Each event has its entry's id, so that a client goes on from any of them, on any replica.
- What waits for a slow client is bounded; it reads the log at its own pace, and holds up nobody.
- `end` is the turn's. A stream that this gateway cannot go on with gets an `error`, and stops without `end`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import chain, repeat
from typing import Final

from starlette.types import Receive, Scope, Send

from levada.errors import TransportError, Truncated, TurnError, UsageError
from levada.gateway.config import Limits
from levada.gateway.normal import HEADERS, KEEP_ALIVE, ending, error_event
from levada.live import Entry, EntryGone, LiveLogError, LiveLogUnavailable, UnknownEntry
from levada.sse import encode_event

__all__ = ["ABORT", "HALF_CLOSED", "Telling"]

# An extension of the scope, from server.py: a callable that drops the connection without waiting for what was written.
ABORT: Final = "levada.abort"

# Another one: an asyncio.Event, set once the client has closed its writing side. Either it waits for the answer, or it
# has gone, and only what is written to it tells which: its system answers that nobody is there.
HALF_CLOSED: Final = "levada.half_closed"

_ASK_S: Final = (0.05, 0.1, 0.2, 0.5)  # so long after one word to it comes the next, at the end each second

_WAITING: Final = 64 * 1024  # bytes that may wait for the client; the rest waits in the log

_log = logging.getLogger("levada.gateway")


class Telling:
    """One client's stream of one turn. `entries`: what `LiveLog.read` gives; closed at the end.

    `headers`: what the answer says besides. `gone`: called at once when the client has gone.
    `began`: whether the client was told anything.
    """

    def __init__(
        self,
        turn_id: str,
        entries: AsyncGenerator[Entry, None],
        limits: Limits,
        headers: Sequence[tuple[str, str]] = (),
        gone: Callable[[], object] = lambda: None,
    ) -> None:
        self.turn_id = turn_id
        self.began = False
        self._entries = entries
        self._limits = limits
        self._gone = gone
        self._headers = [*HEADERS.items(), ("levada-turn", turn_id), *headers]
        self._frames: list[bytes] = []
        self._size = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._over = False

    @property
    def waiting(self) -> int:
        """How many bytes wait for the client, besides what its connection holds."""
        return self._size

    def stop(self) -> None:
        """End the stream here, without `end`: the client goes on elsewhere."""
        self._over = True
        self._news.set()

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell it, until its end or until the client has gone or takes nothing."""
        sending = asyncio.create_task(self._send(scope, send))
        half_closed = scope.get("extensions", {}).get(HALF_CLOSED)
        tasks = [sending, asyncio.create_task(self._read()), asyncio.create_task(self._leave(receive))]
        if half_closed is not None:
            tasks.append(asyncio.create_task(self._ask(half_closed)))
        try:
            await asyncio.wait({tasks[0], tasks[2]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _leave(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone()  # here, not after the tasks: a busy loop needs its time for each step

    async def _ask(self, half_closed: asyncio.Event) -> None:
        """See whether a client that has closed its side is there; a comment is nothing to one that is."""
        await half_closed.wait()
        for wait_s in chain(_ASK_S, repeat(1.0)):
            if not self._size:  # else something is written anyhow
                self._put(KEEP_ALIVE)
            await asyncio.sleep(wait_s)

    async def _read(self) -> None:
        try:
            async with aclosing(self._entries) as entries:
                async for entry in entries:
                    self._put(self._encoded(entry))
                    while self._size > _WAITING:
                        self._room.clear()
                        await self._room.wait()
        except (LiveLogError, UsageError) as error:
            _log.info("turn %s: a reader cannot go on: %s", self.turn_id, error)
            event, data = error_event(_told(error))
            self._put(encode_event(data, event=event))
        finally:
            self.stop()

    def _put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._size += len(frame)
        self._news.set()

    def _encoded(self, entry: Entry) -> bytes:
        if entry.data or entry.state is None:
            return encode_event(entry.data, event=entry.event, id=entry.id)
        # the log's own end: its producer could not tell it
        words = {
            "producer_lost": "the gateway that read this answer has gone",
            "entries_lost": "the live log has lost some of this answer",
        }
        error = Truncated(words.get(entry.type or "", "the answer was cut"), type=entry.type, retryable=True)
        *more, (event, data) = ending(self.turn_id, error)
        return b"".join(encode_event(data, event=event) for event, data in more) + encode_event(
            data, event=event, id=entry.id
        )

    async def _send(self, scope: Scope, send: Send) -> None:
        limits = self._limits
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers]
        try:
            async with asyncio.timeout(limits.send_s):
                await send({"type": "http.response.start", "status": 200, "headers": raw})
            self.began = True
            last = False
            while not last:
                try:
                    async with asyncio.timeout(limits.heartbeat_s):
                        await self._news.wait()
                except TimeoutError:
                    frame = KEEP_ALIVE
                else:
                    self._news.clear()
                    frame, last = b"".join(self._frames), self._over
                    self._frames.clear()
                    self._size = 0
                    self._room.set()
                async with asyncio.timeout(limits.send_s):
                    await send({"type": "http.response.body", "body": frame, "more_body": not last})
        except TimeoutError:
            _log.info("turn %s: the client takes nothing; dropped", self.turn_id)
            abort = scope.get("extensions", {}).get(ABORT)
            if abort is not None:
                abort()


def _told(error: LiveLogError | UsageError) -> TurnError:
    """Return what a client is told of a log that gives no more."""
    match error:
        case LiveLogUnavailable():
            words = "the live log does not answer; the turn may go on, and can be read on later"
            return TransportError(words, type="live_log_unavailable", retryable=True)
        case EntryGone() | UnknownEntry():
            return Truncated("the events that come next are no longer kept", type="gone")
        case UsageError():
            return TransportError("this gateway shuts down; read on elsewhere", type="shutdown", retryable=True)
        case _:
            return Truncated("the turn is no longer kept", type="unknown_turn")
