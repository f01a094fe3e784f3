"""The two loops that read a body into a turn, one with threads in mind and one for asyncio, and what they share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Iterator, Mapping
from contextlib import nullcontext
from types import AsyncGeneratorType, TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar, cast

from levada.deltas import Delta
from levada.errors import Cancelled, TransportError
from levada.io.failures import note_failure
from levada.lifecycle import ENDS, State
from levada.timeouts import Limit, Timeouts, Watch
from levada.turn import Turn

__all__ = ["AsyncBody", "AsyncTurnStream", "Body", "TurnStream"]

# How long the rest of a body is read once its turn has ended: the last chunk of a chunked body usually is in the same
# packet, and only a body read to its end lets the client use the connection again.
DRAIN_S: Final = 0.25

# Bytes that are fed in one step under asyncio: 65,536 of the smallest events take some 30 ms.
_AT_ONCE: Final = 64 * 1024

_READER: Final = "the reader"  # who stopped, where no exception did

Head = tuple[int, Mapping[str, str]]


class Body(Protocol):
    """A response to be read, whatever its client."""

    def head(self) -> Head | None:
        """Return status and headers, or None where there are none."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks as they arrive; raise the client's own exceptions."""

    def whole(self) -> bool:
        """Say after a quiet end whether the HTTP framing was complete."""

    def close(self) -> bool:
        """Let go of the response; return whether there was anything to close."""

    def closed(self) -> bool | None:
        """Say whether the client knows it to be closed; None where nobody can tell."""


class AsyncBody(Protocol):
    """The same for asyncio."""

    def head(self) -> Head | None:
        """Return status and headers, or None where there are none."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield chunks as they arrive; raise the client's own exceptions."""

    def whole(self) -> bool:
        """Say after a quiet end whether the HTTP framing was complete."""

    async def close(self) -> bool:
        """Let go of the response; return whether there was anything to close."""

    def closed(self) -> bool | None:
        """Say whether the client knows it to be closed; None where nobody can tell."""


_B = TypeVar("_B", Body, AsyncBody)


class _Reading(Generic[_B]):
    """What both loops do between two reads, and how they end.

    It knows no generator, so that nothing is a cycle and a stream that is dropped is closed at once; and it lets go of
    the response at the end: while urllib3's lives, so does its whole pool.
    """

    def __init__(
        self, body: _B, turn: Turn, timeouts: Timeouts | None, clean: bool | None, started_s: float | None
    ) -> None:
        self.turn = turn
        self.cancelled: Cancelled | None = None
        self.upstream_closed: bool | None = None
        self.body: _B | None = body
        self._timeouts = timeouts if timeouts != Timeouts() else None
        self._clean = clean
        self._started_s = started_s
        self._watch: Watch | None = None
        self._drained_s = 0.0
        self._over = False

    @property
    def ended(self) -> bool:
        return self.turn.state in ENDS

    def begin(self) -> _B:
        assert self.body is not None  # a stream that was left before runs no loop
        head = self.body.head()
        if head is not None:
            status, headers = head
            self.turn.head(status, headers=headers)
        return self.body

    def goes_on(self) -> bool:
        return not self._over and self.turn.state is not State.CANCELLED

    def limit(self, now_s: float) -> Limit | None:
        """Return the limit of the read that begins now."""
        if self.ended:
            self._drained_s = self._drained_s or now_s + DRAIN_S
            return Limit(self._drained_s, "", DRAIN_S)
        if self._timeouts is None:
            return None
        if self._watch is None:
            self._watch = Watch(self._timeouts, now_s if self._started_s is None else self._started_s)
        return self._watch.limit(now_s, opened=self.turn.state is not State.CONNECTING)

    def took(self, chunk: bytes | None) -> list[Delta] | None:
        """Feed what a read brought, None being the end; return the batch to hand out, or None for none."""
        had_ended = self.ended
        if chunk is None:
            self._over = True
            clean = self._clean
            if clean is None:
                clean = self.body is not None and self.body.whole()
            deltas = self.turn.eof(clean=clean)
        else:
            came_s = time.monotonic()
            deltas = self.turn.feed(chunk)
            if self._watch is not None:
                self._watch.came(came_s, chunk=bool(chunk), deltas=bool(deltas))
        return deltas if deltas or (self.ended and not had_ended) else None

    def late(self, limit: Limit) -> list[Delta] | None:
        """Note that a read took too long."""
        self._over = True
        if self.ended:
            return None
        self.turn.fail(limit.error())
        return []

    def failed(self, exc: Exception) -> list[Delta] | None:
        """Note that a read failed. Raises the exception again where it is none of the network."""
        self._over = True
        if self.body is None:  # somebody closed the response during the read
            return None
        had_ended = self.ended
        deltas = note_failure(self.turn, exc)
        return None if had_ended else deltas

    def cancelled_from_below(self) -> list[Delta] | None:
        """Note that a read was cancelled, and not by whoever waits for it."""
        self._over = True
        if self.body is None or self.ended:
            return None
        self.turn.fail(TransportError("the transport cancelled its own reading", retryable=True))
        return []

    def leave(self) -> _B | None:
        """Cancel the turn unless it has ended; return the response where it is still to be closed."""
        body, self.body = self.body, None
        self._over = True
        if body is not None and not self.ended:
            self.turn.cancel()
        return body

    def closed(self, asked: bool, closed: bool | None, by: str) -> None:
        """Note what is known once the response was to be closed."""
        self.upstream_closed = closed
        if self.turn.state is State.CANCELLED:
            self.cancelled = Cancelled(asked, closed, by)


class TurnStream:
    """The deltas of one response, a list for each chunk that made some; made by `stream_turn`.

    An iterator and a context manager.
    """

    def __init__(
        self,
        body: Body,
        turn: Turn,
        timeouts: Timeouts | None = None,
        clean: bool | None = None,
        started_s: float | None = None,
    ) -> None:
        self._reading = _Reading(body, turn, timeouts, clean, started_s)
        self._batches = _read(self._reading)

    @property
    def turn(self) -> Turn:
        """The turn that is read."""
        return self._reading.turn

    @property
    def cancelled(self) -> Cancelled | None:
        """What is known of the cancellation, once the response is closed; None where there was none.

        `asked`: the response was closed for it. `upstream_closed`: the client says that it is closed; None where it
        cannot tell. `by`: the reader, or the exception that came through.
        """
        return self._reading.cancelled

    @property
    def upstream_closed(self) -> bool | None:
        """Whether the client says that the response is closed; None before the end, or where it cannot tell."""
        return self._reading.upstream_closed

    def __iter__(self) -> Iterator[list[Delta]]:
        return self

    def __next__(self) -> list[Delta]:
        return next(self._batches)

    def close(self) -> None:
        """Stop reading: cancel the turn unless it has ended, and close the response."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self._reading, _READER if kind is None else kind.__name__)  # a generator that never ran has no `finally`
        self._batches.close()


def _read(reading: _Reading[Body]) -> Generator[list[Delta], None, None]:
    by = _READER
    try:
        chunks = iter(reading.begin())
        while reading.goes_on():
            limit = reading.limit(time.monotonic())
            try:
                chunk = next(chunks, None)
            except Exception as exc:
                batch = reading.failed(exc)
            else:
                late = limit is not None and time.monotonic() > limit.at_s
                batch = reading.late(limit) if limit is not None and late else reading.took(chunk)
            if batch is not None:
                yield batch
    except GeneratorExit:
        raise
    except BaseException as exc:
        by = type(exc).__name__  # not the exception: its traceback would hold this frame, and the frame the response
        raise
    finally:
        _leave(reading, by)


def _leave(reading: _Reading[Body], by: str) -> None:
    body = reading.leave()
    if body is not None:
        asked = True
        try:
            asked = body.close()
        except Exception:  # closing what is broken may fail; `closed` tells
            pass
        finally:
            reading.closed(asked, body.closed(), by)


class AsyncTurnStream:
    """The same for asyncio; made by `astream_turn`. An async iterator and an async context manager.

    A task that is cancelled between two chunks closes the response at once only inside `async with`: Python closes a
    dropped async iterator later.
    """

    def __init__(
        self,
        body: AsyncBody,
        turn: Turn,
        timeouts: Timeouts | None = None,
        clean: bool | None = None,
        started_s: float | None = None,
    ) -> None:
        self._reading = _Reading(body, turn, timeouts, clean, started_s)
        self._batches = cast("AsyncGeneratorType[list[Delta], None]", _aread(self._reading))  # for `ag_running`

    @property
    def turn(self) -> Turn:
        """The turn that is read."""
        return self._reading.turn

    @property
    def cancelled(self) -> Cancelled | None:
        """What is known of the cancellation; None where there was none."""
        return self._reading.cancelled

    @property
    def upstream_closed(self) -> bool | None:
        """Whether the client says that the response is closed; None before the end, or where it cannot tell."""
        return self._reading.upstream_closed

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        return self

    def __anext__(self) -> Awaitable[list[Delta]]:
        return self._batches.__anext__()

    async def aclose(self) -> None:
        """Stop reading: cancel the turn unless it has ended, and close the response.

        Another task may do it too, where this is a client's response; an async generator that waits for its next chunk
        cannot be closed from outside.
        """
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _aleave(self._reading, _READER if kind is None else kind.__name__)
        if not self._batches.ag_running:  # else another task waits in it: the closed response ends its wait
            await self._batches.aclose()


async def _aread(reading: _Reading[AsyncBody]) -> AsyncGenerator[list[Delta], None]:
    by = _READER
    try:
        chunks = aiter(reading.begin())
        while reading.goes_on():
            now_s = time.monotonic()
            limit = reading.limit(now_s)
            timer = None if limit is None else asyncio.timeout(max(0.0, limit.at_s - now_s))
            try:
                async with timer or nullcontext():
                    chunk = await anext(chunks, None)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                batch = reading.cancelled_from_below()
            except Exception as exc:
                if limit is not None and timer is not None and timer.expired():
                    batch = reading.late(limit)
                else:
                    batch = reading.failed(exc)
            else:
                *some, chunk = _pieces(chunk)
                for piece in some:
                    if (batch := reading.took(piece)) is not None:
                        yield batch
                    await asyncio.sleep(0)
                    if not reading.goes_on():
                        return
                batch = reading.took(chunk)
            if batch is not None:
                yield batch
    except GeneratorExit:
        raise
    except BaseException as exc:
        by = type(exc).__name__  # not the exception: its traceback would hold this frame, and the frame the response
        raise
    finally:
        await _aleave(reading, by)


def _pieces(chunk: bytes | None) -> list[bytes | None]:
    """Cut a chunk so that the loop has time for others while it is fed; a client may have unzipped many MiB at once."""
    if not isinstance(chunk, bytes) or len(chunk) <= _AT_ONCE:
        return [chunk]
    return [chunk[at : at + _AT_ONCE] for at in range(0, len(chunk), _AT_ONCE)]


async def _aleave(reading: _Reading[AsyncBody], by: str) -> None:
    body = reading.leave()
    if body is not None:
        asked = True
        try:
            asked = await body.close()
        except Exception:  # closing what is broken may fail; `closed` tells
            pass
        finally:
            reading.closed(asked, body.closed(), by)
