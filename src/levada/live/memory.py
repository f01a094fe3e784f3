"""Live turns in the memory of one process."""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from levada.lifecycle import State
from levada.live.errors import Fenced, LiveLimit, TurnExists, UnknownTurn
from levada.live.store import Page
from levada.live.topics import Topics
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

__all__ = ["MemoryStore"]

SWEEP_EVERY_S: Final = 1.0


@dataclass(slots=True)
class _Turn:
    digest: bytes
    token: int
    attempt: str
    lease_s: float
    lease_ends_s: float
    keep_ends_s: float
    entries: dict[int, Entry] = field(default_factory=dict)  # by number: the oldest goes and the rest stays cheaply
    first: int = 1  # the number of the oldest that is kept
    last: int = 0
    size: int = 0  # in bytes
    batches: int = 0
    end: End | None = None
    stop: str | None = None
    watched_s: float | None = None
    held: int = 0  # by logs whose readers are here

    def is_over(self, now_s: float) -> bool:
        """Say whether it is kept no longer."""
        return now_s > self.keep_ends_s and not self.held


class _Shelf:
    """The turns that all logs of one name share."""

    def __init__(self) -> None:
        self.turns: dict[str, _Turn] = {}
        self.stores: WeakSet[MemoryStore] = WeakSet()
        self.token = 0
        self.swept_s = 0.0


_NAMED: WeakValueDictionary[str, _Shelf] = WeakValueDictionary()


class MemoryStore:
    """Turns in memory. `name`: shared by all that say it; "" is shared by none."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = "memory"
        self.topics = Topics()
        self._options = options
        self._shelf = _NAMED.setdefault(name, _Shelf()) if name else _Shelf()
        self._shelf.stores.add(self)
        self._held: dict[str, _Turn] = {}
        self.topics.watch, self.topics.unwatch = self._hold, self._let_go

    async def check(self) -> None:
        return

    async def aclose(self) -> None:
        self._shelf.stores.discard(self)

    async def start(self, turn_id: str, digest: bytes, attempt: str) -> int:
        shelf, options, now_s = self._shelf, self._options, time.monotonic()
        self._sweep(now_s)
        if (turn := self._get(turn_id, now_s)) is not None:
            if turn.attempt == attempt:
                return turn.token
            raise TurnExists(turn_id)
        if len(shelf.turns) >= options.max_turns:
            raise LiveLimit("turns in memory", len(shelf.turns) + 1, options.max_turns, "max_turns")
        shelf.token = max(shelf.token + 1, time.time_ns())
        turn = shelf.turns[turn_id] = _Turn(digest, shelf.token, attempt, options.lease_s, 0, 0)
        self._take_lease(turn, now_s)
        return turn.token

    async def write(self, turn_id: str, token: int, batch: Batch) -> Signals:
        now_s = time.monotonic()
        turn = self._own(turn_id, token, now_s)
        if batch.number <= turn.batches:  # a repeat, however late it arrives
            return _signals(turn, now_s)
        if turn.end is not None:
            raise Fenced(turn_id, token, reason_of(turn.end))
        if (turn.batches, turn.last) != (batch.number - 1, batch.before):
            self._finish(turn_id, turn, End(State.ERROR, LOST_KIND, ENTRIES_LOST), now_s)
            raise Fenced(turn_id, token, reason_of(End(State.ERROR, LOST_KIND, ENTRIES_LOST)))
        last = len(batch.entries) - 1
        added: list[Entry] = []
        for n, (event, data) in enumerate(batch.entries):
            end = batch.end if n == last else None
            added.append(self._add(turn, event, data, end))
        turn.batches = batch.number
        options = self._options
        while turn.last - turn.first >= options.max_entries or turn.size > options.max_bytes:
            gone = turn.entries.pop(turn.first)
            turn.first += 1
            turn.size -= size_of(gone.event, gone.data)
        self._take_lease(turn, now_s)
        if turn.end is not None:
            turn.keep_ends_s = now_s + options.keep_s
        self._tell(turn_id, turn, added)
        return _signals(turn, now_s)

    async def renew(self, turn_id: str, token: int) -> Signals:
        now_s = time.monotonic()
        turn = self._own(turn_id, token, now_s)
        if turn.end is not None:
            raise Fenced(turn_id, token, reason_of(turn.end))
        self._take_lease(turn, now_s)
        return _signals(turn, now_s)

    async def page(
        self, turn_id: str, digest: bytes, after: Cursor, *, mark: bool, entries: bool = True, stale: float = 0
    ) -> Page:
        await asyncio.sleep(0)  # a reader of a long turn lets others run
        now_s = time.monotonic()
        turn = self._known(turn_id, digest, now_s)
        if turn.end is None and (now_s > turn.lease_ends_s or turn.lease_ends_s == stale):
            self._finish(turn_id, turn, End(State.ERROR, LOST_KIND, PRODUCER_LOST), now_s)
        if mark:
            turn.watched_s = now_s
        found: list[Entry] = []
        if entries:
            check_cursor(turn_id, after, turn.token, turn.first, turn.last)
            size, most = 0, self._options.page_entries
            for seq in range(after.seq + 1, min(turn.last, after.seq + most) + 1):
                found.append(turn.entries[seq])
                size += len(found[-1].data)
                if size > self._options.page_bytes:
                    break
        lease_s = turn.lease_ends_s - now_s if turn.end is None else float("inf")
        return Page(turn.token, turn.last, turn.end, turn.stop, lease_s, turn.lease_ends_s, turn.lease_s, found)

    async def stop(self, turn_id: str, digest: bytes, by: str) -> End | None:
        turn = self._known(turn_id, digest, time.monotonic())
        if turn.end is None:
            turn.stop = turn.stop or by
            for store in self._shelf.stores:
                if (topic := store.topics.get(turn_id)) is not None:
                    topic.asked_to_stop(turn.stop)
        return turn.end

    def _hold(self, turn_id: str) -> None:
        """Keep a turn as long as somebody here reads it, however slowly."""
        turn = self._get(turn_id, time.monotonic())
        if turn is not None:
            turn.held += 1
            self._held[turn_id] = turn

    def _let_go(self, turn_id: str) -> None:
        if (turn := self._held.pop(turn_id, None)) is not None:
            turn.held -= 1

    def _get(self, turn_id: str, now_s: float) -> _Turn | None:
        turn = self._shelf.turns.get(turn_id)
        if turn is not None and turn.is_over(now_s):
            del self._shelf.turns[turn_id]
            return None
        return turn

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

    def _take_lease(self, turn: _Turn, now_s: float) -> None:
        turn.lease_ends_s = now_s + self._options.lease_s
        turn.keep_ends_s = turn.lease_ends_s + self._options.keep_s

    def _add(self, turn: _Turn, event: str, data: str, end: End | None) -> Entry:
        turn.last += 1
        turn.size += size_of(event, data)
        entry = turn.entries[turn.last] = Entry(entry_id(turn.last, turn.token), event, data, *(end or ()))
        turn.end = end
        return entry

    def _finish(self, turn_id: str, turn: _Turn, end: End, now_s: float) -> None:
        entry = self._add(turn, END_EVENT, "", end)
        turn.keep_ends_s = now_s + self._options.keep_s
        self._tell(turn_id, turn, [entry])

    def _tell(self, turn_id: str, turn: _Turn, added: list[Entry]) -> None:
        """Hand the new entries to all readers at once, so that none of them asks for a page."""
        for store in self._shelf.stores:
            if (topic := store.topics.get(turn_id)) is not None:
                topic.push(turn.token, turn.last - len(added) + 1, added)

    def _sweep(self, now_s: float) -> None:
        """Forget the turns that are kept no longer, now and then, so that their memory comes back."""
        shelf = self._shelf
        if now_s - shelf.swept_s < SWEEP_EVERY_S and len(shelf.turns) < self._options.max_turns:
            return
        shelf.swept_s = now_s
        for turn_id in [turn_id for turn_id, turn in shelf.turns.items() if turn.is_over(now_s)]:
            del shelf.turns[turn_id]


def _signals(turn: _Turn, now_s: float) -> Signals:
    return Signals(turn.stop, None if turn.watched_s is None else now_s - turn.watched_s)
