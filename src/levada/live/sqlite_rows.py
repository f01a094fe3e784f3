"""The rows of live turns in an SQLite file: what is done in one transaction, in the calling thread.

The clock is that of the machine, which all processes that have the file share.
"""

from __future__ import annotations

import hmac
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, NamedTuple

from levada.errors import UsageError
from levada.lifecycle import State
from levada.live.errors import Fenced, TurnExists, UnknownTurn
from levada.live.store import Page
from levada.live.values import (
    END_EVENT,
    ENTRIES_LOST,
    LOST_KIND,
    PRODUCER_LOST,
    Batch,
    Cursor,
    End,
    Entry,
    Options,
    Signals,
    check_cursor,
    entry_id,
    reason_of,
    size_of,
)

__all__ = ["News", "Rows"]

VERSION: Final = 2
SCHEMA: Final = (
    """CREATE TABLE live_turns (
        turn_id TEXT PRIMARY KEY, digest BLOB NOT NULL, token INTEGER NOT NULL UNIQUE, attempt TEXT NOT NULL,
        first INTEGER NOT NULL, last INTEGER NOT NULL, size INTEGER NOT NULL, batches INTEGER NOT NULL,
        state TEXT, kind TEXT, type TEXT, stop TEXT, watched_s REAL, lease_s REAL NOT NULL, lease_ends_s REAL NOT NULL,
        keep_ends_s REAL NOT NULL)""",
    "CREATE INDEX live_turns_kept ON live_turns (keep_ends_s)",
    """CREATE TABLE live_entries (
        token INTEGER NOT NULL, seq INTEGER NOT NULL, event TEXT NOT NULL, data TEXT NOT NULL,
        state TEXT, kind TEXT, type TEXT, PRIMARY KEY (token, seq))""",
)
COLUMNS: Final = (
    "digest, token, attempt, first, last, size, batches, state, kind, type, stop, watched_s, lease_s, "
    "lease_ends_s, keep_ends_s"
)
SWEPT_AT_ONCE: Final = 20  # turns forgotten with each that starts: more than come, and no long transaction
ASKED_AT_ONCE: Final = 500  # SQLite's own limit on parameters was 999 once


def _make(path: str) -> None:
    """Make the file, for its owner alone: it holds answers. What SQLite puts beside it follows its mode."""
    with suppress(OSError):  # it is there, or SQLite will tell what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


class News(NamedTuple):
    """Where a turn is, for the poller."""

    token: int
    last: int
    stop: str | None


class _Turn(NamedTuple):
    digest: bytes
    token: int
    attempt: str
    first: int
    last: int
    size: int
    batches: int
    state: str | None
    kind: str | None
    type: str | None
    stop: str | None
    watched_s: float | None
    lease_s: float
    lease_ends_s: float
    keep_ends_s: float

    @property
    def end(self) -> End | None:
        return None if self.state is None else End(State(self.state), self.kind, self.type)

    def signals(self, now_s: float) -> Signals:
        return Signals(self.stop, None if self.watched_s is None else max(0.0, now_s - self.watched_s))


class Rows:
    """One connection, for one thread. `clock`: the time in seconds, for all who share the file."""

    def __init__(self, path: str, options: Options, *, busy_s: float, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._clock = clock
        self._version = -1  # of the file, when `news` looked last
        _make(path)
        self._db = sqlite3.connect(path, timeout=busy_s, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")  # a power cut may take the last batches, whole
            self._prepare()
            self._path, self._file = path, _file_at(path)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def is_another_file(self) -> bool:
        """Say whether the file was deleted or replaced since it was opened."""
        return _file_at(self._path) != self._file

    def check(self) -> None:
        self._db.execute("SELECT count(*) FROM live_turns WHERE turn_id = ''").fetchone()

    def start(self, turn_id: str, digest: bytes, attempt: str) -> int:
        with self._writing() as now_s:
            self._sweep(now_s)
            turn = self._get(turn_id, now_s)
            if turn is not None:
                if turn.attempt == attempt:
                    return turn.token
                raise TurnExists(turn_id)
            (newest,) = self._db.execute("SELECT max(token) FROM live_turns").fetchone()
            token = max(time.time_ns(), (newest or 0) + 1)
            lease_ends_s = now_s + self._options.lease_s
            self._db.execute(
                f"INSERT OR REPLACE INTO live_turns (turn_id, {COLUMNS}) "
                "VALUES (?, ?, ?, ?, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, ?, ?, ?)",
                (
                    turn_id,
                    digest,
                    token,
                    attempt,
                    self._options.lease_s,
                    lease_ends_s,
                    lease_ends_s + self._options.keep_s,
                ),
            )
            return token

    def write(self, turn_id: str, token: int, batch: Batch) -> Signals:
        lost = False
        with self._writing() as now_s:
            turn = self._own(turn_id, token, now_s)
            if batch.number <= turn.batches:  # a repeat, however late it arrives
                return turn.signals(now_s)
            if turn.end is not None:
                raise Fenced(turn_id, token, reason_of(turn.end))
            if (turn.batches, turn.last) != (batch.number - 1, batch.before):
                self._finish(turn, End(State.ERROR, LOST_KIND, ENTRIES_LOST), now_s)
                lost = True
            else:
                self._add(turn, batch.entries, batch.end, now_s, batch.number)
        if lost:
            raise Fenced(turn_id, token, reason_of(End(State.ERROR, LOST_KIND, ENTRIES_LOST)))
        return turn.signals(now_s)

    def renew(self, turn_id: str, token: int) -> Signals:
        with self._writing() as now_s:
            turn = self._own(turn_id, token, now_s)
            if turn.end is not None:
                raise Fenced(turn_id, token, reason_of(turn.end))
            lease_ends_s = now_s + self._options.lease_s
            self._db.execute(
                "UPDATE live_turns SET lease_ends_s = ?, keep_ends_s = ? WHERE token = ?",
                (lease_ends_s, lease_ends_s + self._options.keep_s, token),
            )
            return turn.signals(now_s)

    def notice(self, turn_id: str, digest: bytes, mark: bool, stale: float) -> None:
        """Note that a reader is there, and whether the lease ran out."""
        with self._writing() as now_s:
            turn = self._known(turn_id, digest, now_s)
            if mark:
                self._db.execute("UPDATE live_turns SET watched_s = ? WHERE token = ?", (now_s, turn.token))
            if turn.end is None and (now_s > turn.lease_ends_s or turn.lease_ends_s == stale):
                self._finish(turn, End(State.ERROR, LOST_KIND, PRODUCER_LOST), now_s)

    def page(self, turn_id: str, digest: bytes, after: Cursor, entries: bool) -> Page:
        with self._reading() as now_s:
            turn = self._known(turn_id, digest, now_s)
            found: list[Entry] = []
            if entries:
                check_cursor(turn_id, after, turn.token, turn.first, turn.last)
                found = self._entries(turn.token, after.seq)
            lease_s = turn.lease_ends_s - now_s if turn.end is None else float("inf")
            return Page(turn.token, turn.last, turn.end, turn.stop, lease_s, turn.lease_ends_s, turn.lease_s, found)

    def stop(self, turn_id: str, digest: bytes, by: str) -> End | None:
        with self._writing() as now_s:
            turn = self._known(turn_id, digest, now_s)
            if turn.end is None and turn.stop is None:
                self._db.execute("UPDATE live_turns SET stop = ? WHERE token = ?", (by, turn.token))
            return turn.end

    def news(self, turn_ids: Sequence[str], *, whatever: bool) -> dict[str, News] | None:
        """Return where these turns are; None where nobody wrote to the file since, unless `whatever`."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        if version == self._version and not whatever:
            return None
        self._version = version
        found: dict[str, News] = {}
        for at in range(0, len(turn_ids), ASKED_AT_ONCE):
            some = turn_ids[at : at + ASKED_AT_ONCE]
            marks = ", ".join("?" * len(some))
            rows = self._db.execute(
                f"SELECT turn_id, token, last, stop FROM live_turns WHERE turn_id IN ({marks})", some
            )
            found.update((turn_id, News(*rest)) for turn_id, *rest in rows)
        return found

    def _prepare(self) -> None:
        """Make the tables, where they are not there."""
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            with self._writing():
                (version,) = self._db.execute("PRAGMA user_version").fetchone()  # another process may have been faster
                if version == 0:
                    if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                        raise UsageError("this SQLite file holds something else; give live turns a file of their own")
                    for statement in SCHEMA:
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version = {VERSION}")
                    version = VERSION
        ours = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'live_turns'").fetchone()
        if version != VERSION or not ours:
            raise UsageError(f"this SQLite file holds no live turns of version {VERSION}; give them one of their own")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[float]:
        self._db.execute(begin)
        try:
            yield self._clock()
        except BaseException:
            if self._db.in_transaction:  # a full disk may have ended it
                self._db.execute("ROLLBACK")
            raise
        try:
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _writing(self) -> AbstractContextManager[float]:
        return self._transaction("BEGIN IMMEDIATE")

    def _reading(self) -> AbstractContextManager[float]:
        return self._transaction("BEGIN")

    def _get(self, turn_id: str, now_s: float) -> _Turn | None:
        row = self._db.execute(f"SELECT {COLUMNS} FROM live_turns WHERE turn_id = ?", (turn_id,)).fetchone()
        turn = None if row is None else _Turn(*row)
        return None if turn is None or now_s > turn.keep_ends_s else turn

    def _known(self, turn_id: str, digest: bytes, now_s: float) -> _Turn:
        turn = self._get(turn_id, now_s)
        if turn is None or not hmac.compare_digest(turn.digest, digest):
            raise UnknownTurn(turn_id)
        return turn

    def _own(self, turn_id: str, token: int, now_s: float) -> _Turn:
        turn = self._get(turn_id, now_s)
        if turn is None:
            raise Fenced(turn_id, token, "the log does not know the turn any more")
        if turn.token != token:
            raise Fenced(turn_id, token, "another producer has the turn")
        return turn

    def _add(
        self, turn: _Turn, entries: Sequence[tuple[str, str]], end: End | None, now_s: float, batches: int
    ) -> None:
        """Add entries and take the lease again; the last of them is the terminal one where there is an `end`."""
        last = turn.last + len(entries)
        ends = [(None, None, None)] * (len(entries) - 1) + [end or (None, None, None)]
        self._db.executemany(
            "INSERT INTO live_entries VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (turn.token, turn.last + n, event, data, *how)
                for n, ((event, data), how) in enumerate(zip(entries, ends, strict=True), 1)
            ],
        )
        size = turn.size + sum(size_of(event, data) for event, data in entries)
        first, size = self._trim(turn.token, turn.first, last, size)
        lease_ends_s = now_s + self._options.lease_s
        keep_ends_s = (lease_ends_s if end is None else now_s) + self._options.keep_s
        self._db.execute(
            "UPDATE live_turns SET first = ?, last = ?, size = ?, batches = ?, state = ?, kind = ?, type = ?, "
            "lease_ends_s = ?, keep_ends_s = ? WHERE token = ?",
            (first, last, size, batches, *(end or (None, None, None)), lease_ends_s, keep_ends_s, turn.token),
        )

    def _trim(self, token: int, first: int, last: int, size: int) -> tuple[int, int]:
        """Drop the oldest entries until the rest fits the window; return its first number and size."""
        options = self._options
        if last - first < options.max_entries and size <= options.max_bytes:
            return first, size
        kept_from = first
        for event, data in self._db.execute(
            "SELECT event, data FROM live_entries WHERE token = ? AND seq >= ? ORDER BY seq", (token, first)
        ):
            if last - kept_from < options.max_entries and size <= options.max_bytes:
                break
            size -= size_of(event, data)
            kept_from += 1
        self._db.execute("DELETE FROM live_entries WHERE token = ? AND seq < ?", (token, kept_from))
        return kept_from, size

    def _finish(self, turn: _Turn, end: End, now_s: float) -> None:
        self._add(turn, [(END_EVENT, "")], end, now_s, turn.batches)

    def _entries(self, token: int, after: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        rows = self._db.execute(
            "SELECT seq, event, data, state, kind, type FROM live_entries WHERE token = ? AND seq > ? "
            "ORDER BY seq LIMIT ?",
            (token, after, self._options.page_entries),
        )
        for seq, event, data, state, kind, type in rows:
            found.append(Entry(entry_id(seq, token), event, data, None if state is None else State(state), kind, type))
            size += len(data)
            if size > self._options.page_bytes:
                break
        rows.close()
        return found

    def _sweep(self, now_s: float) -> None:
        """Forget some of the turns that are kept no longer."""
        old = self._db.execute(
            "SELECT token FROM live_turns WHERE keep_ends_s < ? LIMIT ?", (now_s, SWEPT_AT_ONCE)
        ).fetchall()
        self._db.executemany("DELETE FROM live_entries WHERE token = ?", old)
        self._db.executemany("DELETE FROM live_turns WHERE token = ?", old)


def _file_at(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
