"""Producers in processes of their own: stopped, frozen, killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from levada import State
from levada.live import LiveLog, UnknownTurn
from tests.livelog.conftest import Place
from tests.livelog.followed import follow

PRODUCER = Path(__file__).parent / "producer.py"
LEASE_S = 2  # a loaded machine may not run the other process for a while


@pytest.fixture
def shared(place: Place) -> Place:
    if place.name == "memory":
        pytest.skip("memory is not shared between processes")
    place.options["lease_s"] = LEASE_S
    return place


@asynccontextmanager
async def producing(place: Place) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = [str(PRODUCER), place.url, json.dumps(place.options)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, cwd=PRODUCER.parents[2]
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"started\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_for_entries(log: LiveLog) -> None:
    await follow(log, "t", most=3)


async def test_it_is_stopped_from_another_process(shared: Place) -> None:
    async with shared.open() as log, producing(shared) as process:
        await wait_for_entries(log)
        assert await log.stop("t", "ana", by="the page") is State.STREAMING
        whole = await follow(log, "t")
        said, _ = await process.communicate()
        assert said == b"stopped by the page\n"
        assert whole[-1].state is State.CANCELLED
        assert [entry.data for entry in whole[:-1]] == [str(n) for n in range(len(whole) - 1)]


async def test_a_killed_one_ends_its_turn_within_the_lease(shared: Place) -> None:
    async with shared.open() as log, shared.open() as other, producing(shared) as process:
        readers = [asyncio.create_task(follow(each, "t")) for each in (log, other, other)]
        await wait_for_entries(log)
        process.kill()
        killed = asyncio.get_running_loop().time()
        whole, *others = [await reader for reader in readers]
        assert asyncio.get_running_loop().time() - killed < LEASE_S + 5
        assert all(each == whole for each in others)
        assert (whole[-1].kind, whole[-1].type) == ("truncated", "producer_lost")
        assert [entry.data for entry in whole[:-1]] == [str(n) for n in range(len(whole) - 1)]


async def test_a_frozen_one_that_wakes_up_is_fenced(shared: Place) -> None:
    async with shared.open() as log, producing(shared) as process:
        await wait_for_entries(log)
        process.send_signal(signal.SIGSTOP)
        try:
            whole = await follow(log, "t")
        finally:
            process.send_signal(signal.SIGCONT)
        assert whole[-1].type == "producer_lost"
        said, _ = await process.communicate()
        reason, *again = said.decode().splitlines()
        assert reason == "Fenced: its lease ran out, and readers were told that the producer is lost"
        assert again == ["Fenced again"] * 3
        assert await follow(log, "t") == whole


async def test_another_owner_does_not_even_learn_that_it_is_there(shared: Place) -> None:
    async with shared.open() as log, producing(shared):
        with pytest.raises(UnknownTurn):
            await log.stop("t", "bia")
