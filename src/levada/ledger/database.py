"""The database under a ledger: transactions, its clock, and the steps that bring its tables forward."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Table, func, inspect, select, text
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from levada.errors import SchemaMismatch, StoreError, UsageError
from levada.ledger.failures import translated
from levada.ledger.opening import engine_for, file_of, set_wal
from levada.ledger.schema import STEPS, VERSION, version
from levada.ledger.values import in_utc

__all__ = ["Database"]

_ADVISORY_LOCK: Final = 0x6C65_7661_6461  # "levada" in ASCII: the number of our lock in PostgreSQL
_LAST_YEAR: Final = 9000  # leases and waits end later, and datetime ends with 9999

_TYPES: Final = {
    "sqlite": {"id": "INTEGER PRIMARY KEY", "json": "TEXT", "moment": "TEXT"},
    "postgresql": {
        "id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "json": "JSON",
        "moment": "TIMESTAMP WITH TIME ZONE",
    },
}


class Database:
    """An open database with the ledger's tables. Threads may share it; processes may not, by a fork."""

    def __init__(
        self,
        url: str | URL,
        *,
        busy_timeout_s: float,
        read_only: bool,
        synchronous: str,
        pool_size: int,
        clock: Callable[[], datetime] | None,
        migrate_to: int = VERSION,
    ) -> None:
        self._clock = clock
        self._busy_timeout_s = busy_timeout_s
        self._process = os.getpid()
        self._closed = False
        # Threads of one process queue here, in order, rather than by SQLite's sleeping and trying again.
        self._writing = threading.Lock()
        self.engine = engine_for(
            url, busy_timeout_s=busy_timeout_s, read_only=read_only, synchronous=synchronous, pool_size=pool_size
        )
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._read_only = read_only
        self._file = file_of(self.engine)
        self._identity = self._file and _identity(self._file)
        try:
            with translated():
                if read_only:
                    with self.engine.connect() as connection:
                        found = _version_of(connection)
                    if found != VERSION:
                        raise SchemaMismatch(found, VERSION)
                else:
                    self._bring_forward(migrate_to)
        except BaseException:
            self.engine.dispose()
            raise

    def close(self) -> None:
        """Close its connections. What begins afterwards is a UsageError."""
        self._closed = True
        # in a child after a fork the connections are its parent's: closing them would end its parent's locks
        self.engine.dispose(close=os.getpid() == self._process)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection in a transaction that only reads."""
        self._check_use()
        with translated(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection in a transaction that may write; it ends with the block, whole or not at all."""
        self._check_use()
        if self._read_only:
            raise StoreError("read_only", "this ledger was opened with read_only=True")
        if not self.is_sqlite:
            with translated(), self.engine.begin() as connection:
                yield connection
            return
        if not self._writing.acquire(timeout=self._busy_timeout_s):
            raise StoreError("busy", "other threads wrote for longer than busy_timeout_s", True)
        try:
            self._check_file()
            with translated(), self.engine.connect() as connection:
                writer = connection.execution_options(levada_writes=True)
                with writer.begin():
                    yield writer
        finally:
            self._writing.release()

    def insert(self, table: Table) -> Any:
        """Return an INSERT that knows ON CONFLICT, which the databases spell alike and SQLAlchemy does not."""
        return sqlite_insert(table) if self.is_sqlite else postgres_insert(table)

    def now(self, connection: Connection) -> datetime:
        """Return the time, aware: of the server, where several machines share one; of the clock that was given, if."""
        if self._clock is not None:
            moment = in_utc(self._clock(), "what the clock of a ledger returns")
            if moment.year > _LAST_YEAR:
                raise UsageError(f"the clock of a ledger says the year {moment.year}, and {_LAST_YEAR} is the last")
            return moment
        if self.is_sqlite:
            return datetime.now(UTC)
        return connection.execute(select(func.clock_timestamp())).scalar_one().astimezone(UTC)  # type: ignore[no-any-return]  # func knows no types

    def _check_use(self) -> None:
        if self._closed:
            raise UsageError("the ledger is closed")
        if os.getpid() != self._process:
            raise UsageError("this ledger was opened before the process forked; open it in each process")

    def _check_file(self) -> None:
        """Raise StoreError where the file is no longer at its place: SQLite goes on writing into what nobody finds."""
        if self._file is None or (found := _identity(self._file)) == self._identity:
            return
        if found is None:
            raise StoreError("missing", "the file of the ledger was taken away while it was open; open the ledger anew")
        raise StoreError("replaced", "another file is in the place of the ledger's since it was opened; open it anew")

    def _bring_forward(self, target: int) -> None:
        if self.is_sqlite:
            set_wal(self.engine, self._busy_timeout_s)
        with self.engine.connect() as connection:
            if not self.is_sqlite:
                _check_encoding(connection)
            if _version_of(connection) == target:
                return  # without a lock: opening a ledger waits for no writer
        with self.engine.connect() as connection:
            writer = connection.execution_options(levada_writes=True)
            with writer.begin():
                if not self.is_sqlite:
                    writer.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
                found = _version_of(writer) or 0  # again: another process may have been faster
                if found > target:
                    raise SchemaMismatch(found, target)
                if not found:
                    moment = _TYPES[self.engine.dialect.name]["moment"]
                    writer.exec_driver_sql(
                        f"CREATE TABLE levada_ledger_version (version INTEGER PRIMARY KEY, done_at {moment} NOT NULL)"
                    )
                for number in range(found + 1, target + 1):
                    for statement in STEPS[number - 1]:
                        writer.exec_driver_sql(statement.format(**_TYPES[self.engine.dialect.name]))
                    writer.execute(version.insert().values(version=number, done_at=self.now(writer)))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells this file from another one under its name; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_encoding(connection: Connection) -> None:
    """Raise UsageError where the database cannot hold every character."""
    encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise UsageError(f"a ledger needs a database in UTF8, and this one is in {encoding}")


def _version_of(connection: Connection) -> int | None:
    """Return the version of the tables, None where there are none."""
    if not inspect(connection).has_table(version.name):
        return None
    found: int | None = connection.execute(select(func.max(version.c.version))).scalar()
    if found is None:
        raise StoreError("corrupt", "the table levada_ledger_version is empty: the ledger is not whole")
    return found
