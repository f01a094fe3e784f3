"""One attempt at a turn: opened, read into a turn and a gate of its own, reviewed, and left with nothing running.

`levada.run` makes as many as its policy allows; this file knows neither the others, nor the screen, nor the commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any, Final

from levada.deltas import Delta, TextDelta, TextReplaced
from levada.errors import Blocked, Cancelled, TransportError, TurnError, UsageError
from levada.gate import Blocked as BlockedSentence
from levada.gate import Decision
from levada.io import astream_any, note_failure
from levada.io.opening import open_response
from levada.io.stream import AsyncTurnStream
from levada.lifecycle import ENDS, State
from levada.outcome import Outcome, RunRecord
from levada.review import ReviewQueue
from levada.timeouts import Limit, Timeouts, Watch
from levada.turn import Turn

__all__ = ["Attempt", "Job", "Patience", "StoppedError", "called"]

CLOSE_S: Final = 5.0  # for an upstream to be closed; then it is left to itself, and counts as open


class StoppedError(Exception):
    """The event that stops the run was set."""


class Patience:
    """How long a run may be waited for: `total_s` from now on, and until `cancel` is set."""

    def __init__(self, total_s: float | None, cancel: asyncio.Event | None) -> None:
        self.total_s = total_s
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._stop = {asyncio.create_task(cancel.wait(), name="levada cancel")} if cancel is not None else set()

    def left_s(self) -> float | None:
        """Return how much of `total_s` is left, None where there is no such limit."""
        return None if self.total_s is None else self._started_s + self.total_s - self._loop.time()

    def check(self) -> None:
        """Raise StoppedError where `cancel` is set."""
        if self._cancel is not None and self._cancel.is_set():
            raise StoppedError

    async def unless_stopped(self, work: Coroutine[Any, Any, None], timeout_s: float | None = None) -> None:
        """Wait for `work`, so long. Raises what it raises, and StoppedError where `cancel` is set."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task, *self._stop}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            if task.done():
                task.result()
        finally:
            task.cancel()

    def close(self) -> None:
        """Wait for nothing any more."""
        for task in self._stop:
            task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the attempts of one run share; see `run_turn`. `offer`: takes what gives the text released so far."""

    open_stream: Callable[..., Any]
    new_turn: Callable[[], Turn]
    new_reviews: Callable[[Callable[[list[Decision]], object]], ReviewQueue]
    offer: Callable[[Callable[[], str]], object]
    on_delta: Callable[[Delta], Any] | None
    timeouts: Timeouts
    clean: bool | None
    clock: Callable[[], float]
    patience: Patience


class Attempt:
    """One attempt: its turn, its gate, its stream, and the task that reads it."""

    def __init__(self, job: Job, number: int) -> None:
        self.number = number
        self.turn = job.new_turn()
        self.reviews = job.new_reviews(self._decided)
        self.released = False  # whether a person may have seen any text of it
        self._job = job
        self._reader: asyncio.Task[None] | None = None
        self._stream: AsyncTurnStream | None = None
        self._over = asyncio.get_running_loop().create_future()  # done once the turn has ended and its deltas are fed
        self._blocked: Blocked | None = None
        self._asked = False  # the upstream was asked to stop
        self.upstream_closed: bool | None = True  # there is none yet
        self._started_s = job.clock()
        self._first_delta_s: float | None = None
        self._ended_s: float | None = None

    async def run(self) -> None:
        """Read until the turn has ended, and if it is finished, until all is reviewed. The body may be drained on."""
        job, turn = self._job, self.turn
        self._started_s = job.clock()
        job.patience.check()
        self.upstream_closed = False
        self._reader = asyncio.create_task(self._read(), name="levada reader")
        self._reader.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # looked at below, if it matters
        await job.patience.unless_stopped(self._until_over(), job.patience.left_s())
        by_itself = turn.state in ENDS and self._blocked is None
        if turn.state not in ENDS:
            turn.fail(Limit(0.0, "total_s", job.timeouts.total_s or 0.0).error())
        self._ended_s = job.clock()
        if turn.state is State.FINISHED:
            self.reviews.close()
            await job.patience.unless_stopped(self.reviews.settled())
        else:
            await self.leave(drain=by_itself)

    def outcome(self) -> Outcome:
        """Return what the attempt came to. Raises the turn's error, and Blocked where it is finished but blocked."""
        finished = self.turn.result()
        if self._blocked is not None:
            raise self._blocked.copy()
        gate = self.reviews.gate
        if not gate.settled:
            raise UsageError("the gate is not settled, though it was closed and all that it gave was decided")
        return Outcome(finished, gate.released, self.number)

    async def leave(self, *, drain: bool = False) -> None:
        """Let nothing of the attempt run on: no review, no upstream. `drain`: it closes by itself, in a moment."""
        self.reviews.stop()
        reader = self._reader
        if reader is None or self._asked:
            return
        if not drain and not reader.done():
            self._asked = True
            reader.cancel()
        await asyncio.wait({reader}, timeout=CLOSE_S)
        if not reader.done():
            return  # left to itself; somebody must hold it
        if self._stream is not None:
            self.upstream_closed = self._stream.upstream_closed
        else:  # a request that was given up half way, or one that came to nothing
            self.upstream_closed = None if reader.cancelled() else True
        self._reader = self._stream = None  # its frames hold the response, and the response its connection

    def cancel(self) -> None:
        """Cancel the turn, unless it has ended."""
        if self.turn.state not in ENDS:
            self.turn.cancel()

    def cancelled(self, by: str | None) -> Cancelled:
        """Return what was asked of the upstream, and what could be confirmed."""
        return Cancelled(self._asked, self.upstream_closed, by)

    def record(self, failure: BaseException | None, retry_in_s: float | None, committed: bool | None) -> RunRecord:
        """Return what operations may want to know."""
        turn = self.turn
        error = failure if isinstance(failure, TurnError) else turn.error
        cancelled = failure if isinstance(failure, Cancelled) else None
        exception = None
        if isinstance(failure, asyncio.CancelledError):
            cancelled = self.cancelled(type(failure).__name__)
        elif failure is not None and cancelled is None and error is not failure:
            exception = type(failure).__name__
        return RunRecord(
            attempt=self.number,
            dialect=turn.dialect,
            profile=turn.profile,
            model=turn.model,
            state=turn.state,
            error_kind=error.kind if error is not None else None,
            error_type=error.type if error is not None else None,
            retry_in_s=retry_in_s,
            released_chars=len(self.reviews.gate.released),
            usage=turn.usage,
            committed=committed,
            cancelled=cancelled,
            exception=exception,
            upstream_closed=self.upstream_closed,
            started_s=self._started_s,
            first_delta_s=self._first_delta_s,
            ended_s=self._job.clock() if self._ended_s is None else self._ended_s,
        )

    async def _until_over(self) -> None:
        reader = self._reader
        assert reader is not None  # run() made it
        await asyncio.wait({reader, self._over}, return_when=asyncio.FIRST_COMPLETED)
        if self._over.done():
            return
        if reader.cancelled():  # not by us: that would look as if our own task were cancelled
            if self.turn.state not in ENDS:
                self.turn.fail(TransportError("the transport cancelled its own reading", retryable=True))
        else:
            reader.result()  # raises what is none of the network's

    async def _read(self) -> None:
        job = self._job
        timeouts = replace(job.timeouts, total_s=None)  # that one bounds all attempts
        started_s = time.monotonic()
        limit = Watch(timeouts, started_s).limit(started_s, opened=False)
        timer = None if limit is None else asyncio.timeout(limit.seconds)
        async with AsyncExitStack() as stack:
            try:
                async with timer or nullcontext():
                    response = await open_response(job.open_stream, self.number, stack)
            except Exception as exc:
                if limit is not None and timer is not None and timer.expired():
                    self.turn.fail(limit.error())
                else:
                    note_failure(self.turn, exc)
            else:
                stream = astream_any(response, self.turn, timeouts=timeouts, clean=job.clean, started_s=started_s)
                async with stream:
                    self._stream = stream
                    async for deltas in stream:
                        await self._take(deltas)
        self._end()

    async def _take(self, deltas: list[Delta]) -> None:
        """Give a batch of deltas to whoever wants it, the answer's text to the gate."""
        job = self._job
        if deltas and self._first_delta_s is None:
            self._first_delta_s = job.clock()
        if job.on_delta is not None:
            for delta in deltas:
                await called(job.on_delta, delta)
        new: list[str] = []
        replaced = False
        for delta in deltas:
            if isinstance(delta, (TextDelta, TextReplaced)) and delta.channel == "answer" and not delta.choice:
                new.append(delta.text)
                replaced = replaced or isinstance(delta, TextReplaced)
        if replaced:
            self.reviews.replace(self.turn.answer)
        elif new:
            self.reviews.feed("".join(new))
        if self.turn.state in ENDS:
            self._end()

    def _decided(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, BlockedSentence):
                self._block(decision)
            elif decision.text:
                self.released = True
        self._job.offer(lambda: self.reviews.gate.released)

    def _block(self, blocked: BlockedSentence) -> None:
        why = f": {blocked.reason}" if blocked.reason else ""
        self._blocked = Blocked(f"a review blocked sentence {blocked.n}{why}")
        if self.turn.state not in ENDS:
            self.turn.fail(self._blocked)
            self._end()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


async def called(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function that may be sync or async; return its result."""
    result = function(argument)
    return await result if isawaitable(result) else result
