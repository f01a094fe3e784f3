"""The tables come forward by themselves, by one process at a time, and never go back."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import inspect
from sqlalchemy import text as sql

from levada import UsageError
from levada.ledger import Action, Ledger, SchemaMismatch, StoreError
from levada.ledger.database import Database
from levada.ledger.schema import STEPS, VERSION, metadata
from tests.ledger.turned import fed, finished, text


def at_version(url: str, version: int) -> Database:
    """A database as an older levada left it."""
    options: dict[str, Any] = {"busy_timeout_s": 30, "read_only": False, "synchronous": "FULL", "pool_size": 5}
    return Database(url, clock=None, migrate_to=version, **options)


def versions(ledger: Ledger) -> list[int]:
    with ledger._database.reading() as connection:
        return list(connection.execute(sql("SELECT version FROM levada_ledger_version ORDER BY version")).scalars())


class TestForward:
    def test_a_new_database_takes_every_step(self, ledger: Ledger) -> None:
        assert versions(ledger) == list(range(1, VERSION + 1))

    def test_the_steps_lead_to_the_tables_that_the_code_knows(self, ledger: Ledger) -> None:
        with ledger._database.reading() as connection:
            found = inspect(connection)
            assert set(found.get_table_names()) == set(metadata.tables)
            for name, table in metadata.tables.items():
                there = {column["name"]: column["nullable"] for column in found.get_columns(name)}
                known = {column.name: bool(column.nullable) for column in table.columns}
                if connection.dialect.name == "sqlite":  # an INTEGER PRIMARY KEY is never null, and does not say so
                    key = next(iter(table.primary_key)).name
                    there[key] = known[key]
                assert there == known, name

    def test_a_ledger_of_version_1_comes_forward_with_all_that_it_holds(self, ledger_url: str) -> None:
        old = at_version(ledger_url, 1)
        before = Ledger(old, max_turn_bytes=10**6, max_payload_bytes=10**6)
        before.commit(finished(), key="k", actions=[Action("mail", 1)])
        assert versions(before) == [1]
        with pytest.raises(StoreError):
            before.keep_partial(fed(text("wat"), clean=False), key="p")  # no table for it yet
        before.close()
        with Ledger.open(ledger_url) as ledger:
            assert versions(ledger) == [1, 2]
            assert (turn := ledger.get("k")) is not None
            assert (turn.answer, ledger.queued()) == ("water", {"mail": 1})
            ledger.keep_partial(fed(text("wat"), clean=False), key="p")
            assert ledger.commit(finished(), key="k", actions=[Action("mail", 1)]).status == "already_stored"

    def test_opening_again_changes_nothing(self, ledger_url: str) -> None:
        for _ in range(3):
            with Ledger.open(ledger_url) as ledger:
                assert versions(ledger) == list(range(1, VERSION + 1))

    @pytest.mark.parametrize("left_at", [None, 1])
    def test_many_may_open_it_at_once(self, ledger_url: str, left_at: int | None) -> None:
        if left_at is not None:
            at_version(ledger_url, left_at).close()
        gate, came = threading.Barrier(8), []

        def opens() -> None:
            gate.wait()
            with Ledger.open(ledger_url) as ledger:
                came.append(versions(ledger))

        threads = [threading.Thread(target=opens) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert came == [list(range(1, VERSION + 1))] * 8

    def test_a_step_that_fails_leaves_all_as_it_was(self, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with Ledger.open(ledger_url):
            pass
        worse = (*STEPS, ("CREATE TABLE levada_more (n {id})", "CREATE NONSENSE"))
        monkeypatch.setattr("levada.ledger.database.STEPS", worse)
        with pytest.raises(StoreError):
            at_version(ledger_url, VERSION + 1)
        with Ledger.open(ledger_url) as ledger:
            assert versions(ledger) == list(range(1, VERSION + 1))
            with ledger._database.reading() as connection:
                assert not inspect(connection).has_table("levada_more")


class TestMismatches:
    def test_a_ledger_of_a_newer_levada_is_left_alone(self, ledger_url: str) -> None:
        with Ledger.open(ledger_url) as ledger:
            with ledger._database.writing() as connection:
                connection.execute(sql("INSERT INTO levada_ledger_version VALUES (99, '2030-01-01T00:00:00.000000Z')"))
        for read_only in (False, True):
            with pytest.raises(SchemaMismatch, match="has schema version 99, and this levada knows 2; use a newer"):
                Ledger.open(ledger_url, read_only=read_only)

    def test_read_only_brings_nothing_forward(self, ledger_url: str) -> None:
        at_version(ledger_url, 1).close()
        with pytest.raises(SchemaMismatch, match="version 1, and this levada needs 2; open it once without read_only"):
            Ledger.open(ledger_url, read_only=True)

    def test_read_only_needs_a_ledger(self, postgres_url: str) -> None:
        with pytest.raises(SchemaMismatch, match="the database holds no ledger"):
            Ledger.open(postgres_url, read_only=True)

    def test_a_version_table_without_a_version_is_damage(self, ledger_url: str) -> None:
        with Ledger.open(ledger_url) as ledger:
            with ledger._database.writing() as connection:
                connection.execute(sql("DELETE FROM levada_ledger_version"))
        with pytest.raises(StoreError, match="corrupt: the table levada_ledger_version is empty"):
            Ledger.open(ledger_url)

    def test_other_tables_are_none_of_our_business(self, ledger_url: str) -> None:
        database = at_version(ledger_url, VERSION)
        with database.writing() as connection:
            connection.execute(sql("CREATE TABLE turns (n INTEGER)"))
        database.close()
        with Ledger.open(ledger_url) as ledger:
            assert ledger.commit(finished(), key="k").status == "stored"


class TestOpening:
    def test_read_only_reads_and_writes_nothing(self, ledger_url: str) -> None:
        with Ledger.open(ledger_url) as ledger:
            ledger.commit(finished(), key="k", actions=[Action("mail")])
        with Ledger.open(ledger_url, read_only=True) as reader:
            assert (reader.count(), reader.queued()) == (1, {"mail": 1})
            with pytest.raises(StoreError, match="read_only: "):
                reader.commit(finished(), key="l")
            with pytest.raises(StoreError, match="read_only: "):
                reader.dispatch({"mail": print})

    @pytest.mark.parametrize(
        "url",
        ["", "turns.db", "mysql://host/x", "sqlite+aiosqlite:///x", "postgresql+asyncpg://x", "redis://x", "sqlite"],
    )
    def test_any_other_url_is_refused(self, url: str) -> None:
        with pytest.raises(UsageError, match="ledger"):
            Ledger.open(url)

    @pytest.mark.parametrize(
        "options",
        [
            {"pool_size": 0},
            {"max_turn_bytes": "1"},
            {"max_payload_bytes": -1},
            {"busy_timeout_s": 0},
            {"busy_timeout_s": float("nan")},
            {"synchronous": "OFF"},
        ],
        ids=str,
    )
    def test_settings_that_make_no_sense_are_refused(self, options: Any) -> None:
        with pytest.raises(UsageError, match=next(iter(options))):
            Ledger.open("sqlite://", **options)

    def test_a_clock_knows_its_zone(self) -> None:
        with pytest.raises(UsageError, match="clock of a ledger returns must be an aware datetime"):
            Ledger.open("sqlite://", clock=datetime.now)

    def test_a_process_that_forked_opens_its_own(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.getpid", lambda: -1)
        with pytest.raises(UsageError, match="before the process forked"):
            ledger.count()
        monkeypatch.undo()
        assert ledger.count() == 0
