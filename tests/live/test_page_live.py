"""The page when connections break: it goes on from the last event that it had, and a person sees a small hint."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from levada.gateway import Limits, LiveSettings
from levada.gateway.demo import SCENARIOS
from levada.gateway.demo.scenarios import Scenario
from levada.live import LiveLogUnavailable
from tests.gateway.proxy import Proxy
from tests.gateway.serving import Running
from tests.live.browsing import QUESTION, Visit, need_browser, turn_of, within

need_browser()
pytestmark = pytest.mark.xdist_group("screen")  # one browser, one process of the tests

LIVE = LiveSettings(linger_s=30)
# some five seconds: time enough to break it several times
PACED = Scenario(**{**vars(SCENARIOS["crumbs"]), "name": "paced", "first_delay_s": 0.1, "delay_s": 0.004})
PLAYED = {"paced": PACED, "slow": SCENARIOS["slow"], "cut": SCENARIOS["cut"]}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Running]:
    with Running(scenarios=PLAYED, live=LIVE) as running:
        yield running


@pytest.fixture
def proxy(gateway: Running) -> Iterator[Proxy]:
    with Proxy(gateway.url) as made:
        yield made


@pytest.fixture
def visit(browser: Any, proxy: Proxy) -> Iterator[Visit]:
    made = Visit(browser, proxy.url)
    yield made
    made.context.close()
    assert [line for line in made.wrong if "Failed to load resource" not in line] == []


def whole(visit: Visit) -> None:
    """Make sure that the answer is the recording's, and that what was seen of it only ever grew."""
    turn = turn_of(PACED)
    assert visit.text(".reply") == turn.answer
    assert visit.text(".thoughts > div") == turn.reasoning
    texts = visit.page.evaluate("watched.texts")
    assert all(after.startswith(before) for before, after in pairwise(texts)), "the text flickered"


class TestCut:
    def test_an_answer_goes_on_where_it_was_cut_and_nothing_is_shown_twice(self, visit: Visit, proxy: Proxy) -> None:
        visit.ask("paced")
        visit.wait("streaming", "reasoning")
        for _ in range(4):
            proxy.cut()
            visit.page.wait_for_timeout(500)
        visit.wait("finished")
        whole(visit)
        assert len(visit.page.query_selector_all(".turn")) == 1

    def test_a_hint_says_that_it_reconnects_and_goes_again(self, visit: Visit, proxy: Proxy) -> None:
        visit.ask("paced")
        visit.wait("streaming", "reasoning")
        proxy.shut()
        visit.page.wait_for_selector(".turn[data-reconnecting] .lost:visible")
        assert visit.text(".lost") == "reconnecting…"
        assert visit.text(".thoughts > div") != "", "what was there stays there"
        assert visit.style(".thoughts", "display") != "none"
        proxy.open()
        visit.page.wait_for_selector(".turn:not([data-reconnecting])")
        assert not visit.shown(".lost")
        visit.wait("finished")
        whole(visit)

    @pytest.mark.long
    def test_after_the_end_of_the_turn_too(self, visit: Visit, proxy: Proxy, gateway: Running) -> None:
        visit.ask("paced")
        visit.wait("streaming", "reasoning")
        proxy.shut()
        assert within(lambda: gateway.turns == 0, 20)
        proxy.open()
        visit.wait("finished")
        whole(visit)

    def test_a_connection_that_is_silent_for_too_long_counts_as_lost(self, browser: Any) -> None:
        limits = Limits(heartbeat_s=0.2, shutdown_s=1)
        with Running(scenarios=PLAYED, live=LIVE, limits=limits) as short, Proxy(short.url) as proxy:
            visit = Visit(browser, proxy.url)
            visit.ask("paced")
            visit.wait("streaming", "reasoning")
            proxy.stall()
            visit.page.wait_for_selector(".turn[data-reconnecting]")
            proxy.cut()
            proxy.open()
            visit.wait("finished")
            whole(visit)
            visit.context.close()

    @pytest.mark.long
    def test_a_turn_that_is_no_longer_kept_is_an_error(self, browser: Any) -> None:
        live = LiveSettings(linger_s=30, keep_s=0.2)
        with Running(scenarios=PLAYED, live=live) as short, Proxy(short.url) as proxy:
            visit = Visit(browser, proxy.url)
            visit.ask("paced")
            visit.wait("streaming", "reasoning")
            proxy.shut()
            assert within(lambda: short.turns == 0, 20)
            visit.page.wait_for_timeout(500)
            proxy.open()
            visit.wait("error")
            assert "unknown_turn" in visit.text(".problem")
            visit.context.close()

    def test_a_cut_of_the_providers_is_still_an_error(self, visit: Visit) -> None:
        visit.ask("cut")
        visit.wait("error")
        assert visit.text(".problem h2") == "The answer was cut"


def impatient(visit: Visit) -> None:
    """Let the page give up after 5 s: it takes the gateway's turns to linger for no longer."""

    def shorter(route: Any) -> None:
        said = route.fetch().json()
        route.fulfill(json={**said, "live": {**said["live"], "linger_s": 0.1}})

    visit.page.route("**/upstreams", shorter)
    visit.page.reload()
    visit.page.wait_for_selector("html[data-ready]")


class TestGivingUp:
    def test_it_says_what_could_not_be_reached_and_reads_on_later(self, visit: Visit, proxy: Proxy) -> None:
        impatient(visit)
        visit.ask("paced")
        visit.wait("streaming", "reasoning")
        proxy.shut()
        visit.wait("error")
        assert visit.text(".problem h2") == "The gateway cannot be reached"
        assert re.search(r"could not be reached for [5-9] s\. The answer may have gone on", visit.text(".problem p"))
        assert "provider had" not in visit.text(".problem")
        assert visit.buttons() == ["Read on", "Try again"]
        assert not visit.shown(".lost")
        assert not visit.shown(".thoughts"), "half an answer is not shown"
        assert not visit.shown(".reply")
        proxy.open()
        visit.page.click("button:text('Read on')")
        visit.wait("finished")
        whole(visit)
        assert visit.buttons() == ["Copy", "Ask again"]
        assert not visit.shown(".problem")

    @pytest.mark.long
    def test_a_reload_reads_on_too_and_another_try_begins_anew(self, visit: Visit, proxy: Proxy) -> None:
        impatient(visit)
        visit.ask("paced")
        visit.wait("streaming", "reasoning")
        proxy.shut()
        visit.wait("error")
        proxy.open()
        visit.page.reload()
        visit.page.wait_for_selector("html[data-ready]")
        visit.wait("finished")
        whole(visit)
        visit.ask("paced")
        visit.wait("streaming", "reasoning")
        proxy.shut()
        visit.wait("error")
        proxy.open()
        visit.page.click("button:text('Try again')")
        visit.wait("finished")
        assert visit.text(".reply") == turn_of(PACED).answer

    def test_a_log_that_is_away_is_told_as_that(
        self, visit: Visit, proxy: Proxy, gateway: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*_: Any, **__: Any) -> None:
            raise LiveLogUnavailable("Redis", 5.0, "the connection failed")

        impatient(visit)
        visit.ask("paced")
        visit.wait("streaming", "reasoning")
        with monkeypatch.context() as patch:
            patch.setattr(gateway.server.gateway.live, "look", away)
            proxy.cut()
            visit.wait("error")
        assert visit.text(".problem h2") == "The answer does not go on"
        assert "not its log of live turns, for" in visit.text(".problem p")
        assert visit.text(".detail") == "live_log_unavailable"
        assert visit.buttons() == ["Read on", "Try again"]
        visit.page.click("button:text('Read on')")
        visit.wait("finished")
        whole(visit)


class TestReload:
    def test_a_reload_in_the_middle_goes_on(self, visit: Visit, gateway: Running) -> None:
        visit.ask("paced")
        visit.wait("streaming", "reasoning")
        visit.page.reload()
        visit.page.wait_for_selector("html[data-ready]")
        visit.wait("streaming")
        assert visit.text(".question") == QUESTION
        assert gateway.turns == 1
        assert visit.page.is_visible("#stop")
        visit.wait("finished")
        whole(visit)
        assert len(visit.page.query_selector_all(".turn")) == 1
        assert gateway.demo.asked["paced"] > 0
        visit.page.click("text=Ask again")
        visit.page.wait_for_selector(".turn:nth-of-type(2)[data-state='finished']")

    @pytest.mark.long
    def test_an_answer_that_was_complete_before_is_there_at_once(self, visit: Visit, gateway: Running) -> None:
        visit.ask("paced")
        visit.wait("streaming", "reasoning")
        visit.page.goto("about:blank")
        assert within(lambda: gateway.turns == 0, 20)
        visit.open()
        visit.wait("finished")
        whole(visit)

    def test_after_its_end_a_turn_is_forgotten(self, visit: Visit) -> None:
        visit.ask("paced")
        visit.wait("finished")
        visit.page.reload()
        visit.page.wait_for_selector("html[data-ready]")
        visit.page.wait_for_timeout(300)
        assert visit.page.query_selector(".turn") is None
        assert visit.page.evaluate("sessionStorage.length") == 0

    @pytest.mark.long
    def test_after_a_stop_too(self, visit: Visit, gateway: Running) -> None:
        visit.ask("slow")
        visit.wait("streaming")
        visit.page.keyboard.press("Escape")
        visit.wait("cancelled")
        assert within(lambda: gateway.demo.streaming == 0)
        visit.page.reload()
        visit.page.wait_for_selector("html[data-ready]")
        visit.page.wait_for_timeout(300)
        assert visit.page.query_selector(".turn") is None


class TestStop:
    def test_stop_works_while_there_is_no_connection(self, visit: Visit, proxy: Proxy, gateway: Running) -> None:
        visit.ask("slow")
        visit.wait("streaming", "answer")
        proxy.shut()
        visit.page.wait_for_selector(".turn[data-reconnecting]")
        visit.page.click("#stop")
        visit.wait("cancelled")
        assert not visit.shown(".lost")
        assert gateway.demo.streaming == 1
        proxy.open()
        assert within(lambda: gateway.demo.streaming == 0, 15)


class Replica:
    """A gateway in a process of its own, with the upstream of a gateway that runs here."""

    def __init__(self, folder: Path, host: Running, redis_url: str) -> None:
        live = f'[live]\nurl = "{redis_url}"\nlease_s = 2\nprefix = "levada:test:{folder.parent.name}:"'
        lines = [live]
        for name, known in host.demo.upstreams().items():
            lines.append(f'[upstreams.{name}]\nurl = "{known.url}"\ndialect = "{known.dialect}"')
            lines += [f'profile = "{known.profile}"'] if known.profile else []
        folder.mkdir()
        config = folder / "gateway.toml"
        config.write_text("\n".join(lines))
        command = [sys.executable, "-m", "levada", "serve", "--config", str(config), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+(?=/ )", self.process.stdout.readline())
        assert found is not None
        self.url = found[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def replicas(tmp_path: Path, gateway: Running, redis_url: str) -> Iterator[list[Replica]]:
    made = [Replica(tmp_path / name, gateway, redis_url) for name in ("a", "b")]
    yield made
    for one in made:
        one.kill()


class TestReplicas:
    def test_a_replica_that_is_killed_is_hardly_seen_while_another_has_the_turn(
        self, browser: Any, replicas: list[Replica]
    ) -> None:
        first, second = replicas
        with Proxy(first.url) as proxy:
            visit = Visit(browser, proxy.url)
            visit.ask("paced")
            visit.wait("streaming", "reasoning")
            proxy.open(second.url)
            proxy.cut()
            visit.page.wait_for_timeout(700)
            second.kill()
            proxy.open(first.url)
            visit.wait("finished")
            whole(visit)
            visit.context.close()

    def test_when_the_replica_that_had_the_turn_is_killed_the_page_says_so(
        self, browser: Any, replicas: list[Replica]
    ) -> None:
        first, second = replicas
        with Proxy(first.url) as proxy:
            visit = Visit(browser, proxy.url)
            visit.ask("slow")
            visit.wait("streaming", "answer")
            proxy.open(second.url)
            first.kill()
            visit.wait("error")
            assert "producer_lost" in visit.text(".problem")
            assert visit.text(".reply") == ""
            visit.page.click("text=Try again")
            visit.wait("finished")
            assert visit.text(".reply") == turn_of(SCENARIOS["slow"]).answer
            visit.context.close()


class TestEventSource:
    def test_a_browsers_own_eventsource_reads_every_event_once_and_stops(
        self, visit: Visit, proxy: Proxy, gateway: Running
    ) -> None:
        visit.page.evaluate(
            """async () => {
                const body = JSON.stringify({upstream: "paced", request: {}});
                const headers = {"content-type": "application/json"};
                const asked = await fetch("/turns", {method: "POST", headers, body});
                window.turn = asked.headers.get("levada-turn");
                asked.body.cancel();
                window.seen = [];
                window.source = new EventSource(`/turns/${turn}/events`);
                for (const type of ["state", "text", "usage", "finish", "end"])
                    source.addEventListener(type, ({data, lastEventId}) => seen.push([type, lastEventId, data]));
            }"""
        )
        assert within(lambda: visit.page.evaluate("seen.length") > 3, 20)
        proxy.cut()
        # it comes back by itself after some seconds, and after the end it is told that nothing comes any more
        assert within(lambda: visit.page.evaluate("source.readyState === EventSource.CLOSED"), 40)
        seen = visit.page.evaluate("seen")
        assert len({id for _, id, _ in seen}) == len(seen)
        texts = [json.loads(data) for type, _, data in seen if type == "text"]
        for channel in ("answer", "reasoning"):
            joined = "".join(text["text"] for text in texts if text["channel"] == channel)
            assert joined == getattr(turn_of(PACED), channel)
        assert [type for type, _, _ in seen].count("end") == 1
