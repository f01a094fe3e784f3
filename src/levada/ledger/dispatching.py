"""Actions taken out of the outbox, run by their handlers, and what came of them written down.

At least once: whatever happens between a handler's return and the word of it in the database, the action runs again.
Never twice at the same time while its lease holds: a thread renews it, also while the handler blocks everything else.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypedDict

from levada.errors import StoreError, UsageError
from levada.ledger.outbox import Outbox, Taken, idempotency_key, steady_s
from levada.ledger.values import Dispatched, DueAction

__all__ = ["ROUND", "Lease", "LeaseOptions", "dispatch", "pace"]

ROUND: Final = 1000  # actions between two looks at what else run_dispatcher has to do
MOST_NAMES: Final = 400  # of handlers: each is a part of one query, and SQLite takes 500
BEATS: Final = 3  # renewals in the time of a lease: one may be late, or fail, and it holds

_log = logging.getLogger("levada.ledger")


class LeaseOptions(TypedDict, total=False):
    """The options of `dispatch`; see there."""

    lease_s: float
    max_attempts: int
    backoff_s: float
    max_backoff_s: float
    jitter: float
    chance: Callable[[], float]
    holder: str


def _this_process() -> str:
    return f"{socket.gethostname()[:100]}/{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """How long an action is taken for, and when a failed one is tried again. `chance`: from 0 to 1, for the jitter."""

    lease_s: float = 30.0
    max_attempts: int = 8
    backoff_s: float = 1.0
    max_backoff_s: float = 600.0
    jitter: float = 0.25
    chance: Callable[[], float] = random.random
    holder: str = field(default_factory=_this_process)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "float" and not (isinstance(value, (int, float)) and 0 <= value <= 31_536_000):
                raise UsageError(f"{one.name} must be a number from 0 to 31536000, not {value!r:.100}")
        if self.lease_s < 0.1:
            raise UsageError(f"lease_s must be at least 0.1, not {self.lease_s!r:.100}")
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise UsageError(f"max_attempts must be an int from 1, not {self.max_attempts!r:.100}")
        if self.jitter > 1:
            raise UsageError(f"jitter is a part, from 0 to 1, not {self.jitter!r:.100}")
        if not isinstance(self.holder, str) or not 1 <= len(self.holder) <= 200:
            raise UsageError("holder must be a str of 1 to 200 characters")

    def again_in_s(self, attempt: int) -> float | None:
        """Return how long to wait after this failed attempt, None for never again."""
        if attempt >= self.max_attempts:
            return None
        doubled_s = self.backoff_s * 2.0 ** min(attempt - 1, 64)
        return min(doubled_s, self.max_backoff_s) * (1 - self.jitter * self.chance())


@dataclass(slots=True)
class Held:
    """A lease that is renewed. `ends_s`: until when it is surely ours, by steady_s. `taken_away`: another has it."""

    taken: Taken
    ends_s: float
    taken_away: bool = False

    def lost(self) -> bool:
        """Say whether it may be another's. By the clock too: who was stopped, or hears nothing, was told nothing."""
        return self.taken_away or steady_s() >= self.ends_s


class Heartbeat:
    """A thread that renews the leases of the actions that run."""

    def __init__(self, outbox: Outbox, lease_s: float) -> None:
        self._outbox = outbox
        self._lease_s = lease_s
        self._held: dict[int, Held] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def hold(self, taken: Taken) -> Held:
        """Renew this lease from now on."""
        held = Held(taken, taken.since_s + self._lease_s)
        with self._lock:
            self._held[taken.n] = held
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="levada ledger lease", daemon=True)
            self._thread.start()
        return held

    def let_go(self, taken: Taken) -> None:
        """Renew it no more."""
        with self._lock:
            self._held.pop(taken.n, None)

    def _beat(self) -> None:
        while not self._stop.wait(self._lease_s / BEATS):
            with self._lock:
                held = list(self._held.values())
            for one in held:
                self._renew(one)

    def _renew(self, held: Held) -> None:
        try:
            since_s = self._outbox.renew(held.taken, self._lease_s)
        except Exception as exc:  # the next beat may go better
            _log.warning("a lease was not renewed: %s", type(exc).__name__)
            return
        if since_s is None:
            held.taken_away = True
        else:
            held.ends_s = since_s + self._lease_s


def check_handlers(handlers: Mapping[str, Any], *, awaits: bool = False) -> None:
    """Raise UsageError unless `handlers` maps names to functions that run when they are called, or are awaited."""
    if not isinstance(handlers, Mapping) or not all(isinstance(name, str) for name in handlers):
        raise UsageError("handlers maps names of actions to functions")
    if len(handlers) > MOST_NAMES:
        raise UsageError(f"{len(handlers)} handlers, and {MOST_NAMES} is the most for one dispatcher; have several")
    for name, handler in handlers.items():
        if not callable(handler):
            raise UsageError(f"the handler of {name:.100} is a {type(handler).__name__}, not a function")
        for function in (handler, type(handler).__call__):
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise UsageError(f"the handler of {name:.100} is a generator: calling it runs nothing")
            if not awaits and inspect.iscoroutinefunction(function):
                raise UsageError(f"the handler of {name:.100} is async, and needs the dispatch of an AsyncLedger")


def check_ran(returned: object) -> None:
    """Raise UsageError where a handler returned what has yet to run: its action is not done."""
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # it will never be awaited, and this is said here
        raise UsageError(f"the handler returned a {type(returned).__name__}, which nobody runs")


def check_round(limit: int) -> None:
    """Raise UsageError unless `limit` is a number of actions."""
    if type(limit) is not int or limit < 1:
        raise UsageError(f"limit must be an int from 1, not {limit!r:.100}")


def take(outbox: Outbox, names: list[str], lease: Lease) -> tuple[Taken | None, int]:
    """Take an action that may be run; say how many were found dead: they have had all their attempts."""
    dead = 0
    while (taken := outbox.take(names, lease.lease_s, lease.holder)) is not None and taken.attempt > lease.max_attempts:
        words = "its last attempt ended without a word: its dispatcher died, or lost its lease"
        dead += outbox.died(taken, "LeaseRanOut", words)
    return taken, dead


def due(taken: Taken, held: Held) -> DueAction:
    """Return what the handler gets."""
    return DueAction(
        idempotency_key=idempotency_key(taken.turn_key, taken.position, taken.name),
        turn_key=taken.turn_key,
        position=taken.position,
        name=taken.name,
        payload=taken.payload,
        attempt=taken.attempt,
        created_at=taken.created_at,
        _lost=held.lost,
    )


def end(outbox: Outbox, taken: Taken, lease: Lease, failure: BaseException | None) -> str:
    """Write down what came of an action, and say it: done, failed, dead or lost."""
    if failure is None:
        return "done" if outbox.done(taken) else "lost"
    again_in_s = lease.again_in_s(taken.attempt)
    ours = outbox.failed(taken, type(failure).__name__, _words(failure), again_in_s=again_in_s)
    return "lost" if not ours else "dead" if again_in_s is None else "failed"


def interrupted(outbox: Outbox, taken: Taken, lease: Lease, raised: BaseException) -> None:
    """Write down that a handler ended with what is no failure of its own, or would end any program it runs in."""
    try:
        if isinstance(raised, (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)):
            outbox.give_back(taken)
        else:  # SystemExit, say: given back at once, it would end each dispatcher again that is started
            end(outbox, taken, lease, raised)
    except StoreError as error:  # the lease will end by itself
        _log.warning("an interrupted action was not given back: %s", error.reason)


def told(outbox: Outbox, names: Mapping[str, Any], came: Mapping[str, int]) -> Dispatched:
    """Return what a call of dispatch tells: what came of its actions, and what is left."""
    left = outbox.queued()
    known = sum(count for name, count in left.items() if name in names)
    return Dispatched(**came, queued=known, unknown=sum(left.values()) - known)


def dispatch(
    outbox: Outbox,
    handlers: Mapping[str, Callable[[DueAction], Any]],
    limit: int,
    lease: Lease,
    stop: threading.Event | None = None,
) -> Counter[str]:
    """Run what is due, one after the other; return how many were done, failed, dead and lost. See Ledger.dispatch."""
    check_handlers(handlers)
    check_round(limit)
    came: Counter[str] = Counter()
    names = list(handlers)
    with Heartbeat(outbox, lease.lease_s) as heartbeat:
        for _ in range(limit):
            if stop is not None and stop.is_set():
                break
            taken, dead = take(outbox, names, lease)
            came["dead"] += dead
            if taken is None:
                break
            failure: Exception | None = None
            try:
                check_ran(handlers[taken.name](due(taken, heartbeat.hold(taken))))
            except Exception as exc:
                failure = exc
            except BaseException as exc:
                heartbeat.let_go(taken)
                interrupted(outbox, taken, lease, exc)
                raise
            heartbeat.let_go(taken)
            came[end(outbox, taken, lease, failure)] += 1
            failure = None  # its traceback holds this frame
    return came


def pace(found: Counter[str] | StoreError, waited_s: float, poll_s: float, max_poll_s: float) -> float:
    """Return how long run_dispatcher waits after a round. Raises the error that waiting does not mend."""
    if isinstance(found, StoreError):
        if not found.retryable:
            raise found
        _log.warning("the dispatcher waits for its database: %s", found.reason)
    elif found.total():
        return poll_s
    return min(waited_s * 2, max_poll_s)


def _words(failure: BaseException) -> str:
    try:
        return str(failure)
    except Exception as exc:
        return f"its words cannot be had: {type(exc).__name__}"
