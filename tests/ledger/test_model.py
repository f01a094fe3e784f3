"""Any sequence of commits, refusals, dispatches and crashes leaves the ledger as a few lines of Python would have it.

A crash here is an exception that no handler may catch, thrown out of one of the next statements, in the middle of a
transaction or before its COMMIT; test_crash.py kills real processes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import event

from levada.finished import FinishedTurn
from levada.ledger import Action, DueAction, KeyConflict, Ledger
from tests.turn.chat import DONE, fed, stop, text

LEASE_S, BACKOFF_S, MOST = 30.0, 4.0, 3

TURNS: dict[str, FinishedTurn] = {
    name: fed(text(answer), stop(finish=finish), DONE).result()
    for name, answer, finish in (("a", "água", "stop"), ("b", "水 \x00", "stop"), ("cut", "lon", "length"))
}
ACTIONS = {"none": [], "one": [Action("x", {"n": 1})], "three": [Action("x"), Action("y", [1]), Action("x", None)]}

keys = st.sampled_from(["k", "l", "k/0/x", "m"])
turns = st.sampled_from(sorted(TURNS))
actions = st.sampled_from(sorted(ACTIONS))


class CrashError(BaseException):
    """The process is gone."""


@dataclass
class Queued:
    """What the model knows of an action."""

    n: int
    id: str
    name: str
    due: datetime
    attempts: int = 0
    state: str = "queued"


class LedgerMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="levada-"))
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.crash_in: int | None = None  # statements from now
        self.stored: dict[str, tuple[str, str]] = {}  # key -> turn and actions
        self.refused: Counter[str] = Counter()
        self.outbox: list[Queued] = []
        self.ran: Counter[str] = Counter()
        self.open()

    def open(self) -> None:
        url = f"sqlite:///{self.folder}/turns.db"
        self.ledger = Ledger.open(url, synchronous="NORMAL", clock=lambda: self.now)
        engine = self.ledger._database.engine
        event.listen(engine, "before_cursor_execute", self.perhaps_crash)
        event.listen(engine, "commit", self.perhaps_crash)

    def perhaps_crash(self, *_: Any) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                raise CrashError

    def come_up_again(self) -> None:
        self.crash_in = None
        self.ledger.close()
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)

    # -- commits ---------------------------------------------------------------------------------------------------

    @rule(key=keys, turn=turns, what=actions, allow=st.booleans(), refuse=st.booleans())
    def commit(self, key: str, turn: str, what: str, allow: bool, refuse: bool) -> None:
        refusals = ["too wet"] if refuse else []
        passes = not refuse and (not ACTIONS[what] or turn != "cut" or allow)

        def call() -> str:
            return self.ledger.commit(
                TURNS[turn],
                key=key,
                actions=ACTIONS[what],
                allow=["length"] if allow else (),
                validators=[lambda turn: refusals],
            ).status

        if key in self.stored and self.stored[key] != (turn, what):
            with pytest.raises(KeyConflict):
                call()
        elif key in self.stored:
            assert call() == "already_stored"
        elif passes:
            assert call() == "stored"
            self.remember(key, turn, what)
        else:
            assert call() == "refused"
            self.refused[key] += 1

    def remember(self, key: str, turn: str, what: str) -> None:
        self.stored[key] = turn, what
        for place, action in enumerate(ACTIONS[what]):
            self.outbox.append(Queued(len(self.outbox), f"{key}/{place}/{action.name}", action.name, self.now))

    @rule(key=keys, turn=turns, what=actions)
    def a_validator_raises(self, key: str, turn: str, what: str) -> None:
        with pytest.raises(ZeroDivisionError):
            self.ledger.commit(TURNS[turn], key=key, actions=ACTIONS[what], validators=[lambda turn: str(1 / 0)])

    @rule(key=keys, turn=st.sampled_from(["a", "b"]), what=actions, statements=st.integers(1, 7))
    def a_commit_crashes(self, key: str, turn: str, what: str, statements: int) -> None:
        """Before the COMMIT, so that nothing of it is stored; or not at all, where it needs fewer statements."""
        self.crash_in = statements
        try:
            self.ledger.commit(TURNS[turn], key=key, actions=ACTIONS[what])
        except CrashError:
            pass
        except KeyConflict:
            assert self.stored[key] != (turn, what)
        else:
            if key not in self.stored:
                self.remember(key, turn, what)
        self.come_up_again()

    # -- dispatches ------------------------------------------------------------------------------------------------

    def due(self, *names: str) -> Queued | None:
        found = [one for one in self.outbox if one.state == "queued" and one.due <= self.now and one.name in names]
        return min(found, key=lambda one: (one.due, one.n)) if found else None

    def dispatch(self, handler: Callable[[DueAction], None], *names: str) -> Any:
        options: Any = {"lease_s": LEASE_S, "backoff_s": BACKOFF_S, "max_attempts": MOST, "jitter": 0.0}
        return self.ledger.dispatch(dict.fromkeys(names, handler), limit=1, **options)

    def took(self, one: Queued) -> bool:
        """Take it in the model; False where it dies of too many attempts, and the next one is taken instead."""
        one.attempts += 1
        if one.attempts > MOST:
            one.state = "dead"
            return False
        return True

    @rule(
        names=st.sampled_from([("x",), ("y",), ("x", "y")]), how=st.sampled_from(["works", "fails", "is interrupted"])
    )
    def an_action_runs(self, names: tuple[str, ...], how: str) -> None:
        seen: list[DueAction] = []

        def handler(action: DueAction) -> None:
            seen.append(action)
            if how == "fails":
                raise ConnectionError("no mail today")
            if how == "is interrupted":
                raise KeyboardInterrupt

        expected = self.take_one(names)
        if how == "is interrupted" and expected is not None:
            with pytest.raises(KeyboardInterrupt):
                self.dispatch(handler, *names)
        else:
            came = self.dispatch(handler, *names)
            assert (came.done, came.failed) == (
                (1, 0) if expected and how == "works"
                else (0, 1) if expected and how == "fails" and expected.attempts < MOST else (0, 0)
            )  # fmt: skip
        assert [action.idempotency_key for action in seen] == ([expected.id] if expected else [])
        if expected is None:
            return
        assert seen[0].attempt == expected.attempts
        assert self.ledger.get(seen[0].turn_key) is not None
        self.ran[expected.id] += 1
        if how == "works":
            expected.state = "done"
        elif how == "is interrupted":
            expected.attempts -= 1
            expected.due = self.now
        elif expected.attempts >= MOST:
            expected.state = "dead"
        else:
            expected.due = self.now + timedelta(seconds=BACKOFF_S * 2 ** (expected.attempts - 1))

    def take_one(self, names: tuple[str, ...]) -> Queued | None:
        while (one := self.due(*names)) is not None:
            if self.took(one):
                return one
        return None

    @rule(names=st.sampled_from([("x",), ("x", "y")]), statements=st.integers(1, 3))
    def its_end_crashes(self, names: tuple[str, ...], statements: int) -> None:
        """It ran, and nobody wrote that down: it is leased until the lease runs out."""
        expected = self.take_one(names)

        def handler(action: DueAction) -> None:
            self.crash_in = statements

        if expected is None:
            self.dispatch(handler, *names)
            return
        try:
            self.dispatch(handler, *names)
        except CrashError:
            expected.due = self.now + timedelta(seconds=LEASE_S)
        else:
            raise AssertionError("to write it down takes BEGIN, UPDATE and COMMIT")
        self.ran[expected.id] += 1
        self.come_up_again()

    @rule(names=st.sampled_from([("x",), ("y",), ("x", "y")]), statements=st.integers(1, 7))
    def to_take_one_crashes(self, names: tuple[str, ...], statements: int) -> None:
        """Before the transaction that takes an action is over: nothing was taken."""
        self.crash_in = statements  # a look: BEGIN, SELECT, COMMIT; then BEGIN, SELECT, UPDATE, and the seventh, COMMIT
        if self.due(*names) is None:
            with suppress(CrashError):
                self.dispatch(lambda action: pytest.fail("none was due"), *names)
        else:
            with pytest.raises(CrashError):
                self.dispatch(lambda action: pytest.fail("it was not taken"), *names)
        self.come_up_again()

    @rule()
    def the_dead_are_tried_again(self) -> None:
        dead = [one for one in self.outbox if one.state == "dead"]
        assert self.ledger.retry_dead() == len(dead)
        for one in dead:
            one.state, one.attempts, one.due = "queued", 0, self.now

    @rule(seconds=st.sampled_from([0.5, 5.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def it_is_opened_again(self) -> None:
        self.come_up_again()

    # -- what holds ------------------------------------------------------------------------------------------------

    @invariant()
    def the_answers_are_those_of_the_model(self) -> None:
        found = {turn.key: turn for turn in self.ledger.turns(limit=1000)}
        assert found.keys() == self.stored.keys()
        for key, (turn, _) in self.stored.items():
            assert (found[key].answer, found[key].finish_reason) == (TURNS[turn].answer, TURNS[turn].finish_reason)
        assert Counter(one.key for one in self.ledger.refused(limit=1000)) == self.refused

    @invariant()
    def the_actions_are_those_of_the_model(self) -> None:
        assert self.ledger.queued() == Counter(one.name for one in self.outbox if one.state == "queued")
        dead = {one.id: one.attempts for one in self.outbox if one.state == "dead"}
        letters = self.ledger.dead_letters(limit=1000)
        assert {one.idempotency_key for one in letters} == dead.keys()
        assert all(self.ran[one.id] for one in self.outbox if one.state == "done")


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    settings.get_profile("quick"),
    max_examples=settings().max_examples // 10,  # 20, or 2,000: each makes a database
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
)
