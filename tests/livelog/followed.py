"""Turns that tests write and follow."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

from levada.live import Entry, LiveLog, Writer

LEASE_S = 0.6  # short, so that what waits for its end is not slow
KEPT_S = 1.5  # for a lease that must not end: a loaded machine may not run us for a while


async def follow(
    log: LiveLog, turn_id: str, owner: str = "ana", after: str = "", most: int | None = None
) -> list[Entry]:
    """Return what a reader gets: to the end, or `most` entries."""
    found: list[Entry] = []
    async with aclosing(log.read(turn_id, owner, after)) as entries:
        async for entry in entries:
            found.append(entry)
            if len(found) == most:
                break
    return found


async def hop(logs: list[LiveLog], turn_id: str, chance: random.Random, longest_s: float = 0.02) -> list[Entry]:
    """Follow a turn to its end as a reader that loses its connection all the time."""
    found: list[Entry] = []
    while not found or found[-1].state is None:
        after = found[-1].id if found else ""
        try:
            async with asyncio.timeout(chance.uniform(0, longest_s)):
                async with aclosing(chance.choice(logs).read(turn_id, "ana", after)) as entries:
                    async for entry in entries:
                        found.append(entry)
        except TimeoutError:
            pass
    return found


async def write_some(writer: Writer, count: int, name: str = "text") -> list[Entry]:
    """Append `count` entries, one a batch; return them as readers get them."""
    found: list[Entry] = []
    for n in range(count):
        (entry_id,) = await writer.append([(name, f"água {n}")])
        found.append(Entry(entry_id, name, f"água {n}"))
    return found
