"""A small HTTP/1.1 server on 127.0.0.1 that plays the scenarios, each at its pace: POST /NAME."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self

from levada.gateway.config import Upstream
from levada.gateway.demo.scenarios import SCENARIOS, Scenario

__all__ = ["DemoUpstream"]

_HEAD_LIMIT: Final = 64 * 1024
_BODY_LIMIT: Final = 16 * 1024 * 1024
_REMEMBERED: Final = 1000
_TICK_S: Final = 0.001  # shorter waits are not waited: what is due is sent together


class _GoneError(Exception):
    """The client closed its connection."""


class DemoUpstream:
    """The upstream of the demo; an async context manager. `open`: connections now; `streaming`: those
    that are being answered; `asked`: how often each
    scenario was; `requests`: what came lately."""

    def __init__(self, scenarios: Mapping[str, Scenario] = SCENARIOS) -> None:
        self.open = self.streaming = 0
        self.requests: deque[dict[str, Any]] = deque(maxlen=64)
        self._scenarios = scenarios
        self.asked: Counter[str] = Counter()
        self._cut: OrderedDict[bytes, None] = OrderedDict()  # requests whose next try is whole, oldest first
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0

    def upstreams(self) -> dict[str, Upstream]:
        """Return the configuration that asks this server, an upstream for each scenario."""
        return {
            name: Upstream(
                url=f"http://127.0.0.1:{self._port}/{name}",
                dialect=scenario.dialect,
                profile=scenario.profile,
                title=scenario.title,
                note=scenario.note,
                group=scenario.group,
                demo=True,
            )
            for name, scenario in self._scenarios.items()
        }

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_HEAD_LIMIT)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            first = b""
            while True:
                path, body = await _read_request(reader, first)
                scenario = self._scenarios.get(path.strip("/"))
                if scenario is None:
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    first = b""
                    continue
                self.asked[scenario.name] += 1
                with suppress(ValueError):
                    self.requests.append(json.loads(body))
                waiting = asyncio.create_task(reader.read(1))  # the client's next word, or its going
                try:
                    self.streaming += 1
                    try:
                        going_on = await self._play(scenario, body, writer, waiting)
                    finally:
                        self.streaming -= 1
                    if not going_on:
                        break
                    first = await waiting
                finally:
                    waiting.cancel()
        except (_GoneError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self.open -= 1
            writer.close()

    def _breaks_at(self, scenario: Scenario, body: bytes) -> int | None:
        if not scenario.heals:
            return scenario.breaks_at
        # by request, not by server: the page's questions differ in `asked`, and the tries of one do not
        key = hashlib.sha256(scenario.name.encode() + b" " + body).digest()
        if key in self._cut:
            del self._cut[key]
            return None
        self._cut[key] = None
        if len(self._cut) > _REMEMBERED:
            self._cut.popitem(last=False)
        return scenario.breaks_at

    async def _play(
        self, scenario: Scenario, body: bytes, writer: asyncio.StreamWriter, waiting: asyncio.Task[bytes]
    ) -> bool:
        """Send one answer; return whether the connection can be used again."""
        pieces = scenario.pieces()
        breaks_at = self._breaks_at(scenario, body)
        head = [f"HTTP/1.1 {scenario.status} {HTTPStatus(scenario.status).phrase}"]
        head += [f"{name}: {value}" for name, value in scenario.headers]
        head += [f"content-type: {scenario.content_type}", "transfer-encoding: chunked", "", ""]
        writer.write("\r\n".join(head).encode())
        loop = asyncio.get_running_loop()
        due_s = loop.time() + scenario.first_delay_s
        for piece in pieces[:breaks_at]:
            await writer.drain()
            if due_s - loop.time() > _TICK_S:
                await asyncio.wait({waiting}, timeout=due_s - loop.time())
            if waiting.done():
                raise _GoneError
            due_s += scenario.delay_s
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if breaks_at is not None and scenario.ends == "close":
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _read_request(reader: asyncio.StreamReader, first: bytes) -> tuple[str, bytes]:
    """Return the path and the body of the next request. `first`: what was read of it."""
    head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    start, *lines = head.split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = fields.get("content-length", "0")
    if not length.isdigit() or int(length) > _BODY_LIMIT:
        raise _GoneError
    body = await reader.readexactly(int(length))
    return start.split(" ")[1] if start.count(" ") == 2 else "", body
