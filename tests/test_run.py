"""run_turn with streams made by hand, and time that passes at once (turned.py). Real sockets: live/test_run.py."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from levada import (
    Blocked,
    Cancelled,
    Delta,
    HoldGate,
    Incomplete,
    OpenGate,
    Outcome,
    Painter,
    ProviderError,
    Retry,
    RunRecord,
    Sentence,
    SentenceGate,
    State,
    StopButton,
    TextDelta,
    Timeouts,
    TransportError,
    Truncated,
    TurnError,
    TurnTimeout,
    UsageError,
    run_turn,
    run_turn_sync,
)
from levada.gate import Verdict, block, release, replace
from levada.run import default_error_text
from levada.testing import random_cuts
from tests.turned import run

TEXT = "One is here. Two is here. Three."
SECRET = "Dr. Ana said so."
QUICK = Retry(backoff_s=0.5, jitter=0)
ALWAYS = Retry(backoff_s=0, when="empty_draft")


def event(**delta: Any) -> bytes:
    finish = delta.pop("finish", None)
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


def chat(*texts: str, end: bool = True) -> list[bytes]:
    """Return a stream of a chat, an event a piece."""
    pieces = [event(content=text) for text in texts]
    return [*pieces, event(finish="stop"), b"data: [DONE]\n\n"] if end else pieces


OVERLOADED = b'data: {"error": {"type": "overloaded_error", "message": "later"}}\n\n'


class Source:
    """A stream to be opened, perhaps again. Steps of an attempt: bytes, seconds to wait, exceptions; None: for ever."""

    def __init__(self, *attempts: list[Any]) -> None:
        self.attempts = attempts
        self.opened_s: list[float] = []
        self.closed = 0

    async def __call__(self) -> AsyncIterator[bytes]:
        steps = self.attempts[min(len(self.opened_s), len(self.attempts) - 1)]
        self.opened_s.append(asyncio.get_running_loop().time())
        return self._stream(steps)

    async def _stream(self, steps: list[Any]) -> AsyncIterator[bytes]:
        try:
            for step in steps:
                if isinstance(step, bytes):
                    yield step
                elif isinstance(step, BaseException):
                    raise step
                else:
                    await asyncio.sleep(1e6 if step is None else step)
        finally:
            self.closed += 1


class Stage:
    """Everything around a turn, written down in order; `options` are those of run_turn."""

    def __init__(self, *attempts: list[Any], **options: Any) -> None:
        self.source = Source(*attempts)
        self.seen: list[tuple[Any, ...]] = []
        self.records: list[RunRecord] = []
        self.commits: list[Outcome] = []
        self.options: dict[str, Any] = {"painter": self, "commit": self.commit, "on_record": self.records.append}
        self.options |= options

    def offer(self, text: str) -> None:
        self.seen.append(("offer", text))

    def clear(self) -> None:
        self.seen.append(("clear",))

    def finish(self, text: str) -> None:
        self.seen.append(("finish", text))

    def commit(self, outcome: Outcome) -> str:
        self.seen.append(("commit", outcome.released))
        self.commits.append(outcome)
        return "stored"

    async def play(self) -> Outcome:
        return await run_turn(self.source, "openai_chat", **self.options)

    def run(self) -> Outcome:
        try:
            return run(self.play())
        finally:
            self.check()

    def fails(self) -> TurnError:
        with pytest.raises(TurnError) as caught:
            self.run()
        return caught.value

    def check(self) -> None:
        """The laws, whatever happened."""
        assert len(self.commits) <= 1
        assert self.source.closed == len(self.source.opened_s)
        assert [paint for paint in self.seen if paint[0] == "finish"] == self.seen[-1:] or self.commits
        shown = ""
        for what, *text in self.seen:
            if what == "offer":
                assert text[0].startswith(shown)
                shown = text[0]
            elif what == "clear":
                shown = ""
        for outcome in self.commits:
            assert outcome.turn.finish_reason is not None
            assert self.records[-1].state is State.FINISHED
        assert [record.attempt for record in self.records] == list(range(1, len(self.records) + 1))
        assert all(TEXT[:12] not in repr(value) for value in [*self.records, *self.commits])

    @property
    def painted(self) -> list[str]:
        return [text[0] for what, *text in self.seen if what in ("offer", "finish")]


class TestGoldenPath:
    def test_open_paint_finish_commit_act(self) -> None:
        stage = Stage([*chat("One ", "two", end=False), 0.1, *chat(".")])
        stage.options["after_commit"] = [
            lambda outcome: stage.seen.append(("first", outcome.committed)),
            lambda outcome: stage.seen.append(("second", outcome.committed)),
        ]
        outcome = stage.run()
        assert stage.seen == [
            ("offer", "One "), ("offer", "One two"), ("offer", "One two."), ("finish", "One two."),
            ("commit", "One two."), ("first", "stored"), ("second", "stored"),
        ]  # fmt: skip
        assert (outcome.turn.answer, outcome.released, outcome.attempts, outcome.committed) == (
            "One two.", "One two.", 1, "stored",
        )  # fmt: skip
        assert stage.commits[0].committed is None

    def test_only_the_stream_is_needed(self) -> None:
        assert run(run_turn(Source(chat("x")), "openai_chat")).released == "x"

    def test_all_that_is_called_may_be_async(self) -> None:
        seen: list[Any] = []

        async def note(value: Any) -> str:
            await asyncio.sleep(0.01)
            seen.append(type(value).__name__)
            return "done"

        class Slow:
            def offer(self, text: str) -> None:
                pass

            async def clear(self) -> None:
                await note("")

            async def finish(self, text: str) -> None:
                await note(text)

        outcome = run(
            run_turn(
                Source(chat("x")), "openai_chat", commit=note, after_commit=[note, note], on_delta=note, on_record=note,
                painter=Slow(),
            )
        )  # fmt: skip
        assert outcome.committed == "done"
        assert seen == ["TextDelta", "Finish", "str", "Outcome", "Outcome", "Outcome", "RunRecord"]

    def test_a_painter_is_offered_25_texts_a_second(self) -> None:
        texts = [f"{number} " for number in range(100)]
        steps = [step for text in texts for step in (event(content=text), 0.004)]
        stage = Stage([*steps, *chat()])
        stage.run()
        assert 8 <= len(stage.painted) <= 13  # in 0.4 s
        assert stage.painted[-1] == "".join(texts)

    def test_any_cut_of_the_stream_gives_the_same(self) -> None:
        whole = b"".join(chat("Um é ", "aqui. Do", "is é 🏔️ aq", "ui."))
        for gate in (OpenGate, SentenceGate, HoldGate):
            for chunks in [[whole], [whole[n : n + 1] for n in range(len(whole))], *random_cuts(whole, 10)]:
                stage = Stage(list(chunks), gate=gate)
                assert stage.run().released == "Um é aqui. Dois é 🏔️ aqui."

    def test_every_delta_is_handed_out_before_any_gate(self) -> None:
        deltas: list[Delta] = []
        stage = Stage(
            [event(reasoning_content="hm"), *chat("x")], gate=HoldGate, on_delta=deltas.append, profile="deepseek"
        )
        assert stage.run().released == "x"
        assert [(delta.channel, delta.text) for delta in deltas if isinstance(delta, TextDelta)] == [
            ("reasoning", "hm"), ("answer", "x"),
        ]  # fmt: skip

    def test_text_that_the_provider_replaces_is_replaced_on_the_screen(self) -> None:
        def responses(**event: Any) -> bytes:
            return b"data: " + json.dumps(event).encode() + b"\n\n"

        at = {"item_id": "i", "output_index": 0, "content_index": 0}
        final = {"id": "r", "status": "completed", "output": [
            {"type": "message", "id": "i", "content": [{"type": "output_text", "text": "One. Six."}]}
        ]}  # fmt: skip
        steps = [
            responses(type="response.output_text.delta", delta="One. ", **at), 1,
            responses(type="response.output_text.delta", delta="Two.", **at), 1,
            responses(type="response.output_text.done", text="One. Six.", **at), 1,
            responses(type="response.completed", response=final),
        ]  # fmt: skip
        source, painted = Source(steps), list[str]()
        outcome = run(run_turn(source, "openai_responses", painter=Painter(painted.append)))
        assert outcome.released == outcome.turn.answer == "One. Six."
        assert painted == ["One. ", "One. Two.", "One. Six.", "One. Six."]


class TestCommit:
    def test_a_refused_commit_runs_no_actions(self) -> None:
        class Refusal:
            status = "refused"

        actions: list[Outcome] = []
        stage = Stage(chat("x"), commit=lambda outcome: Refusal(), after_commit=[actions.append])
        assert isinstance(stage.run().committed, Refusal)
        assert actions == []
        assert not stage.records[0].committed

    def test_a_commit_that_raises_comes_through_and_nothing_acts(self) -> None:
        actions: list[Outcome] = []

        def commit(outcome: Outcome) -> None:
            raise KeyError("full")

        stage = Stage(chat("x"), commit=commit, after_commit=[actions.append])
        with pytest.raises(KeyError):
            stage.run()
        assert actions == []
        record = stage.records[0]
        assert (record.state, record.committed, record.exception) == (State.FINISHED, False, "KeyError")
        assert len(stage.records) == len(stage.source.opened_s) == 1

    def test_an_action_that_raises_comes_through_after_the_commit(self) -> None:
        later: list[Outcome] = []

        def act(outcome: Outcome) -> None:
            raise KeyError("no")

        stage = Stage(chat("x"), after_commit=[act, later.append])
        with pytest.raises(KeyError):
            stage.run()
        assert len(stage.commits) == 1
        assert later == []
        assert stage.records[0].committed

    def test_a_commit_that_is_cancelled_by_somebody_else_is_no_cancellation_of_ours(self) -> None:
        async def commit(outcome: Outcome) -> None:
            raise asyncio.CancelledError

        with pytest.raises(RuntimeError, match="commit was cancelled, and not by run_turn"):
            Stage(chat("x"), commit=commit).run()

    def test_an_unfinished_turn_is_never_committed(self) -> None:
        for end in ([], [OVERLOADED], [ConnectionResetError()], [TimeoutError()], [b"data: {no\n\n"]):
            stage = Stage([*chat("half", end=False), *end])
            assert stage.fails().kind in ("truncated", "provider", "timeout", "protocol")
            assert stage.commits == []

    def test_an_outcome_cannot_be_made_of_anything_else(self) -> None:
        with pytest.raises(UsageError, match="an Outcome needs a FinishedTurn, not str"):
            Outcome("half", "half")  # type: ignore[arg-type]  # that is the point


class TestOpening:
    """What open_stream may give."""

    def shapes(self) -> dict[str, Callable[..., Any]]:
        chunks = chat("x")

        async def stream() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        async def later() -> list[bytes]:
            return chunks

        @asynccontextmanager
        async def entered() -> AsyncIterator[AsyncIterator[bytes]]:
            yield stream()

        class Both:
            """As aiohttp's requests: to be awaited or entered."""

            def __await__(self) -> Any:
                raise AssertionError("only entering it closes it")

            async def __aenter__(self) -> AsyncIterator[bytes]:
                return stream()

            async def __aexit__(self, *exc: object) -> None:
                pass

        class Itself:
            """As anyio's streams: its own context manager."""

            def __init__(self) -> None:
                self.stream = stream()

            async def __aenter__(self) -> Itself:
                return self

            async def __aexit__(self, *exc: object) -> None:
                pass

            def __aiter__(self) -> AsyncIterator[bytes]:
                return self.stream

        return {
            "list": lambda: chunks,
            "generator": lambda: (chunk for chunk in chunks),
            "async generator": stream,
            "coroutine": later,
            "context manager": entered,
            "awaitable context manager": Both,
            "its own context manager": Itself,
            "coroutine of a context manager": lambda: asyncio.sleep(0, entered()),
        }

    def test_it_may_give_anything_that_can_be_read(self) -> None:
        for name, shape in self.shapes().items():
            assert asyncio.run(run_turn(shape, "openai_chat")).released == "x", name

    def test_it_gets_the_number_of_the_attempt_if_it_needs_an_argument(self) -> None:
        got: list[Any] = []

        def needs(attempt: int) -> list[bytes]:
            got.append(attempt)
            return chat("x") if attempt == 2 else []

        def has_its_own(url: str = "https://…", *rest: int, **more: int) -> list[bytes]:
            got.append((url, rest, more))
            return chat("x")

        retry = Retry(backoff_s=0)
        assert asyncio.run(run_turn(needs, "openai_chat", retry=retry)).attempts == 2
        assert asyncio.run(run_turn(has_its_own, "openai_chat")).attempts == 1
        assert got == [1, 2, ("https://…", (), {})]

    def test_a_failure_of_the_network_is_the_turns(self) -> None:
        def refuse() -> None:
            raise ConnectionRefusedError("no")

        with pytest.raises(TransportError, match="ConnectionRefusedError"):
            run(run_turn(refuse, "openai_chat", retry=QUICK))

    def test_any_other_exception_comes_through_at_once(self) -> None:
        opened: list[int] = []

        def broken(attempt: int) -> None:
            opened.append(attempt)
            raise KeyError("a bug")

        stage = Stage()
        with pytest.raises(KeyError):
            run(run_turn(broken, "openai_chat", painter=stage, on_record=stage.records.append))
        assert opened == [1]
        assert stage.records[0].exception == "KeyError"
        assert stage.seen == [("finish", "The answer could not be completed. Please try again.")]

    def test_what_cannot_be_read_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="cannot read a int"):
            run(run_turn(lambda: 5, "openai_chat"))

    def test_an_opening_that_cancels_itself_is_a_failure_of_the_transport(self) -> None:
        async def opening() -> None:
            raise asyncio.CancelledError

        with pytest.raises(TransportError, match="cancelled its own reading"):
            run(run_turn(opening, "openai_chat", retry=Retry(when="never")))

    def test_so_is_a_stream_that_cancels_itself(self) -> None:
        stage = Stage([*chat("half", end=False), asyncio.CancelledError()], chat("whole"), retry=ALWAYS)
        assert stage.run().released == "whole"
        assert stage.records[0].error_kind == "transport"

    def test_the_context_manager_is_left_also_when_reading_fails(self) -> None:
        left: list[str] = []

        @asynccontextmanager
        async def entered() -> AsyncIterator[AsyncIterator[bytes]]:
            try:
                yield await Source([*chat("half", end=False), KeyError("a bug")])()
            finally:
                left.append("left")

        with pytest.raises(KeyError):
            run(run_turn(entered, "openai_chat"))
        assert left == ["left"]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"on_error": "ignore"}, "on_error must be discard or keep_marked"),
            ({"keep": print}, "keep= needs on_error='keep_marked'"),
            ({"gate": OpenGate()}, "gate must be callable, not OpenGate"),
            ({"open_stream": []}, "open_stream must be callable, not list"),
            ({"profile": "nobody"}, "nobody"),
            ({"reviews_at_once": 0}, "at_once must be an int from 1"),
            ({"review_timeout_s": 0}, "timeout_s must be above 0"),
            ({"terminal": "never"}, "terminal must be one of"),
        ],
    )
    def test_a_setting_that_makes_no_sense_raises_before_anything_is_opened(
        self, options: dict[str, Any], words: str
    ) -> None:
        source = Source(chat("x"))
        open_stream = options.pop("open_stream", source)
        with pytest.raises(UsageError, match=words):
            run(run_turn(open_stream, "openai_chat", **options))
        assert source.opened_s == []


async def slow_release(sentence: Sentence) -> Verdict:
    await asyncio.sleep(1)
    return release


class TestReview:
    def test_sentences_are_seen_once_they_are_released(self) -> None:
        async def review(sentence: Sentence) -> Verdict:
            await asyncio.sleep(0.5 - 0.2 * sentence.n)  # the later, the faster
            return replace("TWO. ") if "Two" in sentence.text else release

        stage = Stage([event(content=TEXT[:-1] + " is"), 3, *chat(" here.")], gate=SentenceGate, review=review)
        assert stage.run().released == "One is here. TWO. Three is here."
        assert stage.painted == [
            "One is here. TWO. ",
            "One is here. TWO. Three is here.",
            "One is here. TWO. Three is here.",
        ]
        assert stage.commits[0].turn.answer == "One is here. Two is here. Three is here."

    def test_reading_waits_for_no_reviewer(self) -> None:
        stage = Stage(chat(*TEXT), review=slow_release, reviews_at_once=4)
        begun: list[float] = []
        stage.options["on_delta"] = lambda delta: begun.append(asyncio.get_running_loop().time())

        async def timed() -> float:
            await stage.play()
            return asyncio.get_running_loop().time()

        assert run(timed()) == len(TEXT) / 4
        assert set(begun) == {0.0}

    def test_so_many_are_asked_at_once(self) -> None:
        running: list[int] = [0, 0]

        async def review(sentence: Sentence) -> Verdict:
            running[0] += 1
            running[1] = max(running)
            await asyncio.sleep(1)
            running[0] -= 1
            return release

        stage = Stage(chat(*TEXT), review=review, reviews_at_once=3)
        assert stage.run().released == TEXT
        assert running == [0, 3]

    def test_a_block_before_the_end_ends_the_turn_and_closes_the_upstream(self) -> None:
        def review(sentence: Sentence) -> Verdict:
            return block if "Two" in sentence.text else release

        stage = Stage([event(content=TEXT + " So"), None], gate=SentenceGate, review=review, review_timeout_s=None)
        error = stage.fails()
        assert isinstance(error, Blocked)
        assert str(error) == "blocked: a review blocked sentence 1"
        assert stage.painted == ["One is here. ", "The answer was withheld."]
        assert (stage.records[0].state, stage.records[0].error_kind) == (State.ERROR, "blocked")

    @pytest.mark.parametrize("gate", [HoldGate, SentenceGate, OpenGate])
    def test_a_block_after_the_end_leaves_the_turn_finished_and_is_raised(self, gate: Any) -> None:
        async def review(sentence: Sentence) -> Verdict:
            await asyncio.sleep(1)
            return block

        stage = Stage(chat(SECRET), gate=gate, review=review, after_commit=[lambda outcome: pytest.fail("acted")])
        assert isinstance(stage.fails(), Blocked)
        assert stage.commits == []
        assert stage.painted == ["The answer was withheld."]
        assert (stage.records[0].state, stage.records[0].error_kind) == (State.FINISHED, "blocked")

    @pytest.mark.parametrize("gate", [HoldGate, SentenceGate])
    def test_a_reviewer_that_fails_in_any_way_blocks(self, gate: Any) -> None:
        async def hangs(sentence: Sentence) -> Verdict:
            await asyncio.sleep(1e6)
            return release

        async def raises(sentence: Sentence) -> Verdict:
            raise KeyError(sentence.text)

        async def is_cancelled(sentence: Sentence) -> Verdict:
            raise asyncio.CancelledError

        async def says_nothing(sentence: Sentence) -> None:
            pass

        for review, why in {
            hangs: "the reviewer gave no verdict in 10 s",
            raises: "the reviewer raised KeyError",
            is_cancelled: "the reviewer was cancelled",
            says_nothing: "the reviewer gave no verdict but NoneType",
        }.items():
            stage = Stage([event(content=SECRET + " And"), 20, *chat()], gate=gate, review=review)
            error = stage.fails()
            assert error.message == f"a review blocked sentence 0: {why}"
            assert stage.painted == ["The answer was withheld."]
            assert stage.commits == []
            assert len(stage.source.opened_s) == 1  # a block is not tried again

    def test_a_sync_reviewer_has_a_thread_and_a_limit(self) -> None:
        def hangs(sentence: Sentence) -> Verdict:
            time.sleep(0.3)
            return release

        async def main() -> int:
            turns = 0
            task = asyncio.create_task(run_turn(lambda: chat("x"), "openai_chat", review=hangs, review_timeout_s=0.1))
            while not task.done():
                turns += 1
                await asyncio.sleep(0.01)
            assert str(task.exception()).endswith("the reviewer gave no verdict in 0.1 s")
            return turns

        assert asyncio.run(main()) > 3  # the loop went on

    def test_a_sync_reviewer_gives_its_verdict_or_something_to_await(self) -> None:
        assert (
            asyncio.run(run_turn(lambda: chat("x"), "openai_chat", review=lambda sentence: "release")).released == "x"
        )
        outcome = asyncio.run(
            run_turn(lambda: chat("x"), "openai_chat", review=lambda sentence: asyncio.sleep(0, replace("y")))
        )
        assert outcome.released == "y"

    def test_a_sentence_that_was_withdrawn_is_not_waited_for_in_vain(self) -> None:
        def responses(**event: Any) -> bytes:
            return b"data: " + json.dumps(event).encode() + b"\n\n"

        at = {"item_id": "i", "output_index": 0, "content_index": 0}
        final = {"id": "r", "status": "completed", "output": [
            {"type": "message", "id": "i", "role": "assistant", "content": [{"type": "output_text", "text": "Good."}]}
        ]}  # fmt: skip
        steps = [
            responses(type="response.output_text.delta", delta="Bad.", **at), 0.1,
            responses(type="response.output_text.done", text="Good.", **at),
            responses(type="response.completed", response=final),
        ]  # fmt: skip

        async def review(sentence: Sentence) -> Verdict:
            await asyncio.sleep(1)
            return block if "Bad" in sentence.text else release

        assert run(run_turn(Source(steps), "openai_responses", review=review)).released == "Good."


class TestRetryPolicy:
    """How long to wait before another attempt, without waiting."""

    lost = Truncated("x", retryable=True)

    def test_the_wait_doubles_up_to_its_limit(self) -> None:
        retry = Retry(attempts=9, backoff_s=0.5, max_backoff_s=3)
        assert [retry.wait_s(self.lost, n, released=False) for n in range(1, 6)] == [0.5, 1, 2, 3, 3]

    def test_chance_leaves_out_a_part_of_it(self) -> None:
        assert Retry(backoff_s=1, jitter=0.25).wait_s(self.lost, 1, released=False, chance=1) == 0.75

    def test_the_last_attempt_is_the_last(self) -> None:
        assert Retry(attempts=2).wait_s(self.lost, 1, released=False) is not None
        assert Retry(attempts=2).wait_s(self.lost, 2, released=False) is None
        assert Retry(attempts=5000, backoff_s=1).wait_s(self.lost, 4999, released=False) == 8

    def test_what_was_released_is_not_tried_again_unless_the_draft_is_emptied(self) -> None:
        assert Retry().wait_s(self.lost, 1, released=True) is None
        assert Retry(when="empty_draft").wait_s(self.lost, 1, released=True) is not None
        assert Retry(when="never").wait_s(self.lost, 1, released=False) is None

    def test_only_an_error_that_may_go_better_is_tried_again(self) -> None:
        for error in (Blocked("x"), ProviderError("x", "authentication_error")):
            assert Retry(when="empty_draft").wait_s(error, 1, released=False) is None

    def test_a_provider_that_says_when_is_obeyed_or_left_alone(self) -> None:
        later = ProviderError("x", "rate_limit_error", retryable=True, retry_after_s=20)
        assert Retry().wait_s(later, 1, released=False, chance=1) == 20
        assert Retry(max_retry_after_s=19).wait_s(later, 1, released=False) is None

    @pytest.mark.parametrize(
        "options",
        [{"attempts": 0}, {"attempts": 1.5}, {"backoff_s": -1}, {"max_backoff_s": float("nan")}, {"jitter": 2},
         {"when": "always"}],
    )  # fmt: skip
    def test_a_setting_that_makes_no_sense_is_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError):
            Retry(**options)


class TestRetry:
    def test_a_failure_before_anything_was_released_is_tried_again(self) -> None:
        for failure in ([], [OVERLOADED], [ConnectionResetError()], [TimeoutError()], [event(role="assistant")]):
            stage = Stage(failure, failure, chat("Ok"), retry=QUICK)
            assert stage.run().attempts == 3
            assert stage.source.opened_s == [0, 0.5, 1.5]
            assert stage.seen == [("offer", "Ok"), ("finish", "Ok"), ("commit", "Ok")]  # nothing to clear
            assert [record.retry_in_s for record in stage.records] == [0.5, 1.0, None]

    def test_after_the_last_attempt_its_error_is_raised(self) -> None:
        stage = Stage([], [OVERLOADED], [OVERLOADED], retry=QUICK)
        error = stage.fails()
        assert (error.kind, error.type) == ("provider", "overloaded_error")
        assert len(stage.source.opened_s) == 3

    def test_text_that_was_released_is_not_written_again_by_itself(self) -> None:
        stage = Stage(chat("half", end=False), chat("whole"), retry=QUICK)
        assert stage.fails().kind == "truncated"
        assert len(stage.source.opened_s) == 1

    def test_what_a_gate_held_was_not_released(self) -> None:
        stage = Stage(chat("half", end=False), chat("whole"), gate=HoldGate, retry=QUICK)
        assert stage.run().released == "whole"
        assert stage.painted == ["whole", "whole"]

    def test_the_draft_is_emptied_first_and_two_texts_are_never_mixed(self) -> None:
        stage = Stage(
            [*chat("half", end=False), 1], [OVERLOADED], chat("whole"), retry=Retry(jitter=0, when="empty_draft")
        )
        assert stage.run().released == "whole"
        assert stage.seen == [
            ("offer", "half"), ("clear",), ("offer", "whole"), ("finish", "whole"), ("commit", "whole"),
        ]  # fmt: skip

    def test_reviews_of_a_failed_attempt_are_dropped(self) -> None:
        async def review(sentence: Sentence) -> Verdict:
            await asyncio.sleep(1)
            return block if sentence.text == "half" else release

        stage = Stage(chat("half", end=False), chat("whole"), review=review, retry=QUICK)
        assert stage.run().released == "whole"

    def test_an_error_that_will_not_go_away_is_not_tried_again(self) -> None:
        denied = b'data: {"error": {"type": "authentication_error", "message": "no"}}\n\n'
        stage = Stage([denied], chat("x"))
        assert stage.fails().type == "authentication_error"
        assert len(stage.source.opened_s) == 1

    def test_each_attempt_has_its_own_turn_and_gate(self) -> None:
        gates: list[Any] = []

        def gate() -> Any:
            gates.append(SentenceGate())
            return gates[-1]

        Stage([], chat("x"), gate=gate, retry=QUICK).run()
        assert len(gates) == 2


class TestTimeouts:
    """Each ends the turn as kind timeout. first_event_s and stall_s add up waits: live/test_run.py."""

    def error(self, steps: list[Any], **timeouts: float) -> tuple[TurnError, Stage]:
        stage = Stage(steps, timeouts=Timeouts(**timeouts), retry=Retry(when="never"))
        return stage.fails(), stage

    @pytest.mark.parametrize(
        ("steps", "name"),
        [
            ([None], "first_byte_s"),
            ([b": ping\n\n", None], "first_event_s"),
            ([event(content="x"), None], "idle_s"),
            ([event(content="x"), None], "stall_s"),
            ([event(content="x"), None], "total_s"),
        ],
    )
    def test_each_limit(self, steps: list[Any], name: str) -> None:
        error, stage = self.error(steps, **{name: 5})
        assert isinstance(error, TurnTimeout)
        assert f"within 5 s ({name})" in error.message
        assert stage.painted[-1] == "The answer took too long. Please try again."
        assert stage.records[0].error_kind == "timeout"

    @pytest.mark.parametrize("name", ["first_byte_s", "first_event_s", "total_s"])
    def test_opening_counts(self, name: str) -> None:
        async def opening() -> None:
            await asyncio.sleep(1e6)

        with pytest.raises(TurnTimeout, match=name):
            run(run_turn(opening, "openai_chat", timeouts=Timeouts(**{name: 5}), retry=Retry(when="never")))

    def test_a_timeout_before_anything_was_released_is_tried_again(self) -> None:
        stage = Stage([None], chat("x"), timeouts=Timeouts(first_byte_s=5), retry=QUICK)
        assert stage.run().attempts == 2
        assert stage.source.opened_s == pytest.approx([0, 5.5], abs=0.1)

    def test_the_total_bounds_all_attempts(self) -> None:
        stage = Stage([2], [2], [None], timeouts=Timeouts(total_s=7), retry=QUICK)

        async def timed() -> float:
            with pytest.raises(TurnTimeout, match=r"within 7 s \(total_s\)"):
                await stage.play()
            return asyncio.get_running_loop().time()

        assert run(timed()) == 7
        assert stage.source.opened_s == [0, 2.5, 5.5]

    def test_no_attempt_is_waited_for_that_would_come_too_late(self) -> None:
        later = b'data: {"error": {"type": "rate_limit_error", "message": "later"}}\n\n'
        stage = Stage([later], timeouts=Timeouts(total_s=7), retry=Retry(backoff_s=8, jitter=0))
        assert stage.fails().type == "rate_limit_error"

    def test_reviews_after_the_end_have_their_own_limit(self) -> None:
        stage = Stage(chat("x"), review=slow_release, timeouts=Timeouts(total_s=0.5))
        assert stage.run().released == "x"


class TestCancel:
    """At every step of the event loop; whatever the moment, the laws of Stage.check hold."""

    def stage(self, **options: Any) -> tuple[Stage, list[str]]:
        commits: list[str] = []

        async def commit(outcome: Outcome) -> None:
            stage.commits.append(outcome)
            commits.append("begun")
            for _ in range(3):
                await asyncio.sleep(0)
            commits.append("ended")

        stage = Stage(
            [0, *chat("half", end=False), 0], [0, event(content="One is here. "), 0, *chat("Two")],
            gate=SentenceGate, retry=Retry(backoff_s=0, when="empty_draft"), commit=commit, **options,
        )  # fmt: skip
        return stage, commits

    async def quick_release(self, sentence: Sentence) -> Verdict:
        await asyncio.sleep(0)
        return release

    @pytest.mark.parametrize("how", ["task", "event"])
    def test_at_every_step(self, how: str) -> None:
        ends: list[str] = []
        for steps in range(500):
            button = StopButton()
            stage, commits = self.stage(review=self.quick_release, cancel=button)

            async def main(steps: int = steps, button: StopButton = button, stage: Stage = stage) -> str:
                task = asyncio.create_task(stage.play())
                for _ in range(steps):
                    await asyncio.sleep(0)
                if task.done():
                    return "whole"
                if how == "task":
                    task.cancel()
                else:
                    button.set("the person")
                await asyncio.wait({task})
                if task.cancelled():
                    return "cancelled"
                error = task.exception()
                assert error is None or (isinstance(error, Cancelled) and error.by == "the person")
                return "stopped" if error else "answered"

            ends.append(run(main()))
            assert commits in ([], ["begun", "ended"]), steps  # carried through
            if ends[-1] == "whole":
                break
            if stage.source.opened_s or steps:
                stage.check()
            if ends[-1] == "stopped" or (ends[-1] == "cancelled" and not commits and stage.records):
                assert stage.seen[-1] == ("finish", "The answer was stopped.")
                assert stage.records[-1].cancelled is not None
            if commits:
                assert stage.records[-1].committed
        assert ends[-1] == "whole"
        assert ends.count("cancelled" if how == "task" else "stopped") > 20
        assert how == "task" or "answered" in ends  # a commit that has begun is not stopped

    def test_a_stopped_run_says_what_was_asked_and_what_is_known(self) -> None:
        async def main() -> Cancelled:
            button = StopButton()
            asyncio.get_running_loop().call_later(1, button.set, "the person")
            with pytest.raises(Cancelled) as caught:
                await run_turn(Source([event(content="x"), None]), "openai_chat", cancel=button)
            return caught.value

        assert run(main()) == Cancelled(asked=True, upstream_closed=None, by="the person")

    def test_a_plain_event_does_as_well(self) -> None:
        async def main() -> None:
            event = asyncio.Event()
            event.set()
            with pytest.raises(Cancelled) as caught:
                await run_turn(Source([None]), "openai_chat", cancel=event)
            assert caught.value.by is None

        run(main())

    def test_between_two_attempts_there_is_nothing_to_close(self) -> None:
        stage = Stage([], chat("x"), retry=Retry(backoff_s=8), cancel=StopButton())

        async def main() -> Cancelled:
            asyncio.get_running_loop().call_later(1, stage.options["cancel"].set)
            with pytest.raises(Cancelled) as caught:
                await stage.play()
            return caught.value

        assert run(main()) == Cancelled(asked=False, upstream_closed=True)
        stage.check()
        assert [record.state for record in stage.records] == [State.ERROR, State.CANCELLED]
        assert len(stage.source.opened_s) == 1

    def test_a_commit_that_hangs_is_cancelled_in_the_end(self) -> None:
        ended: list[str] = []

        async def commit(outcome: Outcome) -> None:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        stage = Stage(chat("x"), commit=commit)

        async def main() -> float:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await stage.play()
            return asyncio.get_running_loop().time()

        assert run(main()) == 11
        assert ended == ["cancelled"]
        assert not stage.records[0].committed

    def test_an_upstream_that_does_not_close_is_left(self) -> None:
        async def stream() -> AsyncIterator[bytes]:
            try:
                yield event(content="x")
                await asyncio.sleep(1e6)
            finally:
                await asyncio.sleep(100)

        records: list[RunRecord] = []

        async def main() -> float:
            with pytest.raises(TurnTimeout):
                await run_turn(
                    stream, "openai_chat", timeouts=Timeouts(total_s=1), retry=Retry(when="never"),
                    on_record=records.append,
                )  # fmt: skip
            return asyncio.get_running_loop().time()

        assert run(main()) == 6
        assert records[0].upstream_closed is False


class TestOnError:
    """One policy for the screen and for storage."""

    def test_discard_puts_the_error_in_the_drafts_place(self) -> None:
        stage = Stage(chat("half", end=False))
        stage.fails()
        assert stage.painted == ["half", "The answer was cut off. Please try again."]

    def test_keep_marked_keeps_what_was_released_and_marks_it(self) -> None:
        kept: list[Incomplete] = []
        stage = Stage(
            chat("One is here. Two is he", end=False), gate=SentenceGate, on_error="keep_marked", keep=kept.append
        )
        error = stage.fails()
        assert stage.painted == ["One is here. ", "One is here. \n\n[The answer was cut off. Please try again.]"]
        assert [(one.released, one.error, one.turn.state) for one in kept] == [("One is here. ", error, State.ERROR)]
        assert "One" not in repr(kept)

    def test_the_screen_alone_may_keep_it(self) -> None:
        stage = Stage(chat("half", end=False), on_error="keep_marked")
        stage.fails()
        assert stage.painted[-1].startswith("half\n\n[")

    def test_nothing_released_is_nothing_kept(self) -> None:
        stage = Stage(
            chat("half", end=False), gate=HoldGate, on_error="keep_marked", keep=lambda _: pytest.fail("kept"),
            retry=Retry(when="never"),
        )  # fmt: skip
        stage.fails()
        assert stage.painted == ["The answer was cut off. Please try again."]

    def test_the_words_are_the_callers(self) -> None:
        stage = Stage(chat("half", end=False), error_text=lambda error, kept: f"<{error.kind}:{kept}>")
        stage.fails()
        assert stage.painted[-1] == "<truncated:>"

    def test_the_default_words(self) -> None:
        assert default_error_text(ProviderError("x"), "") == "The answer could not be completed."
        assert default_error_text(Cancelled(), "half") == "half\n\n[The answer was stopped.]"

    def test_a_keep_that_raises_is_a_note_on_the_error(self, caplog: pytest.LogCaptureFixture) -> None:
        async def keep(incomplete: Incomplete) -> None:
            raise KeyError(incomplete.released)

        error = Stage(chat("half", end=False), on_error="keep_marked", keep=keep).fails()
        assert error.__notes__ == ["levada: keep raised KeyError"]
        assert caplog.messages == ["keep raised KeyError"]
        assert "half" not in caplog.text

    def test_a_callback_that_raises_ends_the_turn(self) -> None:
        def broken(delta: Delta) -> None:
            raise KeyError("a bug")

        for steps in (chat("x"), [event(content="x"), None], [b"".join(chat("x"))]):
            stage = Stage(list(steps), on_delta=broken)
            with pytest.raises(KeyError):
                stage.run()
            assert stage.commits == []
            assert stage.records[0].exception == "KeyError"
            assert stage.painted == ["The answer could not be completed."]


class TestRecords:
    def test_a_record_tells_of_an_attempt_without_its_text(self) -> None:
        usage = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
        ticks = iter(range(100, 200))
        stage = Stage([*chat("half", end=False), usage], clock=lambda: next(ticks), retry=Retry(when="never"))
        stage.fails()
        record = stage.records[0]
        assert (record.attempt, record.dialect, record.state) == (1, "openai_chat", State.ERROR)
        assert (record.error_kind, record.error_type, record.retry_in_s) == ("truncated", None, None)
        assert (record.released_chars, record.committed, record.cancelled, record.exception) == (4, False, None, None)
        assert record.usage is not None
        assert record.usage.input_tokens == 7
        assert record.first_delta_s is not None
        assert 100 <= record.started_s < record.first_delta_s < record.ended_s

    def test_a_cancelled_task_leaves_what_was_asked(self) -> None:
        stage = Stage([event(content="x"), None])

        async def main() -> None:
            async with asyncio.timeout(1):
                await stage.play()

        with pytest.raises(TimeoutError):
            run(main())
        assert stage.records[0].cancelled == Cancelled(True, None, "CancelledError")
        assert stage.records[0].state is State.CANCELLED
        assert stage.records[0].error_kind is None

    def test_a_record_that_cannot_be_taken_changes_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        def on_record(record: RunRecord) -> None:
            raise KeyError("full")

        with caplog.at_level(logging.ERROR, "levada.run"):
            assert Stage(chat("x"), on_record=on_record).play is not None
            assert run(run_turn(Source(chat("x")), "openai_chat", on_record=on_record)).released == "x"
        assert caplog.messages == ["on_record raised; the run goes on"]


def test_the_sync_twin_has_a_loop_of_its_own() -> None:
    assert run_turn_sync(lambda: chat("x"), "openai_chat").released == "x"


def test_chance_does_not_change_the_answer() -> None:
    """Random steps, verdict times and cuts: what is committed is what the provider finished, and the laws hold."""
    rnd = random.Random(7)
    for _ in range(150):
        text = "".join(rnd.choice(["One is here. ", "Two is ", "here. ", "Three", "!\n\n"]) for _ in range(8))
        cuts = [0, *sorted(rnd.sample(range(len(text)), min(5, len(text) - 1))), len(text)]
        pieces: list[Any] = chat(*(text[a:b] for a, b in pairwise(cuts)))
        good = [step for piece in pieces for step in (piece, rnd.choice([0, 0.01, 0.1, 1]))]
        bad = [*good[: rnd.randrange(len(good) - 4)], rnd.choice([OVERLOADED, ConnectionResetError(), 0.3])]
        verdicts: dict[str, Verdict] = {}

        async def review(sentence: Sentence, verdicts: dict[str, Verdict] = verdicts) -> Verdict:
            await asyncio.sleep(rnd.choice([0, 0.02, 0.5]))
            return verdicts.setdefault(sentence.text, block if rnd.random() < 0.1 else release)

        stage = Stage(
            *rnd.choice([[good], [bad, good], [bad, bad, good], [bad, bad, bad]]),
            gate=rnd.choice([OpenGate, SentenceGate, HoldGate]), review=rnd.choice([None, review]),
            retry=Retry(when=rnd.choice(["before_release", "empty_draft", "never"])),
            on_error=rnd.choice(["discard", "keep_marked"]),
        )  # fmt: skip
        try:
            assert stage.run().released == text
        except TurnError:
            assert stage.commits == []
            assert stage.records[-1].error_kind != "blocked" or block in verdicts.values()


CASES = [json.loads(line) for line in (Path(__file__).parent / "cases/cases.jsonl").read_text().splitlines()]

AS_BYTES: dict[str, Callable[[Any], list[bytes]]] = {
    "preamble": lambda _: [event(role="assistant")],
    "answer": lambda text: [event(content=text)],
    "fail": lambda word: [b"data: " + json.dumps({"error": {"type": word}}).encode() + b"\n\n"],
    "terminal": lambda reason: [event(finish=reason), b"data: [DONE]\n\n"],
    "eof": lambda _: [],
}


@pytest.mark.parametrize("case", [case for case in CASES if case["layer"] == "turn"], ids=lambda case: case["id"])
def test_a_case_from_the_field(case: dict[str, Any]) -> None:
    attempts: list[list[Any]] = []
    for step in case["steps"]:
        [(name, value)] = step.items()
        if name == "attempt":
            attempts.append([])
        else:
            attempts[-1] += AS_BYTES[name](value)
    expect = dict(case["expect"])
    kept: list[Incomplete] = []
    stage = Stage(*attempts, on_error="keep_marked", keep=kept.append)
    if expect["state"] == "finished":
        answer = stage.run().turn.answer
    else:
        assert stage.fails().kind == expect.pop("error")["kind"]
        answer = kept[0].turn.answer
    assert stage.records[-1].state == expect.pop("state")
    assert answer == expect.pop("answer")
    assert len(stage.commits) == expect.pop("committed", True)
    assert stage.seen.count(("clear",)) == expect.pop("resets", 0)
    assert expect == {}, "nobody checks these"


class TestWhatAStrangerTried:
    """Each of these lost an answer, or its promise, once."""

    @pytest.mark.parametrize("again", [1, 2, 5])
    def test_whoever_cancels_again_waits_for_the_commit_as_well(self, again: int) -> None:
        async def play() -> None:
            stage = Stage(chat("x"), commit=commit)
            task = asyncio.create_task(stage.play())
            await begun.wait()
            for _ in range(again):
                task.cancel()
                await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == ["committed"]
            assert [record.committed for record in stage.records] == [True]

        async def commit(outcome: Outcome) -> None:
            begun.set()
            await asyncio.sleep(0.2)
            ended.append("committed")

        begun, ended = asyncio.Event(), list[str]()
        run(play())

    def test_of_a_commit_that_was_cut_off_nobody_says_how_it_ended(self) -> None:
        async def commit(outcome: Outcome) -> None:
            raise asyncio.CancelledError

        stage = Stage(chat("x"), commit=commit)
        with pytest.raises(RuntimeError, match="commit was cancelled"):
            run(stage.play())
        assert [record.committed for record in stage.records] == [None]

    def test_a_stop_before_the_run_sends_no_request(self) -> None:
        async def play() -> Stage:
            button = StopButton()
            button.set("the person")
            stage = Stage(chat("x"), cancel=button)
            with pytest.raises(Cancelled, match="by the person; its upstream is closed"):
                await stage.play()
            return stage

        stage = run(play())
        assert stage.source.opened_s == []
        assert stage.seen == [("finish", "The answer was stopped.")]

    @pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
    @pytest.mark.parametrize("what", ["offer", "finish"])
    def test_a_painter_that_raises_costs_no_answer(
        self, what: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(text: str) -> None:
            raise error

        stage = Stage([*chat("One ", end=False), 0.1, *chat("two")])
        setattr(stage, what, broken)
        assert stage.run().committed == "stored"
        assert [record.getMessage() for record in caplog.records] == [
            "the painter raised; the run goes on, and logs no more of it"
        ]

    @pytest.mark.parametrize("odd", [lambda error, kept: 1 / 0, lambda error, kept: None])
    def test_no_draft_is_left_on_the_screen_whatever_error_text_does(self, odd: Any) -> None:
        stage = Stage(chat("half", end=False), error_text=odd, retry=Retry(when="never"))
        error = stage.fails()
        assert stage.seen[-1] == ("finish", "The answer was cut off. Please try again.")
        assert error.__notes__[-1].startswith("levada: error_text ")
