"""What is killed in test_crash.py: processes that stream turns into a ledger and dispatch their actions.

A child announces each step on a pipe before or after it is taken: each delta, each SQL statement and COMMIT
(SQLAlchemy's own events, so that the library needs no hook for it), each commit and each handler. Told to stop at a
step, it waits there for its end. Children come from multiprocessing's fork server, with all imports made: each is a
process of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import psycopg  # noqa: F401  # for the fork server: a child imports nothing
from sqlalchemy import Engine, event

from levada import Outcome, Retry, Truncated, run_turn_sync
from levada.ledger import Action, DueAction, Ledger
from levada.ledger.validators import finish_reason_in, intact, no_unfinished_tool_call, not_empty

VALIDATORS = (intact, not_empty, no_unfinished_tool_call, finish_reason_in("stop", "tool_use"))
ACTIONS = ("index", "mail")
NEVER = Retry(when="never")


@dataclass(frozen=True)
class Job:
    """One child's work. `stop_at`: the step at which it waits to be killed."""

    url: str  # of the ledger
    streams: dict[str, str]  # kind of turn -> URL of its stream
    effects: Path  # a folder: what handlers do in the world
    keys: tuple[str, ...]  # of the turns, in order; each begins with its kind
    stop_at: int | None = None
    lease_s: float = 0.5


class Steps:
    """Announces steps to the parent, and waits at one of them for the end."""

    def __init__(self, pipe: Connection, stop_at: int | None) -> None:
        self._pipe = pipe
        self._stop_at = stop_at
        self._count = 0
        self._lock = threading.Lock()  # leases are renewed by a thread

    def __call__(self, what: str, *facts: Any) -> None:
        with self._lock:
            self._pipe.send((what, *facts))
            self._count += 1
            if self._stop_at is not None and self._count >= self._stop_at:
                self._pipe.send(("here",))
                time.sleep(3600)  # with the lock: no thread takes another step


def kind_of(key: str) -> str:
    return key.partition("-")[0]


def actions_of(key: str) -> list[Action]:
    return [Action(name, {"key": key, "name": name}) for name in ACTIONS]


def announce_statements(steps: Steps) -> None:
    """Announce what goes to the database, of every engine of this process."""

    def word(statement: str) -> str:
        return " ".join(statement.split()[:1])

    @event.listens_for(Engine, "before_cursor_execute")
    def _before(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        steps(f"before {word(statement)}")

    @event.listens_for(Engine, "after_cursor_execute")
    def _after(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        steps(f"after {word(statement)}")

    @event.listens_for(Engine, "commit")
    def _commit(connection: Any) -> None:
        steps("before COMMIT")


def work(pipe: Connection, job: Job) -> None:
    """Stream each turn into the ledger, and dispatch after each."""
    steps = Steps(pipe, job.stop_at)
    announce_statements(steps)
    with Ledger.open(job.url) as ledger:
        for key in job.keys:
            run(key, job, ledger, steps)
            dispatch(job, ledger, steps)
    steps("end")


def recover(pipe: Connection, job: Job) -> None:
    """Do as a program does that comes up after a crash: ask again for each turn, and dispatch until nothing is left."""
    steps = Steps(pipe, None)
    with Ledger.open(job.url) as ledger:
        for key in job.keys:
            run(key, job, ledger, steps)
        while ledger.queued():
            dispatch(job, ledger, steps)
            time.sleep(0.02)
    steps("end")


def dispatcher(pipe: Connection, job: Job) -> None:
    """Dispatch as a process of its own, until it is killed or nothing is left."""
    steps = Steps(pipe, job.stop_at)
    announce_statements(steps)
    with Ledger.open(job.url) as ledger:
        while ledger.queued():
            dispatch(job, ledger, steps)
            time.sleep(0.02)
    steps("end")


def run(key: str, job: Job, ledger: Ledger, steps: Steps) -> None:
    @asynccontextmanager
    async def open_stream() -> AsyncIterator[httpx.Response]:
        # no TLS context: making one takes longer than a turn
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            async with client.stream("GET", job.streams[kind_of(key)]) as response:
                steps("opened", key)
                yield response

    def commit(outcome: Outcome) -> Any:
        steps("commit begins", key)
        committed = ledger.commit(outcome, key=key, validators=VALIDATORS, actions=actions_of(key))
        steps("commit ended", key, committed.status)
        return committed

    try:
        run_turn_sync(
            open_stream, "openai_chat", commit=commit, retry=NEVER, on_delta=lambda delta: steps("delta", key)
        )
    except Truncated:
        steps("truncated", key)


def dispatch(job: Job, ledger: Ledger, steps: Steps) -> None:
    def handler(action: DueAction) -> None:
        steps("handler begins", action.idempotency_key)
        name = hashlib.sha256(action.idempotency_key.encode()).hexdigest()
        with (job.effects / name).open("ab") as lock:  # the kernel lets go of it when we die
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            except BlockingIOError:
                alone = False
            with Ledger.open(job.url, read_only=True) as other:
                stored = other.get(action.turn_key) is not None
            note(job.effects, {"id": action.idempotency_key, "key": action.turn_key, "stored": stored,
                               "alone": alone, "payload": action.payload, "process": os.getpid()})  # fmt: skip
            steps("effect", action.idempotency_key)
        steps("handler ends", action.idempotency_key)

    ledger.dispatch(dict.fromkeys(ACTIONS, handler), lease_s=job.lease_s)


def note(folder: Path, effect: dict[str, Any]) -> None:
    """Write one line in one write: O_APPEND keeps lines of several processes apart."""
    file = os.open(folder / "effects.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, json.dumps(effect).encode() + b"\n")
    finally:
        os.close(file)


def noted(folder: Path) -> list[dict[str, Any]]:
    path = folder / "effects.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
