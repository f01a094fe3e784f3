"""Carries scripts to Redis over a few connections.

What is asked for while a connection is busy goes with the next trip, in one pipeline: however many turns are written
and read, they share `connections` connections. Whoever asks may stop waiting at any moment; the connections do not
notice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from redis.asyncio import Connection, RedisCluster
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,  # noqa: A004  # Redis' own
    MasterDownError,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004  # the same
    TryAgainError,
)

from levada.errors import UsageError
from levada.live.errors import LiveLogUnavailable
from levada.live.redis_scripts import Script
from levada.live.store import Away

__all__ = ["ClusterCourier", "Courier", "PipelineCourier", "in_our_words"]

Argument = str | bytes | int

TRIP_REQUESTS: Final = 128
TRIP_BYTES: Final = 1024 * 1024

# What passes: restarts, failovers, moves, full memory, a slow script. redis-py has classes for some, words for others.
PASSING: Final = (
    AskError, BusyLoadingError, ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError
)  # fmt: skip
PASSING_WORDS: Final = frozenset(("MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "OOM", "BUSY"))


class Courier(Protocol):
    """Runs scripts on the server."""

    async def run(self, script: Script, keys: Sequence[str], *arguments: Argument) -> Any:
        """Return what the script returns. Raises Away, or LiveLogUnavailable where trying again is no use."""

    async def ping(self) -> None:
        """Raise as `run` does unless the server answers."""

    async def aclose(self) -> None:
        """Close the connections."""


class _Request(NamedTuple):
    command: tuple[Argument, ...]
    script: Script | None
    size: int
    reply: asyncio.Future[Any]


class PipelineCourier:
    """Over connections of our own. `connect` makes one, not yet connected."""

    def __init__(self, connect: Callable[[], Connection], connections: int) -> None:
        self._connect = connect
        self._most = connections
        self._waiting: deque[_Request] = deque()
        self._idle: list[Connection] = []
        self._trips: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run(self, script: Script, keys: Sequence[str], *arguments: Argument) -> Any:
        return await self._ask(script, ("EVALSHA", script.sha, len(keys), *keys, *arguments))

    async def ping(self) -> None:
        await self._ask(None, ("PING",))

    async def aclose(self) -> None:
        self._closed = True
        trips = list(self._trips)
        for trip in trips:
            trip.cancel()  # before Python 3.12 redis-py may swallow it; then the trip ends with its replies
        if trips:
            await asyncio.wait(trips)
        for connection in self._idle:
            await connection.disconnect()
        self._idle.clear()

    async def _ask(self, script: Script | None, command: tuple[Argument, ...]) -> Any:
        if self._closed:
            raise UsageError("this live log is closed")
        size = sum(len(part) for part in command if not isinstance(part, int))
        request = _Request(command, script, size, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if len(self._trips) < self._most:
            trip = asyncio.create_task(self._travel(), name="levada live courier")
            self._trips.add(trip)
        return await request.reply

    async def _travel(self) -> None:
        """Make trips as long as something waits."""
        trip = asyncio.current_task()
        connection = self._idle.pop() if self._idle else self._connect()
        load: list[_Request] = []
        try:
            while not self._closed and (load := self._load()):
                await self._trip(connection, load)
        finally:
            self._trips.discard(trip)  # at once: who asks next needs another
            for request in load:
                if not request.reply.done():
                    request.reply.set_exception(Away("the connection was given up"))
            if self._closed:
                await connection.disconnect(nowait=True)
            else:
                self._idle.append(connection)

    def _load(self) -> list[_Request]:
        load: list[_Request] = []
        size = 0
        while self._waiting and len(load) < TRIP_REQUESTS and (not load or size < TRIP_BYTES):
            request = self._waiting.popleft()
            if not request.reply.done():  # else nobody waits for it any more
                load.append(request)
                size += request.size
        return load

    async def _trip(self, connection: Connection, load: list[_Request]) -> None:
        try:
            unknown = await self._exchange(connection, [(request, request.command) for request in load])
            # The server was restarted, or is new: hand it the script with the request.
            whole = [(each, ("EVAL", each.script.text, *each.command[2:])) for each in unknown if each.script]
            if whole:
                await self._exchange(connection, whole)
        except Exception as error:  # of the connection; the next trip makes it anew
            for request in load:
                if not request.reply.done():
                    request.reply.set_exception(in_our_words(error))
            with suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)

    async def _exchange(
        self, connection: Connection, load: list[tuple[_Request, tuple[Argument, ...]]]
    ) -> list[_Request]:
        """Send commands and hand out their replies; return those whose script the server does not know."""
        await connection.send_packed_command(connection.pack_commands([command for _, command in load]))
        unknown: list[_Request] = []
        for request, _ in load:
            try:
                reply = await connection.read_response()
            except NoScriptError:
                unknown.append(request)
            except ResponseError as error:
                if not request.reply.done():
                    request.reply.set_exception(in_our_words(error))
            else:
                if not request.reply.done():
                    request.reply.set_result(reply)
        return unknown


class ClusterCourier:
    """Through redis-py's client for clusters, which knows where a key is; no pipelines. `most`: commands at once."""

    def __init__(self, client: RedisCluster, most: int) -> None:
        self._client = client
        self._room = asyncio.Semaphore(most)

    async def run(self, script: Script, keys: Sequence[str], *arguments: Argument) -> Any:
        rest = (len(keys), *keys, *arguments)
        async with self._room:
            try:
                try:
                    return await self._client.execute_command("EVALSHA", script.sha, *rest)
                except NoScriptError:
                    return await self._client.execute_command("EVAL", script.text, *rest)
            except (RedisError, OSError) as error:
                raise in_our_words(error) from error

    async def ping(self) -> None:
        async with self._room:
            try:
                await self._client.initialize()
                await self._client.ping(target_nodes=RedisCluster.RANDOM)
            except (RedisError, OSError) as error:
                raise in_our_words(error) from error

    async def aclose(self) -> None:
        await self._client.aclose()


def in_our_words(error: Exception) -> Away | LiveLogUnavailable:
    """Return what is wrong, without Redis' own words but the first: they may name hosts and users."""
    made: Away | LiveLogUnavailable
    word = next(iter(str(error).split()), "").rstrip(":")
    if isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError)):
        made = LiveLogUnavailable("Redis", 0.0, "it refuses our name, password or commands")
    elif isinstance(error, TimeoutError):
        made = Away("it did not answer in time")
    elif isinstance(error, MaxConnectionsError):
        made = Away("it takes no more connections")
    elif isinstance(error, PASSING):
        made = Away(f"it answers {type(error).__name__.removesuffix('Error')}")
    elif isinstance(error, ResponseError) and word in PASSING_WORDS:
        made = Away(f"it answers {word}")
    elif isinstance(error, ResponseError):
        made = LiveLogUnavailable("Redis", 0.0, f"it answers with an error ({word[:40]})")
    elif isinstance(error, (ConnectionError, OSError, RedisError)):
        made = Away(f"the connection failed ({type(error).__name__})")
    else:
        made = LiveLogUnavailable("Redis", 0.0, f"a fault of our own ({type(error).__name__})")
    made.__cause__ = error
    return made
