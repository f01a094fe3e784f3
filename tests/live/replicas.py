"""Gateways as processes of their own, and clients that follow a turn from one to the other."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from levada import Event, EventParser
from levada.gateway.demo import DemoUpstream
from levada.gateway.demo.scenarios import Scenario
from tests.gateway.test_normal_form import Reader

PACE_S = 0.02


def stream(number: int, events: int) -> list[bytes]:
    """Return a stream whose every word says whose it is."""
    deltas = [{"index": 0, "delta": {"content": f"s{number}w{word} "}} for word in range(events)]
    choices = [*deltas, {"index": 0, "delta": {}, "finish_reason": "stop"}]
    chunks = [{"id": f"chatcmpl-{number}", "model": "m", "choices": [choice]} for choice in choices]
    return [*(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"]


def text(number: int, events: int) -> str:
    return "".join(f"s{number}w{word} " for word in range(events))


def scenario(number: int, events: int) -> Scenario:
    return Scenario(
        name=f"s{number}", group="", title="", note="", dialect="openai_chat", pieces=lambda: stream(number, events),
        first_delay_s=0.0, delay_s=PACE_S,
    )  # fmt: skip


def upstream(streams: int, events: int) -> DemoUpstream:
    """Return the upstream of so many streams, paced alike."""
    return DemoUpstream({f"s{number}": scenario(number, events) for number in range(streams)})


@dataclass
class Replica:
    """A gateway that runs. `url` ends with a slash."""

    url: str
    process: asyncio.subprocess.Process
    killed: bool = False

    def kill(self) -> None:
        """End it as a crash does."""
        self.killed = True
        self.process.kill()

    async def terminate(self) -> None:
        """End it in good order."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await self.process.wait() == 0


@asynccontextmanager
async def replica(folder: Path, demo: DemoUpstream, live: Mapping[str, Any] | None = None) -> AsyncIterator[Replica]:
    """Run `levada serve` with an upstream for each of the demo's scenarios."""
    lines = []
    for name, value in (live or {}).items():
        lines += [f"{name} = {json.dumps(value)}"]
    if lines:
        lines.insert(0, "[live]")
    for name, known in demo.upstreams().items():
        lines += [f"[upstreams.{name}]", f'url = "{known.url}"', f'dialect = "{known.dialect}"']
    config = folder / "gateway.toml"
    config.write_text("\n".join(lines))
    command = [sys.executable, "-m", "levada", "serve", "--config", str(config), "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    running = Replica("", process)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"http://\S+", line)
        assert found is not None, line
        running.url = found[0]
        yield running
    finally:
        if running.killed:
            await process.wait()
        else:
            await running.terminate()


@dataclass
class Client:
    """A client of turn s`number`, which goes from replica to replica as it likes, and counts what it gets."""

    session: aiohttp.ClientSession
    replicas: list[Replica]
    number: int
    hops_s: tuple[float, float] | None = (0.05, 0.3)
    owner: str = field(default_factory=lambda: f"owner-{random.getrandbits(64):016x}")
    turn_id: str | None = None
    home: Replica | None = None  # where the turn's producer is
    last_id: str = ""
    events: list[Event] = field(default_factory=list)
    reader: Reader = field(default_factory=Reader)
    connections: int = 0
    refusals: list[int] = field(default_factory=list)
    told: list[str] = field(default_factory=list)  # types of the errors that came
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def headers(self) -> dict[str, str]:
        return {"levada-owner": self.owner, **({"last-event-id": self.last_id} if self.last_id else {})}

    @property
    def answer(self) -> str:
        return self.reader.text.get((0, "answer"), "")

    def alive(self) -> Replica:
        return random.choice([one for one in self.replicas if not one.killed])

    async def ask(self) -> None:
        """Start the turn, and read it until the first hop."""
        self.home = self.alive()
        body = {"upstream": f"s{self.number}", "request": {"messages": []}}
        async with self.session.post(f"{self.home.url}turns", json=body, headers=self.headers) as response:
            assert response.status == 200, await response.text()
            self.turn_id = response.headers["levada-turn"]
            self.asked.set()
            await self._take(response)

    async def follow(self, until_s: float = 60) -> Client:
        """Read to the end, over as many connections as it takes."""
        async with asyncio.timeout(until_s):
            if self.turn_id is None:
                await self.ask()
            while self.reader.end is None:
                try:
                    await self.go_on(self.alive())
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
        return self

    async def go_on(self, where: Replica) -> None:
        """Read on, behind the last event that came."""
        async with self.session.get(f"{where.url}turns/{self.turn_id}/events", headers=self.headers) as response:
            if response.status == 200:
                await self._take(response)
            else:
                assert response.status == 503, await response.text()
                self.refusals.append(response.status)
                await asyncio.sleep(0.1)

    async def _take(self, response: aiohttp.ClientResponse) -> None:
        self.connections += 1
        parser = EventParser()
        try:
            async with asyncio.timeout(None if self.hops_s is None else random.uniform(*self.hops_s)):
                async for chunk in response.content.iter_any():
                    for event in parser.feed(chunk):
                        self._event(event)
        except TimeoutError:
            if self.hops_s is None:
                raise
        except aiohttp.ClientError:
            pass  # the replica was killed
        finally:
            response.close()

    def _event(self, event: Event) -> None:
        self.reader.take(event)
        self.events.append(event)
        self.last_id = event.id or self.last_id
        if event.event == "error":
            self.told.append(event.json()["type"])
