"""The gateway over real sockets on loopback: what a client of POST /turns can rely on."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import httpx
import pytest
from msgspec.structs import replace

from levada.gateway import Frames, Limits, Upstream
from levada.gateway.demo import SCENARIOS
from levada.gateway.demo.scenarios import Scenario
from levada.testing import ReplayServer, Reply
from levada.turn import Turn
from tests.gateway.serving import Running
from tests.gateway.test_normal_form import Reader

# what only the real pace shows is tested with the scenarios as they are; the rest need not wait for it
QUICK = {
    name: Scenario(**{**vars(scenario), "first_delay_s": 0.0, "delay_s": min(scenario.delay_s, 0.002)})
    for name, scenario in SCENARIOS.items()
}
HANGING = {"hanging": Scenario(**{**vars(SCENARIOS["slow"]), "name": "hanging", "first_delay_s": 0.0, "delay_s": 1.0})}
LONG = {"slow": SCENARIOS["slow"], **HANGING, "fast": SCENARIOS["fast"]}


@pytest.fixture(scope="module")
def quick() -> Iterator[Running]:
    with Running(scenarios=QUICK) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def paced() -> Iterator[Running]:
    with Running(scenarios=LONG) as gateway:
        yield gateway


def post(gateway: Running, upstream: str, headers: dict[str, str] | None = None, **request: Any) -> Reader:
    reader = Reader()
    body = {"upstream": upstream, "request": request}
    with httpx.Client(trust_env=False) as client:
        with client.stream("POST", f"{gateway.url}/turns", json=body, headers=headers, timeout=20) as response:
            assert response.status_code == 200, response.read()
            for chunk in response.iter_raw():
                reader.feed(chunk)
    return reader


def call(gateway: Running, method: str, path: str, **options: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=10) as client:
        return client.request(method, f"{gateway.url}{path}", **options)


def wait_until(true: Callable[[], bool], seconds: float = 3.0) -> float:
    """Wait until something holds; return how long that took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, "it did not come"
        time.sleep(0.01)
    return time.monotonic() - began


OPENED: list[socket.socket] = []  # closed after each test, in conftest.py


class Open:
    """A turn that is being read through a bare socket."""

    def __init__(self, gateway: Running, upstream: str, receive_buffer: int | None = None) -> None:
        host, port = gateway.url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        OPENED.append(self.socket)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect((host, int(port)))
        body = json.dumps({"upstream": upstream, "request": {}}).encode()
        head = f"POST /turns HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.socket.sendall(f"{head}\r\n\r\n".encode() + body)

    def read_until(self, words: bytes) -> bytes:
        seen = b""
        while words not in seen:
            data = self.socket.recv(65536)
            assert data, seen
            seen += data
        return seen

    def turn_id(self) -> str:
        """Return the turn's id; `owner` is what its owner has to say from now on."""
        lines = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        self.owner = {"levada-owner": fields["levada-owner"]}
        return fields["levada-turn"]


class TestTurns:
    @pytest.mark.parametrize("name", QUICK)
    def test_every_scenario_ends_as_it_says(self, quick: Running, name: str) -> None:
        wanted = {"Broken": "error"}.get(SCENARIOS[name].group, "finished")
        reader = post(quick, name)
        assert reader.end["state"] == wanted
        assert reader.states[0] == "connecting"
        kinds = {"cut": "truncated", "cut-once": "truncated", "cut-quietly": "truncated"}
        if wanted == "error":
            assert reader.error["kind"] == kinds.get(name, "provider")

    def test_the_head_keeps_proxies_and_caches_away(self, quick: Running) -> None:
        body = {"upstream": "gemini", "request": {}}
        with (
            httpx.Client(trust_env=False) as client,
            client.stream("POST", f"{quick.url}/turns", json=body) as response,
        ):
            headers = response.headers
            response.read()
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-cache, no-transform"
        assert headers["x-accel-buffering"] == "no"
        assert len(headers["levada-turn"]) >= 16

    def test_the_request_is_passed_on_as_a_stream_with_its_defaults_and_its_key(self) -> None:
        stream = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        with ReplayServer(stream) as server:
            upstream = Upstream(
                url=server.url, dialect="openai_chat", request={"model": "m", "seed": 1}, headers={"x-a": "b"}
            )
            with Running(upstreams={"own": upstream}, scenarios={}) as gateway:
                config = gateway.server.gateway.config
                gateway.server.gateway.config = replace(config, keys={"own": ("authorization", "Bearer k")})
                assert post(gateway, "own", seed=2, messages=[]).end["state"] == "finished"
        (request,) = server.requests
        assert json.loads(request.body) == {"model": "m", "seed": 2, "messages": [], "stream": True}
        assert (request.headers["authorization"], request.headers["x-a"]) == ("Bearer k", "b")

    def test_a_finished_turn_leaves_its_upstream_connection_for_the_next(self) -> None:
        stream = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        with ReplayServer(stream) as server:
            own = {"own": Upstream(url=server.url, dialect="openai_chat")}
            with Running(upstreams=own, scenarios={}) as gateway:
                for _ in range(3):
                    assert post(gateway, "own").end["state"] == "finished"
                    wait_until(lambda: gateway.turns == 0)
            assert len(server.connections) == 1

    def test_an_upstream_that_is_not_there_is_an_error_that_names_no_host(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        own = {"own": Upstream(url=f"http://127.0.0.1:{port}/", dialect="anthropic")}
        with Running(upstreams=own, scenarios={}) as gateway:
            reader = post(gateway, "own")
        assert reader.states == ["connecting", "error"]
        assert reader.error["kind"] == "transport"
        assert reader.error["retryable"] is True
        assert str(port) not in json.dumps(reader.events)

    def test_refused_credentials_do_not_show_the_providers_words(self) -> None:
        body = b'{"error":{"message":"Incorrect API key provided: sk-12***90","code":"invalid_api_key"}}'
        with ReplayServer(Reply(body, status=401, content_type="application/json")) as server:
            own = {"own": Upstream(url=server.url, dialect="openai_chat")}
            with Running(upstreams=own, scenarios={}) as gateway:
                reader = post(gateway, "own")
        assert reader.error["message"] == "the upstream refused this gateway's credentials"
        assert "sk-12" not in json.dumps(reader.events)

    def test_a_redirect_is_not_followed(self) -> None:
        with ReplayServer(b"") as other:
            with ReplayServer(Reply(b"", status=307, headers=[("location", other.url)])) as server:
                own = {"own": Upstream(url=server.url, dialect="openai_chat")}
                with Running(upstreams=own, scenarios={}) as gateway:
                    assert post(gateway, "own").error["kind"] == "protocol"
            assert other.connections == []

    def test_a_silent_upstream_is_a_timeout(self) -> None:
        timeouts = {"first_byte_s": 0.2}
        with ReplayServer(Reply(b"x", head_delay_s=5)) as server:
            upstream = Upstream(url=server.url, dialect="openai_chat")
            upstream = replace(upstream, timeouts=replace(upstream.timeouts, **timeouts))
            with Running(upstreams={"own": upstream}, scenarios={}) as gateway:
                began = time.monotonic()
                assert post(gateway, "own").error["kind"] == "timeout"
                assert time.monotonic() - began < 2


class TestPace:
    def test_the_first_frame_comes_before_the_upstream_has_answered(self, paced: Running) -> None:
        turn = Open(paced, "slow")
        began = time.monotonic()
        turn.read_until(b'"state":"connecting"')
        assert time.monotonic() - began < 0.5
        turn.socket.close()

    def test_frames_are_at_least_an_interval_apart(self, paced: Running) -> None:
        """2,000 deltas a second for 4.5 s: at most 25 frames a second and the first and the last."""
        times: list[float] = []
        with httpx.Client(trust_env=False) as client:
            body = {"upstream": "fast", "request": {}}
            with client.stream("POST", f"{paced.url}/turns", json=body, timeout=30) as response:
                reader = Reader()
                for chunk in response.iter_raw():
                    times.append(time.monotonic())
                    reader.feed(chunk)
        assert reader.end["state"] == "finished"
        took = times[-1] - times[0]
        texts = [value["text"] for name, value in reader.events if name == "text"]
        assert len(texts) <= took * 25 + 3
        assert len(texts) > took * 10, "the machine is too busy, or frames are late"

    def test_heartbeats_stand_between_frames(self) -> None:
        with Running(scenarios=HANGING, limits=Limits(heartbeat_s=0.1)) as gateway:
            seen = Open(gateway, "hanging").read_until(b": keep-alive\n\n")
        # a chunk of its own: size, comment, blank line
        assert b"\r\ne\r\n: keep-alive\n\n" in seen


class TestLeaving:
    @pytest.mark.parametrize("upstream", ["slow", "hanging"])
    def test_a_client_that_is_gone_closes_its_upstream_within_a_second(self, paced: Running, upstream: str) -> None:
        turn = Open(paced, upstream)
        turn.read_until(b"connecting")
        wait_until(lambda: paced.demo.open == 1)
        time.sleep(0.1)
        turn.socket.close()
        assert wait_until(lambda: paced.demo.open == 0) < 1
        assert wait_until(lambda: paced.turns == 0) < 1

    def test_delete_cancels_and_the_stream_says_so(self, paced: Running) -> None:
        turn = Open(paced, "hanging")
        turn_id = turn.turn_id()
        wait_until(lambda: paced.demo.open == 1)
        time.sleep(0.2)
        got = call(paced, "DELETE", f"/turns/{turn_id}", headers=turn.owner)
        assert got.json() == {"turn": turn_id, "state": "cancelled", "upstream_closed": True}
        assert b'"state":"cancelled"' in turn.read_until(b"event: end")
        assert wait_until(lambda: paced.demo.open == 0) < 1
        again = call(paced, "DELETE", f"/turns/{turn_id}", headers=turn.owner)
        assert (again.status_code, again.json()["state"]) == (200, "cancelled")

    def test_delete_before_the_upstream_has_answered(self, paced: Running) -> None:
        turn = Open(paced, "slow")
        turn_id = turn.turn_id()
        assert call(paced, "DELETE", f"/turns/{turn_id}", headers=turn.owner).json()["state"] == "cancelled"
        turn.read_until(b"event: end")
        assert wait_until(lambda: paced.demo.open == 0) < 1

    def test_an_unknown_turn_is_404(self, paced: Running) -> None:
        assert call(paced, "DELETE", "/turns/nope").status_code == 404

    def test_a_finished_turn_cannot_be_cancelled_and_that_is_no_error(self, quick: Running) -> None:
        owner = {"levada-owner": "a-token-of-our-own"}
        turn_id = post(quick, "gemini", owner).end["turn"]
        assert call(quick, "DELETE", f"/turns/{turn_id}", headers=owner).json()["state"] == "finished"


class TestSlowClients:
    def big(self, megabytes: int) -> bytes:
        event = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 4000 + b'"}}]}\n\n'
        return event * (megabytes * 250)

    def test_a_client_that_takes_nothing_is_dropped(self) -> None:
        with ReplayServer(Reply([self.big(2), *[self.big(2)] * 4], delay_s=0.05, stop_at=10**9, stop="hang")) as server:
            own = {"own": Upstream(url=server.url, dialect="openai_chat")}
            with Running(upstreams=own, scenarios={}, limits=Limits(send_s=0.5)) as gateway:
                turn = Open(gateway, "own", receive_buffer=4096)
                wait_until(lambda: gateway.turns == 1)
                assert wait_until(lambda: gateway.turns == 0, 6) > 0.4
                assert server.wait_client_closed(2)
                wait_until(lambda: not gateway.server.server_state.connections)
                turn.socket.close()

    def test_what_waits_for_a_slow_client_is_merged_and_all_of_it_arrives(self) -> None:
        deltas = [b'data: {"choices":[{"index":0,"delta":{"content":"%06d "}}]}\n\n' % n for n in range(40_000)]
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        groups = [b"".join(deltas[at : at + 400]) for at in range(0, len(deltas), 400)]
        with ReplayServer(Reply([*groups, end], delay_s=0.005)) as server:
            own = {"own": Upstream(url=server.url, dialect="openai_chat")}
            with Running(upstreams=own, scenarios={}) as gateway:
                turn, reader, seen = Open(gateway, "own", receive_buffer=4096), Reader(), b""
                time.sleep(1.2)  # by now the upstream has been read to its end
                assert server.connections[0].sent > 2_000_000
                while b"event: end" not in seen:
                    seen += turn.socket.recv(65536)
                turn.socket.close()
        body = unchunked(seen.partition(b"\r\n\r\n")[2])
        reader.feed(body)
        assert reader.text[0, "answer"] == "".join(f"{n:06d} " for n in range(40_000))
        assert reader.names().count("text") < 40

    def test_what_a_frame_holds_back_is_the_turns_own_text(self) -> None:
        async def main() -> int:
            with ReplayServer(Reply([self.big(1)] * 8, delay_s=0.05)) as server:
                async with aiohttp.ClientSession() as session:
                    frames = Frames(session.post(server.url), Turn("openai_chat"))
                    taking = aiter(frames)
                    await anext(taking)
                    await anext(taking)
                    async with asyncio.timeout(10):
                        while frames.pending_characters < 6_000_000:
                            await asyncio.sleep(0.02)
                    held = frames.pending_characters
                    await frames.aclose()
                    return held

        assert asyncio.run(main()) <= 8_000_000


def unchunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        if not size or int(size, 16) == 0:
            break
        out, body = out + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return out


class TestLimits:
    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"", 400),
            (b"{", 400),
            (b"[" * 100_000, 400),
            (b"[]", 400),
            (b"{}", 400),
            (b'{"upstream":"gemini","request":[]}', 400),
            (b'{"upstream":1,"request":{}}', 400),
            (b'{"upstream":"gemini","request":{},"more":1}', 400),
            (b'{"upstream":"gemini","request":{"temperature":NaN}}', 400),
            (b'{"upstream":"gemini","request":{"temperature":-Infinity}}', 400),
            (b'{"upstream":"gemini","request":{"temperature":[{"x":1e999}]}}', 400),
            (b'{"upstream":"gemini","request":{"temperature":%s}}' % (b"9" * 5000), 400),
            (b'{"request":{}}', 404),
            (b'{"upstream":"nope","request":{}}', 404),
            (b'{"upstream":"gemini","request":{"x":"' + b"x" * 2_000_000 + b'"}}', 413),
        ],
    )
    def test_what_is_no_request_for_a_turn_is_refused(self, quick: Running, body: bytes, status: int) -> None:
        got = call(quick, "POST", "/turns", content=body, headers={"content-type": "application/json"})
        assert got.status_code == status
        assert set(got.json()["error"]) == {"type", "message"}

    def test_what_is_no_number_reaches_no_upstream(self, quick: Running) -> None:
        for number in ("NaN", "Infinity", "1e999"):
            body = '{"upstream":"gemini","request":{"marked":%s}}' % number  # noqa: UP031  # braces
            got = call(quick, "POST", "/turns", content=body, headers={"content-type": "application/json"})
            assert "no JSON" in got.json()["error"]["message"]
        assert not any("marked" in request for request in quick.demo.requests)
        assert post(quick, "gemini", marked=[1e308, 10**30, "é"]).end["state"] == "finished"
        assert quick.demo.requests[-1]["marked"] == [1e308, 10**30, "é"]

    def test_a_body_without_length_is_counted_too(self, quick: Running) -> None:
        got = call(
            quick, "POST", "/turns", content=iter([b"x" * 65536] * 40), headers={"content-type": "application/json"}
        )
        assert got.status_code == 413

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
    def test_what_a_foreign_page_can_send_unasked_is_refused(self, quick: Running, kind: str) -> None:
        got = call(
            quick, "POST", "/turns", content=b'{"upstream":"gemini","request":{}}', headers={"content-type": kind}
        )
        assert got.status_code == 415

    @pytest.mark.parametrize(
        ("header", "value", "status"),
        [
            ("origin", "https://evil.example", 403),
            ("origin", "null", 403),
            ("host", "evil.example", 421),
            ("host", "127.0.0.1.evil.example", 421),
        ],
    )
    def test_another_origin_or_name_is_refused(self, quick: Running, header: str, value: str, status: int) -> None:
        body = {"upstream": "gemini", "request": {}}
        assert call(quick, "POST", "/turns", json=body, headers={header: value}).status_code == status

    def test_more_turns_than_allowed_are_asked_to_come_back(self) -> None:
        one = lambda upstream: replace(upstream, max_turns=1)  # noqa: E731  # as short as its name
        with Running(scenarios=LONG, limits=Limits(max_turns=2), change=one) as gateway:
            first = Open(gateway, "hanging")
            first.read_until(b"connecting")
            got = call(gateway, "POST", "/turns", json={"upstream": "hanging", "request": {}})
            assert (got.status_code, got.headers["retry-after"]) == (503, "1")
            second = Open(gateway, "slow")
            second.read_until(b"connecting")
            assert call(gateway, "POST", "/turns", json={"upstream": "fast", "request": {}}).status_code == 503
            assert call(gateway, "GET", "/healthz").json() == {"status": "ok", "turns": 2}
            first.socket.close()
            wait_until(lambda: gateway.turns == 1)
            third = Open(gateway, "hanging")
            third.read_until(b"connecting")

    def test_a_head_that_does_not_end_is_cut_off(self) -> None:
        with Running(scenarios=HANGING, limits=Limits(header_s=0.3, keep_alive_s=0.5)) as gateway:
            host, port = gateway.url.removeprefix("http://").split(":")
            for words in (b"", b"GET /healthz HTTP/1.1\r\nhost: "):
                with socket.create_connection((host, int(port)), 5) as held:
                    held.sendall(words)
                    began = time.monotonic()
                    assert closed(held)
                    assert 0.2 < time.monotonic() - began < 2
            with socket.create_connection((host, int(port)), 5) as held:  # the second head of a connection too
                held.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert b"200 OK" in held.recv(65536)
                held.sendall(b"GET /healthz HT")
                status, error = refusal(held)
                assert (status, error["type"]) == (408, "timeout")
            with socket.create_connection((host, int(port)), 5) as held:  # and a connection that only idles
                held.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert b"200 OK" in held.recv(65536)
                assert closed(held)

    def test_a_body_that_does_not_end_is_cut_off(self) -> None:
        with Running(scenarios=HANGING, limits=Limits(body_s=0.3)) as gateway:
            host, port = gateway.url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port)), 5) as held:
                lines = [
                    "POST /turns HTTP/1.1",
                    "host: localhost",
                    "content-type: application/json",
                    "content-length: 9",
                ]
                held.sendall("\r\n".join([*lines, "", "{"]).encode())
                assert b"408 Request Timeout" in held.recv(65536)

    def test_a_head_that_is_too_large_is_refused(self, quick: Running) -> None:
        assert call(quick, "GET", "/healthz", headers={"x": "y" * 40_000}).status_code == 431

    @pytest.mark.parametrize(
        ("target", "fields"),
        [
            (b"/healthz", b"x: " + b"a" * 17_000 + b"\r\n"),
            (b"/healthz", b"x: a\r\n" * 2900),
            (b"/healthz?" + b"a" * 17_000, b""),
            (b"/" + b"a" * 17_000, b""),
            (b"/healthz?" + b"a" * 8_000, b"x: " + b"a" * 8_400 + b"\r\n"),
            (b"/healthz", b"x: " + b" " * 60_000 + b"a\r\n"),  # padding, which no application sees
        ],
    )
    @pytest.mark.parametrize("piece", [1 << 20, 5000])
    def test_the_whole_head_is_counted(self, quick: Running, target: bytes, fields: bytes, piece: int) -> None:
        with raw(quick) as held:
            head = b"GET " + target + b" HTTP/1.1\r\nhost: localhost\r\n" + fields + b"\r\n"
            with suppress(ConnectionError):  # it need not read the rest
                for at in range(0, len(head), piece):
                    held.sendall(head[at : at + piece])
                    time.sleep(0.002)
            status, error = refusal(held)
        assert (status, error["type"]) == (431, "too_large")

    def test_a_head_of_almost_the_limit_passes(self, quick: Running) -> None:
        with raw(quick) as held:
            held.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 16_200 + b"\r\n\r\n")
            assert held.recv(65536).startswith(b"HTTP/1.1 200")

    def test_what_is_no_http_is_told_as_json(self, quick: Running) -> None:
        with raw(quick) as held:
            held.sendall(b"good morning\r\n\r\n")
            status, error = refusal(held)
        assert (status, error["type"]) == (400, "bad_request")

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/nope", 404),
            ("DELETE", "/turns/", 404),
            ("POST", "/turns/", 404),
            ("GET", "/turns", 405),
            ("PUT", "/turns/x", 405),
            ("POST", "/healthz", 405),
        ],
    )
    def test_an_address_that_is_none_is_told_as_json(self, quick: Running, method: str, path: str, status: int) -> None:
        got = call(quick, method, path)
        assert got.status_code == status
        assert set(got.json()["error"]) == {"type", "message"}
        assert ("allow" in got.headers) == (status == 405)


class TestHalfClosed:
    """A client may close its writing side once it has asked (RFC 9112, 9.6), as `nc -N` does."""

    @pytest.mark.parametrize("upstream", ["gemini", "slow"])
    def test_it_gets_its_whole_answer(self, upstream: str, quick: Running, paced: Running) -> None:
        turn = Open(quick if upstream == "gemini" else paced, upstream)
        turn.socket.shutdown(socket.SHUT_WR)
        seen = b""
        while data := turn.socket.recv(65536):
            seen += data
        assert b'"state":"finished"' in seen
        assert b"event: end" in seen

    def test_a_short_answer_too_and_then_it_is_closed(self, quick: Running) -> None:
        with raw(quick) as held:
            held.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            held.shutdown(socket.SHUT_WR)
            seen = b""
            while data := held.recv(65536):
                seen += data
        assert b"200 OK" in seen
        assert b'"status":"ok"' in seen

    def test_half_a_request_is_none(self, quick: Running) -> None:
        with raw(quick) as held:
            held.sendall(b"GET /healthz HTTP/1.1\r\nhost:")
            held.shutdown(socket.SHUT_WR)
            assert held.recv(65536) == b""

    def test_one_that_goes_later_is_noticed_while_its_upstream_says_nothing(self, paced: Running) -> None:
        turn = Open(paced, "hanging")
        turn.read_until(b"streaming")
        turn.socket.shutdown(socket.SHUT_WR)
        turn.read_until(b": keep-alive")
        turn.socket.close()
        wait_until(lambda: paced.turns == 0)


class TestFeeding:
    def test_a_large_chunk_leaves_the_loop_to_others(self) -> None:
        event = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
        chunk = event * (4 * 1024 * 1024 // len(event))

        async def chunks() -> AsyncIterator[bytes]:
            yield chunk

        @asynccontextmanager
        async def opening() -> AsyncIterator[AsyncIterator[bytes]]:
            yield chunks()

        async def main() -> int:
            steps, over = 0, False

            async def others() -> None:
                nonlocal steps
                while not over:
                    steps += 1
                    await asyncio.sleep(0)

            other = asyncio.create_task(others())
            frames = Frames(opening(), Turn("openai_chat"))
            async for _ in frames:
                pass
            over = True
            await other
            assert len(frames.turn.answer) == len(chunk) // len(event)
            return steps

        assert asyncio.run(main()) > 60, "some 64 kB at a time"


def raw(gateway: Running) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 5)


def refusal(held: socket.socket) -> tuple[int, dict[str, str]]:
    """Read an answer to its end; return its status and its error."""
    seen = b""
    with suppress(ConnectionResetError):  # it was closed before all that we sent was read
        while data := held.recv(65536):
            seen += data
    head, _, body = seen.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head, seen
    return int(head.split(b" ")[1]), json.loads(body)["error"]


def closed(held: socket.socket) -> bool:
    try:
        while held.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


class TestShutdown:
    def test_every_open_turn_is_told(self) -> None:
        with Running(scenarios=LONG) as gateway:
            turns = [Open(gateway, name) for name in ("hanging", "slow", "fast")]
            for turn in turns:
                turn.read_until(b"connecting")
            time.sleep(0.3)
            gateway.stop()
            began = time.monotonic()
            for turn in turns:
                seen = turn.read_until(b"event: end")
                assert b'"type":"shutdown"' in seen
                assert closed(turn.socket)
            assert time.monotonic() - began < 2
        assert gateway.demo.open == 0

    def test_the_page_and_the_health_answer_head_and_get(self, quick: Running) -> None:
        assert call(quick, "HEAD", "/").status_code == 200
        assert call(quick, "GET", "/healthz").json()["status"] == "ok"


class TestPageFiles:
    def test_every_answer_says_what_a_browser_may_do(self, quick: Running) -> None:
        for path in ("/", "/page/app.js", "/healthz", "/nope"):
            headers = call(quick, "GET", path).headers
            assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
            assert headers["x-content-type-options"] == "nosniff"

    def test_a_file_that_is_known_is_not_sent_again(self, quick: Running) -> None:
        first = call(quick, "GET", "/page/app.js")
        assert first.headers["content-type"] == "text/javascript; charset=utf-8"
        again = call(quick, "GET", "/page/app.js", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")

    @pytest.mark.parametrize("path", ["/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/index.html"])
    def test_nothing_else_is_served(self, quick: Running, path: str) -> None:
        assert call(quick, "GET", path).status_code == 404

    def test_the_page_learns_names_and_no_addresses(self, quick: Running) -> None:
        rows = call(quick, "GET", "/upstreams").json()["upstreams"]
        assert [row["name"] for row in rows] == list(SCENARIOS)
        assert set(rows[0]) == {"name", "dialect", "profile", "title", "note", "group", "demo"}
