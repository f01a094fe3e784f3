"""Asks a reviewer about what a gate gives, and tells the gate: sync and async, with a time limit.

Rules this file keeps:
- A reviewer that raises, takes too long, or answers with what is no verdict blocks: only a verdict releases.
- Without a reviewer (None) everything is released, when the gate gives it.
- The reason of a block names what went wrong, and never quotes: an exception's text may hold the answer's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from levada.errors import UsageError
from levada.gate import Decision, Gate, Replaced, Sentence, Verdict, block, is_verdict, release

Reviewer: TypeAlias = Callable[[Sentence], Verdict]
AsyncReviewer: TypeAlias = Callable[[Sentence], Verdict | Awaitable[Verdict]]

# 10 s: ten times what a call to a small model takes, and about as long as a person waits without leaving.
DEFAULT_TIMEOUT_S: Final = 10.0

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
        threading.Thread(target=lambda: answers.put(_call(review, sentence)), name="levada review", daemon=True).start()
        try:
            return answers.get(timeout=self._timeout_s)
        except Empty:
            return _too_late(self._timeout_s)


class AsyncReview:
    """Feeds a gate and asks `review(sentence)`, sync or async, about each candidate; those of one call together.

    `timeout_s`: for one verdict; None: no limit. It ends what awaits: a sync reviewer blocks the event loop and has no
    limit. Cancelling a call cancels its reviewers; the gate is left with open candidates and releases nothing more.
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
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                verdict = self._review(sentence)
                return _checked(await verdict if isawaitable(verdict) else verdict)
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError) and self._timeout_s is not None:
                return _too_late(self._timeout_s)
            return _failed(error)


def _call(review: Reviewer, sentence: Sentence) -> _Answer:
    try:
        return _checked(review(sentence))
    except Exception as error:
        return _failed(error)


def _checked(verdict: Verdict) -> _Answer:
    if not is_verdict(verdict):
        return block, f"the reviewer gave no verdict but {type(verdict).__name__}"
    return verdict, None


def _failed(error: Exception) -> _Answer:
    return block, f"the reviewer raised {type(error).__name__}"


def _too_late(timeout_s: float) -> _Answer:
    return block, f"the reviewer gave no verdict in {timeout_s:g} s"


def _split(given: Sequence[Replaced | Sentence]) -> tuple[list[Decision], list[Sentence]]:
    taken_back: list[Decision] = [value for value in given if isinstance(value, Replaced)]
    return taken_back, [value for value in given if isinstance(value, Sentence)]


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"timeout_s must be above 0, or None, not {timeout_s!r:.100}")
