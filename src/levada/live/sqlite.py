"""Live turns in an SQLite file, for the processes of one machine.

One thread writes and one reads, each with a connection of its own, so that the event loop never waits for the disk. One
task for all readers looks whether anybody wrote to the file: every 20 ms while something comes, down to four times a
second.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Concatenate, Final, ParamSpec, TypeVar

from levada.errors import UsageError
from levada.live.errors import LiveLogUnavailable
from levada.live.patience import attempt_s
from levada.live.sqlite_rows import News, Rows
from levada.live.store import Away, Page
from levada.live.topics import Topics
from levada.live.values import Batch, Cursor, End, Options, Signals

__all__ = ["SqliteStore"]

T = TypeVar("T")
P = ParamSpec("P")

SHORTEST_S: Final = 0.02
LONGEST_S: Final = 0.25
BUSY_S: Final = 1.0  # how long SQLite itself waits for another process; then we try again


class SqliteStore:
    """Turns in the file `path`."""

    def __init__(self, path: str, options: Options) -> None:
        if not path or path.startswith(":memory:"):
            raise UsageError("sqlite:///… names a file; for turns in memory there is memory://")
        self.name = "SQLite"
        self.topics = Topics()
        self.topics.watch = self._watch
        path = os.path.abspath(path)
        self._writing = _Thread(path, options, "levada live writer")
        self._reading = _Thread(path, options, "levada live reader")
        self._hint_s = attempt_s(options.patience) / 2
        self._seen: dict[str, News | None] = {}
        self._poller: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    async def check(self) -> None:
        await self._writing.call(Rows.check)
        await self._reading.call(Rows.check)

    async def aclose(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait({self._poller})
        await self._writing.aclose()
        await self._reading.aclose()

    async def start(self, turn_id: str, digest: bytes, attempt: str) -> int:
        return await self._writing.call(Rows.start, turn_id, digest, attempt)

    async def write(self, turn_id: str, token: int, batch: Batch) -> Signals:
        try:
            return await self._writing.call(Rows.write, turn_id, token, batch)
        finally:
            self._changed(turn_id)

    async def renew(self, turn_id: str, token: int) -> Signals:
        return await self._writing.call(Rows.renew, turn_id, token)

    async def page(
        self, turn_id: str, digest: bytes, after: Cursor, *, mark: bool, entries: bool = True, stale: float = 0
    ) -> Page:
        if mark:
            # A hint: where the disk is full or another process writes for long, readers read.
            with suppress(Away, TimeoutError):
                async with asyncio.timeout(self._hint_s):
                    await self._writing.call(Rows.notice, turn_id, digest, mark, stale)
        page = await self._reading.call(Rows.page, turn_id, digest, after, entries)
        if page.end is None and (page.lease_s < 0 or page.lease == stale):
            await self._writing.call(Rows.notice, turn_id, digest, False, stale)
            self._changed(turn_id)
            page = await self._reading.call(Rows.page, turn_id, digest, after, entries)
        return page

    async def stop(self, turn_id: str, digest: bytes, by: str) -> End | None:
        return await self._writing.call(Rows.stop, turn_id, digest, by)

    def _changed(self, turn_id: str) -> None:
        """Tell the readers of this process at once."""
        self._hurry.set()
        if (topic := self.topics.get(turn_id)) is not None:
            topic.changed()

    def _watch(self, turn_id: str) -> None:
        self._hurry.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="levada live poller")

    async def _poll(self) -> None:
        """Look for news as long as somebody waits for them."""
        interval_s = SHORTEST_S
        while len(self.topics):
            self._hurry.clear()
            turn_ids = [turn_id for turn_id, _ in self.topics]
            try:
                news = await self._reading.call(Rows.news, turn_ids, whatever=not self._seen.keys() >= set(turn_ids))
            except (Away, LiveLogUnavailable):
                self.topics.all_changed()  # the readers find out what is wrong, and have the patience
                news, interval_s = None, LONGEST_S
            if news is not None and self._tell(turn_ids, news):
                interval_s = SHORTEST_S
            else:
                interval_s = min(interval_s * 1.3, LONGEST_S)
            try:
                async with asyncio.timeout(interval_s):
                    await self._hurry.wait()
                interval_s = SHORTEST_S
                await asyncio.sleep(SHORTEST_S)
            except TimeoutError:
                pass
        self._seen.clear()

    def _tell(self, turn_ids: list[str], news: dict[str, News]) -> bool:
        """Tell each topic what is new; return whether there was anything."""
        before, self._seen = self._seen, {turn_id: news.get(turn_id) for turn_id in turn_ids}
        told = False
        for turn_id, seen in self._seen.items():
            topic = self.topics.get(turn_id)
            if topic is None or (turn_id in before and before[turn_id] == seen):
                continue
            told = True
            topic.changed()
            if seen is not None and seen.stop is not None:
                topic.asked_to_stop(seen.stop)
        return told


class _Thread:
    """A thread with a connection, opened at its first use and again after an error."""

    def __init__(self, path: str, options: Options, name: str) -> None:
        self._path, self._options = path, options
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._rows: Rows | None = None

    async def call(self, method: Callable[Concatenate[Rows, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> T:
            try:
                if self._rows is not None and self._rows.is_another_file():
                    self._close()  # deleted or replaced: what we wrote there nobody would see
                if self._rows is None:
                    self._rows = Rows(self._path, self._options, busy_s=min(BUSY_S, self._options.patience / 2))
                return method(self._rows, *args, **kwargs)
            except sqlite3.OperationalError as error:
                raise Away(f"SQLite says: {error}") from error  # its words name no file
            except sqlite3.Error as error:
                self._close()
                raise LiveLogUnavailable("SQLite", 0.0, f"SQLite says: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def aclose(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        except RuntimeError:  # it was closed before
            return
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None
