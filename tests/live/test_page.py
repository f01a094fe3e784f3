"""The page in a real Chromium: what a person sees of every scenario, and what they can do.

It needs Debian's chromium and Playwright; without them it is skipped, unless LEVADA_REQUIRE names chromium.
LEVADA_SCREENSHOTS=FOLDER writes the pictures that docs/gateway.md shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from levada.gateway.demo import SCENARIOS
from levada.gateway.demo.scenarios import _MARKUP, Scenario
from tests.gateway.serving import Running
from tests.live.browsing import QUESTION, Visit, need_browser, turn_of, within

need_browser()
pytestmark = pytest.mark.xdist_group("screen")  # one browser, one process of the tests

VECTORS = Path(__file__).parents[1] / "conformance" / "sse.jsonl"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Running]:
    with Running() as running:
        yield running


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """Return a gateway whose scenarios are as they are, but for the waiting."""
    paces = {"first_delay_s": 0.1}
    with Running(
        scenarios={
            name: Scenario(**{**vars(scenario), **paces, "delay_s": min(scenario.delay_s, 0.02)})
            for name, scenario in SCENARIOS.items()
        }
    ) as running:
        yield running


@pytest.fixture
def visit(browser: Any, gateway: Running) -> Iterator[Visit]:
    made = Visit(browser, gateway.url)
    yield made
    made.context.close()
    assert made.wrong == []


@pytest.fixture(scope="module")
def one(browser: Any, hasty: Running) -> Iterator[Visit]:
    """Return a visit for all scenarios, one after the other."""
    made = Visit(browser, hasty.url)
    yield made
    made.context.close()


class TestEveryScenario:
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_it_is_shown_as_what_it_is(self, one: Visit, name: str) -> None:
        visit = one
        turn = turn_of(SCENARIOS[name])
        visit.ask(name)
        visit.wait(turn.state.value)
        if turn.state.value == "finished":
            # what UTF-8 cannot carry is shown as the replacement character
            answer = turn.answer.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            assert visit.text(".reply").encode("utf-16", "surrogatepass").decode("utf-16", "replace") == answer
            assert visit.text(".thoughts > div") == turn.reasoning
            assert visit.text(".status strong") == "Confirmed"
            assert visit.buttons() == ["Copy", "Ask again"]
            assert [row.text_content() for row in visit.page.query_selector_all(".turn:last-child .tools .name")] == [
                call.name for call in turn.tool_calls
            ]
            assert f"{len(turn.answer):,} characters" in visit.text(".figures")
            if turn.usage is not None:
                assert f"{turn.usage.output_tokens:,} token" in visit.text(".figures")
        else:
            assert not visit.shown(".reply") or visit.text(".reply") == ""
            assert not visit.shown(".thoughts")
            assert visit.buttons() == ["Try again"]
            assert visit.shown(".problem")
        assert visit.wrong == []


class TestArriving:
    def test_reasoning_is_open_while_the_model_thinks_and_folds_when_it_answers(self, visit: Visit) -> None:
        visit.ask("anthropic")
        visit.wait("streaming", "reasoning")
        assert visit.page.get_attribute(".turn:last-child .thoughts", "open") is not None
        assert visit.text(".status strong") == "Thinking"
        visit.wait("streaming", "answer")
        assert visit.page.get_attribute(".turn:last-child .thoughts", "open") is None
        assert visit.text(".thoughts summary").startswith("Thought")
        visit.page.click(".turn:last-child summary")  # who opens it again keeps it open
        visit.wait("finished")
        assert visit.page.get_attribute(".turn:last-child .thoughts", "open") is not None

    def test_text_is_marked_as_provisional_until_it_is_confirmed(self, visit: Visit) -> None:
        visit.ask("gemini")
        visit.wait("streaming", "answer")
        assert visit.text(".hint") == "provisional until confirmed"
        assert visit.style(".reply", "borderLeftStyle") == "dashed"
        draft = visit.style(".reply", "color")
        cursor = (
            "getComputedStyle(document.querySelector('.turn:last-child .text.answer > .line:last-child'), '::after')"
        )
        assert visit.page.evaluate(f"{cursor}.animationName") == "blink"
        assert visit.buttons() == []
        assert visit.page.get_attribute(".turn:last-child .reply", "aria-busy") == "true"
        visit.wait("finished")
        assert within(lambda: visit.style(".reply", "borderLeftStyle") == "solid")  # the look settles
        assert within(lambda: visit.style(".reply", "color") != draft)
        assert visit.page.evaluate(f"{cursor}.content") in ("none", "normal")
        assert visit.page.get_attribute(".turn:last-child .reply", "aria-busy") == "false"

    def test_a_waiting_sign_stands_there_before_the_first_word(self, visit: Visit) -> None:
        visit.ask("slow")
        visit.wait("connecting")
        assert visit.text(".status strong") == "Waiting"
        assert visit.style(".sign", "animationName") == "pulse"
        visit.page.keyboard.press("Escape")

    def test_each_paint_is_a_prefix_of_the_next(self, visit: Visit) -> None:
        visit.ask("crumbs")
        visit.wait("finished")
        texts = visit.page.evaluate("watched.texts")
        assert all(after.startswith(before) for before, after in pairwise(texts))

    def test_two_thousand_deltas_a_second_are_25_paints_a_second(self, visit: Visit) -> None:
        visit.count_cpu()
        visit.ask("fast")
        visit.wait("finished")
        paints = visit.page.evaluate("watched.paints")
        seconds = (paints[-1] - paints[0]) / 1000
        assert seconds > 3.5
        assert len(paints) <= seconds * 25 + 3, f"{len(paints)} paints in {seconds:.1f} s"
        assert len(paints) > seconds * 5, f"{len(paints)} paints in {seconds:.1f} s"  # 24 a second on an idle machine
        cpu_ms = visit.cpu_ms() / len(paints)
        assert cpu_ms < 40, f"{cpu_ms:.1f} ms a paint: the page falls behind its own clock"
        assert visit.text(".reply") == turn_of(SCENARIOS["fast"]).answer
        # who looks at the end goes along with it
        assert visit.page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")


class TestEnds:
    def test_a_cut_answer_is_an_error_that_says_so_and_can_be_tried_again(self, visit: Visit, gateway: Running) -> None:
        gateway.demo.asked.clear()  # the next is the first: cut
        visit.ask("cut-once")
        visit.wait("streaming", "answer")
        visit.wait("error")
        assert visit.text(".problem h2") == "The answer was cut"
        assert "not a whole answer" in visit.text(".problem")
        assert visit.page.get_attribute(".turn:last-child .problem", "role") == "alert"
        assert "água" not in visit.text("")
        visit.page.evaluate("watched.texts.length = 0")
        visit.page.click("text=Try again")
        visit.wait("finished")
        whole = turn_of(Scenario(**{**vars(SCENARIOS["cut-once"]), "breaks_at": None})).answer
        assert visit.text(".reply") == whole
        assert all(whole.startswith(text) for text in visit.page.evaluate("watched.texts")), "two attempts were mixed"
        assert len(visit.page.query_selector_all(".turn")) == 1

    def test_an_error_in_the_middle_takes_the_drafts_place(self, visit: Visit) -> None:
        visit.ask("error")
        visit.wait("streaming", "answer")
        visit.wait("error")
        assert "overloaded_error: Overloaded" in visit.text(".problem")
        assert "Levada" not in visit.text(".reply")

    def test_a_refusal_says_when_it_may_go_better(self, visit: Visit) -> None:
        visit.ask("refused")
        visit.wait("error")
        assert "Better after 7.0 s" in visit.text(".problem")

    def test_ask_again_asks_the_same(self, visit: Visit, gateway: Running) -> None:
        visit.ask("gemini")
        visit.wait("finished")
        first = visit.text(".reply")
        visit.page.click("text=Ask again")
        visit.page.wait_for_selector(".turn:nth-of-type(2)[data-state='finished']")
        assert (visit.text(".reply"), visit.text(".question")) == (first, QUESTION)
        assert gateway.demo.requests[-1] == {"contents": [{"role": "user", "parts": [{"text": QUESTION}]}]}

    def test_the_next_question_can_be_asked_at_once(self, visit: Visit) -> None:
        visit.ask("refused", "one")
        visit.wait("error")
        visit.ask("refused", "two")
        visit.page.wait_for_selector(".turn:nth-of-type(2)[data-state='error']")

    def test_copy_gives_the_whole_answer(self, visit: Visit) -> None:
        visit.ask("openai_chat")
        visit.wait("finished")
        visit.page.click("text=Copy")
        visit.page.wait_for_selector("text=Copied")
        assert visit.page.evaluate("navigator.clipboard.readText()") == turn_of(SCENARIOS["openai_chat"]).answer

    def test_a_gateway_that_goes_away_is_a_cut_answer(self, browser: Any) -> None:
        with Running() as short:
            visit = Visit(browser, short.url)
            visit.ask("slow")
            visit.wait("streaming")
            short.stop()
            visit.wait("error")
            assert "this gateway shuts down" in visit.text(".problem")
            visit.page.click("text=Try again")
            visit.wait("error")
            assert visit.buttons() == ["Try again"]
            visit.context.close()
        assert [line for line in visit.wrong if "Failed to load resource" not in line] == []


class TestCancelling:
    @pytest.mark.parametrize("way", ["button", "Escape"])
    def test_it_stops_at_once_and_the_upstream_is_closed(self, visit: Visit, gateway: Running, way: str) -> None:
        visit.ask("fast")
        visit.wait("streaming", "answer")
        if way == "button":
            visit.page.click("#stop")
        else:
            visit.page.keyboard.press("Escape")
        visit.wait("cancelled")
        text = visit.text(".reply")
        assert within(lambda: gateway.turns == 0)
        assert within(lambda: gateway.demo.open == 0)
        visit.page.wait_for_timeout(200)
        assert visit.text(".reply") == text != ""
        assert visit.text(".hint") == "incomplete, not an answer"
        assert visit.buttons() == ["Try again"]
        assert visit.style(".sign", "animationName") == "none"

    def test_after_a_stop_it_can_be_tried_again(self, visit: Visit) -> None:
        visit.ask("openai_chat")
        visit.wait("streaming", "answer")
        visit.page.keyboard.press("Escape")
        visit.wait("cancelled")
        visit.page.click("text=Try again")
        visit.wait("finished")
        assert visit.text(".reply") == turn_of(SCENARIOS["openai_chat"]).answer

    def test_before_the_first_word(self, visit: Visit, gateway: Running) -> None:
        visit.ask("slow")
        visit.wait("connecting")
        visit.page.keyboard.press("Escape")
        visit.wait("cancelled")
        assert within(lambda: gateway.demo.open == 0)

    def test_a_reload_closes_the_upstream_and_keeps_the_choice(self, visit: Visit, gateway: Running) -> None:
        visit.ask("slow")
        visit.wait("streaming")
        visit.page.reload()
        visit.page.wait_for_selector("html[data-ready]")
        assert within(lambda: gateway.turns == 0)
        assert within(lambda: gateway.demo.open == 0)
        assert visit.page.input_value("#upstream") == "slow"
        assert visit.page.query_selector(".turn") is None


class TestPerson:
    def test_the_keyboard_is_enough(self, visit: Visit) -> None:
        assert visit.page.evaluate("document.activeElement.id") == "question"
        visit.page.keyboard.type("two")
        visit.page.keyboard.press("Shift+Enter")
        visit.page.keyboard.type("lines")
        visit.page.keyboard.press("Enter")
        visit.wait("finished")
        assert visit.text(".question") == "two\nlines"
        assert visit.page.input_value("#question") == ""

    def test_a_question_while_an_answer_arrives_stays_in_its_field(self, visit: Visit) -> None:
        visit.ask("gemini")
        visit.wait("streaming")
        visit.page.fill("#question", "next")
        visit.page.press("#question", "Enter")
        assert visit.page.input_value("#question") == "next"
        visit.wait("finished")
        assert len(visit.page.query_selector_all(".turn")) == 1

    def test_changes_of_state_are_announced(self, visit: Visit) -> None:
        visit.page.evaluate(
            "window.said = []; new MutationObserver(() => said.push(announcer.textContent))"
            ".observe(document.getElementById('announcer'), {childList: true, characterData: true, subtree: true})"
        )
        visit.ask("anthropic")
        visit.wait("finished")
        assert visit.page.get_attribute("#announcer", "aria-live") == "polite"
        assert visit.page.evaluate("said") == [
            "Waiting for an answer.",
            "The model is thinking.",
            "The answer arrives.",
            "Answer confirmed.",
        ]

    @pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (390, "dark"), (1000, "dark")])
    def test_nothing_is_wider_than_the_screen(self, browser: Any, gateway: Running, width: int, scheme: str) -> None:
        visit = Visit(browser, gateway.url, viewport={"width": width, "height": 640}, color_scheme=scheme)
        visit.ask("hostile", "averylongquestionwithoutanyspace" * 10)
        visit.wait("finished")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        visit.context.close()
        assert visit.wrong == []


class TestHostile:
    def test_markup_is_shown_as_characters(self, visit: Visit) -> None:
        visit.ask("hostile")
        visit.wait("finished")
        assert visit.text(".reply").startswith(_MARKUP[:300])
        made = "[...document.querySelectorAll('.turn *')].map((element) => element.tagName)"
        tags = set(visit.page.evaluate(made))
        assert not tags & {"SCRIPT", "IMG", "STYLE", "B", "H1", "IFRAME", "I"}
        assert visit.page.title() == "levada"
        links = visit.page.eval_on_selector_all(".turn a", "links => links.map((link) => link.href)")
        assert links == ["https://walks.example/a?b=%3Cc%3E"]
        assert "javascript:document.title='owned'" in visit.text(".sources")

    def test_the_policy_stops_what_would_get_through(self, browser: Any, gateway: Running) -> None:
        visit = Visit(browser, gateway.url)
        refused = visit.page.evaluate(
            """async () => {
                const names = [];
                const note = async (attempt) => { try { await attempt(); } catch (error) { names.push(error.name); } };
                await note(() => { document.querySelector("main").innerHTML = "<b>x</b>"; });
                await note(() => document.createElement("img").setAttribute("onerror", "document.title = 'owned'"));
                await note(() => { setTimeout("document.title = 'owned'", 0); });
                await note(() => fetch("https://outside.invalid/"));
                const image = new Image();
                image.src = "https://outside.invalid/pixel.png";
                document.body.append(image);
                return names;
            }"""
        )
        assert refused == ["TypeError"] * 4
        visit.page.wait_for_timeout(200)
        assert visit.page.title() == "levada"
        assert sum("Content Security Policy directive" in line for line in visit.wrong) >= 2
        visit.context.close()


class TestParser:
    def test_the_pages_parser_passes_our_vectors_under_every_cut(self, visit: Visit) -> None:
        rows = [json.loads(line) for line in VECTORS.read_text("utf-8").splitlines() if line.strip()]
        cases = [
            {
                "name": row["name"],
                "bytes": list(bytes.fromhex("".join(row["chunks_hex"]))),
                "events": [[event["event"], event["data"], event["id"]] for event in row["expect"]["events"]],
            }
            for row in rows
        ]
        assert len(cases) > 50
        failures = visit.page.evaluate(
            """async (cases) => {
                const { EventParser } = await import("/page/events.js");
                const failures = [];
                const read = (chunks) => {
                    const parser = new EventParser(), decoder = new TextDecoder("utf-8", {ignoreBOM: true});
                    const events = chunks.flatMap((chunk) => parser.feed(decoder.decode(chunk, {stream: true})));
                    return JSON.stringify(events.map(({type, data, id}) => [type, data, id]));
                };
                for (const {name, bytes, events} of cases) {
                    const whole = Uint8Array.from(bytes), wanted = JSON.stringify(events);
                    const cuts = [[whole], [...whole].map((byte) => Uint8Array.of(byte))];
                    for (let at = 1; at < Math.min(whole.length, 200); at++)
                        cuts.push([whole.slice(0, at), whole.slice(at)]);
                    for (const chunks of cuts) {
                        const got = read(chunks);
                        if (got !== wanted) { failures.push([name, chunks.length, got, wanted]); break; }
                    }
                }
                return failures;
            }""",
            cases,
        )
        assert failures == []


@pytest.mark.skipif("LEVADA_SCREENSHOTS" not in os.environ, reason="LEVADA_SCREENSHOTS names no folder")
def test_pictures(browser: Any, gateway: Running) -> None:
    folder = Path(os.environ["LEVADA_SCREENSHOTS"])
    phone = {"viewport": {"width": 390, "height": 700}, "has_touch": True}
    desktop = {"viewport": {"width": 900, "height": 480}}

    def picture(
        name: str, options: dict[str, Any], scheme: str, scenario: str, *steps: Callable[[Visit], object]
    ) -> None:
        visit = Visit(browser, gateway.url, color_scheme=scheme, **options)
        visit.ask(scenario)
        for step in steps:
            step(visit)
        visit.page.screenshot(path=folder / f"{name}.png")
        visit.context.close()

    def wait(state: str, phase: str | None = None, ms: int = 0) -> Callable[[Visit], object]:
        def step(visit: Visit) -> None:
            visit.wait(state, phase)
            visit.page.wait_for_timeout(ms)

        return step

    picture("thinking", desktop, "light", "openai_chat", wait("streaming", "reasoning", 650))
    picture("answering", desktop, "light", "openai_chat", wait("streaming", "answer", 1100))
    picture("confirmed", desktop, "light", "openai_chat", wait("finished", None, 500))
    picture("cut", desktop, "dark", "cut", wait("error"))
    picture(
        "stopped", phone, "dark", "openai_chat", wait("streaming", "answer", 900),
        lambda visit: visit.page.keyboard.press("Escape"), wait("cancelled", None, 300),
    )  # fmt: skip
    picture("tools", phone, "dark", "tools-anthropic", wait("finished", None, 500))
    picture("sources", phone, "light", "vertex_search", wait("finished", None, 500))
    picture(
        "hostile", phone, "light", "hostile", wait("finished", None, 500),
        lambda visit: visit.page.evaluate("scrollTo(0, 150)"),
    )  # fmt: skip
