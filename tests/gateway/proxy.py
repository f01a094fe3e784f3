"""A TCP proxy before a gateway: a test cuts its connections, keeps new ones out, or leads them elsewhere."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """`with Proxy(gateway.url) as proxy`: `proxy.url` is the gateway's, as seen through it."""

    url: str

    def __init__(self, target: str) -> None:
        self._target = target
        self._open = True
        self._stalled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._ready = threading.Event()
        self._over: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="proxy", daemon=True)

    async def _main(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def cut(self) -> None:
        """Break every connection that is open."""
        self._loop.call_soon_threadsafe(self._cut)

    def shut(self) -> None:
        """Break every connection, and refuse new ones."""
        self._open = False
        self.cut()

    def stall(self) -> None:
        """Pass nothing on any more, and say nothing of it: a network that went away."""
        self._stalled = True

    def open(self, target: str | None = None) -> None:
        """Let new connections in, to another gateway if one is named."""
        self._target = target or self._target
        self._open, self._stalled = True, False

    def _cut(self) -> None:
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        address = urlsplit(self._target)
        try:
            far_reader, far_writer = await asyncio.open_connection(address.hostname, address.port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
        finally:
            self._pairs.discard(pair)
            for end in pair:
                end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self._stalled:
                    await asyncio.Event().wait()
                writer.write(data)
                await writer.drain()
        writer.close()
