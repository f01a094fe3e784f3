"""From a URL to an engine whose transactions are what the ledger promises.

SQLite: WAL, so that readers wait for no writer; synchronous=FULL, so that what is committed survives a loss of power; a
write transaction begins with BEGIN IMMEDIATE, so that it waits at its beginning and never fails in its middle.
"""

from __future__ import annotations

import errno
import math
import os
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from levada.errors import StoreError, UsageError

__all__ = ["engine_for", "file_of", "set_wal"]

_SYNCHRONOUS: Final = ("FULL", "NORMAL")
_OF_ERRNO: Final = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EROFS: "read_only",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}


def engine_for(url: str | URL, *, busy_timeout_s: float, read_only: bool, synchronous: str, pool_size: int) -> Engine:
    """Return an engine for `url`. Raises UsageError for a URL or setting that makes no sense."""
    parsed = _parsed(url)
    if parsed is None:  # said here, and not where it was caught: the error that says why quotes the password
        raise UsageError("the URL of a ledger looks like sqlite:///turns.db or postgresql+psycopg://…")
    if synchronous not in _SYNCHRONOUS:
        raise UsageError(f"synchronous must be FULL or NORMAL, not {synchronous!r:.100}")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        return _sqlite(parsed, busy_timeout_s, read_only, synchronous, pool_size)
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return _postgres(parsed.set(drivername="postgresql+psycopg"), busy_timeout_s, read_only, pool_size)
    raise UsageError(f"a ledger is kept in sqlite or postgresql+psycopg, not in {parsed.drivername!r:.100}")


def _parsed(url: str | URL) -> URL | None:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # ValueError: of what stands where the port would
        return None


def file_of(engine: Engine) -> Path | None:
    """Return the file that an engine of ours opens, None for PostgreSQL and for a database in memory."""
    return engine.get_execution_options().get("levada_file")


def _sqlite(url: URL, busy_timeout_s: float, read_only: bool, synchronous: str, pool_size: int) -> Engine:
    if sqlite3.sqlite_version_info < (3, 35):
        raise UsageError(f"a ledger needs SQLite 3.35 (of 2021), and this Python has {sqlite3.sqlite_version}")
    if url.host is not None or url.port is not None:  # two slashes: it would be a ledger in memory, and gone afterwards
        raise UsageError(
            "the path of a ledger in SQLite comes after three slashes, sqlite:///turns.db, or four if absolute"
        )
    if url.query and not (url.database or "").startswith("file:"):
        names = ", ".join(sorted(url.query))
        raise UsageError(f"the URL of a ledger in SQLite takes no parameters, and this one has {names:.100}")
    memory = url.database in (None, "", ":memory:")
    if not memory and (url.database or "").startswith("file:"):
        raise UsageError("say sqlite:///path/of/file.db, and read_only=True rather than mode=ro in a file: URI")
    if memory and read_only:
        raise UsageError("a ledger in memory begins empty: it cannot be read_only")
    path = Path(url.database or "").absolute()
    if not memory:
        _make_file(path, read_only)

    def connect() -> Any:
        # isolation_level None: the driver begins no transactions of its own, _begin does
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "timeout": busy_timeout_s}
        if memory:
            connection = sqlite3.connect(":memory:", **options)
        else:
            mode = "ro" if read_only else "rw"  # not rwc: a file that is taken away is an error, not a new ledger
            connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, **options)
        try:
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute(f"PRAGMA synchronous={synchronous}")
        except BaseException:
            connection.close()  # from Python 3.13 on, one that is left open is warned of
            raise
        return connection

    # the pool holds the only connection to a database in memory, and hands it to one thread at a time
    size: dict[str, Any] = {"pool_size": 1 if memory else pool_size, "max_overflow": 0, "pool_timeout": busy_timeout_s}
    options = {} if memory else {"levada_file": path}
    engine = create_engine(
        "sqlite://", creator=connect, poolclass=QueuePool, hide_parameters=True, execution_options=options, **size
    )

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        writes = connection.get_execution_options().get("levada_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _make_file(path: Path, read_only: bool) -> None:
    """Make an empty file that only its owner may read; the files that SQLite puts beside it follow its mode."""
    try:
        if path.is_dir():
            raise StoreError("missing", "the path of the ledger is a directory; name a file in it")
        if path.exists():
            return
        if not path.parent.is_dir():
            raise StoreError("missing", "the directory of the ledger does not exist; make it first")
        if read_only:
            raise StoreError("missing", "the file of the ledger does not exist")
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        reason = _OF_ERRNO.get(error.errno or 0, "other")
        raise StoreError(reason, f"the file of the ledger cannot be made: {error.strerror}") from None
    except ValueError:
        raise UsageError("the path of the ledger holds a NUL") from None


def set_wal(engine: Engine, busy_timeout_s: float) -> None:
    """Turn a file to WAL, once for all that open it. SQLite does not wait for a lock here, so we do."""
    ends = time.monotonic() + busy_timeout_s
    connection = engine.raw_connection()
    try:
        while True:
            try:
                connection.cursor().execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > ends:
                    raise
                time.sleep(0.01)
    finally:
        connection.close()


def _postgres(url: URL, busy_timeout_s: float, read_only: bool, pool_size: int) -> Engine:
    try:
        from psycopg import Error  # noqa: PLC0415  # not needed for SQLite
        from psycopg.types.string import TextLoader  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"PostgreSQL needs psycopg ({error}): pip install 'levada[ledger]'") from error

    # A server that is gone without a word is noticed after busy_timeout_s, not TCP's two hours. The URL may say else.
    wait_s = max(2, math.ceil(busy_timeout_s))
    options = {
        "application_name": "levada",
        "client_encoding": "UTF8",
        "connect_timeout": min(10, wait_s),
        "keepalives_idle": wait_s,
        "keepalives_interval": max(1, wait_s // 3),
        "keepalives_count": 3,
        "tcp_user_timeout": wait_s * 1000,
    }
    engine = create_engine(
        url,
        connect_args={name: value for name, value in options.items() if name not in url.query},
        isolation_level="READ COMMITTED",  # whatever the server's default: what the ledger does needs no more
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=busy_timeout_s,
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, record: Any) -> None:
        connection.adapters.register_loader("json", TextLoader)  # the text as it came; hostile.py reads it
        connection.execute("SET datestyle = ISO")  # the driver reads no other one
        connection.execute(f"SET lock_timeout = {int(busy_timeout_s * 1000)}")
        if read_only:
            connection.execute("SET default_transaction_read_only = on")
        connection.commit()

    @event.listens_for(engine, "handle_error")
    def _failed(context: Any) -> None:
        # The driver meets a connection that was ended with errors of many kinds. All without an answer of the server
        # mean one thing, where the connection is no longer usable: it is gone, and the pool makes another one.
        error = context.original_exception
        if isinstance(error, Error) and error.sqlstate is None:
            context.is_disconnect |= context.is_pre_ping or not _usable(context.connection)

    return engine


def _usable(connection: Any) -> bool:
    """Say whether a connection of psycopg still is one, so that an error was not its own."""
    if connection is None or connection.invalidated or connection.closed:
        return True  # the error was another one: of the connecting, say
    driver = connection.connection.driver_connection
    return not (driver.closed or driver.broken) and driver.info.transaction_status.name in (
        "IDLE",
        "INTRANS",
        "INERROR",
    )
