"""Who in this process waits for news of which turn.

A topic is a turn that somebody here reads, or whose producer here waits to be stopped. The store says what is new
there: that something changed, or the new entries themselves. Those are kept once for all readers of the topic, and only
the newest; a reader that falls behind them asks the store for pages, so a slow one costs nothing here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from typing import Final

from levada.errors import UsageError
from levada.live.values import Cursor, Entry

__all__ = ["Seat", "Topic", "Topics"]

# Some seconds of a turn that writes every 40 ms: enough for a reader that is not slow, little for 10,000 topics.
RING_ENTRIES: Final = 64
RING_CHARACTERS: Final = 64 * 1024


class Topic:
    """The news of one turn."""

    __slots__ = ("_characters", "_first", "_lease", "_ring", "_token", "changes", "due_s", "seats", "silent_s", "stop")

    def __init__(self) -> None:
        self.seats: set[Seat] = set()
        self.changes = 0  # counts what only a page can tell
        self.due_s = float("-inf")  # when one of its readers looks after the lease, by the loop's clock
        self.silent_s = float("inf")  # when the lease that we see has run out, by the loop's clock
        self.stop: str | None = None
        self._lease = 0.0
        self._ring: deque[Entry] = deque()
        self._characters = 0
        self._token = 0
        self._first = 1  # the number of the ring's first entry

    def saw(self, lease: float, of_s: float, now_s: float) -> None:
        """Take the lease that a page told: a new one is good for `of_s` from when it was taken, which is past."""
        if lease != self._lease:
            self._lease, self.silent_s = lease, now_s + of_s

    def stale(self, now_s: float) -> float:
        """Return the lease that we see, where it has run out; else 0."""
        return self._lease if now_s >= self.silent_s else 0

    def changed(self) -> None:
        """Make every reader ask for a page."""
        self.changes += 1
        self._wake()

    def push(self, token: int, first: int, entries: Sequence[Entry]) -> None:
        """Take new entries, numbered from `first` on."""
        following = self._first + len(self._ring)
        if token != self._token or not self._first <= first <= following:
            self.forget()
            self._token, self._first, following = token, first, first
        for entry in entries[following - first :]:
            self._ring.append(entry)
            self._characters += len(entry.data)
        while len(self._ring) > RING_ENTRIES or (self._characters > RING_CHARACTERS and len(self._ring) > 1):
            self._characters -= len(self._ring.popleft().data)
            self._first += 1
        self._wake()

    def forget(self) -> None:
        """Drop the entries that are kept here: the store knows better."""
        self._ring.clear()
        self._characters = 0

    def asked_to_stop(self, by: str) -> None:
        """Tell the producer."""
        self.stop = self.stop or by
        self._wake()

    def after(self, cursor: Cursor) -> list[Entry] | None:
        """Return the newer entries; [] where none are known, None where a page has to tell."""
        if not self._ring or cursor.token > self._token:  # none, or of an earlier turn of this id
            return []
        if cursor.token == self._token and cursor.seq >= self._first + len(self._ring) - 1:
            return []
        if cursor.token != self._token or cursor.seq < self._first - 1:
            return None
        return list(islice(self._ring, cursor.seq + 1 - self._first, None))

    def _wake(self) -> None:
        for seat in self.seats:
            seat.news.set()


class Seat:
    """One who waits."""

    __slots__ = ("news", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.news = asyncio.Event()

    async def wait(self, until_s: float) -> None:
        """Wait for news, at most until `until_s` of the loop's clock."""
        try:
            async with asyncio.timeout_at(until_s):
                await self.news.wait()
        except TimeoutError:
            pass
        self.news.clear()


class Topics:
    """The topics of one log. `watch` and `unwatch` are called when the first one sits down and the last one leaves."""

    def __init__(self) -> None:
        self.watch: Callable[[str], None] = lambda turn_id: None
        self.unwatch: Callable[[str], None] = lambda turn_id: None
        self.closed = False
        self._topics: dict[str, Topic] = {}
        self._calls: set[asyncio.Timeout] = set()  # under way
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self, turn_id: str) -> Topic | None:
        """Return the topic of a turn, if somebody waits for its news."""
        return self._topics.get(turn_id)

    def __iter__(self) -> Iterator[tuple[str, Topic]]:
        return iter(list(self._topics.items()))

    def __len__(self) -> int:
        return len(self._topics)

    @contextmanager
    def seat(self, turn_id: str) -> Iterator[Seat]:
        """Give a seat. Raises UsageError when the log is closed."""
        self.check_open()
        topic = self._topics.get(turn_id)
        if topic is None:
            topic = self._topics[turn_id] = Topic()
            self.watch(turn_id)
        seat = Seat(topic)
        topic.seats.add(seat)
        try:
            yield seat
        finally:
            topic.seats.discard(seat)
            if not topic.seats and self._topics.get(turn_id) is topic:
                del self._topics[turn_id]
                self.unwatch(turn_id)

    def all_changed(self) -> None:
        """Make every reader ask for a page: the store was away."""
        for _, topic in self:
            topic.changed()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Do what takes a while; ends with UsageError as soon as the log is closed."""
        self.check_open()
        try:
            async with asyncio.timeout(None) as call:
                self._calls.add(call)
                try:
                    yield
                finally:
                    self._calls.discard(call)
        except TimeoutError:
            self.check_open()
            raise

    def check_open(self) -> None:
        """Raise UsageError when the log is closed, or belongs to another event loop."""
        if self.closed:
            raise UsageError("this live log is closed")
        self.check_loop()

    def check_loop(self) -> None:
        """Raise UsageError when the log belongs to another event loop."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise UsageError("this live log belongs to the event loop that it was first used in; open one in each loop")

    def close(self) -> None:
        """Let nobody wait any more."""
        self.closed = True
        self.all_changed()
        for call in list(self._calls):
            call.reschedule(0)
