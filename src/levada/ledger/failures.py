"""What a database's failure means for whoever uses the ledger: a reason, words without values, another try or not."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from levada.errors import StoreError

__all__ = ["translated"]

# SQLite's result codes by their beginning (sqlite.org/rescode.html, read 2026-11).
_SQLITE: Final = {
    "SQLITE_BUSY": ("busy", "other writers held the database for longer than busy_timeout_s", True),
    "SQLITE_LOCKED": ("busy", "another connection holds a table", True),
    "SQLITE_FULL": ("full", "there is no room left for the database; nothing of this call was stored", True),
    "SQLITE_READONLY": ("read_only", "the file of the ledger, or its directory, may not be written", False),
    "SQLITE_CANTOPEN": (
        "denied",
        "the file of the ledger, or one that SQLite puts beside it, cannot be opened; is it there, and may its "
        "directory be written?",
        False,
    ),
    "SQLITE_PERM": ("denied", "the file of the ledger may not be opened", False),
    "SQLITE_NOTADB": ("not_a_database", "the file is no SQLite database; name another one", False),
    "SQLITE_CORRUPT": ("corrupt", "the file of the ledger is damaged; see `.recover` of the sqlite3 shell", False),
    "SQLITE_TOOBIG": ("too_large", "a value is larger than SQLite takes", False),
    "SQLITE_IOERR": ("other", "the disk failed; nothing of this call was stored", True),
}

# PostgreSQL's SQLSTATE by its beginning, the longest first (Appendix A of its manual, read 2026-11).
_POSTGRES: Final = {
    "53100": ("full", "there is no room left for the database; nothing of this call was stored", True),
    # in a failover this server may be the standby for a moment; a ledger opened with read_only does not come to here
    "25006": ("read_only", "the database may not be written, or not now", True),
    "25P03": ("unreachable", "the server ended a transaction that was idle for too long", True),
    "3D000": ("missing", "there is no such database", False),
    "42501": ("denied", "the user of the database may not do this", False),
    "55P03": ("busy", "a lock was held for longer than busy_timeout_s", True),
    "54": ("too_large", "a value is larger than PostgreSQL takes", False),
    "40": ("conflict", "the database took the transaction back because of another one", True),
    "53": ("busy", "the server has no room for another connection", True),
    "57014": ("busy", "the server broke a statement off: it lasted longer than its statement_timeout", True),
    "57": ("unreachable", "the server is going down or coming up", True),
    "08": ("unreachable", "the connection to the server failed", True),
    "28": ("denied", "the server does not let this user in", False),
    "XX": ("corrupt", "the server reports damaged data or a fault of its own", False),
}

# Where a connection is refused, libpq gives the server's words without its SQLSTATE. Another language is unreachable.
_REFUSALS: Final[dict[str, tuple[str, str, bool]]] = {
    "authentication failed": ("denied", "the server refuses our user or password", False),
    "no pg_hba.conf entry": ("denied", "the server lets nobody in with this user, host and database", False),
    'FATAL:  role "': ("denied", "the server does not know our user", False),
    'FATAL:  database "': ("missing", "the server has no such database; make it first", False),
    "could not translate host name": ("unreachable", "the server's host name does not resolve", True),
}


@contextmanager
def translated() -> Iterator[None]:
    """Raise StoreError for what the database raises. Its own words and statements may hold text, so they end here."""
    try:
        yield
    except sqlite3.Error as error:
        failure = _of_sqlite(error)
    except PoolTimeout:
        failure = StoreError("busy", "no connection was free within busy_timeout_s; raise pool_size", True)
    except DBAPIError as error:
        original = error.orig
        failure = _of_sqlite(original) if isinstance(original, sqlite3.Error) else _of_postgres(error)
    except SQLAlchemyError as error:
        failure = StoreError("other", type(error).__name__)
    except (json.JSONDecodeError, UnicodeDecodeError, msgspec.ValidationError):
        failure = StoreError("corrupt", "a row of the ledger is damaged, or was changed by something else")
    else:
        return
    try:
        raise failure from None
    except StoreError:
        # the with statement sets it all the same, and the statement's values hang on it
        failure.__context__ = None
        raise


def _of_sqlite(error: sqlite3.Error) -> StoreError:
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    for beginning, (reason, words, retryable) in _SQLITE.items():
        if name.startswith(beginning):
            return StoreError(reason, f"{words} ({name})", retryable)
    if str(error).startswith("Could not decode to UTF-8"):  # the driver's own, without a code
        return StoreError("corrupt", "a text in the ledger is damaged; see `.recover` of the sqlite3 shell")
    return StoreError("other", f"SQLite reports {name}")


def _of_postgres(error: DBAPIError) -> StoreError:
    state = getattr(error.orig, "sqlstate", None)
    if state is None:  # no answer of the server, so its connection
        name = type(error.orig).__name__
        if name == "OperationalError":
            words = str(error.orig)
            for said, (reason, why, retryable) in _REFUSALS.items():
                if said in words:
                    return StoreError(reason, why, retryable)
        if error.connection_invalidated or name in ("OperationalError", "InterfaceError", "InternalError"):
            return StoreError("unreachable", "the connection to the server failed", True)
        return StoreError("other", f"the driver reports {name}; are the options in the URL right?")
    for length in (5, 2):
        if found := _POSTGRES.get(state[:length]):
            reason, words, retryable = found
            return StoreError(reason, f"{words} (SQLSTATE {state})", retryable)
    return StoreError("other", f"PostgreSQL reports SQLSTATE {state}")
