"""The ledger for asyncio: the same ledger, called in a few threads of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, Unpack

from sqlalchemy import URL

from levada.errors import StoreError, UsageError
from levada.finished import FinishedTurn
from levada.ledger.dispatching import (
    ROUND,
    Heartbeat,
    Lease,
    LeaseOptions,
    check_handlers,
    check_ran,
    check_round,
    due,
    end,
    interrupted,
    pace,
    take,
    told,
)
from levada.ledger.store import Ledger, Validator
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
)
from levada.outcome import Incomplete, Outcome, RunRecord
from levada.turn import Turn

__all__ = ["AsyncLedger"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_NO_MORE: Final = object()

MOST_AT_ONCE: Final = 200  # handlers of one dispatcher: each has a lease that one thread renews in time


class Opening:
    """What AsyncLedger.open returns: awaitable, and an async context manager that closes the ledger."""

    def __init__(self, opening: Coroutine[Any, Any, AsyncLedger]) -> None:
        self._opening = opening
        self._opened: AsyncLedger | None = None

    def __await__(self) -> Generator[Any, None, AsyncLedger]:
        return self._opening.__await__()

    async def __aenter__(self) -> AsyncLedger:
        self._opened = await self
        return self._opened

    async def __aexit__(self, *exc_info: object) -> None:
        if self._opened is not None:
            await self._opened.aclose()


class AsyncLedger:
    """A Ledger whose methods are awaited. `async with AsyncLedger.open(url) as ledger`, or await both open and aclose.

    There is one implementation: each call runs in one of `threads` threads (4), and so do validators. What has begun
    there is carried through: cancelling the task that awaits a commit neither undoes it nor waits for it. Whoever has
    to know commits again with the same key (already_stored, or stored), or lets `run_turn` commit, which waits. A call
    that has not begun when its task is cancelled never begins.
    """

    def __init__(self, ledger: Ledger, executor: ThreadPoolExecutor) -> None:
        self._ledger = ledger
        self._executor = executor
        self._closing = False
        self._dispatching: set[asyncio.Future[Any]] = set()  # what aclose waits for
        self._workers: set[asyncio.Task[Any]] = set()

    @classmethod
    def open(cls, url: str | URL = "sqlite:///turns.db", *, threads: int = 4, **options: Any) -> Opening:
        """Open the ledger at `url`, with the options of `Ledger.open`: await it, or enter it with `async with`."""
        if type(threads) is not int or not 1 <= threads <= 64:
            raise UsageError(f"threads must be an int from 1 to 64, not {threads!r:.100}")
        options.setdefault("pool_size", threads + 1)  # one for the thread that renews leases
        return Opening(cls._open(url, threads, options))

    @classmethod
    async def _open(cls, url: str | URL, threads: int, options: dict[str, Any]) -> AsyncLedger:
        executor = ThreadPoolExecutor(threads, thread_name_prefix="levada ledger")
        opening = executor.submit(Ledger.open, url, **options)
        try:
            ledger = await asyncio.shield(asyncio.wrap_future(opening))
        except BaseException:  # it failed; or we are cancelled, and it goes on
            opening.add_done_callback(_close_opened)
            executor.shutdown(wait=False)
            raise
        return cls(ledger, executor)

    async def aclose(self) -> None:
        """Wait for what has begun, and close the connections.

        Dispatchers take no more actions; their handlers go on to their end, however long, and what came of them is
        written down. To end sooner, cancel the dispatcher's task before: its handlers are cancelled with it, and their
        actions given back. A handler cannot close the ledger that waits for it: UsageError.
        """
        if asyncio.current_task() in self._workers:
            raise UsageError("a handler cannot close its ledger, which would wait for the handler")
        self._closing = True
        while self._dispatching:
            await asyncio.wait(set(self._dispatching))
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    @contextmanager
    def _in_progress(self) -> Iterator[None]:
        """Have aclose wait for this block."""
        if self._closing:
            raise UsageError("the ledger is closed")
        over = asyncio.get_running_loop().create_future()
        self._dispatching.add(over)
        try:
            yield
        finally:
            self._dispatching.discard(over)
            over.set_result(None)

    def _close(self) -> None:
        self._executor.shutdown(wait=True)
        self._ledger.close()

    async def __aenter__(self) -> AsyncLedger:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _call(self, function: Callable[_P, _T], /, *args: _P.args, **options: _P.kwargs) -> _T:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._executor, partial(function, *args, **options))
        except RuntimeError:
            raise UsageError("the ledger is closed") from None
        return await running

    async def commit(
        self,
        turn: FinishedTurn | Outcome,
        *,
        key: str,
        validators: Iterable[Validator] = (),
        actions: Iterable[Action] = (),
        allow: Iterable[str] = (),
        keep_raw: bool = False,
    ) -> Committed:
        """Do as Ledger.commit does."""
        return await self._call(
            self._ledger.commit,
            turn,
            key=key,
            validators=validators,
            actions=actions,
            allow=allow,
            keep_raw=keep_raw,
        )

    async def get(self, key: str) -> StoredTurn | None:
        """Do as Ledger.get does."""
        return await self._call(self._ledger.get, key)

    async def turns(
        self,
        *,
        model: str | None = None,
        finish_reason: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> list[StoredTurn]:
        """Do as Ledger.turns does."""
        return await self._call(
            self._ledger.turns,
            model=model,
            finish_reason=finish_reason,
            since=since,
            until=until,
            limit=limit,
            after=after,
        )

    async def each_turn(
        self,
        *,
        model: str | None = None,
        finish_reason: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[StoredTurn]:
        """Do as Ledger.each_turn does."""
        every = self._ledger.each_turn(model=model, finish_reason=finish_reason, since=since, until=until)
        while (turn := await self._call(next, every, _NO_MORE)) is not _NO_MORE:
            yield turn  # type: ignore[misc]  # next() with a default has the type of both

    async def count(
        self,
        *,
        model: str | None = None,
        finish_reason: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> int:
        """Do as Ledger.count does."""
        return await self._call(self._ledger.count, model=model, finish_reason=finish_reason, since=since, until=until)

    async def refused(self, *, key: str | None = None, limit: int = 50, after: int | None = None) -> list[RefusedTurn]:
        """Do as Ledger.refused does."""
        return await self._call(self._ledger.refused, key=key, limit=limit, after=after)

    async def keep_partial(self, turn: Turn | Incomplete, *, key: str) -> None:
        """Do as Ledger.keep_partial does. The turn is not to be fed meanwhile."""
        await self._call(self._ledger.keep_partial, turn, key=key)

    async def partials(self, *, key: str | None = None, limit: int = 50, after: int | None = None) -> list[PartialTurn]:
        """Do as Ledger.partials does."""
        return await self._call(self._ledger.partials, key=key, limit=limit, after=after)

    async def record(self, record: RunRecord, *, key: str | None = None) -> None:
        """Do as Ledger.record does."""
        await self._call(self._ledger.record, record, key=key)

    async def records(
        self, *, key: str | None = None, error_kind: str | None = None, limit: int = 50, after: int | None = None
    ) -> list[StoredRecord]:
        """Do as Ledger.records does."""
        return await self._call(self._ledger.records, key=key, error_kind=error_kind, limit=limit, after=after)

    async def dead_letters(self, *, limit: int = 50, after: int | None = None) -> list[DeadLetter]:
        """Do as Ledger.dead_letters does."""
        return await self._call(self._ledger.dead_letters, limit=limit, after=after)

    async def retry_dead(self, *idempotency_keys: str) -> int:
        """Do as Ledger.retry_dead does."""
        return await self._call(self._ledger.retry_dead, *idempotency_keys)

    async def queued(self) -> dict[str, int]:
        """Do as Ledger.queued does."""
        return await self._call(self._ledger.queued)

    async def dispatch(
        self,
        handlers: Mapping[str, Callable[[DueAction], Any]],
        *,
        limit: int = 100,
        at_once: int = 1,
        **options: Unpack[LeaseOptions],
    ) -> Dispatched:
        """Do as Ledger.dispatch does; handlers are called in the event loop and may be async, `at_once` at a time.

        Where the task is cancelled, so are the handlers, and their actions are given back.
        """
        with self._in_progress():
            came = await self._dispatch(handlers, limit, at_once, Lease(**options), None)
            return await self._call(told, self._ledger._outbox, handlers, came)

    async def run_dispatcher(
        self,
        handlers: Mapping[str, Callable[[DueAction], Any]],
        *,
        stop: asyncio.Event | None = None,
        poll_s: float = 0.5,
        max_poll_s: float = 5.0,
        at_once: int = 1,
        **options: Unpack[LeaseOptions],
    ) -> None:
        """Do as Ledger.run_dispatcher does, until `stop` is set, the task is cancelled or the ledger closed."""
        lease = Lease(**options)
        stopped = stop or asyncio.Event()
        wait_s = poll_s
        if self._closing:
            raise UsageError("the ledger is closed")
        while not stopped.is_set() and not self._closing:
            found: Counter[str] | StoreError
            try:
                with self._in_progress():
                    found = await self._dispatch(handlers, ROUND, at_once, lease, stopped)
            except StoreError as error:
                found = error
            wait_s = pace(found, wait_s, poll_s, max_poll_s)
            try:
                await asyncio.wait_for(stopped.wait(), wait_s)
            except TimeoutError:
                pass

    async def _dispatch(
        self,
        handlers: Mapping[str, Callable[[DueAction], Any]],
        limit: int,
        at_once: int,
        lease: Lease,
        stop: asyncio.Event | None,
    ) -> Counter[str]:
        check_handlers(handlers, awaits=True)
        check_round(limit)
        if type(at_once) is not int or not 1 <= at_once <= MOST_AT_ONCE:
            raise UsageError(f"at_once must be an int from 1 to {MOST_AT_ONCE}, not {at_once!r:.100}")
        outbox = self._ledger._outbox
        came: Counter[str] = Counter()
        names = list(handlers)
        left = limit

        async def work() -> None:
            nonlocal left
            while left > 0 and not self._closing and not (stop is not None and stop.is_set()):
                left -= 1
                taking = asyncio.ensure_future(self._call(take, outbox, names, lease))
                try:
                    taken, dead = await asyncio.shield(taking)
                except asyncio.CancelledError:
                    taken, _ = await taking
                    if taken is not None:
                        await self._call(outbox.give_back, taken)
                    raise
                came["dead"] += dead
                if taken is None:
                    return
                failure: BaseException | None = None
                try:
                    returned = handlers[taken.name](due(taken, heartbeat.hold(taken)))
                    check_ran(await returned if isawaitable(returned) else returned)
                except Exception as exc:
                    failure = exc
                except BaseException as exc:
                    failure = exc
                    if not _is_its_own(exc):
                        heartbeat.let_go(taken)
                        await asyncio.shield(self._call(interrupted, outbox, taken, lease, exc))
                        raise
                heartbeat.let_go(taken)
                ended = await asyncio.shield(self._call(end, outbox, taken, lease, failure))
                came[ended] += 1
                failure = None  # its traceback holds this frame

        heartbeat = Heartbeat(outbox, lease.lease_s)
        try:
            # not a TaskGroup: where one worker loses the database, the handlers of the others go on
            workers = [asyncio.ensure_future(work()) for _ in range(at_once)]
            self._workers.update(workers)
            ends = await asyncio.gather(*workers, return_exceptions=True)
        finally:
            self._workers.difference_update(workers)
            await asyncio.get_running_loop().run_in_executor(None, heartbeat.__exit__)
        for raised in ends:
            if raised is not None:
                raise raised
        return came


def _close_opened(opening: Future[Ledger]) -> None:
    """Close what nobody waits for any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _is_its_own(exc: BaseException) -> bool:
    """Say whether a handler was cancelled by its own doing, and not because its dispatcher is."""
    task = asyncio.current_task()
    return isinstance(exc, asyncio.CancelledError) and task is not None and not task.cancelling()
