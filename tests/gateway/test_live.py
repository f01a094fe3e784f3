"""Live turns over HTTP, in one process: whoever owns a turn can read it on, from any event, as often as they like."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from levada import Event, EventParser
from levada.gateway import Limits, LiveSettings, Upstream
from levada.gateway.demo.scenarios import Scenario
from levada.live import LiveLogUnavailable, Writer
from levada.testing import ReplayServer, Reply
from tests.gateway.serving import Running
from tests.gateway.test_gateway import HANGING, QUICK, Open, call, wait_until
from tests.gateway.test_normal_form import Reader
from tests.servers import free_port

OWNER = {"levada-owner": "a-token-of-our-own"}
OTHER = {"levada-owner": "another-ones-token"}
LIVE = LiveSettings(linger_s=30)


def paced(name: str, delay_s: float) -> Scenario:
    return Scenario(**{**vars(QUICK["openai_chat"]), "name": name, "delay_s": delay_s})


SCENARIOS = {**QUICK, **HANGING, "paced": paced("paced", 0.02), "leisurely": paced("leisurely", 0.15)}


@pytest.fixture(scope="module")
def lingering() -> Iterator[Running]:
    with Running(scenarios=SCENARIOS, live=LIVE) as gateway:
        yield gateway


def events(body: bytes) -> list[Event]:
    return EventParser().feed(body)


def ask(gateway: Running, upstream: str, owner: dict[str, str] = OWNER) -> tuple[str, list[Event]]:
    got = call(gateway, "POST", "/turns", json={"upstream": upstream, "request": {}}, headers=owner)
    assert got.status_code == 200, got.text
    return got.headers["levada-turn"], events(got.content)


def left(gateway: Running, upstream: str, owner: dict[str, str] = OWNER) -> str:
    """Ask, read the first event, and leave."""
    body = {"upstream": upstream, "request": {}}
    with (
        httpx.Client(trust_env=False, timeout=10) as client,
        client.stream("POST", f"{gateway.url}/turns", json=body, headers=owner) as response,
    ):
        next(response.iter_raw())
        return str(response.headers["levada-turn"])


def read(gateway: Running, turn_id: str, after: str = "", owner: dict[str, str] = OWNER) -> httpx.Response:
    headers = {**owner, **({"last-event-id": after} if after else {})}
    return call(gateway, "GET", f"/turns/{turn_id}/events", headers=headers)


def whole(found: list[Event]) -> Reader:
    reader = Reader()
    for event in found:
        reader.take(event)
    return reader


class TestReadingOn:
    def test_every_event_has_an_id_and_from_each_one_comes_exactly_the_rest(self, lingering: Running) -> None:
        turn_id, all_of_them = ask(lingering, "tools-anthropic")
        assert len({event.id for event in all_of_them}) == len(all_of_them) > 5
        assert events(read(lingering, turn_id).content) == all_of_them
        for number, event in enumerate(all_of_them[:-1], 1):
            assert events(read(lingering, turn_id, event.id).content) == all_of_them[number:]

    def test_after_the_end_there_is_nothing_so_that_an_eventsource_stops(self, lingering: Running) -> None:
        turn_id, all_of_them = ask(lingering, "gemini")
        got = read(lingering, turn_id, all_of_them[-1].id)
        assert (got.status_code, got.content) == (204, b"")

    def test_the_head_is_that_of_a_stream(self, lingering: Running) -> None:
        turn_id, _ = ask(lingering, "gemini")
        headers = read(lingering, turn_id).headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-cache, no-transform"
        assert headers["levada-turn"] == turn_id

    def test_the_header_says_more_than_the_address(self, lingering: Running) -> None:
        """An EventSource comes back with both: the address it began with, and where it is."""
        turn_id, all_of_them = ask(lingering, "gemini")
        path = f"/turns/{turn_id}/events?after={all_of_them[0].id}"
        assert events(call(lingering, "GET", path, headers=OWNER).content) == all_of_them[1:]
        headers = {**OWNER, "last-event-id": all_of_them[2].id}
        assert events(call(lingering, "GET", path, headers=headers).content) == all_of_them[3:]

    def test_a_turn_goes_on_without_the_client_that_asked(self, lingering: Running) -> None:
        turn_id = left(lingering, "paced")
        wait_until(lambda: all(one.turn_id != turn_id for one in lingering.server.gateway.tellings))
        reader = whole(events(read(lingering, turn_id).content))
        assert reader.end["state"] == "finished"
        assert len(reader.text[0, "answer"]) == reader.end["characters"]["answer"] > 0

    def test_many_readers_get_the_same_while_it_arrives(self, lingering: Running) -> None:
        turn_id = left(lingering, "paced")

        async def main() -> list[bytes]:
            async with httpx.AsyncClient(trust_env=False, timeout=20, base_url=lingering.url) as client:
                return [
                    got.content
                    for got in await asyncio.gather(
                        *(client.get(f"/turns/{turn_id}/events", headers=OWNER) for _ in range(20))
                    )
                ]

        bodies = asyncio.run(main())
        assert len(set(bodies)) == 1
        assert whole(events(bodies[0])).end["state"] == "finished"

    def test_heartbeats_stand_between_frames_here_too(self) -> None:
        with Running(scenarios=HANGING, limits=Limits(heartbeat_s=0.1), live=LIVE) as gateway:
            turn_id = left(gateway, "hanging")
            with httpx.Client(trust_env=False, timeout=10) as client:
                with client.stream("GET", f"{gateway.url}/turns/{turn_id}/events", headers=OWNER) as response:
                    assert any(b": keep-alive\n\n" in chunk for chunk in response.iter_raw())

    def test_head_says_what_get_would_and_does_not_wait_for_it(self, lingering: Running) -> None:
        turn_id = left(lingering, "hanging")
        got = call(lingering, "HEAD", f"/turns/{turn_id}/events", headers=OWNER)
        assert (got.status_code, got.content) == (200, b"")
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert call(lingering, "HEAD", "/turns/nope/events", headers=OWNER).status_code == 404
        assert call(lingering, "DELETE", f"/turns/{turn_id}", headers=OWNER).json()["state"] == "cancelled"


class TestWhatCannotBeRead:
    def test_another_ones_turn_and_none_at_all_look_alike(self, lingering: Running) -> None:
        turn_id, _ = ask(lingering, "gemini")
        answers = [
            read(lingering, turn_id, owner=OTHER),
            read(lingering, turn_id, owner={}),
            read(lingering, "AAAAAAAAAAAAAAAAAAAAAA"),
            read(lingering, "a b{c}"),
            call(lingering, "DELETE", f"/turns/{turn_id}", headers=OTHER),
            call(lingering, "DELETE", f"/turns/{turn_id}"),
        ]
        assert {(got.status_code, got.json()["error"]["type"]) for got in answers} == {(404, "unknown_turn")}
        assert len({got.content for got in answers}) == 1

    @pytest.mark.parametrize("after", ["x", "-1", "1", "1-1", "0-5", "99999999999999999999-1", "é"])
    def test_what_is_no_id_of_this_turn_is_400(self, lingering: Running, after: str) -> None:
        turn_id, _ = ask(lingering, "gemini")
        got = call(lingering, "GET", f"/turns/{turn_id}/events", params={"after": after}, headers=OWNER)
        assert (got.status_code, got.json()["error"]["type"]) == (400, "bad_request")

    def test_an_id_before_the_kept_window_is_410_and_says_where_it_begins(self) -> None:
        with Running(scenarios=QUICK, live=LiveSettings(linger_s=30, max_entries=8)) as gateway:
            turn_id, all_of_them = ask(gateway, "crumbs")
            assert len(all_of_them) > 12
            for after in ("", all_of_them[0].id, all_of_them[-10].id):
                got = read(gateway, turn_id, after)
                assert (got.status_code, got.json()["error"]["type"]) == (410, "gone")
                assert all_of_them[-9].id in got.json()["error"]["message"]
            assert events(read(gateway, turn_id, all_of_them[-9].id).content) == all_of_them[-8:]

    def test_a_turn_is_forgotten_in_the_end(self) -> None:
        with Running(scenarios=QUICK, live=LiveSettings(linger_s=30, keep_s=0.2)) as gateway:
            turn_id, _ = ask(gateway, "gemini")
            wait_until(lambda: read(gateway, turn_id).status_code == 404)


class TestOwners:
    def test_a_token_is_made_up_and_told_in_a_header_and_a_cookie(self, lingering: Running) -> None:
        got = call(lingering, "POST", "/turns", json={"upstream": "gemini", "request": {}})
        token, turn_id = got.headers["levada-owner"], got.headers["levada-turn"]
        assert len(token) == 32
        assert got.headers["set-cookie"] == f"levada_owner={token}; Path=/; HttpOnly; SameSite=Strict"
        assert read(lingering, turn_id, owner={"levada-owner": token}).content == got.content
        assert read(lingering, turn_id, owner={"cookie": f"a=b; levada_owner={token}"}).content == got.content

    def test_two_who_say_nothing_are_two(self, lingering: Running) -> None:
        body = {"upstream": "gemini", "request": {}}
        tokens = {call(lingering, "POST", "/turns", json=body).headers["levada-owner"] for _ in range(2)}
        assert len(tokens) == 2

    def test_a_browser_with_the_cookie_is_not_told_the_token_again(self, lingering: Running) -> None:
        headers = {"cookie": "levada_owner=0123456789abcdef"}
        got = call(lingering, "POST", "/turns", json={"upstream": "gemini", "request": {}}, headers=headers)
        assert not {"levada-owner", "set-cookie"} & set(got.headers)
        assert read(lingering, got.headers["levada-turn"], owner=headers).status_code == 200

    @pytest.mark.parametrize("token", ["", "short", "x" * 129, "with spaces in it ...", "semi;colon;semi;colon"])
    def test_a_token_that_is_none_is_refused(self, lingering: Running, token: str) -> None:
        body = {"upstream": "gemini", "request": {}}
        got = call(lingering, "POST", "/turns", json=body, headers={"levada-owner": token})
        assert (got.status_code, got.json()["error"]["type"]) == (400, "bad_request")
        assert token == "" or token not in got.text

    def test_a_proxys_header_says_it_alone(self) -> None:
        live = LiveSettings(linger_s=30, owner_header="X-User")
        with Running(scenarios=QUICK, live=live) as gateway:
            ana, eva = {"x-user": "ana"}, {"x-user": "eva"}
            turn_id, all_of_them = ask(gateway, "gemini", ana)
            got = read(gateway, turn_id, owner=ana)
            assert events(got.content) == all_of_them
            assert not {"levada-owner", "set-cookie"} & set(got.headers)
            assert read(gateway, turn_id, owner=eva).status_code == 404
            assert read(gateway, turn_id, owner={**eva, "levada-owner": "header:ana-header:ana"}).status_code == 404
            for method, path in (("GET", f"/turns/{turn_id}/events"), ("DELETE", f"/turns/{turn_id}")):
                got = call(gateway, method, path, headers={"levada-owner": "ana-ana-ana-ana-ana"})
                assert (got.status_code, got.json()["error"]["type"]) == (401, "no_owner")
            body = {"upstream": "gemini", "request": {}}
            assert call(gateway, "POST", "/turns", json=body).status_code == 401
            both = [("x-user", "ana"), ("x-user", "eva")]  # the client's own, and what a careless proxy added
            assert call(gateway, "GET", f"/turns/{turn_id}/events", headers=both).status_code == 401
            assert gateway.turns == 0


class TestHowLong:
    def test_without_a_reader_it_is_stopped_after_a_while(self) -> None:
        live = LiveSettings(linger_s=0.5, lease_s=0.6)
        with Running(scenarios=HANGING, live=live) as gateway:
            turn_id = left(gateway, "hanging")
            wait_until(lambda: gateway.demo.streaming == 1)
            assert wait_until(lambda: gateway.demo.open == 0, 10) > 0.2
            assert whole(events(read(gateway, turn_id).content)).end["state"] == "cancelled"

    def test_a_reader_keeps_it_going(self) -> None:
        live = LiveSettings(linger_s=0.5, lease_s=0.6)
        with Running(scenarios=HANGING, live=live) as gateway:
            turn = Open(gateway, "hanging")
            turn.read_until(b"connecting")
            time.sleep(2.5)
            assert gateway.demo.streaming == 1
            turn.socket.close()
            wait_until(lambda: gateway.demo.open == 0, 10)

    def test_with_nothing_lingering_a_second_reader_takes_over(self) -> None:
        with Running(scenarios=HANGING) as gateway:
            turn = Open(gateway, "hanging")
            turn_id = turn.turn_id()
            with httpx.Client(trust_env=False, timeout=10) as client:
                address = f"{gateway.url}/turns/{turn_id}/events"
                with client.stream("GET", address, headers=turn.owner) as response:
                    chunks = response.iter_raw()  # kept: dropping it closes the connection
                    assert b"connecting" in next(chunks)
                    turn.socket.close()
                    wait_until(lambda: len(gateway.server.gateway.tellings) == 1)
                    time.sleep(0.3)
                    assert gateway.turns == 1
            assert wait_until(lambda: gateway.turns == 0) < 1

    def test_a_client_that_goes_before_it_knows_the_turn_leaves_nothing_behind(self, lingering: Running) -> None:
        before = lingering.turns
        for _ in range(5):
            turn = Open(lingering, "hanging")
            turn.socket.close()
        time.sleep(0.2)
        assert lingering.turns - before <= 5  # those that were told at once linger; none is in the way
        for producer in list(lingering.server.gateway.turns.values()):
            lingering.call(cancelled(producer)).result(5)
        wait_until(lambda: lingering.turns == 0)

    def test_delete_works_without_a_reader_and_while_others_read(self, lingering: Running) -> None:
        turn_id = left(lingering, "hanging")
        with httpx.Client(trust_env=False, timeout=10) as client:
            with client.stream("GET", f"{lingering.url}/turns/{turn_id}/events", headers=OWNER) as response:
                chunks = response.iter_raw()
                next(chunks)
                got = call(lingering, "DELETE", f"/turns/{turn_id}", headers=OWNER)
                assert got.json() == {"turn": turn_id, "state": "cancelled", "upstream_closed": True}
                assert b'"state":"cancelled"' in b"".join(chunks)
        wait_until(lambda: lingering.demo.streaming == 0)


async def cancelled(producer: Any) -> None:
    producer.frames.cancel()


class TestSlowReaders:
    def test_one_that_takes_nothing_holds_up_nobody_and_costs_little(self) -> None:
        deltas = [b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * 4000)] * 2000
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        groups = [b"".join(deltas[at : at + 20]) for at in range(0, len(deltas), 20)]
        with ReplayServer(Reply([*groups, end], delay_s=0.02)) as server:
            own = {"own": Upstream(url=server.url, dialect="openai_chat")}
            with Running(upstreams=own, scenarios={}, live=LIVE) as gateway:
                slow = Open(gateway, "own", receive_buffer=4096)
                turn_id = slow.turn_id()
                quick = whole(events(read(gateway, turn_id, owner=slow.owner).content))
                assert quick.end["characters"]["answer"] == 8_000_000
                (telling,) = gateway.server.gateway.tellings
                # at most what may wait, and the one event that went over it
                assert telling.waiting < 64 * 1024 + 8 * 256 * 1024
                wait_until(lambda: gateway.turns == 0)  # the upstream is done, whoever still reads
                slow.socket.close()

    def test_one_that_falls_out_of_the_kept_window_is_told_so_and_gets_no_end(self) -> None:
        deltas = [b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * 40_000)] * 100
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        with ReplayServer(Reply([*deltas, end], delay_s=0.02)) as server:
            own = {"own": Upstream(url=server.url, dialect="openai_chat")}
            with Running(upstreams=own, scenarios={}, live=LiveSettings(linger_s=30, max_entries=8)) as gateway:
                slow = Open(gateway, "own", receive_buffer=4096)
                slow.turn_id()
                wait_until(lambda: gateway.turns == 1)
                wait_until(lambda: gateway.turns == 0, 20)
                seen = slow.read_until(b"\r\n0\r\n\r\n")  # the last chunk
                assert b'"type":"gone"' in seen
                assert b"event: end" not in seen
                slow.socket.close()

    def test_who_reads_slowly_gets_the_end_long_after_it(self) -> None:
        """Nothing lingers here, and a turn is kept for a second: but not taken from under its reader."""
        text = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 1_500_000}}]}).encode()
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        with ReplayServer(text + b"\n\n" + end) as server:
            own = {"own": Upstream(url=server.url, dialect="openai_chat")}
            with Running(upstreams=own, scenarios={}) as gateway:
                slow = Open(gateway, "own", receive_buffer=4096)
                slow.turn_id()
                wait_until(lambda: gateway.turns == 0, 15)
                time.sleep(1.5)
                ask(gateway, "own")  # the log looks for what it may forget when a turn is started
                assert b'"state":"finished"' in slow.read_until(b"event: end")
                slow.socket.close()


class TestEnds:
    def test_a_producer_that_is_gone_is_told_within_the_lease(self) -> None:
        with Running(scenarios=HANGING, live=LiveSettings(linger_s=30, lease_s=0.6)) as gateway:
            turn_id = left(gateway, "hanging")
            wait_until(lambda: gateway.demo.streaming == 1)
            gateway.call(killed(gateway.server.gateway.turns[turn_id])).result(5)
            began = time.monotonic()
            reader = whole(events(read(gateway, turn_id).content))
            assert time.monotonic() - began < 5
            assert (reader.error["kind"], reader.error["type"]) == ("truncated", "producer_lost")
            assert (reader.end["state"], reader.states[-1]) == ("error", "error")
            again = events(read(gateway, turn_id).content)
            assert again[-1].event == "end"
            assert read(gateway, turn_id, again[-1].id).status_code == 204

    def test_shutdown_tells_every_reader(self) -> None:
        with Running(scenarios=HANGING, live=LIVE) as gateway:
            turn_id = left(gateway, "hanging")
            with httpx.Client(trust_env=False, timeout=10) as client:
                with client.stream("GET", f"{gateway.url}/turns/{turn_id}/events", headers=OWNER) as response:
                    chunks = response.iter_raw()
                    seen = next(chunks)
                    gateway.stop()
                    seen += b"".join(chunks)
        reader = whole(events(seen))
        assert (reader.error["kind"], reader.error["type"]) == ("transport", "shutdown")
        assert reader.end["state"] == "error"

    def test_turns_may_end_by_themselves_before_that(self) -> None:
        with Running(scenarios=SCENARIOS, limits=Limits(drain_s=20), live=LIVE) as gateway:
            turn_id = left(gateway, "leisurely")
            body = {"upstream": "leisurely", "request": {}}
            with httpx.Client(trust_env=False, timeout=30) as client:
                with client.stream("POST", f"{gateway.url}/turns", json=body, headers=OWNER) as response:
                    chunks = response.iter_raw()
                    seen = next(chunks)
                    gateway.stop()
                    wait_until(lambda: gateway.server.gateway.draining)
                    assert call(gateway, "GET", "/healthz").json() == {"status": "draining", "turns": 2}
                    assert call(gateway, "POST", "/turns", json=body).status_code == 503
                    again = read(gateway, turn_id)
                    seen += b"".join(chunks)
        assert whole(events(seen)).end["state"] == "finished"
        assert whole(events(again.content)).end["state"] == "finished"

    def test_an_event_that_is_larger_than_the_log_keeps_is_an_error(self) -> None:
        huge = json.dumps({"choices": [{"index": 0, "delta": {"content": "x"}}], "model": "m" * 5_000_000})
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        with ReplayServer(b"data: " + huge.encode() + b"\n\n" + end) as server:
            own = {"own": Upstream(url=server.url, dialect="openai_chat")}
            with Running(upstreams=own, scenarios={}) as gateway:
                _, found = ask(gateway, "own")
        reader = whole(found)
        assert (reader.error["kind"], reader.error["type"]) == ("too_large", "live_limit")
        assert reader.end["state"] == "error"

    def test_a_text_of_any_length_is_cut_into_events_that_the_log_keeps(self) -> None:
        text = "água 💧 " * 700_000
        huge = json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False)
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        with ReplayServer(b"data: " + huge.encode() + b"\n\n" + end) as server:
            own = {"own": Upstream(url=server.url, dialect="openai_chat")}
            with Running(upstreams=own, scenarios={}) as gateway:
                _, found = ask(gateway, "own")
        reader = whole(found)
        assert reader.end["state"] == "finished"
        assert reader.text[0, "answer"] == text


class TestLogAway:
    @pytest.mark.skipif(find_spec("redis") is None, reason="needs the extra redis")
    def test_a_log_that_does_not_answer_is_503_for_everything_but_the_page(self) -> None:
        live = LiveSettings(url=f"redis://127.0.0.1:{free_port()}/0", patience_s=0.3)
        with Running(scenarios=QUICK, live=live) as gateway:
            body = {"upstream": "gemini", "request": {}}
            for method, path in (
                ("POST", "/turns"),
                ("GET", "/turns/some-turn/events"),
                ("DELETE", "/turns/some-turn"),
            ):
                got = call(gateway, method, path, json=body if method == "POST" else None, headers=OWNER)
                assert (got.status_code, got.json()["error"]["type"]) == (503, "live_log_unavailable")
                assert got.headers["retry-after"] == "1"
            assert gateway.turns == 0
            assert gateway.demo.asked.total() == 0, "no upstream is asked for what cannot be told"
            assert call(gateway, "GET", "/").status_code == 200
            assert call(gateway, "GET", "/healthz").json() == {"status": "ok", "turns": 0}

    @pytest.mark.skipif(find_spec("redis") is None, reason="needs the extra redis")
    def test_one_warning_says_so_at_the_start(self, caplog: pytest.LogCaptureFixture) -> None:
        live = LiveSettings(url=f"redis://:s3cret@127.0.0.1:{free_port()}/0", patience_s=0.3)
        with Running(scenarios=QUICK, live=live):
            wait_until(lambda: bool(caplog.records))
            time.sleep(0.5)
        (record,) = caplog.records
        assert (record.levelname, record.name) == ("WARNING", "levada.gateway")
        assert "no turn can be started until the live log answers" in record.getMessage()
        assert "s3cret" not in record.getMessage()

    def test_a_turn_that_it_takes_no_more_of_is_lost_and_not_cancelled(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether it goes away in the middle or at the end: what no reader will see is no finished turn."""
        with Running(scenarios=SCENARIOS, live=LIVE) as gateway, caplog.at_level("INFO", "levada.gateway"):
            for method, upstream in (("append", "paced"), ("close", "openai_chat")):
                caplog.clear()
                turn_id = left(gateway, upstream)
                with monkeypatch.context() as patch:
                    patch.setattr(Writer, method, away)
                    wait_until(lambda: gateway.turns == 0)
                assert f"turn {turn_id} of {upstream}: transport live_log_lost" in caplog.messages
                got = call(gateway, "DELETE", f"/turns/{turn_id}", headers=OWNER)
                assert got.json()["state"] == "error"
            assert gateway.demo.streaming == 0


async def away(*_: Any, **__: Any) -> None:
    raise LiveLogUnavailable("Redis", 5.0, "the connection failed")


async def killed(producer: Any) -> None:
    """End a producer as the death of its process would: nobody closes the turn, nobody renews the lease."""
    producer._task.cancel()
