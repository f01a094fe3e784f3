"""From the wire to the outbox: run_turn over real sockets, a ledger as its commit, and what is done afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from levada import (
    AsyncLedger,
    Blocked,
    Cancelled,
    HoldGate,
    Ledger,
    Outcome,
    Retry,
    RunRecord,
    StopButton,
    TurnError,
    run_turn,
)
from levada.gate import replace
from levada.ledger import Action, DueAction
from levada.testing import ReplayServer, Reply

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHAT = [event + b"\n\n" for event in (FIXTURES / "openai_chat.sse").read_bytes().split(b"\n\n") if event]


def asked(server: ReplayServer) -> Callable[[], Any]:
    @asynccontextmanager
    async def open_stream() -> AsyncIterator[httpx.Response]:
        async with httpx.AsyncClient(trust_env=False) as client:
            async with client.stream("POST", server.url, json={"stream": True}, timeout=20) as response:
                yield response

    return open_stream


def ask(*replies: Reply, **options: Any) -> Outcome:
    with ReplayServer(*replies) as server:
        return asyncio.run(run_turn(asked(server), "openai_chat", retry=Retry(attempts=1), **options))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/turns.db"


class TestLedger:
    def test_a_finished_turn_is_committed_and_then_acted_upon(self, url: str) -> None:
        with Ledger.open(url) as ledger:
            told: list[Any] = []
            outcome = ask(
                Reply(CHAT, delay_s=0.001),
                commit=lambda outcome: ledger.commit(outcome, key="k", actions=[Action("mail", {"to": "her"})]),
                after_commit=[told.append],
            )
            assert outcome.committed.status == "stored"
            assert told == [outcome]
            assert (turn := ledger.get("k")) is not None
            assert (turn.answer, turn.altered) == (outcome.released, False)
            seen: list[DueAction] = []
            assert ledger.dispatch({"mail": seen.append}).done == 1
            assert seen[0].payload == {"to": "her"}

    def test_of_every_cut_nothing_is_stored_nor_done(self, url: str) -> None:
        size = sum(map(len, CHAT))
        with Ledger.open(url) as ledger:
            told: list[Any] = []
            for stop_at in range(0, size - 20, size // 12):
                with pytest.raises(TurnError):
                    ask(
                        Reply(CHAT, stop_at=stop_at),
                        commit=lambda outcome: ledger.commit(outcome, key="k", actions=[Action("mail")]),
                        after_commit=[told.append],
                        on_record=lambda record: ledger.record(record, key="k"),
                    )
            assert (ledger.count(), ledger.queued(), told) == (0, {}, [])
            assert len(ledger.records(key="k")) >= 12
            assert {record.committed for record in ledger.records()} == {False}

    def test_what_a_validator_refuses_is_not_acted_upon(self, url: str) -> None:
        with Ledger.open(url) as ledger:
            told: list[Any] = []
            records: list[RunRecord] = []
            outcome = ask(
                Reply(CHAT),
                commit=lambda outcome: ledger.commit(
                    outcome, key="k", validators=[lambda turn: "dull"], actions=[Action("mail")]
                ),
                after_commit=[told.append],
                on_record=records.append,
            )
            assert (outcome.committed.status, outcome.committed.reasons) == ("refused", ("dull",))
            assert (told, records[0].committed, ledger.count(), ledger.queued()) == ([], False, 0, {})

    def test_what_a_review_replaced_is_what_is_stored(self, url: str) -> None:
        async def review(sentence: object) -> Any:
            return replace("…")

        with Ledger.open(url) as ledger:
            ask(Reply(CHAT), gate=HoldGate, review=review, commit=lambda outcome: ledger.commit(outcome, key="k"))
            assert (turn := ledger.get("k")) is not None
            assert (turn.answer, turn.altered, turn.raw_answer) == ("…", True, None)

    def test_what_a_review_blocked_is_not_committed(self, url: str) -> None:
        async def review(sentence: object) -> Any:
            return "block"

        with Ledger.open(url) as ledger:
            with pytest.raises(Blocked):
                ask(Reply(CHAT), gate=HoldGate, review=review, commit=lambda outcome: ledger.commit(outcome, key="k"))
            assert (ledger.count(), ledger.refused()) == (0, [])


class TestAsyncLedger:
    def test_it_is_awaited(self, url: str) -> None:
        async def main() -> None:
            with ReplayServer(Reply(CHAT, delay_s=0.001)) as server:
                async with AsyncLedger.open(url) as ledger:
                    outcome = await run_turn(
                        asked(server),
                        "openai_chat",
                        commit=lambda outcome: ledger.commit(outcome, key="k", actions=[Action("mail")]),
                        on_record=lambda record: ledger.record(record, key="k"),
                    )
                    assert outcome.committed.status == "stored"
                    assert [record.committed for record in await ledger.records(key="k")] == [True]
                    seen: list[DueAction] = []

                    async def mail(action: DueAction) -> None:
                        seen.append(action)

                    assert (await ledger.dispatch({"mail": mail})).done == 1
                    assert len(seen) == 1

        asyncio.run(main())

    def test_a_run_that_is_cancelled_in_its_commit_waits_for_it(self, url: str) -> None:
        async def main() -> None:
            with ReplayServer(Reply(CHAT)) as server:
                async with AsyncLedger.open(url) as ledger:
                    begun, go_on = threading.Event(), threading.Event()
                    records: list[RunRecord] = []

                    def slow(turn: object) -> None:
                        begun.set()
                        assert go_on.wait(30)

                    task = asyncio.create_task(
                        run_turn(
                            asked(server),
                            "openai_chat",
                            commit=lambda outcome: ledger.commit(outcome, key="k", validators=[slow]),
                            on_record=records.append,
                        )
                    )
                    await asyncio.to_thread(begun.wait, 30)
                    task.cancel()
                    await asyncio.sleep(0.05)
                    assert not task.done()
                    go_on.set()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    assert await ledger.count() == 1
                    assert records[0].committed

        asyncio.run(main())

    def test_one_that_is_stopped_before_its_end_commits_nothing(self, url: str) -> None:
        async def main() -> None:
            button = StopButton()
            with ReplayServer(Reply(CHAT, delay_s=0.05)) as server:
                async with AsyncLedger.open(url) as ledger:
                    with pytest.raises(Cancelled):
                        await run_turn(
                            asked(server),
                            "openai_chat",
                            on_delta=lambda delta: button.set("her"),
                            on_error="keep_marked",
                            keep=lambda incomplete: ledger.keep_partial(incomplete, key="k"),
                            on_record=lambda record: ledger.record(record, key="k"),
                            commit=lambda outcome: ledger.commit(outcome, key="k"),
                            cancel=button,
                        )
                    assert await ledger.count() == 0
                    assert [(one.state, one.cancelled_by) for one in await ledger.records()] == [("cancelled", "her")]
                    assert {one.state for one in await ledger.partials()} <= {"cancelled"}

        asyncio.run(main())
