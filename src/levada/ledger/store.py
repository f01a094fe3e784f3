"""The ledger: finished turns and what is to be done about them, committed together.

Rules this file keeps (docs/ledger.md):
- Only an exact FinishedTurn or Outcome is committed, and what was released is stored as its answer.
- A turn and its actions are stored in one transaction, once for each key.
- Nothing that was refused, is incomplete or failed is in the table of answers.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Unpack

from sqlalchemy import URL, Connection, func, select

from levada.errors import KeyConflict, LedgerTooLarge, StoreError, UsageError
from levada.finished import FinishedTurn
from levada.ledger.checks import Validator, allowed, bounded, not_to_act_on, reasons_of
from levada.ledger.database import Database
from levada.ledger.dispatching import ROUND, Lease, LeaseOptions, dispatch, pace, told
from levada.ledger.outbox import Outbox
from levada.ledger.paging import check_limit, filtered, newest_first, newest_rows, portions
from levada.ledger.rows import Content, partial_from, partial_row, record_from, record_row, refused_from, stored_from
from levada.ledger.schema import partials, records, refused, turns
from levada.ledger.values import (
    Action,
    Committed,
    DeadLetter,
    Dispatched,
    DueAction,
    PartialTurn,
    RefusedTurn,
    StoredRecord,
    StoredTurn,
    check_key,
)
from levada.outcome import Incomplete, Outcome, RunRecord
from levada.turn import Turn

__all__ = ["Ledger", "Validator"]

DEFAULT_BUSY_TIMEOUT_S: Final = 30.0
# 64 MiB: an answer of 30 MiB, which counts twice. A row of PostgreSQL takes 1 GiB, one of SQLite 10^9 bytes.
DEFAULT_TURN_BYTES: Final = 64 * 1024 * 1024
DEFAULT_PAYLOAD_BYTES: Final = 1024 * 1024  # an action names what to do; what it is about is in the turn
MOST_ACTIONS: Final = 1000  # of one commit
_LIGHT_PAGE: Final = 500  # rows of each_turn without their texts


class Ledger:
    """Finished turns in a database. Make one with `Ledger.open`; threads may share it.

    Each method raises StoreError where the database fails and UsageError for what makes no sense.
    """

    def __init__(self, database: Database, *, max_turn_bytes: int, max_payload_bytes: int) -> None:
        self._database = database
        self._outbox = Outbox(database)
        self._max_turn_bytes = max_turn_bytes
        self._max_payload_bytes = max_payload_bytes

    @classmethod
    def open(
        cls,
        url: str | URL = "sqlite:///turns.db",
        *,
        read_only: bool = False,
        busy_timeout_s: float = DEFAULT_BUSY_TIMEOUT_S,
        synchronous: str = "FULL",
        pool_size: int = 5,
        max_turn_bytes: int = DEFAULT_TURN_BYTES,
        max_payload_bytes: int = DEFAULT_PAYLOAD_BYTES,
        clock: Callable[[], datetime] | None = None,
    ) -> Ledger:
        """Open the ledger at `url`; make or bring forward its tables.

        `url`: sqlite:///file.db (relative), sqlite:////folder/file.db, sqlite:// (in memory, for tests) or
        postgresql+psycopg://user@host/database. `read_only`: change nothing, the tables neither. `busy_timeout_s`: how
        long to wait for other writers. `synchronous`: of SQLite; with FULL a committed turn survives a loss of power,
        with NORMAL a crash of the program. `pool_size`: connections. `max_turn_bytes`, `max_payload_bytes`: inclusive,
        of a turn with its actions as they are stored, and of one action's payload. `clock`: returns aware datetimes,
        for tests; otherwise PostgreSQL's clock, or this machine's for SQLite.
        Raises SchemaMismatch where the tables are newer than this levada.
        """
        for name, value in (
            ("pool_size", pool_size),
            ("max_turn_bytes", max_turn_bytes),
            ("max_payload_bytes", max_payload_bytes),
        ):
            if type(value) is not int or value < 1:
                raise UsageError(f"{name} must be an int from 1, not {value!r:.100}")
        if not isinstance(busy_timeout_s, (int, float)) or not 0 < busy_timeout_s <= 86_400:
            raise UsageError(f"busy_timeout_s must be a number of seconds, up to 86400, not {busy_timeout_s!r:.100}")
        database = Database(
            url,
            busy_timeout_s=busy_timeout_s,
            read_only=read_only,
            synchronous=synchronous,
            pool_size=pool_size,
            clock=clock,
        )
        return cls(database, max_turn_bytes=max_turn_bytes, max_payload_bytes=max_payload_bytes)

    def close(self) -> None:
        """Close the connections. Calls after that are UsageErrors."""
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- in ------------------------------------------------------------------------------------------------------------

    def commit(
        self,
        turn: FinishedTurn | Outcome,
        *,
        key: str,
        validators: Iterable[Validator] = (),
        actions: Iterable[Action] = (),
        allow: Iterable[str] = (),
        keep_raw: bool = False,
    ) -> Committed:
        """Store a finished turn and its actions in one transaction, once for `key`.

        `turn`: an Outcome, of which `released` is stored as the answer, or a FinishedTurn, of which all is released.
        `validators`: each is called with the finished turn, and with the released text too where it needs a second
        argument; it returns None, a reason or reasons. Any reason refuses. What a validator raises comes through, and
        nothing is stored. `actions`: to be dispatched afterwards; they need the finish reason stop or tool_use and
        every tool call complete, or the commit is refused. `allow`: what they may do without: finish reasons by name,
        and "incomplete_tool_calls". `keep_raw`: keep the provider's answer beside the released one, also of a refused
        turn.

        Committing the same again gives already_stored and queues nothing. Raises KeyConflict where the key has
        another content, LedgerTooLarge above a limit, UsageError for anything that is no finished turn.
        """
        check_key(key)
        content = self._content(turn, actions)
        exceptions = allowed(allow)
        reasons = reasons_of(validators, content.turn, content.released)
        if content.actions:
            reasons += not_to_act_on(content.turn, exceptions)
        canonical = content.canonical()
        size = content.size(canonical, keep_raw=keep_raw)
        if size > self._max_turn_bytes:
            raise LedgerTooLarge("the turn with its actions", size, self._max_turn_bytes, "max_turn_bytes")
        row = content.row(canonical, keep_raw=keep_raw)
        if reasons:
            return self._refuse(key, content, row["digest"], bounded(reasons), keep_raw)
        return self._store(key, content, row)

    def _content(self, turn: object, actions: Iterable[Action]) -> Content:
        # exact types: a subclass or a look-alike has not been made by Turn.result()
        if type(turn) is Outcome:
            finished, released, attempts, is_outcome = turn.turn, turn.released, turn.attempts, True
        elif type(turn) is FinishedTurn:
            finished, released, attempts, is_outcome = turn, turn.answer, 1, False
        else:
            raise UsageError(
                f"only a FinishedTurn or an Outcome can be committed, not {type(turn).__name__}; Turn.result() and "
                "run_turn give them once the provider has finished the turn"
            )
        if type(finished) is not FinishedTurn or type(released) is not str:
            raise UsageError("this Outcome was changed by hand; commit what run_turn returned")
        listed = tuple(actions)
        if len(listed) > MOST_ACTIONS:
            raise UsageError(f"{len(listed)} actions, and {MOST_ACTIONS} is the most for one turn")
        for action in listed:
            if type(action) is not Action:
                raise UsageError(f"actions are levada.ledger.Action(name, payload), not {type(action).__name__}")
            size = len(action.payload_json().encode())
            if size > self._max_payload_bytes:
                limit = self._max_payload_bytes
                raise LedgerTooLarge(f"the payload of action {action.name}", size, limit, "max_payload_bytes")
        return Content(finished, released, attempts, is_outcome, listed)

    def _store(self, key: str, content: Content, row: dict[str, Any]) -> Committed:
        with self._database.writing() as connection:
            now = self._database.now(connection)
            # the values apart: SQLAlchemy then compiles one statement once, which halves its own work
            insert = self._database.insert(turns).on_conflict_do_nothing(index_elements=["key"]).returning(turns.c.n)
            number = connection.execute(insert, {"key": key, "stored_at": now, **row}).scalar()
            if number is None:
                _same_or_conflict(connection, key, row["digest"])
                return Committed("already_stored", key=key)
            if content.actions:
                self._outbox.queue(connection, key, content.actions, now)
        return Committed("stored", key=key, actions=len(content.actions))

    def _refuse(self, key: str, content: Content, digest: str, reasons: tuple[str, ...], keep_raw: bool) -> Committed:
        with self._database.writing() as connection:
            if _same_or_conflict(connection, key, digest):  # it passed before; what is stored stays
                return Committed("already_stored", key=key)
            row = content.refused_row(keep_raw=keep_raw)
            now = self._database.now(connection)
            connection.execute(refused.insert().values(key=key, refused_at=now, reasons=list(reasons), **row))
        return Committed("refused", reasons, key)

    # -- out -----------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> StoredTurn | None:
        """Return the turn that is stored under `key`, or None."""
        check_key(key)
        with self._database.reading() as connection:
            row = connection.execute(select(turns).where(turns.c.key == key)).mappings().first()
            return None if row is None else stored_from(row)

    def turns(
        self,
        *,
        model: str | None = None,
        finish_reason: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> list[StoredTurn]:
        """Return stored turns, the newest first: at most `limit`, up to 1000.

        `since` (inclusive) and `until` (exclusive): aware datetimes. `after`: the `cursor` of the last turn of the page
        before; turns stored meanwhile are newer and change nothing about it.
        """
        check_limit(limit)
        query = newest_first(select(turns), model, finish_reason, since, until, after).limit(limit)
        with self._database.reading() as connection:
            return [stored_from(row) for row in connection.execute(query).mappings()]

    def each_turn(
        self,
        *,
        model: str | None = None,
        finish_reason: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[StoredTurn]:
        """Give all stored turns, the newest first, for exports: a few MiB at a time, and no transaction in between.

        Turns that are stored after the first was given are not among them.
        """
        after: str | None = None
        while True:
            light = select(turns.c.n, turns.c.stored_at, turns.c.bytes)
            query = newest_first(light, model, finish_reason, since, until, after).limit(_LIGHT_PAGE)
            with self._database.reading() as connection:
                page = connection.execute(query).all()
            if not page:
                return
            for numbers in portions(page):
                heavy = select(turns).where(turns.c.n.in_(numbers)).order_by(turns.c.stored_at.desc(), turns.c.n.desc())
                with self._database.reading() as connection:
                    rows = [stored_from(row) for row in connection.execute(heavy).mappings()]
                yield from rows
            after = f"{page[-1].stored_at.isoformat()}/{page[-1].n}"

    def count(
        self,
        *,
        model: str | None = None,
        finish_reason: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> int:
        """Return how many turns are stored."""
        query = filtered(select(func.count()).select_from(turns), model, finish_reason, since, until)
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def refused(self, *, key: str | None = None, limit: int = 50, after: int | None = None) -> list[RefusedTurn]:
        """Return commits that were refused, the newest first. `after`: the `n` of the last one of the page before."""
        query = newest_rows(refused, limit, after, key=key)
        with self._database.reading() as connection:
            return [refused_from(row) for row in connection.execute(query).mappings()]

    # -- what is no answer ---------------------------------------------------------------------------------------------

    def keep_partial(self, turn: Turn | Incomplete, *, key: str) -> None:
        """Keep the text of a turn that came to no answer, marked incomplete, in a table of its own.

        `turn`: an Incomplete, of which `released` is kept, as run_turn's `keep=` gets it; or a Turn that is not
        finished, of which the answer so far is. Each call keeps one more, for a key may have several attempts.
        """
        check_key(key)
        row = partial_row(turn)
        size = len(row["partial_text"].encode("utf-8", "surrogatepass"))
        if size > self._max_turn_bytes:
            raise LedgerTooLarge("the text of the turn", size, self._max_turn_bytes, "max_turn_bytes")
        with self._database.writing() as connection:
            now = self._database.now(connection)
            connection.execute(partials.insert().values(key=key, kept_at=now, **row))

    def partials(self, *, key: str | None = None, limit: int = 50, after: int | None = None) -> list[PartialTurn]:
        """Return what keep_partial kept, the newest first. `after`: the `n` of the last one of the page before."""
        query = newest_rows(partials, limit, after, key=key)
        with self._database.reading() as connection:
            return [partial_from(row) for row in connection.execute(query).mappings()]

    def record(self, record: RunRecord, *, key: str | None = None) -> None:
        """Store what run_turn's `on_record` gets: what became of an attempt, without any text."""
        if key is not None:
            check_key(key)
        if type(record) is not RunRecord:
            raise UsageError(f"record takes a RunRecord, not {type(record).__name__}")
        row = record_row(record)
        with self._database.writing() as connection:
            now = self._database.now(connection)
            connection.execute(records.insert().values(key=key, recorded_at=now, **row))

    def records(
        self, *, key: str | None = None, error_kind: str | None = None, limit: int = 50, after: int | None = None
    ) -> list[StoredRecord]:
        """Return records, the newest first. `after`: the `n` of the last one of the page before."""
        query = newest_rows(records, limit, after, key=key, error_kind=error_kind)
        with self._database.reading() as connection:
            return [record_from(row) for row in connection.execute(query).mappings()]

    # -- what is to be done --------------------------------------------------------------------------------------------

    def dispatch(
        self, handlers: Mapping[str, Callable[[DueAction], Any]], *, limit: int = 100, **options: Unpack[LeaseOptions]
    ) -> Dispatched:
        """Run actions that are due, one after the other, until none is or `limit` were run; say what came of them.

        `handlers`: name of an action -> a function of a DueAction. Actions under other names stay queued, and are
        counted. Where a handler returns, its action is done; where it raises, it is tried again later, `max_attempts`
        times in all (8), after `backoff_s` (1), doubled each time up to `max_backoff_s` (600), up to the part `jitter`
        (0.25) of it left out by chance; then it is a dead letter. While a handler runs, its action is leased for
        `lease_s` (30) and the lease renewed by a thread, so that no other dispatcher runs it at the same time, and so
        that another one runs it again soon if this process dies. `holder`: a name for this dispatcher, for people.
        A KeyboardInterrupt gives the action back at once and comes through; a SystemExit comes through too, and is a
        failed attempt, as any other BaseException is. Handlers are no async functions and no generators, which run
        nothing when they are called: UsageError, and one that returns such a thing has failed.
        """
        return told(self._outbox, handlers, dispatch(self._outbox, handlers, limit, Lease(**options)))

    def run_dispatcher(
        self,
        handlers: Mapping[str, Callable[[DueAction], Any]],
        *,
        stop: threading.Event,
        poll_s: float = 0.5,
        max_poll_s: float = 5.0,
        **options: Unpack[LeaseOptions],
    ) -> None:
        """Dispatch until `stop` is set; run it in a thread of its own, with the options of `dispatch`.

        It looks every `poll_s` while there is something to do, more seldom when there is not, up to `max_poll_s`. It
        outlives a database that is away (logged, without values) and ends with what else dispatch raises.
        """
        lease = Lease(**options)
        wait_s = poll_s
        while not stop.is_set():
            found: Counter[str] | StoreError
            try:
                found = dispatch(self._outbox, handlers, ROUND, lease, stop)
            except StoreError as error:
                found = error
            wait_s = pace(found, wait_s, poll_s, max_poll_s)
            stop.wait(wait_s)

    def dead_letters(self, *, limit: int = 50, after: int | None = None) -> list[DeadLetter]:
        """Return actions that are not tried any more, the newest first. `after`: the `n` of the last one before."""
        return self._outbox.dead_letters(limit, after)

    def retry_dead(self, *idempotency_keys: str) -> int:
        """Queue dead letters anew, with all their attempts: these, or all where none is named. Return how many."""
        return self._outbox.retry_dead(idempotency_keys)

    def queued(self) -> dict[str, int]:
        """Return how many actions wait or run, by name."""
        return self._outbox.queued()


def _same_or_conflict(connection: Connection, key: str, digest: str) -> bool:
    """Say whether this very content is stored under `key`. Raises KeyConflict for another one."""
    stored = connection.execute(select(turns.c.digest).where(turns.c.key == key)).scalar()
    if stored is not None and stored != digest:
        raise KeyConflict(key)
    return stored is not None
