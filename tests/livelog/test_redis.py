"""Redis that restarts, forgets, hangs and goes away, and connections that break in the middle."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from redis import Redis

from levada import State, UsageError
from levada.live import Entry, EntryGone, Fenced, LiveLog, LiveLogUnavailable, UnknownEntry, UnknownTurn
from tests.livelog.followed import follow, hop, write_some
from tests.livelog.proxy import proxied
from tests.servers import RedisServer, free_port, running_redis

# A server that restarts is back within these on a loaded machine too.
PATIENT = {"lease_s": 30, "patience_s": 30}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def durable() -> Iterator[RedisServer]:
    with running_redis("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


async def restart(server: RedisServer, away_s: float = 0.3) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(away_s)
    await asyncio.to_thread(server.start)


class TestRestart:
    async def test_with_appendonly_the_turn_goes_on(self, durable: RedisServer, rounds: int) -> None:
        """Killed in the middle of writing and reading: nothing is lost, nothing comes twice, nothing ends."""
        async with LiveLog.open(durable.url, **PATIENT) as log, LiveLog.open(durable.url, **PATIENT) as other:
            writer = await log.start("t", "ana")
            readers = [asyncio.create_task(follow(each, "t")) for each in (log, other, other)]
            readers += [asyncio.create_task(hop([log, other], "t", random.Random(n), 0.05)) for n in range(3)]
            writing = asyncio.create_task(write_some(writer, 100 * rounds))
            for _ in range(rounds // 2 + 1):
                await asyncio.sleep(0.1)
                await restart(durable)
            written = await writing
            waiting = asyncio.create_task(writer.wait_stop())
            await asyncio.sleep(0.2)
            await other.stop("t", "ana", by="the page")
            assert await waiting == "the page"
            end = await writer.close("cancelled")
            for reader in readers:
                assert await reader == [*written, Entry(end, "end", "", State.CANCELLED)]

    async def test_without_persistence_the_writer_is_fenced_and_the_turn_unknown(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url, **PATIENT) as log:
            writer = await log.start("t", "ana")
            written = await write_some(writer, 3)
            reader = asyncio.create_task(follow(log, "t"))
            await asyncio.sleep(0.1)
            await restart(server)
            with pytest.raises(Fenced, match="does not know the turn"):
                await writer.append([("text", "x")])
            for reading in (reader, follow(log, "t", after=written[1].id), log.look("t", "ana")):
                with pytest.raises(UnknownTurn):
                    await reading

    async def test_a_turn_of_the_same_id_afterwards_is_another_one(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url, **PATIENT) as log:
            old = await log.start("t", "ana")
            written = await write_some(old, 3)
            await restart(server)
            new = await log.start("t", "ana")
            await write_some(new, 5)
            with pytest.raises(Fenced, match="another producer"):
                await old.close("finished")
            with pytest.raises(UnknownEntry, match="of another turn"):
                await follow(log, "t", after=written[1].id)
            await new.close("finished")

    async def test_a_server_that_went_back_in_time_ends_the_turn(self, server: RedisServer) -> None:
        """As with appendfsync everysec, or a replica that had not heard it all."""
        async with LiveLog.open(server.url, **PATIENT) as log:
            writer = await log.start("t", "ana")
            written = await write_some(writer, 5)
            with Redis.from_url(server.url) as redis:
                redis.save()
            written += await write_some(writer, 5)
            await restart(server)
            with pytest.raises(Fenced, match="entries that it wrote are gone"):
                await writer.append([("text", "x")])
            with pytest.raises(Fenced):
                await writer.close("finished")
            whole = await follow(log, "t")
            assert whole[:-1] == written[:5]
            assert (whole[-1].state, whole[-1].kind, whole[-1].type) == (State.ERROR, "truncated", "entries_lost")
            with pytest.raises(UnknownEntry, match="from the future"):
                await follow(log, "t", after=written[9].id)

    async def test_news_of_what_the_server_lost_make_no_reader_ask_without_a_pause(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url, **PATIENT) as log:
            writer = await log.start("t", "ana")
            await write_some(writer, 3)
            reader = asyncio.create_task(follow(log, "t"))
            await asyncio.sleep(0.2)
            topic = log._store.topics.get("t")
            assert topic is not None
            topic.push(writer.token, 50, [Entry(f"50-{writer.token}", "text", "told, and lost in a failover")])
            await asyncio.sleep(0.2)
            with Redis.from_url(server.url) as redis:
                redis.config_resetstat()
                await asyncio.sleep(0.3)
                assert redis.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"] < 10
            end = await writer.close("finished")
            assert [entry.id for entry in await reader][-1] == end

    async def test_an_evicted_stream_ends_the_turn(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url, **PATIENT) as log:
            writer = await log.start("t", "ana")
            written = await write_some(writer, 5)
            with Redis.from_url(server.url) as redis:
                redis.delete("levada:live:{t}:s")
            with pytest.raises(EntryGone):
                await follow(log, "t", after=written[2].id)
            with pytest.raises(Fenced, match="entries that it wrote are gone"):
                await writer.append([("text", "x")])
            (end,) = await follow(log, "t", after=written[4].id)
            assert end.type == "entries_lost"

    async def test_scripts_that_the_server_forgot_are_handed_over_again(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url) as log:
            writer = await log.start("t", "ana")
            with Redis.from_url(server.url) as redis:
                for n in range(5):
                    redis.script_flush()
                    await asyncio.gather(writer.append([("text", str(n))]), log.look("t", "ana"), writer.renew())
            await writer.close("finished")
            assert [entry.data for entry in await follow(log, "t")] == ["0", "1", "2", "3", "4", ""]


class TestAway:
    @pytest.mark.parametrize("how", ["killed", "hung"])
    async def test_who_waits_is_told_and_may_try_again(self, server: RedisServer, how: str) -> None:
        async with LiveLog.open(server.url, lease_s=2, patience_s=1) as log:
            writer = await log.start("t", "ana")
            await write_some(writer, 3)
            reader = asyncio.create_task(follow(log, "t"))
            await asyncio.sleep(0.2)
            assert server.process is not None
            if how == "killed":
                server.kill()
            else:
                server.process.send_signal(signal.SIGSTOP)
            try:
                begun = time.monotonic()
                for call in (writer.append([("text", "x")]), reader, log.look("t", "ana"), log.check()):
                    with pytest.raises(LiveLogUnavailable, match="try again later; patience_s") as away:
                        await call
                    assert away.value.retryable
                assert time.monotonic() - begun < 20
                with pytest.raises(LiveLogUnavailable):  # spent
                    await writer.close("finished")
            finally:
                if how == "hung":
                    server.process.send_signal(signal.SIGCONT)

    async def test_where_there_is_none_opening_says_so(self) -> None:
        with pytest.raises(LiveLogUnavailable, match="the live log on Redis is not available"):
            async with LiveLog.open("redis://127.0.0.1:1/0", patience_s=0.3):
                pass

    async def test_a_wrong_password_is_told_at_once_and_not_repeated(self, server: RedisServer) -> None:
        with Redis.from_url(server.url) as redis:
            redis.config_set("requirepass", "sesame")
        url = server.url.replace("redis://", "redis://:wrong@")
        begun = time.monotonic()
        with pytest.raises(LiveLogUnavailable, match="refuses our name, password") as away:
            async with LiveLog.open(url, patience_s=30):
                pass
        assert time.monotonic() - begun < 10
        assert "wrong" not in str(away.value)

    async def test_full_memory_is_an_error_that_passes(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url, lease_s=30, patience_s=0.5) as log:
            writer = await log.start("t", "ana")
            with Redis.from_url(server.url) as redis:
                redis.config_set("maxmemory", 1)
                with pytest.raises(LiveLogUnavailable, match="OutOfMemory"):
                    await writer.append([("text", "x")])
                redis.config_set("maxmemory", 0)
            assert (await log.look("t", "ana")).state is State.STREAMING

    async def test_where_memory_is_full_readers_read_and_turns_can_be_stopped(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url, lease_s=3, patience_s=0.5) as log:
            writer = await log.start("t", "ana")
            written = await write_some(writer, 3)
            waiting = asyncio.create_task(writer.wait_stop())
            await asyncio.sleep(0.1)
            with Redis.from_url(server.url) as redis:
                redis.config_set("maxmemory", 1)
                assert await follow(log, "t", most=3) == written
                await log.stop("t", "ana", by="the page")
                assert await waiting == "the page"
                assert (await follow(log, "t"))[-1].type == "producer_lost"
                redis.config_set("maxmemory", 0)
            assert (await log.look("t", "ana")).stop == "the page"

    async def test_nor_does_a_start_write_on_where_memory_is_full(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url, patience_s=0.5) as log:
            await log.start("before", "ana")
            with Redis.from_url(server.url) as redis:
                redis.config_set("maxmemory", 1)
                with pytest.raises(LiveLogUnavailable, match="OutOfMemory"):
                    await log.start("t", "ana")
                redis.config_set("maxmemory", 0)
                assert [key.decode() for key in redis.scan_iter()] == ["levada:live:{before}:m"]

    async def test_a_server_that_runs_a_slow_script_is_waited_for(self) -> None:
        slow = """
            local t = redis.call('TIME')
            local till = t[1] * 1000 + t[2] / 1000 + 1000
            repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > till
        """
        with running_redis("--busy-reply-threshold", "50") as server:
            async with LiveLog.open(server.url, **PATIENT) as log:
                writer = await log.start("t", "ana")
                with Redis.from_url(server.url) as redis:
                    running = asyncio.create_task(asyncio.to_thread(redis.eval, slow, 0))
                    await asyncio.sleep(0.3)
                    written, known = await asyncio.gather(write_some(writer, 1), log.look("t", "ana"))
                    await running
                assert known.state is State.STREAMING
                assert await follow(log, "t", most=1) == written


class TestBrokenConnections:
    async def test_a_batch_cut_anywhere_is_written_once(self, server: RedisServer, rounds: int) -> None:
        async with proxied(server.port) as proxy:
            through = f"redis://127.0.0.1:{proxy.port}/0"
            async with (
                LiveLog.open(through, connections=1, **PATIENT) as log,
                LiveLog.open(server.url, **PATIENT) as direct,
            ):
                writer = await log.start("t", "ana")
                await writer.append([("text", "first")])
                expected = ["first"]
                step = 29 if rounds < 10 else 3
                for way in ("up", "down"):
                    for after in range(0, 420 if way == "up" else 60, step):
                        proxy.cut_after(**{way: after})
                        batch = [("text", f"{way} {after} {n}") for n in range(5)]
                        await writer.append(batch)
                        expected += [data for _, data in batch]
                assert proxy.cuts > 5
                await writer.close("finished")
                assert [entry.data for entry in await follow(direct, "t")] == [*expected, ""]

    async def test_starting_and_closing_are_done_once(self, server: RedisServer, rounds: int) -> None:
        async with proxied(server.port) as proxy:
            through = f"redis://127.0.0.1:{proxy.port}/0"
            async with LiveLog.open(through, connections=1, **PATIENT) as log:
                await (await log.start("first", "ana")).close("finished")
                for after in range(0, 300, 41 if rounds < 10 else 5):
                    for n, cut in enumerate(({"up": after}, {"down": after // 6})):
                        proxy.cut_after(**cut)
                        writer = await log.start(f"t{after}-{n}", "ana")
                        proxy.cut_after(**cut)
                        end = await writer.close("finished", "{}")
                        assert await follow(log, writer.turn_id) == [Entry(end, "end", "{}", State.FINISHED)]

    async def test_connections_that_break_all_the_time(self, server: RedisServer, rounds: int) -> None:
        for seed in range(1 + rounds // 3):
            chance = random.Random(seed)
            async with proxied(server.port) as proxy:
                through = f"redis://127.0.0.1:{proxy.port}/0"
                options = {**PATIENT, "page_entries": 16}  # so that a reply fits what a connection carries
                async with LiveLog.open(through, **options) as log, LiveLog.open(through, **options) as other:
                    turn_id = f"t{seed}"
                    writer = await log.start(turn_id, "ana")
                    chances = [random.Random(seed * 100 + n) for n in range(4)]
                    proxy.budget = lambda: (chance.randint(500, 20_000), chance.randint(500, 40_000))  # noqa: B023
                    proxy.cut_after(up=300, down=300)
                    readers = [asyncio.create_task(follow(each, turn_id)) for each in (log, other, other)]
                    readers += [asyncio.create_task(hop([log, other], turn_id, each, 0.2)) for each in chances]
                    written = await write_some(writer, 200)
                    end = await writer.close("finished")
                    for reader in readers:
                        assert await reader == [*written, Entry(end, "end", "", State.FINISHED)], f"seed {seed}"
                    assert proxy.cuts > 0


class TestManyTurns:
    async def test_a_thousand_at_once_over_a_few_connections(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url, **PATIENT) as log, LiveLog.open(server.url, **PATIENT) as other:
            with Redis.from_url(server.url) as redis:
                most = 0

                async def turn(n: int) -> None:
                    nonlocal most
                    writer = await log.start(f"t{n}", "ana")
                    reader = asyncio.create_task(follow(other, f"t{n}"))
                    written = []
                    for _ in range(3):
                        written += await write_some(writer, 1)
                        await asyncio.sleep(0)
                    if n % 100 == 0:
                        most = max(most, len(redis.client_list()))
                    end = await writer.close("finished")
                    assert await reader == [*written, Entry(end, "end", "", State.FINISHED)]

                await asyncio.gather(*(turn(n) for n in range(1000)))
                assert 3 <= most <= 2 * (4 + 1) + 1

    async def test_every_key_expires(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url, lease_s=5, keep_s=60) as log:
            with Redis.from_url(server.url) as redis:
                live, ended = await log.start("live", "ana"), await log.start("ended", "ana")
                await write_some(live, 2)
                await log.stop("live", "ana")
                await live.renew()
                await write_some(ended, 2)
                await ended.close("finished")
                await follow(log, "ended")
                left = {key.decode(): redis.pttl(key) for key in redis.scan_iter()}
                assert sorted(left) == [f"levada:live:{{{t}}}:{k}" for t in ("ended", "live") for k in "ms"]
                assert all(50_000 < ms <= (65_000 if "live}" in key else 60_000) for key, ms in left.items())


class TestCluster:
    async def test_turns_live_in_a_cluster(self) -> None:
        """One node that has all the slots: the client and the scripts do as with many."""
        with running_redis("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
            with Redis.from_url(server.url) as redis:
                redis.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
                while b"cluster_state:ok" not in redis.execute_command("CLUSTER", "INFO"):
                    await asyncio.sleep(0.05)
            host = urlsplit(server.url).netloc
            async with (
                LiveLog.open(f"redis://{host}", cluster=True) as log,
                LiveLog.open(f"redis://{host}", cluster=True) as other,
            ):
                for turn_id in ("one", "two", "three"):
                    writer = await log.start(turn_id, "ana")
                    reader = asyncio.create_task(follow(other, turn_id))
                    waiting = asyncio.create_task(writer.wait_stop())
                    written = await write_some(writer, 20)
                    await other.stop(turn_id, "ana", by="the page")
                    assert await waiting == "the page"
                    end = await writer.close("finished")
                    assert await reader == [*written, Entry(end, "end", "", State.FINISHED)]


class TestUrls:
    async def test_valkey_is_said_like_redis(self, server: RedisServer) -> None:
        async with LiveLog.open(server.url.replace("redis://", "valkey://")) as log:
            await (await log.start("t", "ana")).close("finished")

    @pytest.mark.parametrize("url", ["redis://h:port/0", "redis://host:6379/0?db=x", "rediss://[::1/0"])
    def test_what_is_no_url_is_an_error_without_it(self, url: str) -> None:
        with pytest.raises(UsageError, match="this is no URL of a Redis"):
            LiveLog.open(url)
