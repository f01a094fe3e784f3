"""Asks a reviewer about what a gate gives, and tells the gate: sync and async, with a time limit.

Rules this file keeps:
- A reviewer that raises, takes too long, or answers with what is no verdict blocks: only a verdict releases.
- Without a reviewer (None) everything is released, when the gate gives it.
- The reason of a block names what went wrong, and never quotes: an exception's text may hold the answer's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from levada.errors import UsageError
from levada.gate import Decision, Gate, Replaced, Sentence, Verdict, block, is_verdict, release

Reviewer: TypeAlias = Callable[[Sentence], Verdict]
AsyncReviewer: TypeAlias = Callable[[Sentence], Verdict | Awaitable[Verdict]]

# 10 s: ten times what a call to a small model takes, and about as long as a person waits without leaving.
DEFAULT_TIMEOUT_S: Final = 10.0

# 8 at once: a reviewer that takes a second keeps up with 8 sentences a second, three times what fast models write.
DEFAULT_AT_ONCE: Final = 8

_Answer: TypeAlias = tuple[Verdict, str | None]


class Review:
    """Feeds a gate and asks `review(sentence)` about each candidate, one after the other.

    `timeout_s`: for one verdict; None: no limit, and the reviewer runs in the calling thread. With a limit each call
    runs in a thread of its own, because nothing else can leave a call that hangs; after a timeout it is left alone.
    """

    def __init__(self, gate: Gate, review: Reviewer | None, *, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> None:
        _check_timeout(timeout_s)
        self.gate = gate
        self._review = review
        self._timeout_s = timeout_s

    def feed(self, text: str) -> list[Decision]:
        """Feed the gate; return what was decided."""
        return self._decide(self.gate.feed(text))

    def replace(self, text: str) -> list[Decision]:
        """Give the gate the whole text anew; return what is taken back and what was decided."""
        taken_back, sentences = _split(self.gate.replace(text))
        return [*taken_back, *self._decide(sentences)]

    def close(self) -> list[Decision]:
        """Close the gate, because the turn is FINISHED; return what was decided."""
        return self._decide(self.gate.close())

    def _decide(self, sentences: Sequence[Sentence]) -> list[Decision]:
        decisions: list[Decision] = []
        for sentence in sentences:
            if self.gate.blocked:
                break
            verdict, reason = self._ask(sentence)
            decisions += self.gate.decide(sentence.n, verdict, reason=reason)
        return decisions

    def _ask(self, sentence: Sentence) -> _Answer:
        review = self._review
        if review is None:
            return release, None
        if self._timeout_s is None:
            return _call(review, sentence)
        answers: SimpleQueue[_Answer] = SimpleQueue()
        threading.Thread(
            target=_call_in_thread, args=(review, sentence, answers), name="levada review", daemon=True
        ).start()
        try:
            return answers.get(timeout=self._timeout_s)
        except Empty:
            return _too_late(self._timeout_s)


class AsyncReview:
    """Feeds a gate and asks `review(sentence)`, sync or async, about each candidate; those of one call together.

    `timeout_s`: for one verdict; None: no limit. A sync reviewer blocks the event loop and has no limit. Cancelling a
    call cancels its reviewers; the gate is left with open candidates and releases nothing more.
    """

    def __init__(
        self, gate: Gate, review: AsyncReviewer | None, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> None:
        _check_timeout(timeout_s)
        self.gate = gate
        self._review = review
        self._timeout_s = timeout_s

    async def feed(self, text: str) -> list[Decision]:
        """Feed the gate; return what was decided."""
        return await self._decide(self.gate.feed(text))

    async def replace(self, text: str) -> list[Decision]:
        """Give the gate the whole text anew; return what is taken back and what was decided."""
        taken_back, sentences = _split(self.gate.replace(text))
        return [*taken_back, *await self._decide(sentences)]

    async def close(self) -> list[Decision]:
        """Close the gate, because the turn is FINISHED; return what was decided."""
        return await self._decide(self.gate.close())

    async def _decide(self, sentences: Sequence[Sentence]) -> list[Decision]:
        if len(sentences) == 1 or self._review is None:
            answers = [await self._ask(sentence) for sentence in sentences]
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(sentence)) for sentence in sentences]
            answers = [task.result() for task in tasks]
        decisions: list[Decision] = []
        for sentence, (verdict, reason) in zip(sentences, answers, strict=True):
            decisions += self.gate.decide(sentence.n, verdict, reason=reason)
        return decisions

    async def _ask(self, sentence: Sentence) -> _Answer:
        if self._review is None:
            return release, None
        return await _ask_within(self._timeout_s, self._review, sentence)


class ReviewQueue:
    """Feeds a gate and asks `review(sentence)` in tasks: `feed`, `replace` and `close` return at once.

    `decided(decisions)` is called with what can be said, in the order of the sentences, whenever there is something.
    `at_once`: how many are asked about at the same time; the others wait, and `timeout_s` counts from the asking. With
    a limit, a reviewer that is no coroutine function is called in a thread of its own; without one (None), in the event
    loop. All calls come from one running event loop.
    """

    def __init__(
        self,
        gate: Gate,
        review: AsyncReviewer | None,
        decided: Callable[[list[Decision]], object],
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        at_once: int = DEFAULT_AT_ONCE,
    ) -> None:
        _check_timeout(timeout_s)
        if type(at_once) is not int or at_once < 1:
            raise UsageError(f"at_once must be an int from 1, not {at_once!r:.100}")
        self.gate = gate
        self._decided = decided
        self._timeout_s = timeout_s
        self._at_once = at_once
        self._review = review
        if review is not None and timeout_s is not None and not _is_async(review):
            self._review = partial(_in_thread, review)
        self._waiting: deque[Sentence] = deque()
        self._asking: set[asyncio.Task[_Answer]] = set()
        self._stopped = False

    def feed(self, text: str) -> None:
        """Feed the gate."""
        self._take(self.gate.feed(text))

    def replace(self, text: str) -> None:
        """Give the gate the whole text anew."""
        taken_back, sentences = _split(self.gate.replace(text))
        self._take(sentences, taken_back)

    def close(self) -> None:
        """Close the gate, because the turn is FINISHED."""
        self._take(self.gate.close())

    async def settled(self) -> None:
        """Wait until nothing is left to ask about. It tells of no block: look at the gate."""
        while self._asking:
            await asyncio.wait(self._asking, return_when=asyncio.FIRST_COMPLETED)

    def stop(self) -> None:
        """Ask no more, cancel the reviewers that run, and decide nothing any longer."""
        self._stopped = True
        self._waiting.clear()
        for task in self._asking:
            task.cancel()

    def _take(self, sentences: Sequence[Sentence], taken_back: Sequence[Decision] = ()) -> None:
        decisions = [*taken_back]
        if self._review is None:
            for sentence in sentences:
                decisions += self.gate.decide(sentence.n, release)
        else:
            self._waiting.extend(sentences)
            self._ask_more()
        self._tell(decisions)  # together: a screen need not show what was taken back alone

    def _ask_more(self) -> None:
        review = self._review
        while self._waiting and len(self._asking) < self._at_once and review is not None:
            sentence = self._waiting.popleft()
            task = asyncio.create_task(_ask_within(self._timeout_s, review, sentence), name="levada review")
            self._asking.add(task)
            task.add_done_callback(partial(self._answered, sentence.n))

    def _answered(self, n: int, task: asyncio.Task[_Answer]) -> None:
        self._asking.discard(task)
        if self._stopped:
            return
        verdict, reason = (block, "the reviewer was cancelled") if task.cancelled() else task.result()
        decisions = self.gate.decide(n, verdict, reason=reason)
        if self.gate.blocked:
            self.stop()
        self._ask_more()
        self._tell(decisions)

    def _tell(self, decisions: list[Decision]) -> None:
        if decisions:
            self._decided(decisions)


_left: Final[set[asyncio.Task[_Answer]]] = set()  # reviewers that were cancelled and go on: somebody must hold them


async def _ask_within(timeout_s: float | None, review: AsyncReviewer, sentence: Sentence) -> _Answer:
    """Ask in a task of its own, which is left alone after its time: one that ignores cancelling is not waited for."""
    asking = asyncio.create_task(_ask(review, sentence), name="levada reviewer")
    try:
        await asyncio.wait({asking}, timeout=timeout_s)
        if not asking.done():
            assert timeout_s is not None  # without a limit, `wait` waits
            return _too_late(timeout_s)
        return (block, "the reviewer was cancelled") if asking.cancelled() else asking.result()
    finally:
        if not asking.done():
            asking.cancel()
            _left.add(asking)
            asking.add_done_callback(_left.discard)


async def _ask(review: AsyncReviewer, sentence: Sentence) -> _Answer:
    try:
        verdict = review(sentence)
        return _checked(await verdict if isawaitable(verdict) else verdict)
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a Rust library is no Exception
        return _failed(error)


def _is_async(review: AsyncReviewer) -> bool:
    return iscoroutinefunction(review) or iscoroutinefunction(getattr(review, "__call__", None))  # noqa: B004  # not whether


async def _in_thread(review: AsyncReviewer, sentence: Sentence) -> Verdict:
    """Call a reviewer in a daemon thread of its own: one that hangs keeps neither a pool nor the program."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[tuple[Verdict | Awaitable[Verdict] | None, BaseException | None]] = loop.create_future()
    context = copy_context()

    def settle(value: Verdict | Awaitable[Verdict] | None, error: BaseException | None) -> None:
        if not result.done():  # else it is too late
            result.set_result((value, error))

    def work() -> None:
        try:
            value, error = context.run(review, sentence), None
        except BaseException as exc:  # SystemExit too: it ends its thread, not the program
            value, error = None, exc
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="levada review", daemon=True).start()
    value, error = await result
    if error is not None:
        raise _ThreadError(error)
    return await value if isawaitable(value) else value  # type: ignore[return-value]  # whoever calls checks what it is


class _ThreadError(Exception):
    """What a reviewer raised in its thread."""


def _call(review: Reviewer, sentence: Sentence) -> _Answer:
    try:
        return _checked(review(sentence))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a Rust library is no Exception
        return _failed(error)


def _call_in_thread(review: Reviewer, sentence: Sentence, answers: SimpleQueue[_Answer]) -> None:
    try:
        answers.put(_call(review, sentence))
    except BaseException as error:  # it ends its thread, not the program
        answers.put(_failed(error))


def _checked(verdict: Verdict) -> _Answer:
    if not is_verdict(verdict):
        return block, f"the reviewer gave no verdict but {type(verdict).__name__}"
    return verdict, None


def _failed(error: BaseException) -> _Answer:
    if isinstance(error, _ThreadError):
        error = error.args[0]
    return block, f"the reviewer raised {type(error).__name__}"


def _too_late(timeout_s: float) -> _Answer:
    return block, f"the reviewer gave no verdict in {timeout_s:g} s"


def _split(given: Sequence[Replaced | Sentence]) -> tuple[list[Decision], list[Sentence]]:
    taken_back: list[Decision] = [value for value in given if isinstance(value, Replaced)]
    return taken_back, [value for value in given if isinstance(value, Sentence)]


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"timeout_s must be above 0, or None, not {timeout_s!r:.100}")
