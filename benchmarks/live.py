"""`python -m benchmarks.live`: live turns through Redis, against plain redis-py that sends the same commands.

Ratios from interleaved rounds, as in `python -m benchmarks`. Plain redis-py writes a batch with XADD, XTRIM and PEXPIRE
in one pipeline, and reads with XREAD BLOCK or XRANGE: no lease, no fence, no owner, no window, and a batch that is
repeated is written twice. Needs redis-server, or LEVADA_REDIS_URL.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from statistics import median
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis

from levada.live import LiveLog, Writer
from tests.servers import running_redis

DATA = '{"channel":"answer","text":"água mole em pedra dura, tanto bate até que fura"}'  # a frame of the normal form
CONNECTIONS = 4  # as LiveLog's
Timed = Callable[[], Awaitable[float]]  # returns seconds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args(arguments).quick else 9
    if url := os.environ.get("LEVADA_REDIS_URL"):
        print(asyncio.run(table(url, rounds)))
        return 0
    try:
        with running_redis() as server:
            print(asyncio.run(table(server.url, rounds)))
    except BaseException as error:
        if type(error).__name__ != "Skipped":  # pytest's, where there is no server
            raise
        print(f"live turns not measured: {error}", file=sys.stderr)
    return 0


async def table(url: str, rounds: int) -> str:
    """Return the table, as text."""
    lines = [f"{'live turns through Redis':46} {'unit':>10} {'redis-py':>10} {'levada':>10}  ratio (min..max)"]
    pool = BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS)
    redis: Any = Redis(connection_pool=pool)
    async with redis, LiveLog.open(url) as log, LiveLog.open(url) as other:
        contests = {
            "append, one entry a batch": (500, plain_append(redis, 500, 1), append(log, 500, 1)),
            "append, ten entries a batch": (2000, plain_append(redis, 200, 10), append(log, 200, 10)),
            "append, 200 turns at once": (4000, plain_many(redis, 200, 20), many(log, 200, 20)),
            "read again from the start": (5000, plain_read(redis, 5000), read(log, 5000)),
            "from append to a reader elsewhere": (0, plain_latency(redis, 300), latency(log, other, 300)),
            "append to one that 20 read elsewhere": (0, plain_latency(redis, 100, 20), latency(log, other, 100, 20)),
        }
        for name, (count, plain, ours) in contests.items():
            pairs = []
            for _ in range(rounds):
                pairs.append((await plain(), await ours()))
            theirs_s, ours_s = (median(each) for each in zip(*pairs, strict=True))
            ratios = sorted(a / b for a, b in pairs)
            unit = "entries/s" if count else "µs"
            shown = [count / each if count else each * 1e6 for each in (theirs_s, ours_s)]
            lines.append(
                f"{name:46} {unit:>10} {shown[0]:10.0f} {shown[1]:10.0f}  {median(ratios):.2f} "
                f"({ratios[0]:.2f}..{ratios[-1]:.2f})"
            )
        lines += ["", *await sizes(log, redis)]
        info = await redis.info("server")
    lines.append(f"Redis {info['redis_version']}, Python {sys.version.split()[0]}; ratio: above 1 levada is faster")
    return "\n".join(lines)


def name() -> str:
    return f"bench-{secrets.token_hex(8)}"


async def plain_batch(redis: Any, key: str, size: int) -> None:
    pipeline = redis.pipeline(transaction=True)
    for _ in range(size):
        pipeline.xadd(key, {"e": "text", "d": DATA})
    pipeline.xtrim(key, maxlen=20_000, approximate=False)
    pipeline.pexpire(key, 605_000)
    await pipeline.execute()


def plain_append(redis: Any, batches: int, size: int) -> Timed:
    async def run() -> float:
        key, begun = name(), time.perf_counter()
        for _ in range(batches):
            await plain_batch(redis, key, size)
        return time.perf_counter() - begun

    return run


def append(log: LiveLog, batches: int, size: int) -> Timed:
    async def run() -> float:
        writer, begun = await log.start(name(), "ana"), time.perf_counter()
        for _ in range(batches):
            await writer.append([("text", DATA)] * size)
        return time.perf_counter() - begun

    return run


def plain_many(redis: Any, turns: int, batches: int) -> Timed:
    return at_once([plain_append(redis, batches, 1) for _ in range(turns)])


def many(log: LiveLog, turns: int, batches: int) -> Timed:
    return at_once([append(log, batches, 1) for _ in range(turns)])


def at_once(runs: list[Timed]) -> Timed:
    async def run() -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(each() for each in runs))
        return time.perf_counter() - begun

    return run


def plain_read(redis: Any, entries: int) -> Timed:
    key = name()

    async def run() -> float:
        if not await redis.exists(key):
            for _ in range(entries // 100):
                await plain_batch(redis, key, 100)
        begun, after, found = time.perf_counter(), "-", 0
        while page := await redis.xrange(key, min=after, count=256):
            found += sum(1 for _, fields in page if fields[b"d"].decode())
            after = f"({page[-1][0].decode()}"
        assert found == entries
        return time.perf_counter() - begun

    return run


def read(log: LiveLog, entries: int) -> Timed:
    turn_id = name()
    started: list[Writer] = []

    async def run() -> float:
        if not started:
            started.append(await log.start(turn_id, "ana"))
            for _ in range(entries // 100):
                await started[0].append([("text", DATA)] * 100)
            await started[0].close("finished")
        begun = time.perf_counter()
        found = [entry async for entry in log.read(turn_id, "ana")]
        assert len(found) == entries + 1
        return time.perf_counter() - begun

    return run


def plain_latency(redis: Any, entries: int, readers: int = 1) -> Timed:
    async def run() -> float:
        key, came = name(), asyncio.Semaphore(0)

        async def follow() -> None:
            async with Redis(
                connection_pool=BlockingConnectionPool(**redis.connection_pool.connection_kwargs)
            ) as plain:
                own: Any = plain
                after, seen = "0", 0
                while seen < entries:
                    for _, page in await own.xread({key: after}, block=1000):
                        seen += len(page)
                        after = page[-1][0].decode()
                        came.release()

        tasks = [asyncio.create_task(follow()) for _ in range(readers)]
        return await timed(lambda: plain_batch(redis, key, 1), came, tasks, entries)

    return run


def latency(log: LiveLog, other: LiveLog, entries: int, readers: int = 1) -> Timed:
    async def run() -> float:
        turn_id, came = name(), asyncio.Semaphore(0)
        writer = await log.start(turn_id, "ana")

        async def follow() -> None:
            seen = 0
            async with aclosing(other.read(turn_id, "ana")) as found:
                async for _ in found:
                    came.release()
                    seen += 1
                    if seen == entries:
                        return

        tasks = [asyncio.create_task(follow()) for _ in range(readers)]

        async def write() -> None:
            await writer.append([("text", DATA)])

        return await timed(write, came, tasks, entries)

    return run


async def timed(
    write: Callable[[], Awaitable[None]], came: asyncio.Semaphore, readers: list[asyncio.Task[None]], entries: int
) -> float:
    """Return the median time from the beginning of a write until every reader has what was written."""
    await asyncio.sleep(0.05)  # they wait by now
    times = []
    for _ in range(entries):
        begun = time.perf_counter()
        await write()
        for _ in readers:
            await came.acquire()
        times.append(time.perf_counter() - begun)
    await asyncio.gather(*readers)
    return median(times)


async def sizes(log: LiveLog, redis: Any) -> list[str]:
    """Return what turns take in Redis, in bytes."""
    found = []
    for entries in (0, 500):
        turn_id = name()
        writer = await log.start(turn_id, "ana")
        for _ in range(entries):
            await writer.append([("text", DATA)])
        keys = [f"levada:live:{{{turn_id}}}:{part}" for part in "ms"]
        used = [await redis.memory_usage(key, samples=0) or 0 for key in keys]
        found.append(sum(used))
        await writer.close("finished")
    empty, full = found
    each = (full - empty) / 500
    size = len(DATA.encode()) + len("text")
    return [f"in Redis: {empty} bytes a turn, {each:.0f} bytes an entry whose event and data are {size} bytes"]


if __name__ == "__main__":
    sys.exit(main())
