"""Live turns: one producer writes entries, any number of readers follow them, from any process that has the store.

    async with LiveLog.open("redis://127.0.0.1") as log:
        writer = await log.start("turn-1", owner="ana")
        await writer.append([("text", '{"text":"água"}')])
        await writer.close("finished")
        async for entry in log.read("turn-1", "ana", after=last_event_id):
            ...

Rules this file keeps (docs/live-turns.md):
- A reader gets exactly what comes after its id, each entry once, and ends after the terminal entry. It never waits for
  ever: a lost producer, and a store that stays away, end it.
- Readers cost the producer nothing.

For asyncio; a log belongs to the event loop that it is first used in.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from functools import partial
from types import TracebackType
from typing import Any, Final

from levada.errors import UsageError
from levada.lifecycle import State
from levada.live.errors import UnknownTurn
from levada.live.patience import patiently
from levada.live.store import Store
from levada.live.values import (
    TURN_ID,
    Cursor,
    Entry,
    Known,
    Options,
    checked_word,
    cursor_of,
    entry_id,
    owner_digest,
)
from levada.live.writer import Writer

__all__ = ["LiveLog"]

NOTICE_S: Final = 0.01  # so long after a lease ends somebody looks


class LiveLog:
    """A log of live turns. Made by `LiveLog.open`; an async context manager.

    In every call `turn_id` is 1 to 128 letters, digits or `_.~:-`, and `owner` any text that only the owner has: a
    digest of it is kept, and whoever comes with another one gets UnknownTurn. Every call raises LiveLogUnavailable when
    the store stays away, and UsageError once the log is closed.
    """

    def __init__(self, store: Store, options: Options) -> None:
        self.options = options
        self._store = store

    @classmethod
    def open(cls, url: str, **options: Any) -> LiveLog:
        """Open a log; nothing is connected before the first call.

        `url`: memory:// (this log only) or memory://name (all logs of this process and event loop that say this name);
        sqlite:///relative.db or sqlite:////absolute.db; redis://…, rediss://…, valkey://…, unix://….

        Options: `lease_s` 5: after so long without a sign of its producer a turn is lost. `patience_s` (as lease_s):
        how long a call is tried again while the store is away. `keep_s` 600: how long a turn is kept after its end. The
        kept window of a turn: `max_entries` 20,000, `max_bytes` 16 MiB; `max_entry_bytes` 4 MiB. `max_turns` 10,000
        (memory). `page_entries` 256, `page_bytes` 64 KiB and one entry: what
        a reader takes of a turn at once. `connections` 4, `prefix`
        "levada:live:", `cluster` False (Redis). All who share a store should say the same.
        Raises UsageError for a URL or an option that makes no sense, ImportError without the extra `redis`.
        """
        checked = Options.of(options)
        return cls(_store_at(url, checked), checked)

    async def __aenter__(self) -> LiveLog:
        try:
            await self.check()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def check(self) -> None:
        """Make sure that the store answers. Raises LiveLogUnavailable."""
        self._store.topics.check_open()
        await patiently(self._store, self.options.patience, self._store.check)

    async def aclose(self) -> None:
        """Let go of every connection and file. Readers that wait and calls under way raise UsageError; turns stay."""
        self._store.topics.check_loop()
        self._store.topics.close()
        await self._store.aclose()

    async def start(self, turn_id: str, owner: str) -> Writer:
        """Start a turn and take its lease; return its writer.

        Raises TurnExists for an id that is taken, LiveLimit above max_turns, UsageError for an id that is none.
        """
        if not isinstance(turn_id, str) or not TURN_ID.fullmatch(turn_id):
            raise UsageError(f"turn_id must be 1 to 128 letters, digits or any of _.~:-, not {turn_id!r:.140}")
        self._store.topics.check_open()
        digest, attempt = owner_digest(turn_id, owner), secrets.token_hex(8)
        token = await patiently(self._store, self.options.patience, lambda: self._store.start(turn_id, digest, attempt))
        return Writer(self._store, self.options, turn_id, token)

    async def read(self, turn_id: str, owner: str, after: str = "") -> AsyncGenerator[Entry, None]:
        """Yield the entries after the id `after`, as they come; "" is the start. Ends after the terminal entry.

        Raises UnknownTurn, EntryGone (also for a reader so slow that what it has not read was dropped), UnknownEntry.
        Where the iteration is left early, close it: `async with contextlib.aclosing(log.read(…)) as entries`.
        """
        digest = self._digest(turn_id, owner)
        cursor = cursor_of(turn_id, after)
        loop, store, half_s = asyncio.get_running_loop(), self._store, self.options.lease_s / 2
        with store.topics.seat(turn_id) as seat:
            topic, seen, behind, fruitless = seat.topic, -1, True, 0
            while True:
                store.topics.check_open()
                news = None if behind else topic.after(cursor)
                if news:
                    for entry in news:
                        yield entry
                        if entry.state is not None:
                            return
                    cursor = Cursor(cursor.seq + len(news), cursor.token)
                elif news is None or topic.changes != seen or topic.due_s <= loop.time():
                    # Only one reader of a topic looks after the lease, and says for all that somebody reads.
                    seen, mark = topic.changes, topic.due_s <= loop.time()
                    if mark:
                        topic.due_s = loop.time() + half_s
                    try:
                        page = await patiently(
                            store,
                            self.options.patience,
                            partial(store.page, turn_id, digest, cursor, mark=mark, stale=topic.stale(loop.time())),
                        )
                    except BaseException:
                        if mark:  # somebody else's turn to look
                            topic.due_s = float("-inf")
                            topic.changed()
                        raise
                    topic.saw(page.lease, page.lease_of_s, loop.time())
                    topic.due_s = min(topic.due_s, min(loop.time() + page.lease_s, topic.silent_s) + NOTICE_S)
                    for entry in page.entries:
                        yield entry
                    cursor = Cursor(cursor.seq + len(page.entries), page.token)
                    behind = cursor.seq < page.last
                    # News of what the store does not have: it went back in time. Once may be a page just too early.
                    fruitless = fruitless + 1 if news is None and not page.entries else 0
                    if fruitless > 1:
                        topic.forget()
                    if page.end is not None and not behind:
                        return
                else:
                    await seat.wait(topic.due_s)

    async def look(self, turn_id: str, owner: str, after: str | None = None) -> Known:
        """Return what is known of a turn. With `after` given, make sure that it can be read from there.

        Raises UnknownTurn; with `after` EntryGone and UnknownEntry as `read` does.
        """
        digest = self._digest(turn_id, owner)
        cursor = cursor_of(turn_id, after or "")
        self._store.topics.check_open()
        page = await patiently(
            self._store,
            self.options.patience,
            lambda: self._store.page(turn_id, digest, cursor, mark=False, entries=after is not None),
        )
        last = entry_id(page.last, page.token)
        if page.end is None:
            return Known(State.STREAMING, last, page.stop)
        return Known(page.end.state, last, page.stop, page.end.kind, page.end.type)

    async def stop(self, turn_id: str, owner: str, *, by: str = "owner") -> State:
        """Ask the producer to stop, wherever it is. Return streaming: it was asked; else how the turn had ended.

        It is heard by `Writer.wait_stop` at once, else with the next append or renew. The first who asks is named.
        Raises UnknownTurn.
        """
        digest = self._digest(turn_id, owner)
        if checked_word("by", by) is None:
            raise UsageError("by must say who stops the turn")
        self._store.topics.check_open()
        end = await patiently(self._store, self.options.patience, lambda: self._store.stop(turn_id, digest, by))
        return State.STREAMING if end is None else end.state

    def _digest(self, turn_id: str, owner: str) -> bytes:
        if not isinstance(turn_id, str) or not TURN_ID.fullmatch(turn_id):
            raise UnknownTurn(str(turn_id)[:128])  # it may come from a URL
        return owner_digest(turn_id, owner)


def _store_at(url: str, options: Options) -> Store:
    scheme, colon, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if colon and scheme == "memory":
        from levada.live.memory import MemoryStore  # noqa: PLC0415

        return MemoryStore(rest, options)
    if colon and scheme == "sqlite" and rest.startswith("/"):
        from levada.live.sqlite import SqliteStore  # noqa: PLC0415

        return SqliteStore(rest[1:], options)
    if colon and scheme in ("redis", "rediss", "valkey", "valkeys", "unix"):
        try:
            from levada.live.redis import RedisStore  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ImportError("live turns in Redis need the package redis: pip install 'levada[redis]'") from error
        return RedisStore(url, options)
    raise UsageError(f"a live log is at memory://, sqlite:///… or redis://…, not at a URL that begins {scheme!r:.20}")
