"""A body that blocks, read under asyncio by a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levada.io.stream import Body, Head

__all__ = ["ThreadBody"]


class ThreadBody:
    """A Body as an AsyncBody. One call at a time, and no chunk is read before it is asked for.

    Nothing can leave a read that blocks: it ends with the client's own read timeout. Whoever stops waiting for one does
    not wait for the close either; the thread closes as soon as the read is over, and `closed` says so only then.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._reading = False

    def head(self) -> Head | None:
        return self._body.head()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks: list[Iterator[bytes]] = []

        def read() -> bytes | None:
            if not chunks:
                chunks.append(iter(self._body))
            try:
                return next(chunks[0], None)
            finally:
                self._reading = False

        while True:
            self._reading = True
            chunk = await self._call(read)
            if chunk is None:
                return
            yield chunk

    def whole(self) -> bool:
        return self._body.whole()

    async def close(self) -> bool:
        if self._thread is None:
            return self._body.close()
        closing = self._call(self._body.close)
        self._calls.put(None)
        if self._reading:
            closing.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else will look
            return True
        return bool(await closing)

    def closed(self) -> bool | None:
        return False if self._reading else self._body.closed()

    def _call(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Have the thread make a call; return what its result comes to."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if result.done():  # nobody waits any more
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        def work() -> None:
            value: Any = None
            error: BaseException | None = None
            try:
                value = call()
            except BaseException as exc:  # a dead thread would leave us waiting for ever
                error = exc
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, value, error)

        self._calls.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._calls,), name="levada reader", daemon=True)
            self._thread.start()
        return result


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
