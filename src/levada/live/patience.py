"""Trying again while a store is away: for so many seconds, with pauses that grow and differ."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from levada.live.errors import LiveLogUnavailable
from levada.live.store import Away, Store

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5  # drawn from half to one and a half of it, so that the many do not come back in step


async def patiently(store: Store, patience_s: float, call: Callable[[], Awaitable[T]]) -> T:
    """Return what the call returns, trying again while the store is away.

    Raises LiveLogUnavailable; UsageError as soon as the log is closed.

    There are two attempts at least: in a process that was frozen, the first one is over when it wakes up, and yet
    the store has an answer for it.
    """
    async with store.topics.open():
        return await _patiently(store.name, patience_s, call)


async def _patiently(name: str, patience_s: float, call: Callable[[], Awaitable[T]]) -> T:
    loop = asyncio.get_running_loop()
    begun_s, pause_s, attempts = loop.time(), FIRST_PAUSE_S, 0
    while True:
        attempts += 1
        try:
            async with asyncio.timeout(attempt_s(patience_s)):
                return await call()
        except Away as away:
            reason = away.reason
        except TimeoutError:
            reason = "it did not answer in time"
        left_s = begun_s + patience_s - loop.time()
        if left_s <= 0 and attempts > 1:
            raise LiveLogUnavailable(name, round(loop.time() - begun_s, 1), reason)
        await asyncio.sleep(min(pause_s * (0.5 + random.random()), max(left_s, FIRST_PAUSE_S)))
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def attempt_s(patience_s: float) -> float:
    """Return how long one attempt may take, so that there is time for another."""
    return max(0.5, patience_s / 2)
