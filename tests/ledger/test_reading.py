"""Stored turns are found by key, time, model and finish reason: in bounded pages, or one after the other."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import text as sql

from levada import Outcome, UsageError
from levada.ledger import Action, Ledger
from tests.ledger.turned import Clock, finished

START = datetime(2030, 1, 1, tzinfo=UTC)
NOW = START.isoformat()
FAR_EAST = timezone(timedelta(hours=14))


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """Twelve turns, one an hour; every third cut by its length, and two models in turn. Three came at one moment."""
    hours = [0, 1, 2, 3, 3, 3, *range(6, 12)]
    clock = Clock()
    with Ledger.open(ledger_url, clock=clock) as opened:
        for n in range(12):
            clock.now = START + timedelta(hours=hours[n])
            turn = finished(f"answer {n}", "length" if n % 3 == 0 else "stop", model="ab"[n % 2])
            opened.commit(turn, key=f"k{n}")
        yield opened


def keys(ledger: Ledger, **options: Any) -> list[str]:
    return [turn.key for turn in ledger.turns(**options)]


NEWEST_FIRST = [f"k{n}" for n in reversed(range(12))]


class TestPages:
    def test_the_newest_comes_first(self, ledger: Ledger) -> None:
        assert keys(ledger) == NEWEST_FIRST
        assert ledger.count() == 12

    def test_pages_follow_each_other_without_gap_or_overlap(self, ledger: Ledger) -> None:
        for limit in (1, 2, 5, 12, 1000):
            found: list[str] = []
            after = None
            while page := ledger.turns(limit=limit, after=after):
                assert len(page) <= limit
                found += [turn.key for turn in page]
                after = page[-1].cursor
            assert found == NEWEST_FIRST

    @pytest.mark.parametrize("limit", [0, -1, 1001, True, None, "5"])
    def test_a_page_has_a_size(self, ledger: Ledger, limit: Any) -> None:
        with pytest.raises(UsageError, match="limit must be an int from 1 to 1000"):
            ledger.turns(limit=limit)

    @pytest.mark.parametrize("after", ["", "k1", "2030-01-01", 7, "/1"])
    def test_after_takes_a_cursor(self, ledger: Ledger, after: Any) -> None:
        with pytest.raises(UsageError, match="after= takes the cursor of a StoredTurn"):
            ledger.turns(after=after)


class TestFilters:
    def test_by_model(self, ledger: Ledger) -> None:
        assert keys(ledger, model="b") == ["k11", "k9", "k7", "k5", "k3", "k1"]
        assert ledger.count(model="b") == 6

    def test_by_finish_reason(self, ledger: Ledger) -> None:
        assert keys(ledger, finish_reason="length") == ["k9", "k6", "k3", "k0"]
        assert keys(ledger, finish_reason="length", model="a") == ["k6", "k0"]

    def test_by_time_from_and_before(self, ledger: Ledger) -> None:
        since, until = START + timedelta(hours=2), START + timedelta(hours=6)
        assert keys(ledger, since=since, until=until) == ["k5", "k4", "k3", "k2"]
        elsewhere = timezone(timedelta(hours=-5))
        assert keys(ledger, since=since.astimezone(elsewhere), until=until.astimezone(elsewhere)) == [
            "k5", "k4", "k3", "k2",
        ]  # fmt: skip
        assert ledger.count(since=since, until=until) == 4

    def test_a_time_without_a_zone_is_none(self, ledger: Ledger) -> None:
        with pytest.raises(UsageError, match="since must be an aware datetime"):
            ledger.count(since=datetime(2030, 1, 1))

    @pytest.mark.parametrize(
        ("options", "index"),
        [
            ({}, "levada_turns_time"),
            ({"model": "a"}, "levada_turns_model"),
            ({"finish_reason": "stop"}, "levada_turns_finish"),
            ({"model": "a", "since": START}, "levada_turns_model"),
        ],
        ids=str,
    )
    def test_each_question_has_its_index(self, ledger: Ledger, options: Any, index: str) -> None:
        from sqlalchemy import select

        from levada.ledger.paging import newest_first
        from levada.ledger.schema import turns

        wanted = {"model": None, "finish_reason": None, "since": None, "until": None, **options}
        query = newest_first(select(turns.c.key), **wanted, after=f"{START.isoformat()}/3").limit(50)
        with ledger._database.reading() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sql("SET LOCAL enable_seqscan = off"))
                connection.execute(sql("SET LOCAL enable_bitmapscan = off"))
            statement = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
            how = "EXPLAIN " if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
            plan = "\n".join(str(row) for row in connection.exec_driver_sql(how + statement))
        assert index in plan
        assert "Sort" not in plan
        assert "TEMP B-TREE" not in plan


class TestAllOfThem:
    def test_each_comes_once_the_newest_first(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        for light, portion in ((500, 1 << 22), (5, 1 << 22), (5, 1), (500, 2000), (1, 1)):
            monkeypatch.setattr("levada.ledger.store._LIGHT_PAGE", light)
            monkeypatch.setattr("levada.ledger.paging.PORTION_BYTES", portion)
            assert [turn.key for turn in ledger.each_turn()] == NEWEST_FIRST
        assert [turn.key for turn in ledger.each_turn(model="b", finish_reason="length")] == ["k9", "k3"]

    def test_the_ledger_is_free_meanwhile(self, ledger: Ledger) -> None:
        every = ledger.each_turn()
        next(every)
        assert ledger.commit(finished("new"), key="new").status == "stored"
        assert "new" not in [turn.key for turn in every]

    def test_memory_does_not_grow_with_the_ledger(self, ledger_url: str) -> None:
        with Ledger.open(ledger_url) as ledger:
            for n in range(24):
                ledger.commit(finished("w" * 300_000), key=f"large {n}")  # 24 × 600 kB, answer and part
            tracemalloc.start()
            try:
                for _ in ledger.each_turn():
                    pass
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 8_000_000


class TestWhatMakesNoSense:
    """A mistake of the caller is a UsageError, and nothing that looks like a fault of the database."""

    @pytest.mark.parametrize(
        "after", ["x", "/", "2030-01-01/5", "2030-01-01T00:00:00/5", 5, f"{NOW}/{'9' * 50}", f"{NOW}/-1"]
    )
    def test_cursors(self, ledger: Ledger, after: Any) -> None:
        with pytest.raises(UsageError, match="after= takes the cursor"):
            ledger.turns(after=after)

    @pytest.mark.parametrize("after", ["x", -1, 2**63, 1.5, True])
    def test_numbers_of_rows(self, ledger: Ledger, after: Any) -> None:
        for page in (ledger.refused, ledger.partials, ledger.records, ledger.dead_letters):
            with pytest.raises(UsageError, match="after= takes the `n`"):
                page(after=after)

    def test_filters(self, ledger: Ledger) -> None:
        naive = datetime(2030, 1, 1)
        filters: list[Any] = [{"model": 5}, {"finish_reason": b"stop"}, {"since": "2030"}, {"until": naive}]
        for one in filters:
            with pytest.raises(UsageError, match=f"{next(iter(one))} must be"):
                ledger.turns(**one)
        kind: Any = 5
        with pytest.raises(UsageError, match="error_kind must be"):
            ledger.records(error_kind=kind)

    @pytest.mark.parametrize(
        "now",
        [None, 1.0, datetime(2030, 1, 1), datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=FAR_EAST)],
        ids=str,
    )
    def test_clocks(self, ledger_url: str, now: Any) -> None:
        with Ledger.open(ledger_url):
            pass
        with Ledger.open(ledger_url, clock=lambda: now) as ledger, pytest.raises(UsageError, match="clock of a ledger"):
            ledger.commit(finished(), key="k")

    def test_attempts(self) -> None:
        odd: list[Any] = [None, 0, "1", True, 1.5]
        for attempts in odd:
            with pytest.raises(UsageError, match="attempts of an Outcome"):
                Outcome(finished(), "water", attempts)

    def test_a_payload_that_was_changed_after_it_was_checked(self, ledger: Ledger) -> None:
        action = Action("mail", {"to": "a"})
        action.payload["to"] = {1}
        with pytest.raises(UsageError, match="the payload of action mail is no plain JSON"):
            ledger.commit(finished(), key="k", actions=[action])
        assert ledger.get("k") is None
