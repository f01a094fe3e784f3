"""Two gateway processes over one Redis: readers hop between them, processes and Redis die, and nobody is told a lie.

LEVADA_REPLICAS=N, as `make replicas` says, has N turns at once in place of the short slice.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from levada.gateway.demo import DemoUpstream
from tests.live.replicas import PACE_S, Client, Replica, replica, text, upstream
from tests.servers import running_redis

TURNS = int(os.environ.get("LEVADA_REPLICAS", "20"))
FULL = TURNS >= 200
EVENTS = 250 if FULL else 100
LEASE_S = 20.0  # where nobody dies: other work on this machine must not look like a death
SHORT_LEASE_S = 5.0  # the default, where somebody does
SLACK_S = 10.0

pytestmark = pytest.mark.xdist_group("screen")  # not beside the browser: both take what there is of the machine


class Cluster:
    """Two replicas, their upstream, and clients of both."""

    def __init__(self, replicas: list[Replica], demo: DemoUpstream, session: aiohttp.ClientSession) -> None:
        self.replicas, self.demo, self.session = replicas, demo, session

    def client(self, number: int, **options: Any) -> Client:
        return Client(self.session, self.replicas, number, **options)

    async def started(self, clients: list[Client]) -> None:
        """Wait until the turns of all clients arrive."""
        async with asyncio.timeout(30):
            for client in clients:
                await client.asked.wait()

    async def until(self, true: Any, seconds: float = 10) -> float:
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < seconds, "it did not come"
            await asyncio.sleep(0.02)
        return time.monotonic() - began


@asynccontextmanager
async def cluster(folder: Path, url: str, events: int = EVENTS, **live: Any) -> AsyncIterator[Cluster]:
    settings = {"url": url, "lease_s": LEASE_S, "prefix": f"levada:test:{folder.name}:", **live}
    async with AsyncExitStack() as stack:
        demo = await stack.enter_async_context(upstream(TURNS, events))
        replicas = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            replicas.append(await stack.enter_async_context(replica(folder / name, demo, settings)))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout, connector=connector))
        yield Cluster(replicas, demo, session)


def finished(clients: list[Client], events: int = EVENTS) -> None:
    for client in clients:
        assert client.reader.end["state"] == "finished", client.reader.error
        assert client.answer == text(client.number, events)
        ids = [event.id for event in client.events]
        assert len(set(ids)) == len(ids), "an event came twice"


def run(coroutine: Any, seconds: float = 240) -> None:
    asyncio.run(asyncio.wait_for(coroutine, seconds))


def test_readers_hop_between_replicas_and_get_every_event_once(tmp_path: Path, redis_url: str) -> None:
    async def main() -> None:
        async with cluster(tmp_path, redis_url) as both:
            clients = [both.client(number) for number in range(TURNS)]
            began = time.monotonic()
            await asyncio.gather(*(client.follow(120) for client in clients))
            took = time.monotonic() - began
            finished(clients)
            connections = sum(client.connections for client in clients)
            assert connections > TURNS * 3, "nobody hopped"
            for client in clients[:20]:  # what was put together is what one connection gives
                whole = both.client(client.number, hops_s=None, owner=client.owner, turn_id=client.turn_id)
                await whole.follow()
                assert whole.events == client.events
            count = sum(len(client.events) for client in clients)
            print(f"{TURNS} turns, {count} events, {connections} connections: all whole in {took:.1f} s "
                  f"(paced: {(EVENTS + 1) * PACE_S:.1f} s)")  # fmt: skip

    run(main())


def test_a_replica_that_is_killed_ends_its_own_turns_within_the_lease_and_no_others(
    tmp_path: Path, redis_url: str
) -> None:
    events = int((SHORT_LEASE_S + 12) / PACE_S)

    async def main() -> None:
        async with cluster(tmp_path, redis_url, events, lease_s=SHORT_LEASE_S) as both:
            clients = [both.client(number, hops_s=(1, 3)) for number in range(TURNS)]
            following = [asyncio.create_task(client.follow(120)) for client in clients]
            await both.started(clients)
            await asyncio.sleep(1)
            dead = both.replicas[0]
            dead.kill()
            began = time.monotonic()
            lost = [client for client in clients if client.home is dead]
            assert 0 < len(lost) < TURNS
            await asyncio.gather(*(following[client.number] for client in lost))
            took = time.monotonic() - began
            assert took < SHORT_LEASE_S + SLACK_S
            for client in lost:
                error = client.reader.error
                assert (error["kind"], error["type"]) == ("truncated", "producer_lost")
                assert client.reader.end["state"] == "error"
                assert text(client.number, events).startswith(client.answer)
            await asyncio.gather(*following)
            finished([client for client in clients if client.home is not dead], events)
            print(f"{len(lost)} of {TURNS} turns lost with their replica, told within {took:.1f} s; the others whole")

    run(main())


def test_a_replica_that_ends_in_good_order_says_so_and_its_readers_go_elsewhere(tmp_path: Path, redis_url: str) -> None:
    events = int((10 if FULL else 6) / PACE_S)

    async def main() -> None:
        async with cluster(tmp_path, redis_url, events) as both:
            clients = [both.client(number, hops_s=None) for number in range(TURNS)]
            following = [asyncio.create_task(client.follow(120)) for client in clients]
            await both.started(clients)
            leaving = both.replicas[0]
            leaving.killed = True  # as far as the clients' choice goes
            own = [client for client in clients if client.home is leaving]
            # readers of the other replica's turns, through the one that leaves
            through = []
            for client in clients:
                if client.home is not leaving:
                    reader = both.client(client.number, hops_s=None, owner=client.owner, turn_id=client.turn_id)
                    through.append(reader)
                    following.append(asyncio.create_task(_first_through(leaving, reader)))
            await both.until(lambda: all(reader.connections for reader in through), 60)
            await asyncio.sleep(0.5)
            leaving.killed = False
            await leaving.terminate()
            leaving.killed = True
            await asyncio.gather(*following)
            for client in own:
                assert (client.reader.error["type"], client.reader.end["state"]) == ("shutdown", "error")
            finished([client for client in clients if client.home is not leaving] + through, events)

    run(main())


async def _first_through(where: Replica, client: Client) -> Client:
    await client.go_on(where)
    return await client.follow(120)


def test_a_stop_reaches_the_upstream_from_the_other_replica(tmp_path: Path, redis_url: str) -> None:
    async def main() -> None:
        async with cluster(tmp_path, redis_url, events=5000) as both:
            clients = [both.client(number, hops_s=None) for number in range(min(TURNS, 20))]
            following = [asyncio.create_task(client.follow(60)) for client in clients]
            await both.started(clients)
            await both.until(lambda: both.demo.streaming == len(clients))
            for client in clients:
                other = next(one for one in both.replicas if one is not client.home)
                began = time.monotonic()
                address = f"{other.url}turns/{client.turn_id}"
                async with both.session.delete(address, headers=client.headers) as response:
                    assert await response.json() == {
                        "turn": client.turn_id, "state": "cancelled", "upstream_closed": None,
                    }  # fmt: skip
                assert time.monotonic() - began < 3
            assert await both.until(lambda: both.demo.streaming == 0) < 3
            for client in await asyncio.gather(*following):
                assert client.reader.end["state"] == "cancelled"
                assert text(client.number, 5000).startswith(client.answer)

    run(main())


def test_a_turn_goes_on_while_anybody_reads_it_anywhere(tmp_path: Path, redis_url: str) -> None:
    async def main() -> None:
        async with cluster(tmp_path, redis_url, events=5000, lease_s=1.0, linger_s=2.0) as both:
            client = both.client(0, hops_s=(0.1, 0.2))
            await client.ask()
            other = next(one for one in both.replicas if one is not client.home)
            client.hops_s = (6, 6)
            await client.go_on(other)
            assert both.demo.streaming == 1, "it was read all the time, on the other replica"
            took = await both.until(lambda: both.demo.streaming == 0, 20)
            assert took > 0.5
            client.hops_s = None
            await client.follow()
            assert client.reader.end["state"] == "cancelled"

    run(main())


def test_another_owner_finds_nothing_on_any_replica(tmp_path: Path, redis_url: str) -> None:
    async def main() -> None:
        async with cluster(tmp_path, redis_url, events=20) as both:
            client = await both.client(0).follow()
            for where in both.replicas:
                for headers in ({"levada-owner": "somebody-elses-token"}, {}):
                    for method, path in (("GET", "/events"), ("DELETE", "")):
                        address = f"{where.url}turns/{client.turn_id}{path}"
                        async with both.session.request(method, address, headers=headers) as response:
                            assert response.status == 404
                            assert (await response.json())["error"]["type"] == "unknown_turn"
            finished([client], 20)

    run(main())


class TestRedisRestarts:
    # What was answered is with the system then, which a killed process does not take along. With everysec Redis puts
    # its writes off while it syncs, and a kill may lose them: an honest 410, but no test of going on.
    OPTIONS = ("--appendonly", "yes", "--appendfsync", "no")

    def test_a_restart_in_good_order_is_hardly_noticed(self, tmp_path: Path) -> None:
        async def main() -> None:
            with running_redis(*self.OPTIONS) as redis:
                async with cluster(tmp_path, redis.url) as both:
                    clients = [both.client(number) for number in range(TURNS)]
                    following = [asyncio.create_task(client.follow(120)) for client in clients]
                    await both.started(clients)
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(redis.stop)
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(redis.start)
                    await asyncio.gather(*following)
                    finished(clients)

        run(main())

    def test_one_that_is_away_for_long_is_an_error_and_never_a_false_finish(self, tmp_path: Path) -> None:
        async def main() -> None:
            with running_redis(*self.OPTIONS) as redis:
                # patience: longer than any call takes on a busy machine, or turns are given up after the restart too
                async with cluster(tmp_path, redis.url, lease_s=LEASE_S if FULL else 8, patience_s=5.0) as both:
                    clients = [both.client(number) for number in range(TURNS)]
                    following = [asyncio.create_task(client.follow(120)) for client in clients]
                    await both.started(clients)
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(redis.kill)
                    await both.until(lambda: both.demo.streaming == 0, 30)  # nobody reads for a log that is away
                    body = {"upstream": "s0", "request": {}}
                    for where in both.replicas:
                        async with both.session.post(f"{where.url}turns", json=body) as response:
                            assert response.status == 503
                            assert response.headers["retry-after"] == "1"
                            assert (await response.json())["error"]["type"] == "live_log_unavailable"
                        async with both.session.get(f"{where.url}healthz") as response:
                            assert await response.json() == {"status": "ok", "turns": 0}
                    await asyncio.to_thread(redis.start)
                    await asyncio.gather(*following)
                    states = Counter(client.reader.end["state"] for client in clients)
                    assert states == {"error": TURNS}
                    for client in clients:
                        assert client.reader.error["kind"] == "truncated"
                        assert text(client.number, EVENTS).startswith(client.answer)
                    # and everything works again
                    after = [both.client(number) for number in range(TURNS)]
                    await asyncio.gather(*(client.follow(120) for client in after))
                    finished(after)

        run(main())


def test_the_log_holds_no_owners_token(tmp_path: Path, redis_url: str) -> None:
    import redis

    async def main() -> Client:
        async with cluster(tmp_path, redis_url, events=5) as both:
            return await both.client(0).follow()

    client = asyncio.run(main())
    with redis.Redis.from_url(redis_url) as connection:
        keys = list(connection.scan_iter(f"levada:test:{tmp_path.name}:*"))
        assert keys
        kept = b"".join(connection.dump(key) or b"" for key in keys)
        assert client.owner.encode() not in kept
        assert all(0 < connection.ttl(key) < 3600 for key in keys), "everything expires"
