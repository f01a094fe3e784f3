"""Actions run after their commit, at least once, and never two at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text as sql

from levada import UsageError
from levada.ledger import Action, DeadLetter, Dispatched, DueAction, Ledger, StoreError
from levada.ledger.outbox import _names_by_due
from tests.ledger.turned import Clock, finished


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(ledger_url: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, clock=clock) as opened:
        yield opened


def queue(ledger: Ledger, *names: str, key: str = "k") -> None:
    ledger.commit(finished(key), key=key, actions=[Action(name, {"of": key}) for name in names])


def fails(action: DueAction) -> None:
    raise ValueError(f"attempt {action.attempt}")


def nothing(action: DueAction) -> None:
    pass


class TestRunning:
    def test_a_handler_gets_its_action_with_a_key_of_its_own(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail", "post", "mail")
        seen: list[DueAction] = []
        came = ledger.dispatch({"mail": seen.append, "post": seen.append})
        assert came == Dispatched(done=3)
        assert [(one.idempotency_key, one.name, one.attempt) for one in seen] == [
            ("k/0/mail", "mail", 1),
            ("k/1/post", "post", 1),
            ("k/2/mail", "mail", 1),
        ]
        assert (seen[0].turn_key, seen[0].payload, seen[0].created_at) == ("k", {"of": "k"}, clock.now)
        assert seen[0].lease_lost is False
        assert ledger.dispatch({"mail": seen.append}) == Dispatched()

    def test_one_action_runs_after_the_other_and_no_more_than_asked(self, ledger: Ledger) -> None:
        queue(ledger, *["mail"] * 5)
        assert ledger.dispatch({"mail": nothing}, limit=2) == Dispatched(done=2, queued=3)

    def test_the_longest_due_comes_first(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail", key="later")
        clock.turn(-60)
        queue(ledger, "mail", key="sooner")
        clock.turn(60)
        seen: list[str] = []
        ledger.dispatch({"mail": lambda action: seen.append(action.turn_key)})
        assert seen == ["sooner", "later"]

    def test_names_without_a_handler_stay_queued_and_are_counted(self, ledger: Ledger) -> None:
        queue(ledger, "mail", "post", "post")
        assert ledger.dispatch({"mail": nothing}) == Dispatched(done=1, unknown=2)
        assert ledger.dispatch({}) == Dispatched(unknown=2)
        assert ledger.queued() == {"post": 2}

    def test_a_handler_may_use_the_ledger(self, ledger: Ledger) -> None:
        queue(ledger, "mail")

        def chained(action: DueAction) -> None:
            turn = ledger.get(action.turn_key)
            assert turn is not None
            queue(ledger, "post", key="next")

        assert ledger.dispatch({"mail": chained}) == Dispatched(done=1, unknown=1)

    def test_an_action_of_a_turn_that_is_not_stored_cannot_be(self, ledger: Ledger) -> None:
        with pytest.raises(StoreError, match="other"):
            with ledger._database.writing() as connection:
                ledger._outbox.queue(connection, "nobody", [Action("mail")], datetime.now(UTC))

    def test_actions_of_others_cost_a_dispatcher_nothing(self, ledger: Ledger) -> None:
        ledger.commit(finished(), key="k", actions=[Action("others")] * 1000)
        queue(ledger, "mail", key="mine")
        with ledger._database.reading() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sql("SET LOCAL enable_seqscan = off"))
            query = _names_by_due(["mail", "post"], ledger._database.now(connection))
            statement = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
            how = "EXPLAIN " if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
            plan = [str(row) for row in connection.exec_driver_sql(how + statement)]
        assert sum("levada_outbox_due" in line for line in plan) == 2, "one look into the index for each name"
        assert ledger.dispatch({"mail": nothing, "post": nothing}) == Dispatched(done=1, unknown=1000)

    def test_there_may_be_many_handlers_but_not_endlessly_many(self, ledger: Ledger) -> None:
        queue(ledger, "mail")
        many = {f"n{n}": nothing for n in range(399)}
        assert ledger.dispatch({**many, "mail": nothing}).done == 1
        with pytest.raises(UsageError, match="401 handlers, and 400 is the most for one dispatcher"):
            ledger.dispatch({**many, "mail": nothing, "post": nothing})

    @pytest.mark.parametrize("handlers", [None, [nothing], {"mail": 7}, {7: nothing}])
    def test_handlers_are_functions_by_name(self, ledger: Ledger, handlers: Any) -> None:
        with pytest.raises(UsageError, match="handler"):
            ledger.dispatch(handlers)

    def test_what_would_run_nothing_is_refused(self, ledger: Ledger) -> None:
        queue(ledger, "mail")

        async def mail(action: DueAction) -> None:
            pytest.fail("it ran")

        def generator(action: DueAction) -> Iterator[None]:
            yield pytest.fail("it ran")

        async def both(action: DueAction) -> Any:
            yield pytest.fail("it ran")

        class Mailer:
            async def __call__(self, action: DueAction) -> None:
                pytest.fail("it ran")

        handlers: list[Any] = [mail, partial(mail), generator, both, Mailer()]
        for handler in handlers:
            with pytest.raises(UsageError, match=r"the handler of mail is (async, and needs|a generator: calling it)"):
                ledger.dispatch({"mail": handler})
        assert ledger.queued() == {"mail": 1}

    @pytest.mark.parametrize("kind", ["coroutine", "generator", "async_generator"])
    def test_one_that_returns_what_has_yet_to_run_has_failed(self, ledger: Ledger, kind: str) -> None:
        queue(ledger, "mail")

        async def coroutine() -> None:
            pytest.fail("it ran")

        def generator() -> Iterator[None]:
            yield pytest.fail("it ran")

        async def async_generator() -> Any:
            yield pytest.fail("it ran")

        made = {"coroutine": coroutine, "generator": generator, "async_generator": async_generator}[kind]
        assert ledger.dispatch({"mail": lambda action: made()}, max_attempts=1) == Dispatched(dead=1)
        assert ledger.dead_letters()[0].error_words == f"the handler returned a {kind}, which nobody runs"

    @pytest.mark.parametrize(
        "options",
        [
            {"limit": 0},
            {"lease_s": 0},
            {"lease_s": float("nan")},
            {"max_attempts": 0},
            {"backoff_s": -1},
            {"max_backoff_s": float("inf")},
            {"jitter": 1.5},
            {"holder": ""},
        ],
        ids=str,
    )
    def test_settings_that_make_no_sense_are_refused(self, ledger: Ledger, options: Any) -> None:
        with pytest.raises(UsageError, match=next(iter(options))):
            ledger.dispatch({}, **options)


class TestTryingAgain:
    def test_a_failed_action_is_due_again_after_a_doubling_wait(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")
        attempts: list[int] = []

        def failing(action: DueAction) -> None:
            attempts.append(action.attempt)
            raise ValueError

        for wait_s in (1, 2, 4, 8, 10, 10):
            assert ledger.dispatch({"mail": failing}, max_backoff_s=10, jitter=0) == Dispatched(failed=1, queued=1)
            clock.turn(wait_s - 0.001)
            assert ledger.dispatch({"mail": failing}, max_backoff_s=10, jitter=0) == Dispatched(queued=1)
            clock.turn(0.001)
        assert attempts == [1, 2, 3, 4, 5, 6]
        assert ledger.dispatch({"mail": nothing}) == Dispatched(done=1)

    def test_chance_leaves_out_a_part_of_the_wait(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")
        ledger.dispatch({"mail": fails}, backoff_s=100, jitter=0.5, chance=lambda: 0.5)
        clock.turn(74.9)
        assert ledger.dispatch({"mail": nothing}).done == 0
        clock.turn(0.1)
        assert ledger.dispatch({"mail": nothing}).done == 1

    def test_one_that_fails_keeps_no_other_from_running(self, ledger: Ledger) -> None:
        queue(ledger, "mail", "post")
        assert ledger.dispatch({"mail": fails, "post": nothing}) == Dispatched(done=1, failed=1, queued=1)

    def test_after_its_last_attempt_it_is_a_dead_letter(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")
        for _ in range(2):
            assert ledger.dispatch({"mail": fails}, max_attempts=3).failed == 1
            clock.turn(3600)
        assert ledger.dispatch({"mail": fails}, max_attempts=3) == Dispatched(dead=1)
        clock.turn(3600)
        assert ledger.dispatch({"mail": nothing}) == Dispatched()
        [letter] = ledger.dead_letters()
        assert letter == DeadLetter(
            n=letter.n,
            idempotency_key="k/0/mail",
            turn_key="k",
            name="mail",
            payload={"of": "k"},
            attempts=3,
            error_type="ValueError",
            error_words="attempt 3",
            created_at=datetime(2030, 1, 1, tzinfo=UTC),
            died_at=datetime(2030, 1, 1, 2, tzinfo=UTC),
        )

    def test_one_that_ends_its_program_becomes_a_dead_letter_too(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")

        def leaves(action: DueAction) -> None:
            raise SystemExit("boom")

        for _ in range(2):
            with pytest.raises(SystemExit, match="boom"):
                ledger.dispatch({"mail": leaves}, max_attempts=2)
            assert ledger.dispatch({"mail": leaves}).done == 0  # not due again at once
            clock.turn(3600)
        [letter] = ledger.dead_letters()
        assert (letter.error_type, letter.error_words, letter.attempts) == ("SystemExit", "boom", 2)

    def test_an_interrupt_comes_through_where_the_database_is_away(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*args: Any) -> Any:
            raise StoreError("unreachable", "gone", retryable=True)

        def interrupts(action: DueAction) -> None:
            raise KeyboardInterrupt

        queue(ledger, "mail")
        monkeypatch.setattr(ledger._outbox, "give_back", away)
        with pytest.raises(KeyboardInterrupt):
            ledger.dispatch({"mail": interrupts})

    def test_dead_letters_can_be_queued_anew(self, ledger: Ledger) -> None:
        for key in ("a", "b/0/c", "d"):
            queue(ledger, "mail", key=key)
        ledger.dispatch({"mail": fails}, max_attempts=1)
        assert [one.turn_key for one in ledger.dead_letters()] == ["d", "b/0/c", "a"]
        assert [one.turn_key for one in ledger.dead_letters(limit=1, after=ledger.dead_letters()[0].n)] == ["b/0/c"]
        assert ledger.retry_dead("b/0/c/0/mail", "nobody/0/mail") == 1
        attempts: list[int] = []
        assert ledger.dispatch({"mail": lambda action: attempts.append(action.attempt)}) == Dispatched(done=1)
        assert attempts == [1]
        assert ledger.retry_dead() == 2
        assert ledger.dispatch({"mail": nothing}) == Dispatched(done=2)
        for odd in ("k", "k/0", "k/x/mail", 7):
            with pytest.raises(UsageError, match="idempotency keys"):
                ledger.retry_dead(odd)  # type: ignore[arg-type]  # the point

    def test_a_dead_letter_is_named_by_its_whole_key(self, ledger: Ledger) -> None:
        queue(ledger, "mail")
        ledger.dispatch({"mail": fails}, max_attempts=1)
        assert ledger.retry_dead("k/0/another") == 0

    def test_words_are_bounded_and_may_be_missing(self, ledger: Ledger) -> None:
        class WordlessError(Exception):
            def __str__(self) -> str:
                raise ZeroDivisionError

        def wordless(action: DueAction) -> None:
            raise WordlessError

        def talks(action: DueAction) -> None:
            raise ValueError("w" * 10_000)

        queue(ledger, "mail", "post")
        assert ledger.dispatch({"mail": wordless, "post": talks}, max_attempts=1).dead == 2
        post, mail = ledger.dead_letters()
        assert post.error_words == "w" * 500
        assert (mail.error_type, mail.error_words) == ("WordlessError", "its words cannot be had: ZeroDivisionError")

    def test_an_interrupt_gives_the_action_back_and_comes_through(self, ledger: Ledger) -> None:
        def interrupted(action: DueAction) -> None:
            raise KeyboardInterrupt

        queue(ledger, "mail")
        with pytest.raises(KeyboardInterrupt):
            ledger.dispatch({"mail": interrupted})
        attempts: list[int] = []
        ledger.dispatch({"mail": lambda action: attempts.append(action.attempt)})
        assert attempts == [1]


class TestLeases:
    def test_who_died_leaves_an_action_that_runs_again_after_the_lease(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")
        taken = ledger._outbox.take(["mail"], 30, "who dies")
        assert taken is not None
        clock.turn(29.9)
        assert ledger.dispatch({"mail": nothing}) == Dispatched(queued=1)
        clock.turn(0.1)
        attempts: list[int] = []
        assert ledger.dispatch({"mail": lambda action: attempts.append(action.attempt)}) == Dispatched(done=1)
        assert attempts == [2]

    def test_who_lost_the_lease_says_nothing_any_more(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")
        slow = ledger._outbox.take(["mail"], 30, "slow")
        assert slow is not None
        clock.turn(31)
        fast = ledger._outbox.take(["mail"], 30, "fast")
        assert fast is not None
        assert not ledger._outbox.renew(slow, 30)
        assert not ledger._outbox.done(slow)
        assert not ledger._outbox.failed(slow, "ValueError", "", again_in_s=None)
        assert not ledger._outbox.give_back(slow)
        assert ledger._outbox.renew(fast, 30)
        assert ledger._outbox.done(fast)
        assert not ledger._outbox.done(fast)

    def test_a_lease_that_ran_out_is_still_ours_while_nobody_took_it(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")
        taken = ledger._outbox.take(["mail"], 30, "slow")
        assert taken is not None
        clock.turn(31)
        assert ledger._outbox.renew(taken, 30)
        assert ledger._outbox.take(["mail"], 30, "other") is None

    def test_an_action_that_kills_its_dispatchers_dies_too(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")
        for _ in range(3):
            assert ledger._outbox.take(["mail"], 30, "who dies") is not None
            clock.turn(31)
        assert ledger.dispatch({"mail": nothing}, max_attempts=3) == Dispatched(dead=1)
        [letter] = ledger.dead_letters()
        assert (letter.error_type, letter.attempts) == ("LeaseRanOut", 3)
        assert letter.error_words == "its last attempt ended without a word: its dispatcher died, or lost its lease"

    def test_words_of_a_last_attempt_stay_where_it_dies_afterwards(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")
        for _ in range(3):
            ledger.dispatch({"mail": fails})
            clock.turn(3600)
        assert ledger.dispatch({"mail": nothing}, max_attempts=2) == Dispatched(dead=1)
        [letter] = ledger.dead_letters()
        assert (letter.error_type, letter.error_words, letter.attempts) == ("ValueError", "attempt 3", 3)

    def test_a_handler_that_lasts_longer_than_the_lease_keeps_it(self, ledger_url: str) -> None:
        """By the real clock: while one handler runs for many leases, another dispatcher finds nothing to do."""
        with Ledger.open(ledger_url) as ledger:
            queue(ledger, "mail")
            runs, others = [], []
            began, over = threading.Event(), threading.Event()

            def slow(action: DueAction) -> None:
                runs.append(action)
                began.set()
                assert over.wait(30)

            first = threading.Thread(target=lambda: others.append(ledger.dispatch({"mail": slow}, lease_s=0.5)))
            first.start()
            assert began.wait(30)
            pause = threading.Event()
            for _ in range(15):  # three leases
                ledger.dispatch({"mail": slow}, lease_s=0.5)
                pause.wait(0.1)
            lost = runs[0].lease_lost
            over.set()
            first.join()
            assert (len(runs), lost, others[0].done) == (1, False, 1)

    def test_a_handler_can_see_that_its_lease_is_lost(self, ledger: Ledger, clock: Clock) -> None:
        queue(ledger, "mail")

        def stalled(action: DueAction) -> None:
            clock.turn(31)
            assert ledger._outbox.take(["mail"], 1000, "other") is not None
            pause = threading.Event()
            for _ in range(600):
                if action.lease_lost:
                    return
                pause.wait(0.05)
            pytest.fail("nobody said so")

        came = ledger.dispatch({"mail": stalled}, lease_s=0.3)
        assert (came.done, came.lost) == (0, 1)

    def test_a_lease_that_cannot_be_renewed_is_lost_by_the_clock(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A network that hangs tells nothing, nor does a process that was stopped hear anything."""
        queue(ledger, "mail")
        over = threading.Event()
        monkeypatch.setattr(ledger._outbox, "renew", lambda *args: over.wait(60))

        def long(action: DueAction) -> None:
            pause = threading.Event()
            try:
                for _ in range(600):
                    if action.lease_lost:
                        return
                    pause.wait(0.05)
                pytest.fail("nobody said so")
            finally:
                over.set()

        assert ledger.dispatch({"mail": long}, lease_s=0.3) == Dispatched(done=1)  # for nobody else took it


class TestRunningOn:
    def test_it_runs_what_comes_until_it_is_stopped(self, ledger_url: str) -> None:
        with Ledger.open(ledger_url) as ledger:
            stop, seen = threading.Event(), threading.Semaphore(0)
            options: Any = {"stop": stop, "poll_s": 0.01, "max_poll_s": 0.05}
            runner = threading.Thread(
                target=ledger.run_dispatcher, args=({"mail": lambda action: seen.release()},), kwargs=options
            )
            runner.start()
            for key in ("a", "b"):
                queue(ledger, "mail", key=key)
                assert seen.acquire(timeout=30)
            stop.set()
            runner.join(30)
            assert not runner.is_alive()
            assert ledger.queued() == {}

    def test_it_outlives_a_database_that_is_away(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        queue(ledger, "mail")
        stop, take, times = threading.Event(), ledger._outbox.take, iter(range(3))

        def away(*args: Any) -> Any:
            if next(times, None) is not None:
                raise StoreError("unreachable", "gone", retryable=True)
            return take(*args)

        monkeypatch.setattr(ledger._outbox, "take", away)
        ledger.run_dispatcher({"mail": lambda action: stop.set()}, stop=stop, poll_s=0.01, max_poll_s=0.02)
        assert ledger.queued() == {}

    def test_it_ends_with_what_does_not_mend(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*args: Any) -> Any:
            raise StoreError("corrupt", "gone")

        monkeypatch.setattr(ledger._outbox, "take", broken)
        with pytest.raises(StoreError, match="corrupt"):
            ledger.run_dispatcher({"mail": nothing}, stop=threading.Event())
