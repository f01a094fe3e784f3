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
    """Return what the call returns, trying again while the store is away. Raises LiveLogUnavailable."""
    loop = asyncio.get_running_loop()
    begun_s, pause_s, reason = loop.time(), FIRST_PAUSE_S, "no answer"
    try:
        async with asyncio.timeout_at(begun_s + patience_s) as limit:
            while True:
                try:
                    return await call()
                except Away as away:
                    reason = away.reason
                await asyncio.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    except TimeoutError:
        if not limit.expired():
            raise
        raise LiveLogUnavailable(store.name, round(loop.time() - begun_s, 1), reason) from None
