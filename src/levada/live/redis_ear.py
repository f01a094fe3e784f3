"""Hears on one connection what is new in all turns that somebody here waits for.

Pub/sub loses what comes while the connection is away. So whenever a subscription is confirmed, first or again, the
readers of that turn ask for a page; and they look by themselves twice a lease.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from redis.asyncio import Connection
from redis.exceptions import RedisError

from levada.lifecycle import State
from levada.live.topics import Topics
from levada.live.values import Entry, entry_id

__all__ = ["Ear"]

_log = logging.getLogger("levada.live")

QUIET_S: Final = 5.0  # then we ask whether the server is there
SUBSCRIBED_AT_ONCE: Final = 500
LONGEST_PAUSE_S: Final = 0.5


class Ear:
    """Listens from the first turn on. `connect` makes a connection, `prefix` and `suffix` a channel of a turn's id."""

    def __init__(self, topics: Topics, connect: Callable[[], Awaitable[Connection]], prefix: str, suffix: str) -> None:
        self._topics = topics
        self._connect = connect
        self._prefix, self._suffix = prefix, suffix
        self._subscribed: set[str] = set()  # turns, on the connection that is there
        self._touched: set[str] = set()  # turns to subscribe to, or to leave
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def touch(self, turn_id: str) -> None:
        """Look whether somebody waits for news of this turn."""
        self._touched.add(turn_id)
        self._news.set()
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="levada live ear")

    async def aclose(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _listen(self) -> None:
        pause_s = 0.02
        while not self._closed:  # before Python 3.12 connecting may swallow a cancellation
            connection = None
            try:
                connection = await self._connect()
                await connection.connect()  # type: ignore[no-untyped-call]  # of redis-py
                connection.socket_timeout = None  # for sending it swallows as well; for reading we have our own
                pause_s = 0.02
                self._subscribed.clear()
                self._touched = {turn_id for turn_id, _ in self._topics}
                self._news.set()
                await self._converse(connection)
            except (RedisError, OSError, asyncio.IncompleteReadError):
                pass
            except Exception:  # a fault of our own: readers still look twice a lease, and here we go on
                _log.exception("listening failed")
            finally:
                if connection is not None:
                    await connection.disconnect(nowait=True)
            self._topics.all_changed()  # the readers find out what is wrong, and have the patience
            await asyncio.sleep(pause_s * (0.5 + random.random()))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _converse(self, connection: Connection) -> None:
        talking = asyncio.create_task(self._talk(connection), name="levada live ear")
        try:
            asked = False
            while not talking.done() and not self._closed:
                reply = await connection.read_response(timeout=QUIET_S, disconnect_on_error=False)
                if reply is not None:
                    asked = False
                    self._hear(reply)
                elif asked:
                    raise OSError("no answer")
                else:
                    asked = True
                    await connection.send_command("PING", check_health=False)
        finally:
            talking.cancel()
            await asyncio.wait({talking})
        if not talking.cancelled() and (error := talking.exception()):
            raise error

    async def _talk(self, connection: Connection) -> None:
        """Subscribe and leave, as many at once as came."""
        while True:
            await self._news.wait()
            self._news.clear()
            touched, self._touched = self._touched, set()
            joined = [each for each in touched if self._topics.get(each) and each not in self._subscribed]
            left = [each for each in touched if not self._topics.get(each) and each in self._subscribed]
            self._subscribed.update(joined)
            self._subscribed.difference_update(left)
            for word, turns in (("SUBSCRIBE", joined), ("UNSUBSCRIBE", left)):
                for at in range(0, len(turns), SUBSCRIBED_AT_ONCE):
                    channels = [f"{self._prefix}{each}{self._suffix}" for each in turns[at : at + SUBSCRIBED_AT_ONCE]]
                    await connection.send_command(word, *channels, check_health=False)

    def _hear(self, reply: Any) -> None:
        if not isinstance(reply, list) or len(reply) < 3 or reply[0] not in (b"message", b"subscribe"):
            return
        turn_id = reply[1].decode()[len(self._prefix) : -len(self._suffix)]
        topic = self._topics.get(turn_id)
        if topic is None:
            return
        if reply[0] == b"subscribe":
            topic.changed()
            return
        try:
            token, first, told = msgspec.msgpack.decode(reply[2], type=tuple[str, int, Any])
            if isinstance(told, str):
                topic.asked_to_stop(told)
            else:
                topic.push(int(token), first, [_entry(token, first + n, *parts) for n, parts in enumerate(told)])
        except (msgspec.DecodeError, ValueError, TypeError):  # somebody else's message
            topic.changed()


def _entry(token: str, seq: int, event: str, data: str, state: str = "", kind: str = "", type: str = "") -> Entry:
    return Entry(entry_id(seq, int(token)), event, data, State(state) if state else None, kind or None, type or None)
