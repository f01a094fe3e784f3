"""Live turns in Redis or Valkey: a stream a turn, for any number of machines.

Every call is one script (redis_scripts.py), over a few connections (redis_courier.py); one more hears what is new in
all turns that are read here (redis_ear.py). So a process has `connections` + 1 connections, however many turns and
readers.
"""

from __future__ import annotations

import random
from typing import Any

from redis.asyncio import Connection, ConnectionPool, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from levada.errors import UsageError
from levada.lifecycle import State
from levada.live.errors import EntryGone, Fenced, TurnExists, UnknownEntry, UnknownTurn
from levada.live.patience import attempt_s
from levada.live.redis_courier import ClusterCourier, Courier, PipelineCourier
from levada.live.redis_ear import Ear
from levada.live.redis_scripts import PAGE, RENEW, START, STOP, WRITE
from levada.live.store import Page
from levada.live.topics import Topics
from levada.live.values import (
    ENTRIES_LOST,
    LOST_KIND,
    Batch,
    Cursor,
    End,
    Entry,
    Options,
    Signals,
    entry_id,
    reason_of,
)

__all__ = ["RedisStore"]

CLUSTER_COMMANDS = 32  # at once, for each of `connections`: the cluster's client has one command a connection


class RedisStore:
    """Turns on the server at `url`."""

    def __init__(self, url: str, options: Options) -> None:
        self.name = "Redis"
        self.topics = Topics()
        self._options = options
        self._lease_ms, self._keep_ms = int(options.lease_s * 1000), int(options.keep_s * 1000)
        limit_s = attempt_s(options.patience)
        settings: dict[str, Any] = {
            "socket_timeout": limit_s,
            "socket_connect_timeout": limit_s,
            "retry": Retry(NoBackoff(), 0),  # we try again ourselves
            "protocol": 2,
            "decode_responses": False,
        }
        url = url.replace("valkey", "redis", 1) if url.startswith(("valkey://", "valkeys://")) else url
        try:
            self._pool = ConnectionPool.from_url(url, **settings)
            self._make_connection()  # not connected: an option in the URL that redis-py does not know is told now
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError("this is no URL of a Redis: redis://[[user]:password@]host[:port][/db]") from error
        self._cluster: RedisCluster | None = None
        self._courier: Courier
        if options.cluster:
            most = options.connections * CLUSTER_COMMANDS
            try:
                self._cluster = RedisCluster.from_url(url, max_connections=most, **settings)
            except (RedisError, RedisClusterException, ValueError, TypeError) as error:
                raise UsageError("this is no URL of a Redis cluster: redis://[[user]:password@]host[:port]") from error
            self._courier = ClusterCourier(self._cluster, most)
        else:
            self._courier = PipelineCourier(self._make_connection, options.connections)
        self._ear = Ear(self.topics, self._connect, f"{options.prefix}{{", "}:c")
        self.topics.watch = self.topics.unwatch = self._ear.touch

    async def check(self) -> None:
        await self._courier.ping()

    async def aclose(self) -> None:
        await self._ear.aclose()
        await self._courier.aclose()

    async def start(self, turn_id: str, digest: bytes, attempt: str) -> int:
        digits = f"{random.randrange(1000):03}"
        reply = await self._courier.run(
            START, *self._at(turn_id), digest, attempt, digits, self._lease_ms, self._keep_ms
        )
        if reply[0] == b"exists":
            raise TurnExists(turn_id)
        return int(reply[1])

    async def write(self, turn_id: str, token: int, batch: Batch) -> Signals:
        options = self._options
        reply = await self._courier.run(
            WRITE,
            *self._at(turn_id),
            token,
            batch.number,
            batch.before,
            self._lease_ms,
            self._keep_ms,
            options.max_entries,
            options.max_bytes,
            *(part or "" for part in batch.end or ("", "", "")),
            *(part for entry in batch.entries for part in entry),
        )
        return _signals(turn_id, token, reply)

    async def renew(self, turn_id: str, token: int) -> Signals:
        reply = await self._courier.run(RENEW, *self._at(turn_id), token, self._lease_ms, self._keep_ms)
        return _signals(turn_id, token, reply)

    async def page(
        self, turn_id: str, digest: bytes, after: Cursor, *, mark: bool, entries: bool = True, stale: float = 0
    ) -> Page:
        options = self._options
        reply = await self._courier.run(
            PAGE,
            *self._at(turn_id),
            digest,
            after.seq,
            after.token,
            int(entries),
            int(mark),
            self._keep_ms,
            options.page_entries,
            options.page_bytes,
            int(stale),
        )
        given = entry_id(*after) if after.token else ""
        match reply[0]:
            case b"unknown":
                raise UnknownTurn(turn_id)
            case b"other":
                raise UnknownEntry(turn_id, given, "of another turn")
            case b"future":
                raise UnknownEntry(turn_id, given, "from the future")
            case b"before":
                raise EntryGone(turn_id, given, reply[1].decode())
        _, token, last, state, kind, type, stop, left_ms, lease, lease_ms, found = reply
        end = _end(state, kind, type) if state else None
        page = [_entry(int(token), after.seq + n, fields) for n, fields in enumerate(found, 1)]
        lease_s = left_ms / 1000 if end is None else float("inf")
        return Page(int(token), last, end, stop.decode() or None, lease_s, lease, lease_ms / 1000, page)

    async def stop(self, turn_id: str, digest: bytes, by: str) -> End | None:
        reply = await self._courier.run(STOP, *self._at(turn_id), digest, by, self._keep_ms)
        if reply[0] == b"unknown":
            raise UnknownTurn(turn_id)
        return _end(*reply[1:]) if reply[0] == b"ended" else None

    def _at(self, turn_id: str) -> tuple[tuple[str, str], str]:
        tagged = f"{self._options.prefix}{{{turn_id}}}"
        return (f"{tagged}:m", f"{tagged}:s"), f"{tagged}:c"

    def _make_connection(self) -> Connection:
        connection: Connection = self._pool.make_connection()  # type: ignore[no-untyped-call]  # of redis-py
        return connection

    async def _connect(self) -> Connection:
        """Return a connection for the ear; in a cluster to any node, for all of them hear everything."""
        connection = self._make_connection()
        if self._cluster is not None:
            await self._cluster.initialize()
            node = self._cluster.get_random_node()
            connection.host, connection.port = node.host, int(node.port)
        return connection


def _signals(turn_id: str, token: int, reply: list[Any]) -> Signals:
    match reply[0]:
        case b"gone":
            raise Fenced(turn_id, token, "the log does not know the turn any more")
        case b"taken":
            raise Fenced(turn_id, token, "another producer has the turn")
        case b"ended":
            raise Fenced(turn_id, token, reason_of(_end(*reply[1:])))
        case b"lost":
            raise Fenced(turn_id, token, reason_of(End(State.ERROR, LOST_KIND, ENTRIES_LOST)))
    _, stop, watched_ms = reply
    return Signals(stop.decode() or None, watched_ms / 1000 if watched_ms >= 0 else None)


def _end(state: bytes, kind: bytes, type: bytes) -> End:
    return End(State(state.decode()), kind.decode() or None, type.decode() or None)


def _entry(token: int, seq: int, fields: list[bytes]) -> Entry:
    """Return an entry of the stream: e, event, d, data and, on the terminal one, s, state, k, kind, t, type."""
    end = _end(*fields[5::2]) if len(fields) > 4 else None
    return Entry(entry_id(seq, token), fields[1].decode(), fields[3].decode(), *(end or ()))
