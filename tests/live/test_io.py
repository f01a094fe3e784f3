"""The adapters through real sockets, one client after the other: whole, cut, broken, late, wrong, and stopped early."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import aiohttp
import anyio
import httpx
import httpx2
import pytest
import requests
import urllib3

from levada import Turn, UsageError
from levada.io import Timeouts, acollect, astream_turn, collect, note_failure, stream_turn
from levada.testing import ReplayServer, Reply, every_cut, random_cuts

TEXT = "Água que corre — 山を流れる水 🏔️ não se perde nem uma gota."


def chat(text: str = TEXT, *, done: bool = True) -> bytes:
    events: list[Any] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    events += [{"choices": [{"index": 0, "delta": {"content": text[at : at + 5]}}]} for at in range(0, len(text), 5)]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m"}
    lines = [f"data: {json.dumps({**head, **event}, ensure_ascii=False)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


STREAM = chat()
EVENTS = [event + b"\n\n" for event in STREAM.split(b"\n\n")[:-1]]
# no proxies, and no TLS context: making one takes longer than most of these tests
PLAIN: Any = {"trust_env": False, "verify": False}
PING = b": keep-alive\n\n"


class Seen:
    """What came of one reading."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.text = ""
        self.stream: Any = None

    def take(self, deltas: list[Any]) -> None:
        self.text += "".join(getattr(delta, "text", "") for delta in deltas)

    @property
    def kind(self) -> str:
        """The state, or the kind of the error."""
        return self.turn.state if self.turn.error is None else self.turn.error.kind


Read = Callable[..., Seen]


def drain(response: Any, turn: Turn, **options: Any) -> Seen:
    seen = Seen(turn)
    seen.stream = stream_turn(response, turn, **options)
    for deltas in seen.stream:
        seen.take(deltas)
    return seen


async def adrain(response: Any, turn: Turn, **options: Any) -> Seen:
    seen = Seen(turn)
    seen.stream = astream_turn(response, turn, **options)
    async for deltas in seen.stream:
        seen.take(deltas)
    return seen


def with_httpx(client_module: Any) -> Read:
    def read(url: str, turn: Turn, read_s: float = 5, **options: Any) -> Seen:
        with client_module.Client(timeout=read_s, **PLAIN) as client:
            with client.stream("POST", url, json={"stream": True}) as response:
                return drain(response, turn, **options)

    return read


def with_requests(url: str, turn: Turn, read_s: float = 5, **options: Any) -> Seen:
    with requests.Session() as session:
        session.trust_env = False
        with session.post(url, json={"stream": True}, stream=True, timeout=read_s) as response:
            return drain(response, turn, **options)


def with_urllib3(url: str, turn: Turn, read_s: float = 5, **options: Any) -> Seen:
    with urllib3.PoolManager(retries=False) as pool:
        response = pool.request("POST", url, json={"stream": True}, preload_content=False, timeout=read_s)
        return drain(response, turn, **options)


def with_lax_urllib3(url: str, turn: Turn, read_s: float = 5, **options: Any) -> Seen:
    with urllib3.PoolManager(retries=False) as pool:
        response = pool.request("POST", url, preload_content=False, timeout=read_s, enforce_content_length=False)
        return drain(response, turn, **options)


def with_async_httpx(client_module: Any) -> Read:
    async def read(url: str, turn: Turn, read_s: float, options: dict[str, Any]) -> Seen:
        async with client_module.AsyncClient(timeout=read_s, **PLAIN) as client:
            async with client.stream("POST", url, json={"stream": True}) as response:
                return await adrain(response, turn, **options)

    return lambda url, turn, read_s=5, **options: asyncio.run(read(url, turn, read_s, options))


def with_aiohttp(url: str, turn: Turn, read_s: float = 5, **options: Any) -> Seen:
    async def read() -> Seen:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=read_s)) as session:
            async with session.post(url, json={"stream": True}) as response:
                return await adrain(response, turn, **options)

    return asyncio.run(read())


SYNC = {
    "httpx": with_httpx(httpx),
    "httpx2": with_httpx(httpx2),
    "requests": with_requests,
    "urllib3": with_urllib3,
}
ASYNC = {
    "async-httpx": with_async_httpx(httpx),
    "async-httpx2": with_async_httpx(httpx2),
    "aiohttp": with_aiohttp,
}
CLIENTS = {**SYNC, **ASYNC}
LAX = {**CLIENTS, "lax-urllib3": with_lax_urllib3}  # does not look at the content length; needed where `clean` is
each_client = pytest.mark.parametrize("read", CLIENTS.values(), ids=CLIENTS)
each_async_client = pytest.mark.parametrize("read", ASYNC.values(), ids=ASYNC)


@pytest.fixture
def serve() -> Iterator[Callable[..., ReplayServer]]:
    with ExitStack() as stack:
        yield lambda *replies: stack.enter_context(ReplayServer(*replies, max_s=30))


class TestAWholeBody:
    @each_client
    @pytest.mark.parametrize("framing", ["chunked", "content-length", "close"])
    def test_gives_the_answer_and_closes(self, read: Read, serve: Any, framing: Any) -> None:
        server = serve(Reply(STREAM, framing=framing))
        seen = read(server.url, Turn("openai_chat"))
        assert seen.turn.result().answer == seen.text == TEXT
        assert seen.stream.cancelled is None
        assert server.wait_for(lambda server: all(known.closed_by for known in server.connections), 1)

    @each_client
    def test_gives_the_same_under_awkward_cuts(self, read: Read, serve: Any) -> None:
        byte_by_byte = [STREAM[at : at + 1] for at in range(len(STREAM))]
        server = serve(*(Reply(pieces) for pieces in [byte_by_byte, *random_cuts(STREAM, 5)]))
        for _ in server.replies:
            assert read(server.url, Turn("openai_chat")).turn.result().answer == TEXT

    @each_client
    def test_hands_out_deltas_as_they_arrive(self, read: Read, serve: Any) -> None:
        class Timed(Turn):
            came: list[float]

            def feed(self, chunk: Any, /) -> Any:
                self.came.append(time.monotonic())
                return super().feed(chunk)

        for framing in ("chunked", "content-length", "close"):
            turn = Timed("openai_chat")
            turn.came = []
            read(serve(Reply([b"".join(EVENTS[:3]), b"".join(EVENTS[3:])], framing=framing, delay_s=0.1)).url, turn)
            assert turn.state == "finished"
            assert turn.came[1] - turn.came[0] > 0.05

    @each_client
    def test_is_unzipped_by_the_client(self, read: Read, serve: Any) -> None:
        zipped = gzip.compress(STREAM)
        pieces = [zipped[at : at + 50] for at in range(0, len(zipped), 50)]
        server = serve(Reply(pieces, headers=[("content-encoding", "gzip")]))
        assert read(server.url, Turn("openai_chat")).turn.result().answer == TEXT

    @each_client
    def test_needs_no_end_where_the_sentinel_came(self, read: Read, serve: Any) -> None:
        """The turn is finished by [DONE]; what the connection does then is nobody's business, and soon closed."""
        for stop in ("close", "reset", "hang"):
            server = serve(Reply(EVENTS, stop_at=len(STREAM), stop=stop, delay_s=0.005))
            begun_s = time.monotonic()
            seen = read(server.url, Turn("openai_chat"), read_s=0.5)
            assert seen.turn.result().answer == TEXT
            assert seen.stream.cancelled is None
            assert time.monotonic() - begun_s < 2

    def test_lets_the_connection_be_used_again(self, serve: Any) -> None:
        server = serve(STREAM)
        with httpx.Client(**PLAIN) as client, requests.Session() as session:
            for _ in range(3):
                with client.stream("GET", server.url) as response:
                    collect(response, Turn("openai_chat"))
                collect(session.get(server.url, stream=True), Turn("openai_chat"))

        async def through_aiohttp() -> None:
            async with aiohttp.ClientSession() as session:
                for _ in range(3):
                    async with session.get(server.url) as response:
                        await acollect(response, Turn("openai_chat"))

        asyncio.run(through_aiohttp())
        assert [len(connection.requests) for connection in server.connections] == [3, 3, 3]

    def test_may_have_been_read_before(self, serve: Any) -> None:
        server = serve(STREAM)
        for response in (
            httpx.get(server.url, **PLAIN),
            httpx2.get(server.url, **PLAIN),
            requests.get(server.url, timeout=5),
        ):
            assert collect(response, Turn("openai_chat")).answer == TEXT


class TestABrokenBody:
    @each_client
    @pytest.mark.parametrize("framing", ["chunked", "content-length", "close"])
    @pytest.mark.parametrize("stop", ["close", "reset"])
    def test_is_truncated(self, read: Read, serve: Any, framing: Any, stop: Any) -> None:
        rnd = random.Random(f"{framing} {stop}")
        places = [0, len(EVENTS[0]), *(rnd.randrange(1, len(STREAM) - 20) for _ in range(3))]
        server = serve(*(Reply(EVENTS, framing=framing, stop_at=at, stop=stop, first_delay_s=0.005) for at in places))
        for _ in places:
            seen = read(server.url, Turn("openai_chat"))
            assert seen.kind == "truncated"
            assert seen.turn.error is not None
            assert seen.turn.error.retryable
            assert TEXT.startswith(seen.text)

    @each_client
    def test_is_not_finished_before_the_sentinel_is_whole(self, read: Read, serve: Any) -> None:
        last = len(b"data: [DONE]\n\n")
        places = [len(STREAM) - left for left in range(last, 0, -3)]
        server = serve(*(Reply(STREAM, stop_at=at, stop="reset", delay_s=0.01) for at in places))
        for _ in places:
            assert read(server.url, Turn("openai_chat")).kind == "truncated"

    @each_client
    def test_loses_nothing_that_came_before(self, read: Read, serve: Any) -> None:
        server = serve(Reply(EVENTS, stop_at=len(b"".join(EVENTS[:5])) + 7, stop="reset", delay_s=0.01))
        assert read(server.url, Turn("openai_chat")).text == TEXT[:20]

    @pytest.mark.parametrize("read", LAX.values(), ids=LAX)
    def test_is_not_confirmed_by_a_finish_reason(self, read: Read, serve: Any) -> None:
        """terminal="finish_reason" asks for a clean end: the one place where this dialect needs `clean`."""
        body = chat(done=False)
        outcomes = {}
        for name, reply in {
            "chunked": Reply(body),
            "length": Reply(body, framing="content-length"),
            "no last chunk": Reply(body, stop_at=len(body)),
            "reset": Reply(body, stop_at=len(body), stop="reset", delay_s=0.02),
            "length not reached": Reply(body + b"\n", framing="content-length", stop_at=len(body)),
            "until close": Reply(body, framing="close"),
            "until reset": Reply(body, framing="close", stop_at=len(body), stop="reset", delay_s=0.02),
        }.items():
            outcomes[name] = read(serve(reply).url, Turn("openai_chat", terminal="finish_reason")).kind
        assert outcomes == {
            "chunked": "finished",
            "length": "finished",
            "no last chunk": "truncated",
            "reset": "truncated",
            "length not reached": "truncated",
            "until close": "truncated",
            "until reset": "truncated",
        }

    @each_client
    def test_of_zipped_bytes_is_not_finished(self, read: Read, serve: Any) -> None:
        zipped = gzip.compress(STREAM)
        server = serve(
            Reply(zipped, headers=[("content-encoding", "gzip")], stop_at=len(zipped) // 2),
            Reply(zipped[: len(zipped) // 2], headers=[("content-encoding", "gzip")]),  # cut by who zipped it
            Reply(b"no gzip at all", headers=[("content-encoding", "gzip")]),
        )
        kinds = [read(server.url, Turn("openai_chat")).kind for _ in server.replies]
        assert kinds[0] == "truncated"
        assert "finished" not in kinds


class TestAWrongBody:
    @each_client
    def test_a_rate_limit_keeps_its_words_and_its_time(self, read: Read, serve: Any) -> None:
        body = b'{"error": {"message": "slow down", "type": "rate_limit", "code": "rate_limit_exceeded"}}'
        server = serve(
            Reply(
                body,
                status=429,
                content_type="application/json",
                headers=[("retry-after", "7")],
                framing="content-length",
            )
        )
        error = read(server.url, Turn("openai_chat")).turn.error
        assert error is not None
        assert (error.kind, error.retryable, error.retry_after_s) == ("provider", True, 7)
        assert error.message == "slow down"

    @each_client
    def test_a_page_of_html_is_no_answer(self, read: Read, serve: Any) -> None:
        page = b"<!doctype html><h1>502 Bad Gateway</h1>"
        server = serve(Reply(page, content_type="text/html"), Reply(page, status=502, content_type="text/html"))
        assert [read(server.url, Turn("openai_chat")).kind for _ in range(2)] == ["protocol", "protocol"]

    @each_client
    def test_a_wrong_type_is_told(self, read: Read, serve: Any) -> None:
        server = serve(Reply(STREAM, content_type="image/png"), Reply(STREAM, content_type=None))
        assert read(server.url, Turn("openai_chat")).kind == "protocol"
        assert read(server.url, Turn("openai_chat")).kind == "finished"  # no type at all says nothing

    @each_client
    def test_an_empty_body_is_truncated(self, read: Read, serve: Any) -> None:
        server = serve(Reply(b""), Reply(b"", framing="content-length"))
        assert [read(server.url, Turn("openai_chat")).kind for _ in range(2)] == ["truncated", "truncated"]


class TestTimeouts:
    @each_client
    def test_the_clients_own_read_timeout_is_one(self, read: Read, serve: Any) -> None:
        for stop_at in (0, 200):
            seen = read(serve(Reply(STREAM, stop_at=stop_at, stop="hang")).url, Turn("openai_chat"), read_s=0.1)
            assert seen.kind == "timeout"
            assert seen.turn.error is not None
            assert "client's own" in seen.turn.error.message

    @each_async_client
    @pytest.mark.parametrize(
        ("name", "reply"),
        [
            ("first_byte_s", Reply(STREAM, first_delay_s=20)),
            ("first_event_s", Reply([PING] * 1000, delay_s=0.02)),
            ("idle_s", Reply(EVENTS, stop_at=len(EVENTS[0]), stop="hang")),
            ("stall_s", Reply([*EVENTS[:3], *[PING] * 1000], delay_s=0.02)),
            ("total_s", Reply([*EVENTS[:-1], *EVENTS[1:-2] * 100], delay_s=0.01)),
        ],
    )
    def test_each_ends_a_wait_by_itself(self, read: Read, serve: Any, name: str, reply: Reply) -> None:
        server = serve(reply)
        begun_s = time.monotonic()
        seen = read(server.url, Turn("openai_chat"), timeouts=Timeouts(**{name: 0.1}))
        assert seen.kind == "timeout"
        assert seen.turn.error is not None
        assert f"({name})" in seen.turn.error.message
        assert time.monotonic() - begun_s < 1
        assert server.wait_client_closed(1)

    @pytest.mark.parametrize("read", SYNC.values(), ids=SYNC)
    @pytest.mark.parametrize(
        ("name", "pieces"),
        [
            ("first_event_s", [PING] * 100),
            ("stall_s", [*EVENTS[:3], *[PING] * 100]),
            ("total_s", EVENTS * 20),
        ],
    )
    def test_without_asyncio_they_are_seen_when_bytes_come(
        self, read: Read, serve: Any, name: str, pieces: Any
    ) -> None:
        server = serve(Reply(pieces[:1] + [piece for piece in pieces[1:] if b"[DONE]" not in piece], delay_s=0.02))
        seen = read(server.url, Turn("openai_chat"), timeouts=Timeouts(**{name: 0.1}))
        assert seen.kind == "timeout"
        assert seen.turn.error is not None
        assert f"({name})" in seen.turn.error.message
        assert server.wait_client_closed(1)

    @each_client
    def test_do_nothing_where_all_comes_in_time(self, read: Read, serve: Any) -> None:
        limits = Timeouts(first_byte_s=2, first_event_s=2, idle_s=2, stall_s=2, total_s=4)
        assert read(serve(Reply(EVENTS, delay_s=0.002)).url, Turn("openai_chat"), timeouts=limits).kind == "finished"

    @each_async_client
    def test_a_slow_reader_is_not_the_providers_silence(self, read: Read, serve: Any) -> None:
        class Slow(Turn):
            paused = False

            def feed(self, chunk: Any, /) -> Any:
                if not self.paused:
                    time.sleep(0.4)
                self.paused = True
                return super().feed(chunk)

        turn = Slow("openai_chat")
        limits = Timeouts(idle_s=0.3, stall_s=0.3)
        assert read(serve(Reply(EVENTS)).url, turn, timeouts=limits).kind == "finished"


class Opened:
    """One open response of an async client, whichever."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self._stack: Any = None

    async def __aenter__(self) -> Any:
        from contextlib import AsyncExitStack

        self._stack = AsyncExitStack()
        if self._name == "aiohttp":
            session = await self._stack.enter_async_context(aiohttp.ClientSession())
            return await session.post(self._url)  # not entered: leaving it would close it, and hide that we did not
        module: Any = httpx if self._name == "async-httpx" else httpx2
        client = await self._stack.enter_async_context(module.AsyncClient(**PLAIN))
        return await client.send(client.build_request("POST", self._url), stream=True)

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()


def open_sync(name: str, url: str, stack: ExitStack) -> Any:
    if name == "requests":
        return stack.enter_context(requests.Session()).post(url, stream=True, timeout=5)
    if name == "urllib3":
        return stack.enter_context(urllib3.PoolManager()).request("POST", url, preload_content=False, timeout=5)
    module: Any = httpx if name == "httpx" else httpx2
    client = stack.enter_context(module.Client(**PLAIN))
    return client.send(client.build_request("POST", url), stream=True)


each_name = pytest.mark.parametrize("name", ASYNC)
each_sync_name = pytest.mark.parametrize("name", SYNC)
SLOW = Reply(EVENTS, delay_s=0.03)
NEVER = Reply(EVENTS, first_delay_s=20)
STUCK = Reply(EVENTS, stop_at=len(b"".join(EVENTS[:4])), stop="hang")


class TestCancellation:
    def cancelled(self, name: str, server: ReplayServer, when: Callable[[Turn], bool]) -> Any:
        """Cancel a reading task soon after `when` holds; return its stream, closed while its client is still open."""

        async def main() -> Any:
            turn = Turn("openai_chat")
            async with Opened(name, server.url) as response:
                stream = astream_turn(response, turn)

                async def read() -> None:
                    async with stream:
                        async for _ in stream:
                            pass

                task = asyncio.create_task(read())
                while not when(turn):
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert task.cancelled()
                closed = await asyncio.to_thread(server.wait_client_closed, 1)
                assert closed
                return stream

        return asyncio.run(main())

    @each_name
    def test_before_the_first_byte(self, name: str, serve: Any) -> None:
        stream = self.cancelled(name, serve(NEVER), lambda turn: True)
        assert stream.turn.state == "cancelled"
        assert stream.cancelled.asked
        assert stream.cancelled.upstream_closed is True
        assert stream.cancelled.by == "CancelledError"

    @each_name
    def test_in_the_middle(self, name: str, serve: Any) -> None:
        stream = self.cancelled(name, serve(STUCK), lambda turn: len(turn.answer) == 15)
        assert stream.turn.state == "cancelled"
        assert stream.cancelled.upstream_closed is True
        assert TEXT.startswith(stream.turn.answer)

    @each_name
    def test_after_the_end_changes_nothing(self, name: str, serve: Any) -> None:
        done_and_open = Reply(EVENTS, stop_at=len(STREAM), stop="hang")
        stream = self.cancelled(name, serve(done_and_open), lambda turn: turn.state == "finished")
        assert stream.turn.result().answer == TEXT
        assert stream.cancelled is None

    @each_name
    def test_of_a_level_triggered_scope(self, name: str, serve: Any) -> None:
        """anyio, and so Starlette, cancels again at every await: closing must still get through."""
        server = serve(STUCK)

        async def main() -> Any:
            async with Opened(name, server.url) as response:
                stream = astream_turn(response, Turn("openai_chat"))
                with anyio.move_on_after(0.1):
                    async with stream:
                        async for _ in stream:
                            pass
                assert await asyncio.to_thread(server.wait_client_closed, 1)
                return stream

        stream = asyncio.run(main())
        assert stream.turn.state == "cancelled"
        assert stream.cancelled.upstream_closed is True

    @each_name
    def test_while_the_reader_is_busy_elsewhere(self, name: str, serve: Any) -> None:
        server = serve(SLOW)

        async def main() -> Any:
            async with Opened(name, server.url) as response:
                stream = astream_turn(response, Turn("openai_chat"))

                async def read() -> None:
                    async with stream:
                        async for _ in stream:
                            await asyncio.sleep(20)

                task = asyncio.create_task(read())
                await asyncio.sleep(0.1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await asyncio.to_thread(server.wait_client_closed, 1)
                return stream

        stream = asyncio.run(main())
        assert stream.turn.state == "cancelled"
        assert stream.cancelled.by == "CancelledError"

    @each_name
    def test_by_another_task_that_closes_the_stream(self, name: str, serve: Any) -> None:
        server = serve(STUCK)

        async def main() -> Any:
            async with Opened(name, server.url) as response:
                stream = astream_turn(response, Turn("openai_chat"))

                async def read() -> str:
                    async for _ in stream:
                        pass
                    return "read to the end"

                task = asyncio.create_task(read())
                await asyncio.sleep(0.1)
                await stream.aclose()
                assert await asyncio.wait_for(task, 1) == "read to the end"
                assert await asyncio.to_thread(server.wait_client_closed, 1)
                return stream

        stream = asyncio.run(main())
        assert stream.turn.state == "cancelled"
        assert stream.cancelled.upstream_closed is True

    @each_name
    def test_of_the_turn_by_somebody_else_stops_at_the_next_chunk(self, name: str, serve: Any) -> None:
        server = serve(SLOW)

        async def main() -> Any:
            turn = Turn("openai_chat")
            async with Opened(name, server.url) as response:
                stream = astream_turn(response, turn)
                async for _ in stream:
                    turn.cancel()
                assert await asyncio.to_thread(server.wait_client_closed, 1)
                return stream

        stream = asyncio.run(main())
        assert stream.turn.state == "cancelled"
        assert stream.cancelled.upstream_closed is True


class TestAnEarlyStop:
    @each_sync_name
    def test_by_break_closes_at_once(self, name: str, serve: Any) -> None:
        server = serve(SLOW)
        turn = Turn("openai_chat")
        with ExitStack() as stack:
            response = open_sync(name, server.url, stack)
            for _ in stream_turn(response, turn):
                break
            assert turn.state == "cancelled"
            assert server.wait_client_closed(1)

    @each_sync_name
    def test_by_an_exception_says_by_which(self, name: str, serve: Any) -> None:
        server = serve(SLOW)
        with ExitStack() as stack:
            stream = stream_turn(open_sync(name, server.url, stack), Turn("openai_chat"))
            with pytest.raises(KeyError), stream:
                raise KeyError(next(stream))
            assert server.wait_client_closed(1)
        assert stream.cancelled is not None
        assert (stream.cancelled.by, stream.cancelled.upstream_closed) == ("KeyError", True)

    @each_sync_name
    def test_before_the_start_closes_too(self, name: str, serve: Any) -> None:
        server = serve(STUCK)
        with ExitStack() as stack:
            stream = stream_turn(open_sync(name, server.url, stack), Turn("openai_chat"))
            stream.close()
            assert server.wait_client_closed(1)
        assert stream.cancelled is not None
        assert stream.cancelled.by == "the reader"
        assert list(stream) == []

    @each_sync_name
    def test_after_the_end_changes_nothing(self, name: str, serve: Any) -> None:
        server = serve(Reply(EVENTS, stop_at=len(STREAM), stop="hang"))
        turn = Turn("openai_chat")
        with ExitStack() as stack, stream_turn(open_sync(name, server.url, stack), turn) as stream:
            for _ in stream:
                if turn.state == "finished":
                    break
        assert turn.result().answer == TEXT
        assert stream.cancelled is None
        assert server.wait_client_closed(1)

    @each_name
    @pytest.mark.parametrize("how", ["break", "async with", "aclose"])
    def test_under_asyncio(self, name: str, serve: Any, how: str) -> None:
        server = serve(SLOW)
        turn = Turn("openai_chat")

        async def main() -> None:
            async with Opened(name, server.url) as response:
                if how == "break":
                    async for _ in astream_turn(response, turn):
                        break
                    await asyncio.sleep(0.05)  # the event loop closes what was dropped
                elif how == "aclose":
                    await astream_turn(response, turn).aclose()
                else:
                    async with astream_turn(response, turn) as stream:
                        async for _ in stream:
                            break
                assert turn.state == "cancelled"
                assert await asyncio.to_thread(server.wait_client_closed, 1)

        asyncio.run(main())


class Broken:
    """Chunks that end in an exception, and know whether they were closed."""

    def __init__(self, chunks: list[bytes], error: BaseException | None = None) -> None:
        self.chunks = chunks
        self.error = error
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.chunks
        if self.error is not None:
            raise self.error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed = True


def plainly(source: Any, turn: Turn, **options: Any) -> Seen:
    return drain(source, turn, **options)


def plainly_async(source: Any, turn: Turn, **options: Any) -> Seen:
    return asyncio.run(adrain(source, turn, **options))


each_plain = pytest.mark.parametrize("read", [plainly, plainly_async], ids=["iterable", "async-iterable"])


class TestPlainIterables:
    def test_a_list_will_do(self) -> None:
        for pieces in every_cut(STREAM):
            assert collect(pieces, Turn("openai_chat")).answer == TEXT

    @each_plain
    def test_are_closed(self, read: Read) -> None:
        source = Broken(EVENTS)
        assert read(source, Turn("openai_chat")).kind == "finished"
        assert source.closed

    @each_plain
    def test_a_quiet_end_is_no_clean_one_unless_the_caller_says_so(self, read: Read) -> None:
        body = chat(done=False)
        kinds = [
            read(Broken([body]), Turn("openai_chat", terminal="finish_reason"), clean=clean).kind
            for clean in (None, False, True)
        ]
        assert kinds == ["truncated", "truncated", "finished"]

    @each_plain
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (TimeoutError("late"), "timeout"),
            (ConnectionResetError(104, "reset"), "truncated"),
            (asyncio.IncompleteReadError(b"", 7), "truncated"),
            (urllib3.exceptions.ProtocolError("broken"), "truncated"),
            (ConnectionRefusedError(111, "refused"), "transport"),
            (OSError("no route"), "transport"),
            (httpx.DecodingError("no gzip"), "transport"),
        ],
    )
    def test_an_exception_of_the_network_ends_in_the_state(self, read: Read, error: Exception, kind: str) -> None:
        source = Broken(EVENTS[:4], error)
        seen = read(source, Turn("openai_chat"))
        assert (seen.kind, seen.text, source.closed) == (kind, TEXT[:15], True)

    @each_plain
    def test_any_other_exception_fails_the_turn_and_is_raised(self, read: Read) -> None:
        source, turn = Broken(EVENTS[:4], KeyError("a bug")), Turn("openai_chat")
        with pytest.raises(KeyError):
            read(source, turn)
        assert source.closed
        assert turn.error is not None
        assert turn.error.kind == "transport"

    @each_plain
    def test_what_is_no_bytes_is_a_mistake_of_ours(self, read: Read) -> None:
        source: Any = Broken(["text"])  # type: ignore[list-item]  # that is the mistake
        turn = Turn("openai_chat")
        with pytest.raises(TypeError, match="feed_text"):
            read(source, turn)
        assert source.closed
        assert turn.state == "cancelled"

    def test_nobody_knows_whether_their_upstream_is_closed(self) -> None:
        stream = stream_turn(EVENTS, Turn("openai_chat"))
        next(stream)
        stream.close()
        assert stream.cancelled is not None
        assert (stream.cancelled.asked, stream.cancelled.upstream_closed) == (False, None)

    def test_a_head_that_came_before_is_a_mistake_of_ours(self, serve: Any) -> None:
        turn = Turn("openai_chat")
        turn.head(200)
        with pytest.raises(UsageError, match="head"):
            with_requests(serve(STREAM).url, turn)

    def test_idle_async_chunks_time_out(self) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield EVENTS[0]
            await asyncio.sleep(20)

        async def main() -> Seen:
            return await adrain(chunks(), Turn("openai_chat"), timeouts=Timeouts(idle_s=0.05))

        assert asyncio.run(main()).kind == "timeout"

    def test_the_wrong_kind_of_source_is_a_mistake_of_ours(self) -> None:
        turn = Turn("openai_chat")
        with pytest.raises(UsageError, match="use astream_turn"):
            stream_turn(aiter(Broken([])), turn)
        with pytest.raises(UsageError, match="use stream_turn"):
            astream_turn([STREAM], turn)
        with pytest.raises(UsageError, match="cannot read a int"):
            stream_turn(7, turn)


class TestBeforeTheResponse:
    """Connecting is the caller's part; the same function says what its exceptions mean."""

    @pytest.mark.parametrize("module", [httpx, httpx2])
    def test_nobody_listens(self, module: Any, serve: Any) -> None:
        server = serve(STREAM)
        server.close()
        turn = Turn("openai_chat")
        with pytest.raises(module.ConnectError) as caught:
            module.get(server.url, **PLAIN)
        note_failure(turn, caught.value)
        assert turn.error is not None
        assert turn.error.kind == "transport"

    def test_an_error_status_that_the_client_raises(self, serve: Any) -> None:
        async def with_aiohttp() -> None:
            async with aiohttp.ClientSession(raise_for_status=True) as session:
                await session.get(server.url)

        busy = Reply(b"{}", status=429, headers=[("retry-after", "7")])
        server = serve(busy, busy, busy, Reply(b"{}", status=401))
        opened: list[Callable[[], Any]] = [
            lambda: httpx.get(server.url, **PLAIN).raise_for_status(),
            lambda: requests.get(server.url).raise_for_status(),
            lambda: asyncio.run(with_aiohttp()),
            lambda: httpx2.get(server.url, **PLAIN).raise_for_status(),
        ]
        errors = []
        for open_response in opened:
            with pytest.raises((httpx.HTTPError, httpx2.HTTPError, requests.HTTPError, aiohttp.ClientError)) as caught:
                open_response()
            turn = Turn("openai_chat")
            note_failure(turn, caught.value)
            errors.append(turn.error)
        said = [(error.kind, error.type, error.retryable, error.retry_after_s) for error in errors if error is not None]
        assert said == [("provider", "429", True, 7.0)] * 3 + [("provider", "401", False, None)]

    def test_no_head_in_time(self, serve: Any) -> None:
        server = serve(Reply(STREAM, head_delay_s=20))
        opened: list[Callable[[], Any]] = [
            lambda: httpx.get(server.url, timeout=0.05, **PLAIN),
            lambda: requests.get(server.url, timeout=0.05),
            lambda: urllib3.PoolManager(retries=False).request("GET", server.url, timeout=0.05),
        ]
        for open_response in opened:
            turn = Turn("openai_chat")
            with pytest.raises(Exception) as caught:  # noqa: PT011  # each client has its own
                open_response()
            note_failure(turn, caught.value)
            assert turn.error is not None
            assert turn.error.kind == "timeout"
