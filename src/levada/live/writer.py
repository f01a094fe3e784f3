"""The producer's side of a live turn.

Rules this file keeps:
- A batch is written whole, in order, and once, whatever connections break in between: it is numbered, and stays with
  the writer until the store has confirmed it. One whose append was cancelled goes before the next. A number stands for
  the same entries for ever, so that it does not matter which copy of a batch arrives, nor when.
- Once fenced, or once the store was away for longer than the patience, the writer is spent: every later call raises an
  equal error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import TypeVar

from levada.errors import UsageError
from levada.live.errors import Fenced, LiveLimit, LiveLogUnavailable, TurnClosed
from levada.live.patience import patiently
from levada.live.store import Store
from levada.live.values import END_EVENT, Batch, End, Options, Signals, checked_end, checked_entry, entry_id

__all__ = ["Writer"]

T = TypeVar("T")


class Writer:
    """The one producer of a turn, from `LiveLog.start`. Its calls may come from several tasks; they are put in order.

    `turn_id`. `token`: the fencing token, larger than that of any earlier turn of this id. `renew_every_s`: how often
    to call `renew` when nothing is appended. `stop`: who asked the turn to stop, as far as heard, else None.
    """

    def __init__(self, store: Store, options: Options, turn_id: str, token: int) -> None:
        self.turn_id = turn_id
        self.token = token
        self.renew_every_s = options.lease_s / 3
        self.stop: str | None = None
        self._store = store
        self._options = options
        self._lock = asyncio.Lock()
        self._batches = 0  # handed over
        self._seq = 0  # the number of the last entry that was handed over
        self._pending: deque[Batch] = deque()
        self._pending_bytes = 0
        self._closed: End | None = None
        self._spent: Fenced | LiveLogUnavailable | None = None

    @property
    def last_id(self) -> str:
        """The id of the last entry that was handed over; before the first one, of the place before it."""
        return entry_id(self._seq, self.token)

    async def append(self, entries: Iterable[tuple[str, str]]) -> list[str]:
        """Write (event, data) pairs at once, in one round trip, and take the lease again; return their ids.

        Once called, it is done even if the waiting is cancelled: what is not yet written goes with the next call.
        Raises Fenced, TurnClosed, LiveLimit, LiveLogUnavailable; UsageError for what is no entry.
        """
        checked = self._checked(entries)
        self._check_spent()
        self._check_open()
        if not checked:
            return []
        batch = self._hand_over(checked)
        await self._settle()
        return [entry_id(batch.before + n, self.token) for n in range(1, len(checked) + 1)]

    async def renew(self) -> Signals:
        """Take the lease again; say whether to stop, and when a reader was last there. Cheap.

        Raises Fenced, TurnClosed, LiveLogUnavailable.
        """
        await self._settle()
        self._check_open()
        signals = await self._call(lambda: self._store.renew(self.turn_id, self.token))
        self.stop = self.stop or signals.stop
        return signals

    async def close(
        self,
        state: str,
        data: str = "",
        *,
        event: str = END_EVENT,
        kind: str | None = None,
        type: str | None = None,
        final: Iterable[tuple[str, str]] = (),
    ) -> str:
        """End the turn: write `final` entries and the terminal entry at once; return the terminal entry's id.

        `state`: finished, error or cancelled; `kind` and `type`: of an error. Closing again with the same state returns
        the same id. Raises Fenced, TurnClosed for another state, LiveLimit, LiveLogUnavailable; UsageError.
        """
        end = checked_end(state, kind, type)
        checked = self._checked(final, (event, data))
        self._check_spent()
        if self._closed is None:
            self._hand_over(checked, end)
            self._closed = end
        await self._settle()
        if self._closed.state != end.state:
            raise TurnClosed(self.turn_id, self._closed.state)
        return self.last_id

    async def wait_stop(self) -> str:
        """Wait until somebody asks the turn to stop; return who. It is heard at once, without your `renew`.

        It renews the lease itself, as often as is due: the store's word may be lost while a connection is made anew.
        Raises Fenced, TurnClosed, LiveLogUnavailable as `renew` does; UsageError when the log is closed.
        """
        loop, due_s = asyncio.get_running_loop(), 0.0
        with self._store.topics.seat(self.turn_id) as seat:
            while True:
                if loop.time() >= due_s:
                    await self.renew()  # at the beginning too: somebody may have asked before we sat down
                    due_s = loop.time() + self.renew_every_s
                self._store.topics.check_open()
                self.stop = self.stop or seat.topic.stop
                if self.stop is not None:
                    return self.stop
                # not for the push alone: what append and renew were told counts as well
                await seat.wait(due_s)

    def _checked(self, entries: Iterable[tuple[str, str]], *last: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        limit = self._options.max_entry_bytes
        if isinstance(entries, (str, bytes, Mapping)) or not isinstance(entries, Iterable):
            raise UsageError(f"entries are (event, data) pairs, not one {type(entries).__name__}")
        checked = tuple(checked_entry(entry, limit) for entry in (*entries, *last))
        # The kept window holds a batch whole: else readers would find a gap that nobody could have avoided.
        if len(checked) > self._options.max_entries:
            raise LiveLimit("entries of one batch", len(checked), self._options.max_entries, "max_entries")
        size = Batch(0, 0, checked).size
        if size > self._options.max_bytes:
            raise LiveLimit("bytes of one batch", size, self._options.max_bytes, "max_bytes")
        return checked

    def _hand_over(self, entries: tuple[tuple[str, str], ...], end: End | None = None) -> Batch:
        """Put a batch behind those that are not confirmed yet: the order of the calls is that of the entries."""
        batch = Batch(self._batches + 1, self._seq, entries, end)
        self._pending_bytes += batch.size
        if self._pending and self._pending_bytes > self._options.max_bytes:
            size, self._pending_bytes = self._pending_bytes, self._pending_bytes - batch.size
            raise LiveLimit("bytes that wait to be written", size, self._options.max_bytes, "max_bytes")
        self._batches += 1
        self._seq += len(entries)
        self._pending.append(batch)
        return batch

    async def _settle(self) -> None:
        """Write what is pending, oldest first."""
        async with self._lock:
            while self._pending:
                self._check_spent()
                batch = self._pending[0]
                signals = await self._call(partial(self._store.write, self.turn_id, self.token, batch))
                self._pending.popleft()
                self._pending_bytes -= batch.size
                self.stop = self.stop or signals.stop
            self._check_spent()

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        self._store.topics.check_open()
        try:
            return await patiently(self._store, self._options.patience, call)
        except (Fenced, LiveLogUnavailable) as error:
            self._spent = error
            raise

    def _check_spent(self) -> None:
        if self._spent is not None:
            raise copy(self._spent)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise TurnClosed(self.turn_id, self._closed.state)
