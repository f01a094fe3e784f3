"""run_turn through real sockets: cut, broken, late, cancelled, tried again; what is committed, painted and closed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3

from levada import (
    Blocked,
    Cancelled,
    HoldGate,
    Outcome,
    Painter,
    ProviderError,
    Retry,
    RunRecord,
    Sentence,
    SentenceGate,
    State,
    StopButton,
    Timeouts,
    TransportError,
    Truncated,
    TurnError,
    TurnTimeout,
    run_turn,
    run_turn_sync,
)
from levada.gate import GatePolicy, Verdict, block, release
from levada.testing import ReplayServer, Reply, random_cuts

TEXT = "Água que corre. Não se perde nem uma gota — 山を流れる水 🏔️. Fim."
PING = b": keep-alive\n\n"
QUICK = Retry(backoff_s=0.01)
NEVER = Retry(when="never")
# no TLS context: making one takes longer than most of these tests
PLAIN: Any = {"trust_env": False, "verify": False}


def event(**delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": delta.pop("finish", None)}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


EVENTS = [
    event(role="assistant"),
    *(event(content=TEXT[at : at + 5]) for at in range(0, len(TEXT), 5)),
    event(finish="stop"),
    b"data: [DONE]\n\n",
]
STREAM = b"".join(EVENTS)
MIDDLE = len(b"".join(EVENTS[:6]))
TERMINAL = len(STREAM) - len(EVENTS[-1])
OVERLOADED = Reply(
    b'{"error": {"type": "overloaded_error", "message": "later"}}', status=529, content_type="application/json"
)

Client = Callable[[str], Any]


def with_httpx(module: Any) -> Client:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        async with module.AsyncClient(timeout=5, **PLAIN) as client:
            async with client.stream("POST", url, json={"stream": True}) as response:
                yield response

    return opened


@asynccontextmanager
async def with_aiohttp(url: str) -> AsyncIterator[Any]:
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json={"stream": True}) as response:
            yield response


async def with_requests(url: str) -> Any:
    return await asyncio.to_thread(requests.post, url, json={"stream": True}, stream=True, timeout=5)


async def with_urllib3(url: str) -> Any:
    pool = urllib3.PoolManager(retries=False, timeout=5)
    return await asyncio.to_thread(pool.request, "POST", url, json={"stream": True}, preload_content=False)


ASYNC = {"httpx": with_httpx(httpx), "httpx2": with_httpx(httpx2), "aiohttp": with_aiohttp}
CLIENTS = {**ASYNC, "requests": with_requests, "urllib3": with_urllib3}
each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
each_async_client = pytest.mark.parametrize("client", ASYNC.values(), ids=ASYNC)


class Run:
    """One run against a server, and everything that it did; the laws are checked at its end."""

    def __init__(self, server: ReplayServer, client: Client = with_aiohttp, **options: Any) -> None:
        self.server = server
        self.open = lambda: client(server.url)
        self.paints: list[str] = []
        self.commits: list[Outcome] = []
        self.actions: list[Outcome] = []
        self.records: list[RunRecord] = []
        self.options: dict[str, Any] = {
            "commit": self.commits.append,
            "after_commit": [self.actions.append],
            "on_record": self.records.append,
            "error_text": lambda error, kept: f"{kept}<{getattr(error, 'kind', 'cancelled')}>",
        } | options

    async def go(self) -> Outcome:
        return await run_turn(self.open, "openai_chat", painter=Painter(self.paints.append), **self.options)

    def answer(self) -> Outcome:
        outcome = asyncio.run(self.go())
        self.check()
        assert len(self.commits) == len(self.actions) == 1
        assert self.paints[-1] == outcome.released
        return outcome

    def fails(self) -> TurnError:
        with pytest.raises(TurnError) as caught:
            asyncio.run(self.go())
        self.check()
        assert self.commits == self.actions == []
        assert self.paints[-1].endswith(f"<{caught.value.kind}>")
        return caught.value

    def check(self) -> None:
        for outcome in self.commits:
            assert outcome.turn.answer == outcome.released == TEXT
        drafts, shown = self.paints[:-1], ""
        for draft in drafts:
            assert TEXT.startswith(draft)
            assert draft.startswith(shown) or not draft  # a prefix of the next, except across a clear
            shown = draft
        assert self.server.wait_for(lambda server: all(known.closed_by for known in server.connections), 3)


@each_client
class TestClients:
    def test_a_whole_stream_is_committed_once_and_then_acted_upon(self, client: Client) -> None:
        with ReplayServer(Reply(EVENTS, delay_s=0.005)) as server:
            run = Run(server, client)
            assert run.answer().attempts == 1
            assert run.records[0].upstream_closed
            assert len(server.requests) == 1

    @pytest.mark.parametrize("stop", ["close", "reset"])
    def test_a_body_that_breaks_off_is_never_committed(self, client: Client, stop: Any) -> None:
        with ReplayServer(Reply(EVENTS, stop_at=MIDDLE, stop=stop, delay_s=0.002)) as server:
            assert isinstance(Run(server, client).fails(), Truncated)
            assert len(server.requests) == 1  # text was released: it is not written again by itself

    @pytest.mark.parametrize("stop", ["close", "reset"])
    def test_an_attempt_that_broke_off_before_any_text_is_made_again(self, client: Client, stop: Any) -> None:
        with ReplayServer(Reply(EVENTS, stop_at=len(EVENTS[0]), stop=stop), Reply(EVENTS)) as server:
            run = Run(server, client, retry=QUICK)
            assert run.answer().attempts == 2
            assert [record.error_kind for record in run.records] == ["truncated", None]
            assert "" not in run.paints  # nothing to clear

    def test_a_half_answer_is_taken_from_the_screen_before_the_next(self, client: Client) -> None:
        with ReplayServer(Reply(EVENTS, stop_at=MIDDLE, delay_s=0.002), Reply(EVENTS)) as server:
            run = Run(server, client, retry=Retry(backoff_s=0.01, when="empty_draft"))
            assert run.answer().attempts == 2
            assert run.paints.count("") == 1

    def test_an_overloaded_server_is_asked_again(self, client: Client) -> None:
        with ReplayServer(OVERLOADED, OVERLOADED, Reply(EVENTS)) as server:
            run = Run(server, client, retry=QUICK)
            assert run.answer().attempts == 3
            assert {record.error_type for record in run.records[:2]} == {"overloaded_error"}

    def test_a_silent_server_is_left(self, client: Client) -> None:
        with ReplayServer(Reply(EVENTS, stop_at=MIDDLE, stop="hang")) as server:
            run = Run(server, client, timeouts=Timeouts(idle_s=0.15))
            begun_s = time.monotonic()
            with pytest.raises(TurnTimeout, match="idle_s"):
                asyncio.run(run.go())
            assert time.monotonic() - begun_s < 2
            # a client that blocks closes when its own read is over
            assert run.records[0].upstream_closed is (client in ASYNC.values())


class TestFragmentation:
    @pytest.mark.parametrize("gate", [SentenceGate, HoldGate])
    def test_any_cut_gives_the_same_answer(self, gate: GatePolicy) -> None:
        cuts = [[STREAM], [STREAM[at : at + 7] for at in range(0, len(STREAM), 7)], *random_cuts(STREAM, 6)]
        with ReplayServer(*(Reply(pieces) for pieces in cuts)) as server:
            for _ in cuts:
                Run(server, gate=gate).answer()


class TestErrors:
    def test_an_error_in_the_middle(self) -> None:
        wrong = b'data: {"error": {"type": "server_error", "message": "out of luck"}}\n\n'
        with ReplayServer(Reply([*EVENTS[:6], wrong, *EVENTS[6:]])) as server:
            run = Run(server, on_error="keep_marked")
            error = run.fails()
            assert isinstance(error, ProviderError)
            assert error.message == "out of luck"
            assert run.paints[-1] == TEXT[:25] + "<provider>"

    def test_a_reset_at_the_last_byte_before_the_terminal_signal(self) -> None:
        with ReplayServer(Reply(EVENTS, stop_at=TERMINAL, stop="reset", delay_s=0.002)) as server:
            assert isinstance(Run(server).fails(), Truncated)

    def test_a_reset_after_the_terminal_signal_changes_nothing(self) -> None:
        with ReplayServer(Reply(EVENTS, stop_at=len(STREAM), stop="reset", delay_s=0.002)) as server:
            Run(server).answer()

    def test_a_server_that_stays_open_after_the_end_delays_nothing_for_long(self) -> None:
        with ReplayServer(Reply(EVENTS, stop_at=len(STREAM), stop="hang")) as server:
            begun_s = time.monotonic()
            committed_s: list[float] = []
            Run(server, commit=lambda outcome: committed_s.append(time.monotonic()), after_commit=[])
            run = Run(server)
            run.options["after_commit"] = [run.actions.append, lambda _: committed_s.append(time.monotonic())]
            run.answer()
            assert committed_s[0] - begun_s < 0.25 + 0.5
            assert time.monotonic() - begun_s < 2

    def test_a_server_that_is_not_there(self) -> None:
        with ReplayServer(Reply(EVENTS)) as server:
            pass
        run = Run(server, retry=Retry(attempts=2, backoff_s=0.01))
        assert isinstance(run.fails(), TransportError)
        assert len(run.records) == 2

    def test_retry_after_is_waited_for(self) -> None:
        busy = Reply(OVERLOADED.body, status=429, content_type="application/json", headers=[("retry-after", "0.3")])
        with ReplayServer(busy, Reply(EVENTS)) as server:
            begun_s = time.monotonic()
            Run(server, retry=QUICK).answer()
            assert time.monotonic() - begun_s >= 0.3


class TestTimeouts:
    """Each limit, alone and short; the server would go on for ever."""

    @pytest.mark.parametrize(
        ("name", "reply"),
        [
            ("first_byte_s", Reply(EVENTS, head_delay_s=5)),
            ("first_byte_s", Reply(EVENTS, first_delay_s=5)),
            ("first_event_s", Reply([PING] * 500, delay_s=0.01)),
            ("idle_s", Reply(EVENTS, stop_at=MIDDLE, stop="hang")),
            ("stall_s", Reply([*EVENTS[:6], *[PING] * 500], delay_s=0.01)),
            ("total_s", Reply(EVENTS * 50, delay_s=0.01)),
        ],
        ids=["head", "first byte", "first event", "idle", "stall", "total"],
    )
    def test_each_ends_the_turn(self, name: str, reply: Reply) -> None:
        if name == "total_s":
            reply = Reply([event(content="x")] * 500, delay_s=0.01)
        with ReplayServer(reply) as server:
            run = Run(server, timeouts=Timeouts(**{name: 0.2}), retry=NEVER)
            begun_s = time.monotonic()
            with pytest.raises(TurnTimeout, match=name):
                asyncio.run(run.go())
            assert 0.15 < time.monotonic() - begun_s < 2
            assert run.commits == []
            assert run.paints[-1] == "<timeout>"
            assert server.wait_client_closed(1)

    def test_a_late_server_is_asked_again_within_the_total(self) -> None:
        with ReplayServer(Reply(EVENTS, head_delay_s=5), Reply(EVENTS)) as server:
            run = Run(server, timeouts=Timeouts(first_byte_s=0.1, total_s=5), retry=QUICK)
            assert run.answer().attempts == 2


MOMENTS = {
    "before the head": (Reply(EVENTS, head_delay_s=5), 0),
    "before the first byte": (Reply(EVENTS, first_delay_s=5), 0),
    "in the middle": (Reply(EVENTS, stop_at=MIDDLE, stop="hang"), MIDDLE),
    "at the last byte": (Reply(EVENTS, stop_at=TERMINAL + 13, stop="hang"), TERMINAL + 13),
}


class TestCancel:
    """From outside: by the task, and by a button."""

    @pytest.mark.parametrize("how", ["task", "button"])
    @pytest.mark.parametrize("moment", MOMENTS)
    @each_async_client
    def test_at_this_moment(self, client: Client, moment: str, how: str) -> None:
        reply, sent = MOMENTS[moment]
        button = StopButton()
        with ReplayServer(reply) as server:
            run = Run(server, client, cancel=button)

            async def main() -> None:
                task = asyncio.create_task(run.go())
                there = lambda server: bool(server.requests) and server.connections[0].sent >= sent  # noqa: E731
                await asyncio.to_thread(server.wait_for, there)
                await asyncio.sleep(0.03)
                if how == "task":
                    task.cancel()
                else:
                    button.set("the person")
                await asyncio.wait({task})
                if how == "task":
                    assert task.cancelled()
                else:
                    error = task.exception()
                    assert isinstance(error, Cancelled)
                    assert (error.asked, error.by) == (True, "the person")
                    assert error.upstream_closed is (None if moment == "before the head" else True)

            begun_s = time.monotonic()
            asyncio.run(main())
            assert server.wait_client_closed(1)
            assert time.monotonic() - begun_s < 3
            assert run.commits == run.actions == []
            assert run.paints[-1] == "<cancelled>"
            assert run.records[0].state is State.CANCELLED
            assert run.records[0].cancelled is not None
            assert run.records[0].cancelled.asked

    @pytest.mark.parametrize("gate", [HoldGate, SentenceGate])
    def test_during_the_last_review(self, gate: GatePolicy) -> None:
        begun = asyncio.Event()

        async def review(sentence: Sentence) -> Verdict:
            if "Fim" in sentence.text:
                begun.set()
                await asyncio.sleep(60)
            return release

        with ReplayServer(Reply(EVENTS)) as server:
            run = Run(server, gate=gate, review=review)

            async def main() -> None:
                task = asyncio.create_task(run.go())
                await begun.wait()
                task.cancel()
                await asyncio.wait({task})
                assert task.cancelled()

            asyncio.run(main())
            assert run.commits == run.actions == []
            assert run.records[0].state is State.FINISHED
            assert run.paints[-1] == "<cancelled>"

    def test_during_the_commit_which_is_carried_through(self) -> None:
        begun = asyncio.Event()
        commits: list[str] = []

        async def commit(outcome: Outcome) -> None:
            begun.set()
            commits.append("begun")
            await asyncio.sleep(0.1)
            commits.append("ended")

        with ReplayServer(Reply(EVENTS)) as server:
            run = Run(server, commit=commit)

            async def main() -> None:
                task = asyncio.create_task(run.go())
                await begun.wait()
                task.cancel()
                await asyncio.wait({task})
                assert task.cancelled()

            asyncio.run(main())
            assert commits == ["begun", "ended"]
            assert run.actions == []
            assert run.records[0].committed
            assert run.paints[-1] == TEXT


class TestReviewers:
    @pytest.mark.parametrize("gate", [HoldGate, SentenceGate])
    @pytest.mark.parametrize("what", ["release", "block", "raise", "hang"])
    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
    def test_each_verdict_and_failure(self, gate: GatePolicy, what: str, is_async: bool) -> None:
        def judge(sentence: Sentence) -> Verdict:
            if what == "raise":
                raise KeyError(sentence.text)
            if what == "hang" and not is_async:
                time.sleep(0.4)
            return block if what == "block" else release

        async def ajudge(sentence: Sentence) -> Verdict:
            await asyncio.sleep(60 if what == "hang" else 0)
            return judge(sentence)

        with ReplayServer(Reply(EVENTS, delay_s=0.002)) as server:
            run = Run(server, gate=gate, review=ajudge if is_async else judge, review_timeout_s=0.1)
            if what == "release":
                run.answer()
            else:
                assert isinstance(run.fails(), Blocked)
                assert run.paints == ["<blocked>"]

    def test_a_block_in_the_middle_closes_the_upstream(self) -> None:
        with ReplayServer(Reply(EVENTS, stop_at=TERMINAL, stop="hang")) as server:
            run = Run(server, gate=SentenceGate, review=lambda _: block)
            assert isinstance(run.fails(), Blocked)
            assert server.wait_client_closed(1)
            assert run.records[0].state is State.ERROR
            assert run.records[0].upstream_closed


def test_the_sync_twin() -> None:
    with ReplayServer(Reply(EVENTS)) as server:
        outcome = run_turn_sync(lambda: requests.post(server.url, stream=True, timeout=5), "openai_chat")
        assert outcome.released == TEXT
