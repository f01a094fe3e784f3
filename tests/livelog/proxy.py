"""A TCP proxy that cuts connections after so many bytes, in either direction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Proxy:
    """`budget` says how many bytes a new connection carries (up, down); `left` may be changed while it runs."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.budget: Callable[[], tuple[float, float]] = lambda: (float("inf"), float("inf"))
        self.cuts = 0
        self.lines: list[Line] = []

    def cut_after(self, *, up: float = float("inf"), down: float = float("inf")) -> None:
        """Cut every connection that is there after so many more bytes."""
        for line in self.lines:
            line.left = [up, down]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        line = Line(self, list(self.budget()))
        self.lines.append(line)
        pipes = [
            asyncio.create_task(line.pipe(0, reader, far_writer)),
            asyncio.create_task(line.pipe(1, far_reader, writer)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.lines.remove(line)
            for pipe in pipes:
                pipe.cancel()
            for each in (writer, far_writer):
                each.transport.abort()


class Line:
    def __init__(self, proxy: Proxy, left: list[float]) -> None:
        self.proxy, self.left = proxy, left

    async def pipe(self, way: int, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(65536):
                passed = chunk[: int(min(len(chunk), self.left[way]))]
                self.left[way] -= len(passed)
                target.write(passed)
                await target.drain()
                if len(passed) < len(chunk):
                    self.proxy.cuts += 1
                    await asyncio.sleep(0.001)  # what was passed shall arrive
                    return
        except OSError:
            return


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    serving: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also when it never ran

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        if serving:
            await asyncio.wait(serving)
        await server.wait_closed()
        await asyncio.sleep(0.01)  # for what was aborted
