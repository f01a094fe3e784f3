"""The ledger for asyncio does as the other one does, and what has begun in it is carried through."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from levada import UsageError
from levada.ledger import Action, AsyncLedger, Dispatched, DueAction, Ledger, StoreError
from tests.ledger.test_aside import record
from tests.ledger.test_processes import until
from tests.ledger.turned import fed, finished, text

Test = Callable[[AsyncLedger], Awaitable[None]]


def run(url: str, test: Test, **options: Any) -> None:
    async def main() -> None:
        async with AsyncLedger.open(url, **options) as ledger:
            await test(ledger)

    asyncio.run(main())


class TestTheSame:
    def test_each_method_is_there_with_the_same_parameters(self) -> None:
        for name, method in inspect.getmembers(Ledger, inspect.isfunction):
            if name.startswith("_") or name == "close":
                continue
            here = inspect.signature(getattr(AsyncLedger, name)).parameters
            there = inspect.signature(method).parameters
            more = {"at_once"} if name in ("dispatch", "run_dispatcher") else set()
            assert set(here) - more == set(there), name
            assert [here[one].kind for one in there] == [one.kind for one in there.values()], name
            if name != "run_dispatcher":  # `stop` is an event of the other kind
                assert [here[one].default for one in there] == [one.default for one in there.values()], name

    def test_they_answer_alike(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            turn, actions = finished(), [Action("mail")]
            assert (await ledger.commit(turn, key="k", actions=actions)).status == "stored"
            assert (await ledger.commit(turn, key="k", actions=actions)).status == "already_stored"
            assert (await ledger.commit(turn, key="r", validators=[lambda turn: "no"])).status == "refused"
            await ledger.keep_partial(fed(text("wat"), clean=False), key="p")
            await ledger.record(record(), key="k")
            assert (stored := await ledger.get("k")) is not None
            assert await ledger.turns(limit=1) == [stored] == [one async for one in ledger.each_turn()]
            assert (await ledger.count(), await ledger.queued()) == (1, {"mail": 1})
            assert (
                len(await ledger.refused(key="r")) == len(await ledger.partials()) == len(await ledger.records()) == 1
            )

            def fails(action: DueAction) -> None:
                raise ValueError

            assert (await ledger.dispatch({"mail": fails}, max_attempts=1)).dead == 1
            assert [one.turn_key for one in await ledger.dead_letters()] == ["k"]
            assert await ledger.retry_dead() == 1

        run(ledger_url, test)

    def test_it_can_be_awaited_and_closed_by_hand(self) -> None:
        async def main() -> None:
            ledger = await AsyncLedger.open("sqlite://")
            await ledger.commit(finished(), key="k")
            await ledger.aclose()
            with pytest.raises(UsageError, match="closed"):
                await ledger.count()

        asyncio.run(main())

    def test_the_threads_are_a_number(self) -> None:
        with pytest.raises(UsageError, match="threads must be an int from 1 to 64"):
            AsyncLedger.open("sqlite://", threads=0)

    def test_one_that_cannot_be_opened_says_so_and_leaves_no_thread(self, tmp_path: Any) -> None:
        async def main() -> None:
            with pytest.raises(StoreError, match="missing"):
                await AsyncLedger.open(f"sqlite:///{tmp_path}/nowhere/turns.db")

        asyncio.run(main())
        until(lambda: not any(thread.name.startswith("levada ledger") for thread in threading.enumerate()), "a thread")


class TestCancelling:
    def test_a_commit_that_has_begun_is_carried_through(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            begun, go_on = threading.Event(), threading.Event()

            def slow(turn: object) -> None:
                begun.set()
                assert go_on.wait(30)

            task = asyncio.create_task(ledger.commit(finished(), key="k", validators=[slow]))
            await asyncio.to_thread(begun.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            await ledger.aclose()  # waits for it

        run(ledger_url, test)
        with Ledger.open(ledger_url) as ledger:
            assert ledger.count() == 1

    def test_an_opening_that_is_cancelled_is_closed_when_it_is_over(
        self, ledger_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun, go_on = threading.Event(), threading.Event()
        opened: list[Ledger] = []
        really = Ledger.open

        def slow(*args: Any, **options: Any) -> Ledger:
            begun.set()
            assert go_on.wait(30)
            opened.append(really(*args, **options))
            return opened[0]

        async def main() -> None:
            monkeypatch.setattr(Ledger, "open", slow)
            task = asyncio.ensure_future(AsyncLedger.open(ledger_url))
            await asyncio.to_thread(begun.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

        asyncio.run(main())
        until(lambda: not any(thread.name.startswith("levada ledger") for thread in threading.enumerate()), "a thread")
        with pytest.raises(UsageError, match="closed"):
            opened[0].count()

    def test_one_that_has_not_begun_never_begins(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            begun, go_on = threading.Event(), threading.Event()

            def slow(turn: object) -> None:
                begun.set()
                assert go_on.wait(30)

            first = asyncio.create_task(ledger.commit(finished(), key="first", validators=[slow]))
            await asyncio.to_thread(begun.wait, 30)
            second = asyncio.create_task(ledger.commit(finished(), key="second"))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            go_on.set()
            await first
            assert [turn.key for turn in await ledger.turns()] == ["first"]

        run(ledger_url, test, threads=1)

    def test_the_loop_is_free_while_the_database_is_busy(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            go_on = threading.Event()
            task = asyncio.create_task(
                ledger.commit(finished(), key="k", validators=[lambda turn: None if go_on.wait(30) else "late"])
            )
            await asyncio.sleep(0.01)
            go_on.set()
            assert (await task).status == "stored"

        run(ledger_url, test)


class TestDispatching:
    def test_handlers_may_be_async_and_run_at_once(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            await ledger.commit(finished(), key="k", actions=[Action("mail", n) for n in range(4)])
            seen, together = [], asyncio.Barrier(4)

            async def waits(action: DueAction) -> None:
                await asyncio.wait_for(together.wait(), 30)  # each waits for the three others
                seen.append(action.payload)

            assert await ledger.dispatch({"mail": waits}, at_once=4) == Dispatched(done=4)
            assert sorted(seen) == [0, 1, 2, 3]

        run(ledger_url, test)

    def test_one_at_a_time_by_default_and_no_more_than_asked(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            await ledger.commit(finished(), key="k", actions=[Action("mail", n) for n in range(4)])
            running = most = 0

            async def counts(action: DueAction) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.01)
                running -= 1

            assert await ledger.dispatch({"mail": counts}, limit=3) == Dispatched(done=3, queued=1)
            assert most == 1

        run(ledger_url, test)

    def test_a_cancelled_dispatcher_gives_its_actions_back(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            await ledger.commit(finished(), key="k", actions=[Action("mail"), Action("mail")])
            begun = asyncio.Semaphore(0)

            async def waits(action: DueAction) -> None:
                begun.release()
                await asyncio.sleep(600)

            task = asyncio.create_task(ledger.dispatch({"mail": waits}, at_once=2))
            await begun.acquire()
            await begun.acquire()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            attempts: list[int] = []
            came = await ledger.dispatch({"mail": lambda action: attempts.append(action.attempt)})
            assert (came, attempts) == (Dispatched(done=2), [1, 1])

        run(ledger_url, test)

    def test_closing_lets_handlers_end_and_takes_no_more(self, ledger_url: str) -> None:
        async def main() -> None:
            ledger = await AsyncLedger.open(ledger_url)
            await ledger.commit(finished(), key="k", actions=[Action("mail"), Action("mail")])
            begun, ran = asyncio.Event(), []

            async def slow(action: DueAction) -> None:
                begun.set()
                with pytest.raises(UsageError, match="a handler cannot close its ledger"):
                    await ledger.aclose()
                while not ledger._closing:
                    await asyncio.sleep(0.01)
                assert await ledger.get(action.turn_key) is not None  # its own work is not cut off
                ran.append(action)

            task = asyncio.create_task(ledger.dispatch({"mail": slow}))
            await begun.wait()
            await ledger.aclose()
            assert await task == Dispatched(done=1, queued=1)
            assert len(ran) == 1
            with pytest.raises(UsageError, match="closed"):
                await ledger.dispatch({"mail": slow})

        asyncio.run(main())
        with Ledger.open(ledger_url) as ledger:
            assert ledger.queued() == {"mail": 1}

    def test_a_dispatcher_of_a_closed_ledger_ends(self) -> None:
        async def main() -> None:
            ledger = await AsyncLedger.open("sqlite://")
            task = asyncio.create_task(ledger.run_dispatcher({}, poll_s=0.01))
            await asyncio.sleep(0.05)
            await ledger.aclose()
            await asyncio.wait_for(task, 30)
            with pytest.raises(UsageError, match="closed"):
                await ledger.run_dispatcher({})

        asyncio.run(main())

    def test_a_handler_that_would_run_nothing_is_refused(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            await ledger.commit(finished(), key="k", actions=[Action("mail")])

            async def generator(action: DueAction) -> Any:
                yield pytest.fail("it ran")

            with pytest.raises(UsageError, match="a generator"):
                await ledger.dispatch({"mail": generator})
            came = await ledger.dispatch({"mail": lambda action: generator(action)}, max_attempts=1)  # noqa: PLW0108
            assert came == Dispatched(dead=1)

        run(ledger_url, test)

    def test_a_handler_that_ends_its_program_has_failed_too(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            await ledger.commit(finished(), key="k", actions=[Action("mail")])

            async def leaves(action: DueAction) -> None:
                raise SystemExit("boom")

            await ledger.dispatch({"mail": leaves}, max_attempts=1)

        with pytest.raises(SystemExit, match="boom"):
            run(ledger_url, test)
        with Ledger.open(ledger_url) as ledger:
            assert [one.error_type for one in ledger.dead_letters()] == ["SystemExit"]

    def test_a_handler_that_cancels_itself_has_failed(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            await ledger.commit(finished(), key="k", actions=[Action("mail")])

            async def gives_up(action: DueAction) -> None:
                raise asyncio.CancelledError

            assert await ledger.dispatch({"mail": gives_up}) == Dispatched(failed=1, queued=1)

        run(ledger_url, test)

    def test_a_handler_that_blocks_the_loop_keeps_its_lease(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            await ledger.commit(finished(), key="k", actions=[Action("mail")])
            others: list[Dispatched] = []

            def blocks(action: DueAction) -> None:
                pause = threading.Event()
                with Ledger.open(ledger_url) as other:
                    for _ in range(12):
                        pause.wait(0.1)
                        others.append(other.dispatch({"mail": print}))
                assert not action.lease_lost

            assert await ledger.dispatch({"mail": blocks}, lease_s=0.5) == Dispatched(done=1)
            assert {one.done for one in others} == {0}

        run(ledger_url, test)

    def test_where_the_database_fails_running_handlers_go_on(
        self, ledger_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def test(ledger: AsyncLedger) -> None:
            await ledger.commit(finished(), key="k", actions=[Action("mail")])
            outbox = ledger._ledger._outbox
            take, failed, done = outbox.take, asyncio.Event(), []
            loop, taken = asyncio.get_running_loop(), threading.Lock()

            def once(*args: Any) -> Any:
                if taken.acquire(blocking=False):
                    return take(*args)
                loop.call_soon_threadsafe(failed.set)
                raise StoreError("unreachable", "gone", retryable=True)

            async def waits(action: DueAction) -> None:
                await failed.wait()
                done.append(action)

            monkeypatch.setattr(outbox, "take", once)
            with pytest.raises(StoreError, match="unreachable"):
                await ledger.dispatch({"mail": waits}, at_once=2)
            assert len(done) == 1
            assert await ledger.queued() == {}

        run(ledger_url, test)

    def test_it_runs_what_comes_until_it_is_stopped(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            stop, seen = asyncio.Event(), asyncio.Semaphore(0)

            async def handler(action: DueAction) -> None:
                seen.release()

            task = asyncio.create_task(
                ledger.run_dispatcher({"mail": handler}, stop=stop, poll_s=0.01, max_poll_s=0.05, at_once=2)
            )
            for key in ("a", "b"):
                await ledger.commit(finished(), key=key, actions=[Action("mail")])
                await asyncio.wait_for(seen.acquire(), 30)
            stop.set()
            await asyncio.wait_for(task, 30)

        run(ledger_url, test)

    def test_it_ends_when_its_task_is_cancelled(self, ledger_url: str) -> None:
        async def test(ledger: AsyncLedger) -> None:
            task = asyncio.create_task(ledger.run_dispatcher({}, poll_s=0.01))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(ledger_url, test)
