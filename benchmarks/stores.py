"""What a store costs beside its plain driver, which does the same statements in the same transactions.

A row races two sides on one kind of database, each on a database of its own: levada, and the driver alone, which is
given statements and values that levada recorded beforehand, so that all that it saves is levada's own work. Durability
is that of the database's settings, the same for both. Before any clock starts, both do some and their databases are
compared. Time is the wall's: a store waits for its disk and its server, and so does whoever uses it.

To add a row: a function that yields two sides, and its name in ROWS. One that needs a server raises UnavailableError.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final, Protocol

from benchmarks.measure import Ratio
from benchmarks.rivals import UnavailableError

CHECKED: Final = 3  # items that both sides do before any clock starts
ITEMS: Final = 50  # in a turn of one side: some 50 ms at least, so that one slow sync of the disk weighs little


class Side(Protocol):
    """One side of a race on a database."""

    name: str
    version: str
    how: str

    def run(self, first: int, count: int) -> None:
        """Do the items from number `first` on, one after the other."""

    def state(self) -> Any:
        """Return what a reader of its database finds, to be compared. Not timed."""


@dataclass(frozen=True)
class Row:
    """A race of ours against the plain driver. `of`: what an item is. `sides`: yields ours, then the plain one."""

    of: str
    sides: Callable[[], AbstractContextManager[tuple[Side, Side]]]


@dataclass(frozen=True)
class Race:
    """What a race came to. `ratio`: the time of ours in times of the plain driver's."""

    name: str
    of: str
    ours: str
    plain: str
    how: str
    per_second: float  # of ours, the median
    ratio: Ratio | None  # None where `fault` says why
    fault: str | None = None


def race(name: str, *, series: int, rounds: int, items: int = ITEMS) -> Race:
    """Run one row. Raises UnavailableError where it cannot be run here."""
    row = ROWS[name]
    with row.sides() as (ours, plain):
        done = {id(side): 0 for side in (ours, plain)}

        def turn(side: Side, count: int) -> float:
            first = done[id(side)]
            done[id(side)] += count
            begun = perf_counter()
            side.run(first, count)
            return (perf_counter() - begun) / count

        for side in (ours, plain):
            turn(side, CHECKED)
        labels = f"{ours.name} {ours.version}".strip(), f"{plain.name} {plain.version}".strip()
        if ours.state() != plain.state():
            return Race(name, row.of, *labels, plain.how, 0.0, None, "the two databases differ")
        rng = random.Random(0)
        times: list[float] = []
        ratios: list[list[float]] = []
        for side in (ours, plain):
            turn(side, items)  # pages, plans and caches
        for _ in range(series):
            ratios.append([])
            for _ in range(rounds):
                took = {id(side): turn(side, items) for side in rng.sample((ours, plain), 2)}
                times.append(took[id(ours)])
                ratios[-1].append(took[id(ours)] / took[id(plain)])
    every = [ratio for one in ratios for ratio in one]
    ratio = Ratio(tuple(median(one) for one in ratios), min(every), max(every))
    return Race(name, row.of, *labels, plain.how, 1 / median(times), ratio)


# -- the ledger --------------------------------------------------------------------------------------------------------

_KEY: Final = "the key of the recorded commit"
_ANSWER: Final = "Uma levada é um canal de água estreito — 山を流れる水 💧. " * 20


def _turn() -> Any:
    """Return a finished turn of about 1,200 characters, with a call and usage."""
    call = '{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{\\"place\\":\\"Santana\\"}"}}'
    events = [
        f'{{"id":"c1","model":"m","choices":[{{"index":0,"delta":{{"content":"{_ANSWER}"}}}}]}}',
        f'{{"choices":[{{"index":0,"delta":{{"tool_calls":[{call}]}},"finish_reason":"tool_calls"}}]}}',
        '{"choices":[],"usage":{"prompt_tokens":118,"completion_tokens":57,"total_tokens":175}}',
        "[DONE]",
    ]
    turn = import_module("levada").Turn("openai_chat")
    turn.feed("".join(f"data: {event}\n\n" for event in events).encode())
    turn.eof(clean=True)
    return turn.result()


class LedgerCommits:
    """Ledger.commit of a finished turn with one action."""

    name, version = "levada Ledger.commit", "this tree"
    how = "Ledger.commit(turn, key=…, actions=[Action(…)]) in a loop, with all that the ledger checks and encodes"

    def __init__(self, url: str) -> None:
        ledger = import_module("levada.ledger")
        self._ledger = ledger.Ledger.open(url)
        self._actions = [ledger.Action("mail", {"to": "somebody"})]
        self._finished = _turn()

    def run(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.commit(f"key {number}")

    def commit(self, key: str) -> None:
        assert self._ledger.commit(self._finished, key=key, actions=self._actions).status == "stored"

    def state(self) -> Any:
        return _state(self._ledger)

    def recorded(self) -> list[tuple[str, Any]]:
        """Return the statements of one commit and their values, as the driver gets them."""
        from sqlalchemy import event

        statements: list[tuple[str, Any]] = []
        engine = self._ledger._database.engine

        def record(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
            assert not many, "a plain driver would be given executemany"
            statements.append((statement, parameters))

        event.listen(engine, "before_cursor_execute", record)
        self.commit(_KEY)
        event.remove(engine, "before_cursor_execute", record)
        return statements

    def close(self) -> None:
        self._ledger.close()


class PlainDriver:
    """The same statements, by a driver of the DB API."""

    def __init__(self, name: str, version: str, how: str, url: str, connection: Any, statements: list[Any]) -> None:
        self.name, self.version, self.how = name, version, how
        self._url, self._connection, self._statements = url, connection, statements

    def run(self, first: int, count: int) -> None:
        cursor, commit = self._connection.cursor(), self._connection.commit
        for number in range(first, first + count):
            key = f"key {number}"
            for statement, values in self._statements:
                cursor.execute(statement, _with_key(values, key))
                if cursor.description is not None:
                    cursor.fetchall()
            commit()

    def state(self) -> Any:
        with import_module("levada.ledger").Ledger.open(self._url) as ledger:
            return _state(ledger)


def _with_key(values: Any, key: str) -> Any:
    if isinstance(values, dict):
        return {name: key if value == _KEY else value for name, value in values.items()}
    return tuple(key if value == _KEY else value for value in values)


def _state(ledger: Any) -> Any:
    stored = sorted((turn.key, turn.answer, turn.tool_calls, turn.usage, turn.parts) for turn in ledger.turns())
    return [one for one in stored if one[0] != _KEY], set(ledger.queued())


@contextmanager
def _ledger_on_sqlite() -> Iterator[tuple[Side, Side]]:
    sqlite3 = import_module("sqlite3")
    with tempfile.TemporaryDirectory(prefix="levada-") as folder, ExitStack() as stack:
        urls = [f"sqlite:///{folder}/{name}.db" for name in ("ours", "plain", "scratch")]
        ours, statements = _ours(urls, stack)
        connection = sqlite3.connect(Path(folder, "plain.db"), isolation_level=None)
        stack.callback(connection.close)
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")  # as the ledger's; WAL is the file's own
        how = "cursor.execute of the recorded statements and COMMIT; WAL, synchronous=FULL"
        yield ours, PlainDriver("sqlite3", sqlite3.sqlite_version, how, urls[1], connection, statements)


@contextmanager
def _ledger_on_postgres() -> Iterator[tuple[Side, Side]]:
    psycopg = _module("psycopg")
    with ExitStack() as stack:
        server = stack.enter_context(_postgres())
        urls = [stack.enter_context(_database(server)) for _ in range(3)]
        ours, statements = _ours(urls, stack)
        connection = psycopg.connect(urls[1].replace("postgresql+psycopg://", "postgresql://"))
        stack.callback(connection.close)
        fsync, commit = (connection.execute(f"SHOW {name}").fetchone()[0] for name in ("fsync", "synchronous_commit"))
        version = f"{metadata.version('psycopg')} on PostgreSQL {connection.info.server_version // 10_000}"
        how = f"cursor.execute of the recorded statements and commit(); fsync={fsync}, synchronous_commit={commit}"
        connection.rollback()
        yield ours, PlainDriver("psycopg", version, how, urls[1], connection, statements)


def _ours(urls: list[str], stack: ExitStack) -> tuple[LedgerCommits, list[tuple[str, Any]]]:
    """Return our side on the first database, and what a commit says to its driver, recorded on the last one."""
    _module("sqlalchemy")
    ours, plain, scratch = (LedgerCommits(url) for url in urls)
    for one in (ours, plain, scratch):
        stack.callback(one.close)
    statements = scratch.recorded()
    plain.close()  # it made the tables
    return ours, statements


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UnavailableError(f"not installed: {error}") from None


@contextmanager
def _postgres() -> Iterator[str]:
    """Give a server: that of LEVADA_POSTGRES_URL, or one of our own, which syncs to its disk as any does."""
    if url := os.environ.get("LEVADA_POSTGRES_URL"):
        yield url
        return
    pytest, servers = _module("pytest"), _module("tests.servers")
    with ExitStack() as stack:
        try:
            server = stack.enter_context(servers.running_postgres(fsync="on"))
        except pytest.skip.Exception as missing:
            raise UnavailableError(str(missing)) from None
        yield server.url


def _database(server: str) -> AbstractContextManager[str]:
    found: AbstractContextManager[str] = _module("tests.servers").database(server)
    return found


ROWS: Final[dict[str, Row]] = {
    "ledger on SQLite": Row("commits", _ledger_on_sqlite),
    "ledger on PostgreSQL": Row("commits", _ledger_on_postgres),
}
