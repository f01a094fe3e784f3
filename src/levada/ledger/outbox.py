"""The outbox's transactions: queue, take, renew, end. What is run in between is dispatching.py's business.

Rules this file keeps:
- An action is taken by one at a time: where several reach for it, PostgreSQL skips locked rows, SQLite has one writer.
- To take is to move `due_at` to the end of the lease and to raise `fence`. Who died leaves an action that is due again.
- Only the newest fence may renew an action or say what came of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, func, or_, select, union_all, update

from levada.errors import UsageError
from levada.ledger.database import Database
from levada.ledger.paging import newest_rows
from levada.ledger.schema import outbox
from levada.ledger.values import Action, DeadLetter, check_key

__all__ = ["Outbox", "Taken", "steady_s"]

MOST_ERROR_CHARS: Final = 500
MOST_AT_ONCE: Final = 500  # dead letters in one statement: databases limit its values
_KEY: Final = re.compile("(.+)/([0-9]{1,9})/([!-.0-~]+)")  # of an action; see idempotency_key
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)  # of Linux: it counts the time that a machine was suspended


def steady_s() -> float:
    """Return seconds of a clock that nobody sets, to know by it whether a lease of ours is over."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


@dataclass(frozen=True, slots=True)
class Taken:
    """An action that was taken: its row's number, our fence, and what is to be run. `attempt`: from 1.

    `since_s`: by steady_s, a moment from which the lease lasts at least as long as was asked. `silent`: whether the
    attempt before ended without a word.
    """

    since_s: float
    silent: bool
    n: int
    fence: int
    attempt: int
    turn_key: str
    position: int
    name: str
    payload: Any
    created_at: datetime


class Outbox:
    """The table of actions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def queue(self, connection: Connection, key: str, actions: Sequence[Action], now: datetime) -> None:
        """Queue the actions of a turn in the transaction that stores it."""
        common = {"turn_key": key, "state": "queued", "attempts": 0, "due_at": now, "fence": 0, "created_at": now}
        rows = [
            {**common, "position": position, "name": action.name, "payload": action.payload}
            for position, action in enumerate(actions)
        ]
        connection.execute(outbox.insert(), rows)

    def take(self, names: Collection[str], lease_s: float, holder: str) -> Taken | None:
        """Take the action that has been due for longest; None where none is due."""
        if not names:
            return None
        table = outbox.c
        # a look without the writer's lock: an idle dispatcher is in nobody's way
        with self._database.reading() as connection:
            ready = connection.execute(_names_by_due(names, self._database.now(connection))).scalars().all()
        if not ready:
            return None
        with self._database.writing() as connection:
            since_s = steady_s()  # before the database looks at its clock, and after the wait for its lock
            now = self._database.now(connection)
            for name in ready:  # none but the first, unless others took all of its actions meanwhile
                query = _due(name, now).add_columns(table.holder).with_for_update(skip_locked=True)
                if (found := connection.execute(query).first()) is not None:
                    break
            else:
                return None
            row = connection.execute(
                update(outbox)
                .where(table.n == found.n)
                .values(
                    due_at=now + timedelta(seconds=lease_s),
                    fence=table.fence + 1,
                    attempts=table.attempts + 1,
                    holder=holder,
                )
                .returning(
                    table.n, table.fence, table.attempts, table.turn_key, table.position, table.name, table.payload,
                    table.created_at,
                )
            ).one()  # fmt: skip
        # whoever says what came of an attempt takes its holder away
        return Taken(since_s, found.holder is not None, *row)

    def renew(self, taken: Taken, lease_s: float) -> float | None:
        """Move the end of the lease; return since when it is renewed, by steady_s; None where it is no longer ours."""
        with self._database.writing() as connection:
            since_s = steady_s()
            due_at = self._database.now(connection) + timedelta(seconds=lease_s)
            ours = _move(connection, taken, due_at=due_at)
        return since_s if ours else None

    def done(self, taken: Taken) -> bool:
        """Say that it was done; False where it was no longer ours to say so."""
        with self._database.writing() as connection:
            now = self._database.now(connection)
            return _move(connection, taken, state="done", ended_at=now, holder=None)

    def failed(self, taken: Taken, error_type: str, error_words: str, *, again_in_s: float | None) -> bool:
        """Say that it failed, and when to try again; None makes it a dead letter. False: no longer ours to say."""
        with self._database.writing() as connection:
            now = self._database.now(connection)
            values: dict[str, Any] = {
                "holder": None,
                "error_type": error_type[:MOST_ERROR_CHARS],
                "error_words": error_words[:MOST_ERROR_CHARS],
            }
            if again_in_s is None:
                values |= {"state": "dead", "ended_at": now}
            else:
                values |= {"due_at": now + timedelta(seconds=again_in_s)}
            return _move(connection, taken, **values)

    def died(self, taken: Taken, error_type: str, error_words: str) -> bool:
        """Say that it will not run again, and that this attempt was none. The error is of an attempt without a word."""
        with self._database.writing() as connection:
            values: dict[str, Any] = {"state": "dead", "ended_at": self._database.now(connection), "holder": None}
            if taken.silent:  # otherwise it has its last failure already
                values |= {"error_type": error_type, "error_words": error_words}
            return _move(connection, taken, attempts=taken.attempt - 1, **values)

    def give_back(self, taken: Taken) -> bool:
        """Let it be due at once, and not count this attempt: it was interrupted from our side."""
        with self._database.writing() as connection:
            now = self._database.now(connection)
            return _move(connection, taken, due_at=now, holder=None, attempts=taken.attempt - 1)

    def queued(self) -> dict[str, int]:
        """Return how many actions wait or run, by name."""
        query = select(outbox.c.name, func.count()).where(outbox.c.state == "queued").group_by(outbox.c.name)
        with self._database.reading() as connection:
            return {row.name: row[1] for row in connection.execute(query)}

    def dead_letters(self, limit: int, after: int | None) -> list[DeadLetter]:
        """Return dead letters, the newest action first."""
        query = newest_rows(outbox, limit, after, state="dead")
        with self._database.reading() as connection:
            return [_dead_letter(row) for row in connection.execute(query).mappings()]

    def retry_dead(self, idempotency_keys: Iterable[str]) -> int:
        """Queue dead letters anew; all, where none is named."""
        wanted = list(idempotency_keys)
        if len(wanted) > MOST_AT_ONCE:
            raise UsageError(
                f"{len(wanted)} dead letters at once, and {MOST_AT_ONCE} is the most; or name none for all"
            )
        with self._database.writing() as connection:
            now = self._database.now(connection)
            statement = (
                update(outbox)
                .where(outbox.c.state == "dead")
                .values(state="queued", attempts=0, due_at=now, fence=outbox.c.fence + 1, ended_at=None)
            )
            if wanted:
                statement = statement.where(or_(*map(_is, wanted)))
            return connection.execute(statement).rowcount


def idempotency_key(turn_key: str, position: int, name: str) -> str:
    """Return the key of an action: the same at each attempt, and of no other one. No name has a slash."""
    return f"{turn_key}/{position}/{name}"


def _is(key: str) -> ColumnElement[bool]:
    found = _KEY.fullmatch(key) if isinstance(key, str) else None
    if found is None:
        raise UsageError("retry_dead takes idempotency keys, as DeadLetter.idempotency_key")
    turn_key, position, name = found.groups()
    here = outbox.c
    return and_(here.turn_key == check_key(turn_key), here.position == int(position), here.name == name)


def _due(name: str, now: datetime) -> Select[Any]:
    """Return the query for the number of the action of this name that has been due for longest."""
    table = outbox.c
    query = select(table.n).where(table.state == "queued", table.name == name, table.due_at <= now)
    return query.order_by(table.due_at, table.n).limit(1)


def _names_by_due(names: Collection[str], now: datetime) -> Select[Any]:
    """Return the query for the names of which an action is due, the longest due first.

    One look into the index for each name: a million actions that somebody else is to run cost nothing.
    """
    each = [_due(name, now).add_columns(outbox.c.name, outbox.c.due_at).subquery() for name in names]
    found = union_all(*(select(one) for one in each)).subquery()
    return select(found.c.name).order_by(found.c.due_at, found.c.n)


def _move(connection: Connection, taken: Taken, **values: Any) -> bool:
    ours = (outbox.c.n == taken.n, outbox.c.fence == taken.fence, outbox.c.state == "queued")
    return connection.execute(update(outbox).where(*ours).values(**values)).rowcount == 1


def _dead_letter(row: RowMapping) -> DeadLetter:
    names = ("n", "turn_key", "name", "payload", "attempts", "error_type", "error_words", "created_at")
    return DeadLetter(
        **{name: row[name] for name in names},
        idempotency_key=idempotency_key(row["turn_key"], row["position"], row["name"]),
        died_at=row["ended_at"],
    )
