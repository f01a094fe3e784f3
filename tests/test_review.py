"""Reviewers: whatever goes wrong with one blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from levada import AsyncReview, HoldGate, OpenGate, Review, Sentence, SentenceGate, UsageError
from levada.gate import Blocked, Decision, Released, Replaced, Verdict, block, release, replace

TEXT = "One is here. Two is here. Three."


def verdict_on(sentence: Sentence) -> Verdict:
    """Replace what has a two, and block what has a four."""
    if "Four" in sentence.text:
        return block
    return replace(sentence.text.upper()) if "Two" in sentence.text else release


async def slow_verdict_on(sentence: Sentence) -> Verdict:
    """The same; an earlier sentence takes longer."""
    for _ in range(10 - sentence.n):
        await asyncio.sleep(0)
    return verdict_on(sentence)


def raises(sentence: Sentence) -> Verdict:
    raise RuntimeError(sentence.text)


def times_out_itself(sentence: Sentence) -> Verdict:
    raise TimeoutError


class Panic(BaseException):
    """As a library in Rust raises it: no Exception."""


def panics(sentence: Sentence) -> Verdict:
    raise Panic(sentence.text)


def says_nothing(sentence: Sentence) -> Any:
    return None


FAILURES = {
    "raises": (raises, "the reviewer raised RuntimeError"),
    "times out itself": (times_out_itself, "the reviewer raised TimeoutError"),
    "panics": (panics, "the reviewer raised Panic"),
    "says nothing": (says_nothing, "the reviewer gave no verdict but NoneType"),
}
each_failure = pytest.mark.parametrize(("reviewer", "reason"), FAILURES.values(), ids=FAILURES)
each_limit = pytest.mark.parametrize("timeout_s", [None, 10])
EXPECTED = [Released(0, "One is here. "), Replaced(1, "TWO IS HERE. "), Released(2, "Three.")]


class TestReview:
    @each_limit
    def test_it_asks_about_each_sentence_in_order(self, timeout_s: float | None) -> None:
        driver = Review(SentenceGate(), verdict_on, timeout_s=timeout_s)
        assert driver.feed(TEXT) + driver.close() == EXPECTED
        assert driver.gate.settled
        assert driver.gate.released == "One is here. TWO IS HERE. Three."

    def test_without_a_reviewer_all_is_released(self) -> None:
        driver = Review(HoldGate(), None)
        assert driver.feed(TEXT) == []
        assert driver.close() == [Released(0, TEXT)]

    @each_limit
    @each_failure
    def test_a_reviewer_that_fails_blocks(
        self, reviewer: Callable[[Sentence], Verdict], reason: str, timeout_s: float | None
    ) -> None:
        driver = Review(OpenGate(), reviewer, timeout_s=timeout_s)
        assert driver.feed("secret") == [Blocked(0, reason)]
        assert driver.feed("more") == driver.replace("x") == driver.close() == []
        assert driver.gate.released == ""

    def test_a_reviewer_that_hangs_blocks(self) -> None:
        hangs = threading.Event()

        def review(sentence: Sentence) -> Verdict:
            hangs.wait()
            return release

        driver = Review(OpenGate(), review, timeout_s=0.01)
        assert driver.feed("secret") == [Blocked(0, "the reviewer gave no verdict in 0.01 s")]
        hangs.set()

    def test_after_a_block_nobody_is_asked(self) -> None:
        asked: list[int] = []

        def review(sentence: Sentence) -> Verdict:
            asked.append(sentence.n)
            return block

        assert Review(SentenceGate(), review, timeout_s=None).feed(TEXT) == [Blocked(0)]
        assert asked == [0]

    def test_a_reviewer_that_exits_ends_its_thread_alone(self) -> None:
        def review(sentence: Sentence) -> Verdict:
            raise SystemExit(1)

        assert Review(OpenGate(), review).feed("secret") == [Blocked(0, "the reviewer raised SystemExit")]
        with pytest.raises(SystemExit):  # without a limit it is called in our own thread, which it may end
            Review(OpenGate(), review, timeout_s=None).feed("secret")

    def test_what_the_provider_replaces_is_taken_back_and_reviewed(self) -> None:
        driver = Review(OpenGate(), verdict_on)
        driver.feed("One ")
        assert driver.replace("Two ") == [Replaced(0, ""), Replaced(1, "TWO ")]

    @pytest.mark.parametrize("driver", [Review, AsyncReview])
    @pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
    def test_a_limit_is_above_0(self, driver: Any, timeout_s: float) -> None:
        with pytest.raises(UsageError, match="timeout_s must be above 0"):
            driver(OpenGate(), None, timeout_s=timeout_s)


def play(driver: AsyncReview, *deltas: str) -> list[Decision]:
    async def main() -> list[Decision]:
        decisions = [decision for delta in deltas for decision in await driver.feed(delta)]
        return decisions + await driver.close()

    return asyncio.run(main())


class TestAsyncReview:
    @pytest.mark.parametrize("reviewer", [verdict_on, slow_verdict_on])
    def test_it_asks_about_each_sentence_and_keeps_the_order(self, reviewer: Any) -> None:
        assert play(AsyncReview(SentenceGate(), reviewer), TEXT) == EXPECTED

    def test_sentences_of_one_delta_are_reviewed_together(self) -> None:
        together: list[int] = []

        async def review(sentence: Sentence) -> Verdict:
            together.append(sentence.n)
            while len(together) < 2:
                await asyncio.sleep(0)
            return release

        two = "One is here. Two is here. Three is "
        assert len(play(AsyncReview(SentenceGate(), review), two)) == 3

    def test_without_a_reviewer_all_is_released(self) -> None:
        assert play(AsyncReview(OpenGate(), None), "a", "b") == [Released(0, "a"), Released(1, "b")]

    @each_failure
    def test_a_reviewer_that_fails_blocks(self, reviewer: Callable[[Sentence], Verdict], reason: str) -> None:
        async def review(sentence: Sentence) -> Verdict:
            return reviewer(sentence)

        assert play(AsyncReview(OpenGate(), review), "secret", "more") == [Blocked(0, reason)]
        assert play(AsyncReview(OpenGate(), reviewer), "secret", "more") == [Blocked(0, reason)]

    def test_a_reviewer_that_hangs_blocks(self) -> None:
        async def review(sentence: Sentence) -> Verdict:
            await asyncio.Event().wait()
            return release

        driver = AsyncReview(SentenceGate(), review, timeout_s=0.01)
        assert play(driver, TEXT) == [Blocked(0, "the reviewer gave no verdict in 0.01 s")]

    def test_what_the_provider_replaces_is_taken_back_and_reviewed(self) -> None:
        async def main() -> list[Decision]:
            driver = AsyncReview(OpenGate(), slow_verdict_on)
            await driver.feed("One ")
            return await driver.replace("Two ")

        assert asyncio.run(main()) == [Replaced(0, ""), Replaced(1, "TWO ")]

    def test_a_verdict_that_comes_too_late_releases_nothing(self) -> None:
        async def outlives_its_cancellation(sentence: Sentence) -> Verdict:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            ended.append(sentence.n)
            return release

        async def play() -> list[Decision]:
            decisions = await AsyncReview(OpenGate(), outlives_its_cancellation, timeout_s=0.01).feed("secret")
            assert ended == []  # nor is it waited for
            return decisions

        ended: list[int] = []
        assert asyncio.run(play()) == [Blocked(0, "the reviewer gave no verdict in 0.01 s")]
        assert ended == [0]

    def test_a_reviewer_that_cancels_itself_blocks(self) -> None:
        async def review(sentence: Sentence) -> Verdict:
            raise asyncio.CancelledError

        driver = AsyncReview(OpenGate(), review)
        assert asyncio.run(driver.feed("secret")) == [Blocked(0, "the reviewer was cancelled")]

    def test_cancelling_ends_the_reviewers_and_releases_nothing(self) -> None:
        async def main() -> None:
            asked: list[int] = []
            ended: list[int] = []

            async def review(sentence: Sentence) -> Verdict:
                asked.append(sentence.n)
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(sentence.n)
                return release

            driver = AsyncReview(SentenceGate(), review)
            task = asyncio.create_task(driver.feed(TEXT + " Four is"))
            while len(asked) < 3:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert sorted(ended) == asked == [0, 1, 2]
            assert driver.gate.released == ""
            assert not driver.gate.settled

        asyncio.run(main())
