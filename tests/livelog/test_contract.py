"""What every store of live turns promises (docs/live-turns.md): one suite, over all of them."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import aclosing
from typing import Any

import pytest
from redis import Redis

from levada import State, UsageError
from levada.live import (
    Entry,
    EntryGone,
    Fenced,
    Known,
    LiveLimit,
    TurnClosed,
    TurnExists,
    UnknownEntry,
    UnknownTurn,
)
from levada.live.store import Away, Page
from levada.live.topics import Topic
from levada.live.values import Batch, End, Signals
from tests.livelog.conftest import Place
from tests.livelog.followed import KEPT_S, LEASE_S, follow, hop, write_some


def step_back(place: Place, turn_id: str, seconds: float) -> None:
    """Make the lease that the turn has one of a clock that was ahead; that of memory does not step."""
    if place.name == "memory":
        return
    if place.name == "sqlite":
        with sqlite3.connect(place.url.removeprefix("sqlite:///"), timeout=30) as db:
            db.execute("UPDATE live_turns SET lease_ends_s = lease_ends_s + ? WHERE turn_id = ?", (seconds, turn_id))
        db.close()
        return
    with Redis.from_url(place.url) as redis:
        redis.hincrby(f"{place.options['prefix']}{{{turn_id}}}:m", "l", int(seconds * 1000))


class TestReading:
    async def test_a_late_reader_gets_the_whole(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            ids = await writer.append([("text", "água\n💧"), ("text", "")])
            end = await writer.close("finished", '{"state":"finished"}')
            assert await follow(log, "t") == [
                Entry(ids[0], "text", "água\n💧"),
                Entry(ids[1], "text", ""),
                Entry(end, "end", '{"state":"finished"}', State.FINISHED),
            ]

    async def test_after_any_id_comes_exactly_the_rest(self, place: Place) -> None:
        async with place.open(page_entries=3) as log:
            writer = await log.start("t", "ana")
            for n in range(5):
                await writer.append([("text", f"{n}.{m}") for m in range(n)])
            await writer.close("finished")
            whole = await follow(log, "t")
            assert [entry.data for entry in whole[:-1]] == [f"{n}.{m}" for n in range(5) for m in range(n)]
            for at, entry in enumerate(whole):
                assert await follow(log, "t", after=entry.id) == whole[at + 1 :]

    async def test_a_reader_follows_a_turn_that_is_written(self, place: Place) -> None:
        async with place.open() as log, place.open() as other:
            writer = await log.start("t", "ana")
            readers = [asyncio.create_task(follow(each, "t")) for each in (log, other, other)]
            written = await write_some(writer, 20)
            await asyncio.sleep(0.05)
            written += await write_some(writer, 5)
            end = await writer.close("cancelled")
            for reader in readers:
                assert await reader == [*written, Entry(end, "end", "", State.CANCELLED)]

    async def test_each_entry_comes_while_the_turn_goes_on(self, place: Place) -> None:
        async with place.open() as log, place.open() as other:
            writer = await log.start("t", "ana")
            async with aclosing(other.read("t", "ana")) as entries:
                for n in range(10):
                    await writer.append([("text", str(n))])
                    assert (await anext(entries)).data == str(n)
            await writer.close("finished")

    async def test_a_reader_that_is_not_reading_holds_up_nobody(self, place: Place) -> None:
        async with place.open() as log, place.open() as other:
            writer = await log.start("t", "ana")
            async with aclosing(other.read("t", "ana")) as slow:
                await writer.append([("text", "first")])
                first = await anext(slow)
                written = await write_some(writer, 300)
                await writer.close("finished")
                assert [entry async for entry in slow][:-1] == written
            assert (await follow(log, "t"))[0] == first

    async def test_a_slow_reader_holds_a_small_piece(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        async with place.open() as log:
            held: list[int] = []
            page = log._store.page

            async def weighed(*args: Any, **options: Any) -> Page:
                found = await page(*args, **options)
                held.append(sum(len(entry.data) for entry in found.entries))
                return found

            monkeypatch.setattr(log._store, "page", weighed)
            writer = await log.start("t", "ana")
            await writer.append([("text", "x" * 4096)] * 200)
            await writer.close("finished")
            assert len(await follow(log, "t")) == 201
            assert max(held) <= 64 * 1024 + 4096

    async def test_an_empty_turn_is_its_end(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            end = await writer.close("error", "{}", event="error", kind="provider", type="overloaded")
            assert await follow(log, "t") == [Entry(end, "error", "{}", State.ERROR, "provider", "overloaded")]
            assert await follow(log, "t", after=end) == []

    async def test_ids_are_in_order_and_fit_an_event_stream(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            ids = await writer.append([("text", "x")] * 12)
            assert len(set(ids)) == 12
            assert all(id.isascii() and id.isprintable() and len(id) <= 40 for id in ids)
            assert writer.last_id == ids[-1]
            await writer.close("finished")

    async def test_large_entries_come_whole(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            texts = ["ã" * 500_000, "\0\r\n\u2028\U0001f4a7", "b" * 1_500_000]
            await writer.append([("text", text) for text in texts])
            await writer.close("finished")
            assert [entry.data for entry in (await follow(log, "t"))[:-1]] == texts

    async def test_however_it_is_cut_and_hopped_the_text_is_the_same(self, place: Place, rounds: int) -> None:
        for seed in range(rounds):
            chance = random.Random(seed)
            async with place.open(page_entries=chance.choice([1, 7, 256])) as log, place.open() as other:
                turn_id = f"t{seed}"
                writer = await log.start(turn_id, "ana")
                readers = [
                    asyncio.create_task(hop([log, other], turn_id, random.Random(n), chance.choice([0.005, 0.05])))
                    for n in range(6)
                ]
                readers += [asyncio.create_task(follow(each, turn_id)) for each in (log, other)]
                whole: list[Entry] = []
                for _ in range(chance.randint(5, 25)):
                    batch = [
                        ("text", chance.choice("aá💧") * chance.randint(0, 200)) for _ in range(chance.randint(1, 9))
                    ]
                    ids = await writer.append(batch)
                    whole += [Entry(id, *entry) for id, entry in zip(ids, batch, strict=True)]
                    await asyncio.sleep(chance.choice([0, 0, 0.002, 0.03]))
                end = await writer.close("finished")
                whole.append(Entry(end, "end", "", State.FINISHED))
                for reader in readers:
                    assert await reader == whole, f"seed {seed}"
                for at in chance.sample(range(len(whole)), 3):
                    assert await follow(other, turn_id, after=whole[at].id) == whole[at + 1 :]


class TestWhereToReadFrom:
    @pytest.mark.parametrize("after", ["x", "1", "-", "1-", "01-1", "1-1\n", " 1-1", "1-1-1", "9" * 99, "٣-٣", "1--1"])
    async def test_what_is_no_id_is_an_error(self, place: Place, after: str) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            with pytest.raises(UnknownEntry, match="malformed"):
                await follow(log, "t", after=after)
            await writer.close("finished")

    async def test_an_id_of_another_turn_is_an_error(self, place: Place) -> None:
        async with place.open() as log:
            one, two = await log.start("one", "ana"), await log.start("two", "ana")
            for writer in (one, two):
                await write_some(writer, 3)
            with pytest.raises(UnknownEntry, match="of another turn"):
                await follow(log, "one", after=two.last_id)
            with pytest.raises(UnknownEntry, match="of another turn"):
                await log.look("two", "ana", one.last_id)
            for writer in (one, two):
                await writer.close("finished")

    async def test_an_id_from_the_future_is_an_error(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            await write_some(writer, 3)
            for future in (f"4-{writer.token}", f"{10**16 - 1}-{writer.token}"):
                with pytest.raises(UnknownEntry, match="from the future"):
                    await follow(log, "t", after=future)
            await writer.close("finished")

    async def test_before_the_kept_window_is_an_error_and_no_gap(self, place: Place) -> None:
        async with place.open(max_entries=10) as log:
            writer = await log.start("t", "ana")
            written = await write_some(writer, 25)
            with pytest.raises(EntryGone) as gone:
                await follow(log, "t")
            assert await follow(log, "t", after=gone.value.oldest, most=10) == written[-10:]
            assert gone.value.oldest == written[14].id
            for entry in written[:14]:
                with pytest.raises(EntryGone):
                    await log.look("t", "ana", entry.id)
            for at in range(14, 24):
                assert await follow(log, "t", after=written[at].id, most=24 - at) == written[at + 1 :]
            await writer.close("finished")

    async def test_the_window_is_bounded_in_bytes_as_well(self, place: Place) -> None:
        async with place.open(max_bytes=1000, max_entry_bytes=200) as log:
            writer = await log.start("t", "ana")
            ids = [(await writer.append([("text", "é" * 48)]))[0] for _ in range(30)]  # 100 bytes each
            with pytest.raises(EntryGone) as gone:
                await log.look("t", "ana", "")
            assert gone.value.oldest == ids[19]
            assert len(await follow(log, "t", after=ids[19], most=10)) == 10
            await writer.close("finished")

    async def test_a_reader_too_slow_for_the_window_is_told(self, place: Place) -> None:
        async with place.open(max_entries=4, page_entries=2) as log:
            writer = await log.start("t", "ana")
            await writer.append([("text", str(n)) for n in range(4)])
            async with aclosing(log.read("t", "ana")) as entries:
                assert (await anext(entries)).data == "0"
                await write_some(writer, 200)
                with pytest.raises(EntryGone):
                    async for _ in entries:
                        pass
            await writer.close("finished")


class TestOwners:
    async def test_another_owner_and_no_turn_are_the_same_error(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            (only,) = await writer.append([("text", "x")])
            for turn_id, owner in (("t", "bia"), ("t", ""), ("u", "ana"), ("no id!", "ana"), ("x" * 999, "ana")):
                for call in (
                    lambda: follow(log, turn_id, owner),  # noqa: B023  # called at once
                    lambda: follow(log, turn_id, owner, only),  # noqa: B023
                    lambda: log.look(turn_id, owner, only),  # noqa: B023
                    lambda: log.stop(turn_id, owner),  # noqa: B023
                ):
                    with pytest.raises(UnknownTurn) as unknown:
                        await call()
                    assert unknown.value == UnknownTurn(turn_id[:128])
            assert (await writer.renew()).stop is None
            await writer.close("finished")

    async def test_an_id_is_taken_once_whoever_asks(self, place: Place) -> None:
        async with place.open() as log, place.open() as other:
            writer = await log.start("t", "ana")
            for each, owner in ((log, "ana"), (other, "ana"), (other, "bia")):
                with pytest.raises(TurnExists):
                    await each.start("t", owner)
            await writer.close("finished")
            with pytest.raises(TurnExists):
                await other.start("t", "ana")

    async def test_of_many_who_start_one_turn_one_gets_it(self, place: Place) -> None:
        async with place.open() as log, place.open() as other:
            starts = [each.start("t", f"owner {n}") for n in range(10) for each in (log, other)]
            got = await asyncio.gather(*starts, return_exceptions=True)
            assert sorted(type(each).__name__ for each in got) == ["TurnExists"] * 19 + ["Writer"]


class TestLooking:
    async def test_it_says_where_the_turn_is(self, place: Place) -> None:
        async with place.open() as log, place.open() as other:
            writer = await log.start("t", "ana")
            assert await other.look("t", "ana") == Known(State.STREAMING, writer.last_id)
            await write_some(writer, 2)
            assert await other.look("t", "ana") == Known(State.STREAMING, writer.last_id)
            end = await writer.close("error", kind="provider", type="overloaded")
            assert await other.look("t", "ana") == Known(State.ERROR, end, None, "provider", "overloaded")

    async def test_looking_is_no_reading(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            await log.look("t", "ana")
            assert (await writer.renew()).watched_s is None
            await writer.close("finished")


class TestClosing:
    async def test_the_last_entries_and_the_end_come_at_once(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            end = await writer.close("finished", "{}", final=[("text", "last")])
            assert [entry.data for entry in await follow(log, "t")] == ["last", "{}"]
            assert writer.last_id == end

    async def test_nothing_comes_after_the_end(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            await writer.close("finished")
            for call in (lambda: writer.append([("text", "x")]), writer.renew, lambda: writer.close("error")):
                with pytest.raises(TurnClosed, match="closed as finished"):
                    await call()
            assert len(await follow(log, "t")) == 1

    async def test_closing_again_in_the_same_way_is_the_same_end(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            end = await writer.close("finished", "{}")
            assert await writer.close("finished", "other") == end
            assert [entry.data for entry in await follow(log, "t")] == ["{}"]

    @pytest.mark.parametrize("state", ["streaming", "connecting", "done", ""])
    async def test_only_an_end_closes(self, place: Place, state: str) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            with pytest.raises(UsageError, match="closed as"):
                await writer.close(state)
            await writer.close("finished")


class TestTheLease:
    async def test_all_readers_see_one_end_when_the_producer_is_lost(self, place: Place) -> None:
        async with place.open(lease_s=LEASE_S) as log, place.open(lease_s=LEASE_S) as other:
            writer = await log.start("t", "ana")
            written = await write_some(writer, 3)
            begun = asyncio.get_running_loop().time()
            got = await asyncio.gather(*(follow(each, "t") for each in (log, log, other, other) for _ in range(5)))
            assert asyncio.get_running_loop().time() - begun < LEASE_S + 5
            end = got[0][-1]
            assert (end.state, end.kind, end.type, end.event) == (State.ERROR, "truncated", "producer_lost", "end")
            assert all(each == [*written, end] for each in got)
            assert await other.look("t", "ana") == Known(State.ERROR, end.id, None, "truncated", "producer_lost")
            assert await follow(other, "t") == [*written, end]

    async def test_a_producer_that_wakes_up_too_late_is_fenced(self, place: Place) -> None:
        async with place.open(lease_s=LEASE_S) as log, place.open(lease_s=LEASE_S) as other:
            writer = await log.start("t", "ana")
            await write_some(writer, 1)
            seen = await follow(other, "t")
            with pytest.raises(Fenced, match="lease ran out"):
                await writer.append([("text", "late")])
            for call in (lambda: writer.append([("text", "x")]), writer.renew, lambda: writer.close("finished")):
                with pytest.raises(Fenced, match="lease ran out"):
                    await call()
            assert await follow(log, "t") == seen

    async def test_a_clock_that_steps_back_makes_nobody_wait(self, place: Place) -> None:
        """By the store's clock the lease ends in an hour then: readers count for themselves."""
        async with place.open(lease_s=LEASE_S) as log, place.open(lease_s=60) as other:
            writer = await log.start("t", "ana")
            written = await write_some(writer, 3)
            step_back(place, "t", 3600)
            for whole in await asyncio.gather(follow(log, "t"), follow(log, "t"), follow(other, "t")):
                assert whole[:-1] == written
                assert whole[-1].type == "producer_lost"
            with pytest.raises(Fenced, match="lease ran out"):
                await writer.renew()

    async def test_nor_does_it_end_a_producer_that_is_there(self, place: Place) -> None:
        async with place.open(lease_s=KEPT_S) as log:
            writer = await log.start("t", "ana")
            reader = asyncio.create_task(follow(log, "t"))
            for n in range(6):
                await asyncio.sleep(KEPT_S / 4)
                await writer.renew()
                step_back(place, "t", 3600 - n)
            await writer.close("finished")
            assert [entry.state for entry in await reader] == [State.FINISHED]

    async def test_the_lease_is_the_producer_s_whatever_a_reader_says(self, place: Place) -> None:
        async with place.open(lease_s=60) as log, place.open(lease_s=0.1) as other:
            writer = await log.start("t", "ana")
            reader = asyncio.create_task(follow(other, "t"))
            await asyncio.sleep(1)
            await writer.close("finished")
            assert [entry.state for entry in await reader] == [State.FINISHED]

    @pytest.mark.parametrize("call", ["renew", "close"])
    async def test_whatever_it_tries_first(self, place: Place, call: str) -> None:
        async with place.open(lease_s=LEASE_S) as log:
            writer = await log.start("t", "ana")
            seen = await follow(log, "t")
            with pytest.raises(Fenced, match="lease ran out"):
                await (writer.renew() if call == "renew" else writer.close("finished"))
            assert await follow(log, "t") == seen

    async def test_renewing_keeps_a_silent_turn(self, place: Place) -> None:
        async with place.open(lease_s=KEPT_S) as log:
            writer = await log.start("t", "ana")
            assert writer.renew_every_s == pytest.approx(KEPT_S / 3)
            reader = asyncio.create_task(follow(log, "t"))
            for _ in range(5):
                await asyncio.sleep(writer.renew_every_s)
                await writer.renew()
            await writer.close("finished")
            assert [entry.state for entry in await reader] == [State.FINISHED]

    async def test_late_but_unnoticed_is_no_loss(self, place: Place) -> None:
        async with place.open(lease_s=LEASE_S) as log:
            writer = await log.start("t", "ana")
            await asyncio.sleep(LEASE_S * 1.5)
            await writer.append([("text", "x")])
            await writer.close("finished")
            assert [entry.state for entry in await follow(log, "t")] == [None, State.FINISHED]

    async def test_whoever_wins_the_race_all_see_the_same(self, place: Place, rounds: int) -> None:
        """A producer about as slow as its lease: each entry that was confirmed is there, and nothing after the end."""
        chance = random.Random(3)

        async def race(turn_id: str) -> bool:
            writer = await log.start(turn_id, "ana")
            readers = [asyncio.create_task(follow(each, turn_id)) for each in (log, other, other)]
            confirmed: list[str] = []
            try:
                for n in range(3):
                    await asyncio.sleep(0.3 * chance.uniform(0.9, 1.2))
                    confirmed += await writer.append([("text", f"{n}"), ("text", f"{n}")])
                confirmed.append(await writer.close("finished"))
                fenced = False
            except Fenced:
                fenced = True
            seen = [await reader for reader in readers]
            seen.append(await follow(other, turn_id))
            assert all(each == seen[0] for each in seen)
            ids = [entry.id for entry in seen[0]]
            assert ids[: len(confirmed)] == confirmed
            assert len(ids) == len(confirmed) + fenced
            assert [entry.state for entry in seen[0]][:-1] == [None] * (len(ids) - 1)
            assert seen[0][-1].type == ("producer_lost" if fenced else None)
            return fenced

        async with place.open(lease_s=0.3, patience_s=10) as log, place.open(lease_s=0.3, patience_s=10) as other:
            results = await asyncio.gather(*(race(f"t{n}") for n in range(10 * rounds)))
            assert any(results)

    async def test_a_later_turn_of_the_same_id_has_a_larger_token(self, place: Place) -> None:
        async with place.open(keep_s=0.1, lease_s=KEPT_S) as log:
            old = await log.start("t", "ana")
            (old_id,) = await old.append([("text", "old")])
            await asyncio.sleep(KEPT_S + 0.3)  # abandoned, and kept no longer
            new = await log.start("t", "ana")
            assert new.token > old.token
            with pytest.raises(Fenced, match="another producer"):
                await old.append([("text", "x")])
            await write_some(new, 3)
            with pytest.raises(UnknownEntry, match="of another turn"):
                await log.look("t", "ana", old_id)
            await new.close("finished")

    async def test_what_has_ended_is_forgotten(self, place: Place) -> None:
        async with place.open(keep_s=0.2) as log:
            writer = await log.start("t", "ana")
            end = await writer.close("finished")
            await asyncio.sleep(0.5)
            with pytest.raises(UnknownTurn):
                await follow(log, "t", after=end)


class TestStopping:
    async def test_the_producer_hears_it_wherever_it_is(self, place: Place) -> None:
        async with place.open() as log, place.open() as other:
            writer = await log.start("t", "ana")
            assert (await writer.renew()).stop is None
            assert await other.stop("t", "ana", by="the page") is State.STREAMING
            assert await other.stop("t", "ana", by="another") is State.STREAMING
            assert (await writer.renew()).stop == "the page"
            assert writer.stop == "the page"
            assert (await other.look("t", "ana")).stop == "the page"
            await writer.close("cancelled")
            assert await other.stop("t", "ana") is State.CANCELLED

    async def test_an_append_hears_it_as_well(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            await log.stop("t", "ana")
            await writer.append([("text", "x")])
            assert writer.stop == "owner"
            await writer.close("cancelled")

    async def test_waiting_for_it_needs_no_renewal(self, place: Place) -> None:
        async with place.open(lease_s=60) as log, place.open() as other:
            writer = await log.start("t", "ana")
            waiting = asyncio.create_task(writer.wait_stop())
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await other.stop("t", "ana", by="the page")
            async with asyncio.timeout(10):
                assert await waiting == "the page"
                assert await writer.wait_stop() == "the page"
            await writer.close("cancelled")

    async def test_where_the_word_of_it_is_lost_it_is_heard_with_the_next_renewal(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As Redis' pub/sub loses what comes while its connection is made anew."""
        monkeypatch.setattr(Topic, "asked_to_stop", lambda topic, by: None)
        async with place.open(lease_s=3) as log, place.open() as other:
            writer = await log.start("t", "ana")
            waiting = asyncio.create_task(writer.wait_stop())
            await asyncio.sleep(0.1)
            await other.stop("t", "ana", by="the page")
            async with asyncio.timeout(20):
                assert await waiting == "the page"
            await writer.close("cancelled")

    async def test_one_that_was_asked_before_is_heard(self, place: Place) -> None:
        async with place.open(lease_s=60) as log, place.open() as other:
            writer = await log.start("t", "ana")
            await other.stop("t", "ana", by="the page")
            async with asyncio.timeout(10):
                assert await writer.wait_stop() == "the page"
            await writer.close("cancelled")


class TestWatching:
    async def test_a_producer_knows_whether_somebody_reads(self, place: Place) -> None:
        async with place.open(lease_s=KEPT_S) as log, place.open(lease_s=KEPT_S) as other:
            writer = await log.start("t", "ana")
            assert (await writer.renew()).watched_s is None
            reader = asyncio.create_task(follow(other, "t"))
            for _ in range(5):
                await asyncio.sleep(KEPT_S / 4)
                watched_s = (await writer.renew()).watched_s
            assert watched_s is not None
            assert watched_s < KEPT_S * 2
            reader.cancel()
            await asyncio.wait({reader})
            while watched_s < KEPT_S:
                await asyncio.sleep(KEPT_S / 4)
                watched_s = (await writer.renew()).watched_s
                assert watched_s is not None
            await writer.close("finished")


class TestLimits:
    async def test_an_entry_has_a_largest_size(self, place: Place) -> None:
        async with place.open(max_entry_bytes=100) as log:
            writer = await log.start("t", "ana")
            await writer.append([("text", "é" * 48)])
            with pytest.raises(LiveLimit, match=r"bytes of one entry: 101, and at most 100 .* max_entry_bytes"):
                await writer.append([("text", "ok"), ("texts", "é" * 48)])
            await writer.close("finished")
            assert len(await follow(log, "t")) == 2

    async def test_a_batch_fits_the_window(self, place: Place) -> None:
        async with place.open(max_entries=3, max_bytes=100, max_entry_bytes=50) as log:
            writer = await log.start("t", "ana")
            with pytest.raises(LiveLimit, match="max_entries"):
                await writer.append([("text", "x")] * 4)
            with pytest.raises(LiveLimit, match="max_bytes"):
                await writer.append([("text", "x" * 46)] * 3)
            await writer.append([("text", "x")] * 3)
            await writer.close("finished")

    @pytest.mark.parametrize(
        "entry",
        [("", "x"), ("a\nb", "x"), ("a\0", "x"), ("x" * 201, "x"), ("text", "\ud800"), ("text", b"x"), (1, "x")],
    )
    async def test_what_is_no_entry_is_refused(self, place: Place, entry: tuple[str, str]) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            with pytest.raises(UsageError):
                await writer.append([("text", "ok"), entry])
            await writer.close("finished")
            assert len(await follow(log, "t")) == 1

    @pytest.mark.parametrize(
        "entries",
        ["ab", b"ab", {"ab": 1}, ["ab"], [b"ab"], [{"a": 1, "b": 2}], [("a",)], [("a", "b", "c")], [1], 1, None],
    )
    async def test_nor_is_what_are_no_pairs_taken_for_some(self, place: Place, entries: Any) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            with pytest.raises(UsageError, match="pairs"):
                await writer.append(entries)
            with pytest.raises(UsageError, match="pairs"):
                await writer.close("finished", final=entries)
            await writer.close("finished")
            assert len(await follow(log, "t")) == 1

    @pytest.mark.parametrize("turn_id", ["", "a b", "é", "{a}", "a/b", "a\n", "x" * 129, 7])
    async def test_what_is_no_id_starts_no_turn(self, place: Place, turn_id: str) -> None:
        async with place.open() as log:
            with pytest.raises(UsageError, match="turn_id"):
                await log.start(turn_id, "ana")


class TestLateCopies:
    """An attempt that was given up may arrive when nobody waits for it any more."""

    async def test_a_late_copy_of_a_batch_changes_nothing(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            for n in range(3):
                await writer.append([("text", str(n)), ("text", "")])
            whole = await follow(log, "t", most=6)
            for n in range(3):
                await log._store.write("t", writer.token, Batch(n + 1, 2 * n, (("text", str(n)), ("text", ""))))
            written = await write_some(writer, 1)
            end = await writer.close("finished")
            assert await follow(log, "t") == [*whole, *written, Entry(end, "end", "", State.FINISHED)]

    async def test_nor_does_one_that_comes_after_the_end(self, place: Place) -> None:
        async with place.open() as log:
            writer = await log.start("t", "ana")
            await write_some(writer, 2)
            await writer.close("finished")
            whole = await follow(log, "t")
            for n in range(2):
                await log._store.write("t", writer.token, Batch(n + 1, n, (("text", f"água {n}"),)))
            await log._store.write("t", writer.token, Batch(3, 2, (("end", ""),), End(State.FINISHED)))
            assert await follow(log, "t") == whole
            assert (await log.look("t", "ana")).state is State.FINISHED

    async def test_a_number_stands_for_the_same_entries_for_ever(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, rounds: int
    ) -> None:
        """Also where appends are cancelled: each copy that was ever sent says the same."""
        chance = random.Random(7)
        async with place.open() as log:
            writer = await log.start("t", "ana")
            sent: dict[int, Batch] = {}
            write = log._store.write

            async def copied(turn_id: str, token: int, batch: Batch) -> Signals:
                assert sent.setdefault(batch.number, batch) == batch
                signals = await write(turn_id, token, batch)
                late = chance.choice(list(sent.values()))
                await write(turn_id, token, late)
                return signals

            monkeypatch.setattr(log._store, "write", copied)
            for n in range(20 * rounds):
                append = asyncio.create_task(writer.append([("text", str(n))]))
                for _ in range(chance.randint(1, 6)):
                    await asyncio.sleep(chance.choice([0, 0, 0.0005]))
                append.cancel()
                await asyncio.wait({append})
            await writer.close("finished")
            assert [entry.data for entry in (await follow(log, "t"))[:-1]] == [str(n) for n in range(20 * rounds)]


class TestComingAndGoing:
    async def test_a_cancelled_append_stays_in_its_place(self, place: Place, rounds: int) -> None:
        """Whatever moment it is cancelled at: what was handed over is written once, in order."""
        chance = random.Random(7)
        async with place.open() as log:
            writer = await log.start("t", "ana")
            handed = []
            for n in range(20 * rounds):
                handed.append(str(n))
                append = asyncio.create_task(writer.append([("text", str(n))]))
                for _ in range(chance.randint(1, 6)):
                    await asyncio.sleep(chance.choice([0, 0, 0.0005]))
                append.cancel()
                await asyncio.wait({append})
            await writer.close("finished")
            assert [entry.data for entry in (await follow(log, "t"))[:-1]] == handed

    async def test_readers_cancelled_at_any_moment_leave_nothing(self, place: Place, rounds: int) -> None:
        chance = random.Random(7)
        async with place.open() as log:
            writer = await log.start("t", "ana")
            stays = asyncio.create_task(follow(log, "t"))
            for n in range(20 * rounds):
                readers = [asyncio.create_task(follow(log, "t")) for _ in range(3)]
                await writer.append([("text", str(n))])
                await asyncio.sleep(chance.choice([0, 0.0005, 0.003]))
                for reader in readers:
                    reader.cancel()
                await asyncio.wait(readers)
            await writer.close("finished")
            assert len(await stays) == 20 * rounds + 1
            assert len(log._store.topics) == 0

    async def test_calls_under_way_end_at_once_when_the_log_is_closed(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = place.open(patience_s=100)
        writer, other = await log.start("t", "ana"), await log.start("u", "ana")
        page = log._store.page

        async def away(*args: object, **options: object) -> None:
            raise Away("a test says so")

        async def stuck(*args: object, **options: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(log._store, "page", stuck)
        monkeypatch.setattr(log._store, "renew", away)
        calls = [log.look("t", "ana"), follow(log, "t"), writer.renew(), writer.wait_stop()]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.2)
        monkeypatch.setattr(log._store, "page", page)
        appends = [asyncio.create_task(other.append([("text", "x" * 20_000)])) for _ in range(300)]
        await asyncio.sleep(0.001)
        await log.aclose()
        _, waiting = await asyncio.wait([*tasks, *appends], timeout=20)
        assert not waiting
        for task in tasks:
            with pytest.raises(UsageError, match="closed"):
                await task
        assert {type(each) for each in await asyncio.gather(*appends, return_exceptions=True)} <= {UsageError, list}

    async def test_a_log_belongs_to_one_event_loop(self, place: Place) -> None:
        async with place.open() as log:
            await log.start("t", "ana")
            with pytest.raises(UsageError, match="event loop"):
                await asyncio.to_thread(lambda: asyncio.run(log.look("t", "ana")))
            with pytest.raises(UsageError, match="event loop"):
                await asyncio.to_thread(lambda: asyncio.run(log.aclose()))
            assert (await log.look("t", "ana")).state is State.STREAMING

    async def test_a_closed_log_lets_nobody_wait(self, place: Place) -> None:
        log = place.open()
        writer = await log.start("t", "ana")
        waiting = [asyncio.create_task(follow(log, "t")), asyncio.create_task(writer.wait_stop())]
        await asyncio.sleep(0.05)
        await log.aclose()
        for task in waiting:
            with pytest.raises(UsageError, match="closed"):
                await task
        for call in (lambda: log.look("t", "ana"), lambda: writer.append([("text", "x")]), log.check, writer.renew):
            with pytest.raises(UsageError, match="closed"):
                await call()
        await log.aclose()
