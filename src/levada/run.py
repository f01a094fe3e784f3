"""The golden path in one call: open, feed, gate, paint; at the confirmed end review, settle the screen, commit, act.

Rules this file keeps (docs/run-turn.md):
- `commit` is called once or never, and only with an Outcome: a finished turn of which everything was reviewed.
- Reading waits for no reviewer, and nobody sees what no reviewer released.
- Each attempt has a turn, a gate and a stream of its own (levada.attempt). The screen is emptied before another one
  begins, if there was anything on it.
- However it ends, the upstream is closed, the screen is settled by one policy, and every attempt leaves one record.
- A commit that has begun is carried through: cancelling waits for it, for GRACE_S.
- An exception of our caller's own code comes through as it is. Nothing here logs text.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any, Final, Literal, TypeAlias

from levada.attempt import Attempt, Job, Patience, StoppedError, called
from levada.deltas import Delta
from levada.dialects import Profile
from levada.errors import Cancelled, TransportError, TurnError, UsageError
from levada.gate import GatePolicy, OpenGate
from levada.outcome import Incomplete, Outcome, RunRecord
from levada.retry import Retry
from levada.review import DEFAULT_AT_ONCE, DEFAULT_TIMEOUT_S, AsyncReviewer, ReviewQueue
from levada.screen import Paints, Screen, painted
from levada.timeouts import Timeouts
from levada.turn import Turn

__all__ = ["StopButton", "default_error_text", "run_turn", "run_turn_sync"]

# 10 s: for a commit whose run is cancelled, and for a keep. Then it is cancelled too: nobody is made to wait for ever.
GRACE_S: Final = 10.0

ErrorText: TypeAlias = Callable[[TurnError | Cancelled, str], str]

_log = logging.getLogger("levada.run")

_WORDS: Final = {
    "truncated": "The answer was cut off.",
    "timeout": "The answer took too long.",
    "too_large": "The answer was too large.",
    "blocked": "The answer was withheld.",
}


class StopButton(asyncio.Event):
    """An asyncio.Event that knows who set it first: `button.set("the person")`."""

    by: str | None = None

    def set(self, by: str | None = None) -> None:
        """Stop the run that has it as `cancel`."""
        if not self.is_set():
            self.by = by
        super().set()


def default_error_text(error: TurnError | Cancelled, kept: str) -> str:
    """Return what the screen says where there is no answer: after `kept`, the text that stays, if any does."""
    if isinstance(error, Cancelled):
        words = "The answer was stopped."
    else:
        words = _WORDS.get(error.kind, "The answer could not be completed.")
        if error.retryable:
            words += " Please try again."
    return f"{kept}\n\n[{words}]" if kept else words


async def run_turn(
    open_stream: Callable[..., Any],
    dialect: str,
    *,
    profile: str | Profile | None = None,
    gate: GatePolicy = OpenGate,
    review: AsyncReviewer | None = None,
    painter: Paints | None = None,
    commit: Callable[[Outcome], Any] | None = None,
    after_commit: Iterable[Callable[[Outcome], Any]] = (),
    on_delta: Callable[[Delta], Any] | None = None,
    on_error: Literal["discard", "keep_marked"] = "discard",
    retry: Retry = Retry(),  # noqa: B008  # frozen
    timeouts: Timeouts = Timeouts(),  # noqa: B008  # frozen
    review_timeout_s: float | None = DEFAULT_TIMEOUT_S,
    reviews_at_once: int = DEFAULT_AT_ONCE,
    error_text: ErrorText = default_error_text,
    keep: Callable[[Incomplete], Any] | None = None,
    on_record: Callable[[RunRecord], Any] | None = None,
    cancel: asyncio.Event | None = None,
    clean: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
    **turn_options: Any,
) -> Outcome:
    """Run one turn from its request to its commit; return what was committed.

    `open_stream`: called for each attempt, with its number if it needs an argument; it gives a response of any client
    that levada.io knows, chunks of bytes, an async context manager, or an awaitable of these. `gate`: makes the gate of
    each attempt. `review(sentence)`: within `review_timeout_s`, `reviews_at_once` at a time. `painter`: is offered the
    text released so far, and finished with the answer or with `error_text(error, kept)`. `commit(outcome)`: what it
    returns is `Outcome.committed`; where its `status` is "refused", nothing of `after_commit` runs. `on_delta(delta)`:
    gets every delta of every attempt, before any gate. `on_error`: discard, the error takes the draft's place;
    keep_marked, what was released stays, marked, and `keep(incomplete)` may store it. `on_record(record)`: once for
    each attempt. `cancel`: an event that stops the run before its commit. `clean`: as for astream_turn. `clock`: for
    the records. Callables may be sync, and then run in the event loop, or async. Other options are those of Turn.

    Raises the turn's error, of kind blocked also where a review stopped a finished turn; Cancelled after `cancel`;
    CancelledError where its task was cancelled; UsageError for what makes no sense; and whatever the callables raise.
    """
    if on_error not in ("discard", "keep_marked"):
        raise UsageError(f"on_error must be discard or keep_marked, not {on_error!r:.100}")
    if keep is not None and on_error == "discard":
        raise UsageError("keep= needs on_error='keep_marked': what the screen discards is not kept elsewhere")
    for name, value in (("open_stream", open_stream), ("gate", gate)):
        if not callable(value):
            raise UsageError(f"{name} must be callable, not {type(value).__name__}: each attempt calls it anew")
    screen = Screen(painter)
    patience = Patience(timeouts.total_s, cancel)
    try:
        job = Job(
            open_stream=open_stream,
            new_turn=lambda: Turn(dialect, profile=profile, **turn_options),
            new_reviews=lambda decided: ReviewQueue(
                gate(), review, decided, timeout_s=review_timeout_s, at_once=reviews_at_once
            ),
            offer=screen.offer,
            on_delta=on_delta,
            timeouts=timeouts,
            clean=clean,
            clock=clock,
            patience=patience,
        )
        first = Attempt(job, 1)  # before anything is opened: settings that make no sense raise here
        keeper = (keep or _forget) if on_error == "keep_marked" else None
        run = _Run(job, screen, retry, commit, tuple(after_commit), error_text, keeper, on_record, cancel)
        return await run.go(first)
    finally:
        patience.close()


def run_turn_sync(open_stream: Callable[..., Any], dialect: str, **options: Any) -> Outcome:
    """Do as `run_turn` does, in an event loop of its own; not for inside of one. Ctrl-C closes the upstream."""
    return asyncio.run(run_turn(open_stream, dialect, **options))


@dataclass(slots=True)
class _Run:
    """What is done before, between and after the attempts of one call."""

    job: Job
    screen: Screen
    retry: Retry
    commit: Callable[[Outcome], Any] | None
    after_commit: tuple[Callable[[Outcome], Any], ...]
    error_text: ErrorText
    keep: Callable[[Incomplete], Any] | None  # None: what was released is discarded
    on_record: Callable[[RunRecord], Any] | None
    cancel: asyncio.Event | None
    committed: bool | None = False

    async def go(self, attempt: Attempt) -> Outcome:
        failure: BaseException | None = None
        try:
            await attempt.run()
            while (wait_s := self._wait_s(attempt)) is not None:
                failed, attempt = attempt, Attempt(self.job, attempt.number + 1)
                await self._note(failed, None, wait_s)
                await painted(self.screen.clear())
                await self.job.patience.unless_stopped(asyncio.sleep(wait_s))
                await attempt.run()
            # nothing is awaited from the last look at `cancel` to the commit
            outcome = attempt.outcome()
            painting = self.screen.finish(outcome.released)
            outcome = await self._commit(outcome)
            await painted(painting)
            await attempt.leave(drain=True)
            return outcome
        except BaseException as exc:
            failure = exc
            failure = await self._give_up(attempt, exc)
            if failure is exc:
                raise
            raise failure from None
        finally:
            await self._note(attempt, failure, None)
            failure = None  # its traceback holds this frame

    def _wait_s(self, attempt: Attempt) -> float | None:
        """Return how long to wait before another attempt, None where there is none to make."""
        error = attempt.turn.error
        if error is None:
            return None
        wait_s = self.retry.wait_s(error, attempt.number, released=attempt.released, chance=random.random())
        left_s = self.job.patience.left_s()
        return None if wait_s is None or (left_s is not None and wait_s >= left_s) else wait_s

    async def _commit(self, outcome: Outcome) -> Outcome:
        """Commit, then act."""
        if self.commit is not None:
            committed = self.commit(outcome)
            if isawaitable(committed):
                committed = await self._carried_through(committed)
            outcome = replace(outcome, committed=committed)
            self.committed = not _refused(committed)
            if not self.committed:
                return outcome
        for action in self.after_commit:
            await called(action, outcome)
        return outcome

    async def _carried_through(self, commit: Awaitable[Any]) -> Any:
        """Wait for a commit to its end, so that its end is known, even where we are cancelled meanwhile."""
        task = asyncio.ensure_future(commit)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + GRACE_S
            while not task.done() and (left_s := until_s - loop.time()) > 0:
                with suppress(asyncio.CancelledError):  # whoever is impatient, and cancels again, waits as well
                    await asyncio.wait({task}, timeout=left_s)
            if not task.done() or task.cancelled():
                self.committed = None
            elif task.exception() is None:
                self.committed = not _refused(task.result())
            raise
        finally:
            task.cancel()
        if task.cancelled():
            self.committed = None
            raise RuntimeError("commit was cancelled, and not by run_turn")
        return task.result()

    async def _give_up(self, attempt: Attempt, exc: BaseException) -> BaseException:
        """Close the upstream, settle the screen, keep what is to be kept; return what to raise."""
        failure = exc
        attempt.cancel()
        try:
            await attempt.leave()
        finally:
            if isinstance(exc, StoppedError):
                failure = attempt.cancelled(self.cancel.by if isinstance(self.cancel, StopButton) else None)
            if not self.screen.finished:
                await self._settle_without_answer(attempt, failure)
        return failure

    async def _settle_without_answer(self, attempt: Attempt, failure: BaseException) -> None:
        gone = isinstance(failure, asyncio.CancelledError)
        error = failure if isinstance(failure, (TurnError, Cancelled)) else attempt.turn.error
        if gone:
            error = attempt.cancelled(type(failure).__name__)
        elif error is None:
            error = TransportError(f"{type(failure).__name__} in the program's own code")
        kept = "" if self.keep is None else attempt.reviews.gate.released
        painting = self.screen.finish(self._words(error, kept, failure))
        if kept and self.keep is not None:
            try:
                await asyncio.wait_for(called(self.keep, Incomplete(kept, error, attempt.turn)), GRACE_S)
            except Exception as exc:
                # the failure matters more, and is raised; this one's words may hold the text
                failure.add_note(f"levada: keep raised {type(exc).__name__}")
                _log.error("keep raised %s", type(exc).__name__)
        if not gone:  # who cancels a task waits for no screen
            await painted(painting)

    def _words(self, error: TurnError | Cancelled, kept: str, failure: BaseException) -> str:
        """Return what the screen is to say: an unmarked draft must not stay on it, whatever `error_text` does."""
        wrong = "gave no str"
        try:
            words = self.error_text(error, kept)
            if isinstance(words, str):
                return words
        except Exception as exc:
            wrong = f"raised {type(exc).__name__}"
        failure.add_note(f"levada: error_text {wrong}")
        _log.error("error_text %s; the default is shown", wrong)
        return default_error_text(error, kept)

    async def _note(self, attempt: Attempt, failure: BaseException | None, wait_s: float | None) -> None:
        if self.on_record is not None:
            try:
                await called(self.on_record, attempt.record(failure, wait_s, self.committed))
            except Exception as exc:
                _log.error("on_record raised; the run goes on", exc_info=exc)


def _forget(incomplete: Incomplete) -> None:
    """Keep it on the screen alone."""


def _refused(committed: Any) -> bool:
    """Say whether a commit looked at the answer and did not store it, as the ledger's may."""
    return getattr(committed, "status", None) == "refused"
