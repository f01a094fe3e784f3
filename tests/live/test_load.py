"""Many turns at once: all confirmed, none mixed, memory flat, and who leaves takes the upstream's connection along.

The gateway is a process of its own, as in life; upstream and clients share the test's. LEVADA_LOAD=N, as `make load`
says, reads N streams at once in place of the short slice.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.gateway.test_normal_form import Reader
from tests.live.replicas import PACE_S, replica, text, upstream

STREAMS = int(os.environ.get("LEVADA_LOAD", "20"))
FULL = STREAMS >= 200
EVENTS = 250 if FULL else 80
ROUNDS = 3 if FULL else 2


def resident_kib(pid: int) -> int:
    words = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", words)
    assert found is not None
    return int(found[1])


async def read(session: aiohttp.ClientSession, url: str, number: int, leave: asyncio.Event | None = None) -> Reader:
    reader = Reader()
    body: dict[str, Any] = {"upstream": f"s{number}", "request": {"messages": []}}
    async with session.post(f"{url}turns", json=body) as response:
        assert response.status == 200, await response.text()
        async for chunk in response.content.iter_any():
            reader.feed(chunk)
            if leave is not None and leave.is_set():
                response.close()
                break
    return reader


async def load(folder: Path) -> None:
    demo = upstream(STREAMS, EVENTS)
    connector = aiohttp.TCPConnector(limit=0)
    async with demo, replica(folder, demo) as gateway, aiohttp.ClientSession(connector=connector) as session:
        url, pid = gateway.url, gateway.process.pid
        sizes = []
        for number in range(ROUNDS):
            began = time.monotonic()
            reading = [asyncio.create_task(read(session, url, number)) for number in range(STREAMS)]
            await asyncio.sleep(EVENTS * PACE_S / 2)
            during = resident_kib(pid)
            readers = await asyncio.gather(*reading)
            took = time.monotonic() - began
            for stream_number, reader in enumerate(readers):
                assert reader.end is not None
                assert reader.end["state"] == "finished"
                assert reader.text == {(0, "answer"): text(stream_number, EVENTS)}
            await asyncio.sleep(0.5)
            sizes.append(resident_kib(pid))
            paced = (EVENTS + 1) * PACE_S
            print(
                f"round {number}: {STREAMS} streams confirmed in {took:.1f} s (paced: {paced:.1f} s), "
                f"gateway {during / 1024:.0f} MiB during, {sizes[-1] / 1024:.0f} MiB after"
            )
            async with session.get(f"{url}healthz") as response:
                assert (await response.json())["turns"] == 0
        # flat: another round of as many turns costs nothing that stays
        assert sizes[-1] - sizes[0] < 8 * 1024, f"the gateway grew: {sizes} KiB"

        half, leave = STREAMS // 2, asyncio.Event()
        staying = [asyncio.create_task(read(session, url, number)) for number in range(half)]
        leaving = [asyncio.create_task(read(session, url, number, leave)) for number in range(half, STREAMS)]
        async with asyncio.timeout(EVENTS * PACE_S):
            while demo.streaming < STREAMS:
                await asyncio.sleep(0.01)
        leave.set()
        await asyncio.gather(*leaving)
        began = time.monotonic()
        while demo.streaming > half:
            # the slice shares its cores with other tests
            assert time.monotonic() - began < (1 if FULL else 5), (
                f"{demo.streaming} upstream connections of {half} that may stay"
            )
            await asyncio.sleep(0.01)
        print(f"{STREAMS - half} clients left; their upstream connections closed in {time.monotonic() - began:.2f} s")
        assert all(reader.end["state"] == "finished" for reader in await asyncio.gather(*staying))


@pytest.mark.xdist_group("screen")  # not beside the browser: both look at the clock
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the size of a process from /proc")
def test_many_turns_at_once(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(load(tmp_path), 240))
