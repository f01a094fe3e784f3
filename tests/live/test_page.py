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
from levada.gateway.demo.scenarios import _MARKUP, Scenario, _chat
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
            assert visit.buttons() == ["Try anyway" if name == "refused" else "Try again"]
            assert visit.shown(".problem")
            assert visit.page.text_content("#announcer") == "No answer."
        assert visit.page.get_attribute(".turn:last-child .reply", "aria-busy") == "false"
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
    def test_a_cut_answer_is_an_error_that_says_so_and_can_be_tried_again(self, visit: Visit) -> None:
        visit.ask("cut-once")
        visit.wait("streaming", "answer")
        visit.wait("error")
        assert visit.text(".problem h2") == "The answer was cut"
        assert "not a whole answer" in visit.text(".problem")
        assert visit.page.get_attribute(".turn:last-child .problem > div", "role") == "alert"
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

    def test_the_first_try_of_every_question_is_cut_whoever_asks(self, browser: Any, gateway: Running) -> None:
        for _ in range(2):
            visit = Visit(browser, gateway.url)
            for _ in range(2):
                visit.ask("cut-once")
                visit.wait("error")
                visit.page.reload()
                visit.page.wait_for_selector("html[data-ready]")
            visit.context.close()

    def test_a_provider_that_asks_to_wait_is_counted_down_and_may_be_tried_anyway(self, visit: Visit) -> None:
        visit.ask("refused")
        visit.wait("error")
        assert "The provider asks to wait 7 s." in visit.text("[role=alert]")
        assert "to go" not in visit.text("[role=alert]"), "a reader of the screen would hear it each second"
        assert visit.text(".left") == "7 s to go"
        assert within(lambda: visit.text(".left") == "6 s to go")
        visit.page.click("text=Try anyway")
        visit.page.wait_for_selector(".problem:has-text('asks to wait')")
        assert within(lambda: visit.buttons() == ["Try again"], 20)
        assert visit.text(".left") == ""

    def test_where_nothing_had_arrived_nothing_is_said_of_it(self, visit: Visit) -> None:
        visit.ask("refused")
        visit.wait("error")
        assert "had arrived" not in visit.text(".problem")

    def test_ask_again_asks_the_same(self, visit: Visit, gateway: Running) -> None:
        visit.ask("gemini")
        visit.wait("finished")
        first = visit.text(".reply")
        visit.page.click("text=Ask again")
        visit.page.wait_for_selector(".turn:nth-of-type(2)[data-state='finished']")
        assert (visit.text(".reply"), visit.text(".question")) == (first, QUESTION)
        request = gateway.demo.requests[-1]
        assert request.pop("asked")  # for the demo alone
        assert request == {"contents": [{"role": "user", "parts": [{"text": QUESTION}]}]}

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
        assert visit.page.get_attribute(".turn:last-child .reply", "aria-busy") == "false"
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

    def test_why_it_is_not_asked_yet_is_seen_near_the_field_for_a_moment(self, visit: Visit) -> None:
        visit.ask("slow")
        visit.wait("streaming", "answer")
        assert not visit.page.is_visible("#notice")
        visit.ask("slow", "and another?")
        visit.page.wait_for_selector("#notice:visible")
        assert visit.page.text_content("#notice") == "Another answer is arriving. Stop it first."
        visit.page.keyboard.press("Escape")
        visit.wait("cancelled")
        visit.page.wait_for_selector("#notice", state="hidden")

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

    def test_an_empty_field_asks_nothing(self, visit: Visit) -> None:
        for words in ("", "  \n "):
            visit.ask("anthropic", words)
            visit.page.wait_for_timeout(100)
            assert visit.page.query_selector(".turn") is None
        assert visit.page.evaluate("document.activeElement.id") == "question"

    @pytest.mark.parametrize("way", ["mouse", "keyboard"])
    def test_what_is_pressed_leaves_the_focus_where_one_is(self, visit: Visit, way: str) -> None:
        def press(words: str) -> None:
            if way == "mouse":
                visit.page.click(words)
            else:
                visit.page.focus(words)
                visit.page.keyboard.press("Enter")

        focus = "document.activeElement.id || document.activeElement.className || document.activeElement.nodeName"
        visit.ask("error")
        visit.wait("error")
        press("text=Try again")
        visit.page.wait_for_selector(".turn:not([data-state='error'])")
        assert visit.page.evaluate(focus) == "turn"
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.closest('.turn, .ask') !== null"), "not at the top"
        visit.wait("error")
        visit.page.fill("#question", "again")
        press("#send")
        assert visit.page.evaluate(focus) == "stop"
        visit.page.wait_for_selector("#send:visible")
        assert visit.page.evaluate(focus) == "send"

    def test_an_older_turn_cannot_be_tried_again_while_another_arrives_and_says_so(self, visit: Visit) -> None:
        visit.ask("refused")
        visit.wait("error")
        button = visit.page.locator(".turn:first-of-type button.asks")
        assert button.get_attribute("aria-disabled") == "false"
        visit.ask("slow")
        visit.wait("streaming", "answer")
        assert button.get_attribute("aria-disabled") == "true"
        assert button.get_attribute("title") == "Another answer is arriving"
        button.dispatch_event("click")
        assert visit.page.text_content("#announcer") == "Another answer is arriving. Stop it first."
        assert visit.page.get_attribute(".turn:first-of-type", "data-state") == "error"
        visit.page.keyboard.press("Escape")
        visit.wait("cancelled")
        assert button.get_attribute("aria-disabled") == "false"

    @pytest.mark.parametrize(("width", "words"), [(360, "Ask something"), (900, "Ask: Enter sends, Esc stops")])
    def test_keys_are_spoken_of_where_there_are_some(
        self, browser: Any, gateway: Running, width: int, words: str
    ) -> None:
        visit = Visit(browser, gateway.url, viewport={"width": width, "height": 640})
        assert visit.page.get_attribute("#question", "placeholder") == words
        visit.context.close()

    @pytest.mark.parametrize(("width", "height"), [(900, 800), (360, 640)])
    @pytest.mark.parametrize("last", ["refused", "cut", "stopped"])
    def test_what_can_be_done_after_a_bad_end_is_in_sight(
        self, browser: Any, hasty: Running, width: int, height: int, last: str
    ) -> None:
        visit = Visit(browser, hasty.url, viewport={"width": width, "height": height})
        for name in ("openai_chat", "vertex_search"):
            visit.ask(name)
            visit.wait("finished")
        if last == "stopped":
            visit.ask("fast")
            visit.wait("streaming", "answer")
            visit.page.keyboard.press("Escape")
        else:
            visit.ask(last)
        visit.page.wait_for_selector(".turn:last-child button.asks")
        button = visit.page.locator(".turn:last-child button.asks").bounding_box()
        assert button["y"] + button["height"] <= visit.page.locator("#ask").bounding_box()["y"]
        visit.context.close()

    def test_who_reads_further_up_is_left_there(self, browser: Any, gateway: Running) -> None:
        visit = Visit(browser, gateway.url, viewport={"width": 360, "height": 640})
        for name in ("openai_chat", "gemini"):
            visit.ask(name)
            visit.wait("finished")
        visit.ask("slow")
        visit.wait("streaming", "answer")
        visit.page.evaluate("scrollTo(0, 100)")
        visit.page.keyboard.press("Escape")
        visit.wait("cancelled")
        visit.page.wait_for_timeout(100)
        assert visit.page.evaluate("scrollY") == 100
        visit.page.click("text=New below")
        visit.page.wait_for_selector("#below", state="hidden")
        assert visit.page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert visit.page.evaluate("document.activeElement.matches('.turn:last-child')")
        visit.ask("error")
        visit.wait("error")
        assert not visit.page.is_visible("#below"), "who looks at the end needs no button"
        visit.page.evaluate("scrollTo(0, 0)")
        visit.page.wait_for_timeout(100)
        assert not visit.page.is_visible("#below"), "nothing new"
        visit.context.close()

    def test_another_try_of_an_old_turn_is_seen_from_its_question_on(self, browser: Any, gateway: Running) -> None:
        visit = Visit(browser, gateway.url, viewport={"width": 360, "height": 640})
        for name in ("error", "openai_chat", "gemini"):
            visit.ask(name)
            visit.page.wait_for_selector(".turn:last-child button")
        first = visit.page.locator(".turn:first-of-type")
        first.locator("text=Try again").evaluate("(button) => scrollBy(0, button.getBoundingClientRect().top - 50)")
        assert first.bounding_box()["y"] < 0
        first.locator("text=Try again").click()
        visit.page.wait_for_selector(".turn:first-of-type:not([data-state='error'])")
        assert first.bounding_box()["y"] >= 0
        assert first.locator(".question").bounding_box()["y"] < 100
        visit.context.close()

    @pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (390, "dark"), (1000, "dark")])
    def test_nothing_is_wider_than_the_screen(self, browser: Any, gateway: Running, width: int, scheme: str) -> None:
        visit = Visit(browser, gateway.url, viewport={"width": width, "height": 640}, color_scheme=scheme)
        visit.ask("hostile", "averylongquestionwithoutanyspace" * 10)
        visit.wait("finished")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        visit.context.close()
        assert visit.wrong == []


def chat(name: str, *deltas: dict[str, Any], finish: str = "stop", **more: Any) -> Scenario:
    more = {"first_delay_s": 0.05, "delay_s": 0.02, **more}
    kind = {"group": "Odd", "title": name, "note": "", "dialect": "openai_chat", "profile": "deepseek"}
    return Scenario(name=name, pieces=lambda: _chat(list(deltas), finish, 9), **{**kind, **more})


def calls(number: int) -> Iterator[dict[str, Any]]:
    for index in range(number):
        function = {"name": f"tool_{index}", "arguments": json.dumps({"text": "z" * 3000})}
        yield {"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]}


THOUGHT, SAID = {"reasoning_content": "Hm. "}, {"content": "The dose is "}
LINE = [{"content": "lorem ipsum dolor 水 " * 600}] * 80  # a million characters, and no line end
ODD = {
    scenario.name: scenario
    for scenario in (
        *(chat(finish, SAID, finish=finish) for finish in ("length", "content_filter", "something_new")),
        chat("empty"),
        chat("empty-length", THOUGHT, finish="length"),
        chat("declined", {"refusal": "No."}),
        chat("again", *[THOUGHT, SAID] * 4, delay_s=0.5),
        chat("tools", *calls(300), finish="tool_calls", delay_s=0.005),
        chat("line", *LINE, delay_s=0.01),
        chat("page-of-html", status=502, content_type="text/html"),
    )
}


@pytest.fixture(scope="module")
def odd(browser: Any) -> Iterator[Visit]:
    with Running(scenarios=ODD) as running:
        made = Visit(browser, running.url)
        yield made
        made.context.close()
    assert made.wrong == []


class TestNotWhole:
    """A provider may finish what is no whole answer, and says so with its finish reason."""

    @pytest.mark.parametrize(
        ("name", "word", "hint"),
        [
            ("length", "Ended early", "at the length limit"),
            ("content_filter", "Ended early", "by the provider's content filter"),
            ("something_new", "Ended early", "for a reason of the provider's own"),
            ("declined", "Refused", "the model declined to answer"),
            ("empty", "The answer is empty", "its provider finished without one"),
            ("empty-length", "Ended early", "at the length limit; the answer is empty"),
        ],
    )
    def test_it_has_no_check_and_says_why(self, odd: Visit, name: str, word: str, hint: str) -> None:
        odd.ask(name)
        odd.wait("finished")
        assert (odd.text(".status strong"), odd.text(".hint")) == (word, hint)
        assert odd.page.text_content("#announcer") == f"{word}: {hint}."
        assert odd.style(".sign", "backgroundImage").startswith("linear-gradient"), "half a circle"
        assert odd.style(".sign", "transform") == "none", "no check"
        amber = odd.style(".status strong", "color")
        assert amber == odd.style(".sign", "borderTopColor")
        assert odd.buttons() == (["Copy", "Ask again"] if "The dose" in odd.text(".reply") else ["Ask again"])
        assert "Confirmed" not in odd.text("")

    def test_calls_of_tools_are_a_whole_answer(self, odd: Visit) -> None:
        odd.ask("tools")
        odd.wait("finished")
        assert odd.text(".status strong") == "Confirmed"
        assert odd.buttons() == ["Ask again"], "there is no text to copy"

    def test_a_page_of_html_is_told_as_what_it_is(self, odd: Visit) -> None:
        odd.ask("page-of-html")
        odd.wait("error")
        assert "had arrived" not in odd.text(".problem")
        assert "rules" not in odd.text(".problem")
        assert "502" in odd.text(".problem")


class TestThinkingAgain:
    def test_the_status_says_so_and_the_time_is_that_of_all_stretches(self, odd: Visit) -> None:
        odd.page.evaluate(
            """window.seen = []; new MutationObserver(() => {
                const of = (selector) => document.querySelector(`.turn:last-child ${selector}`);
                const words = [".status strong", "summary"].map((selector) => of(selector).textContent.slice(0, 9));
                const now = [...words, of("details").open];
                if (String(now) !== String(seen.at(-1))) seen.push(now);
            }).observe(log, {subtree: true, attributes: true, attributeFilter: ["data-phase"]})"""
        )
        odd.ask("again")
        odd.wait("finished")
        thinks, answers = ["Thinking", "Thinking…", True], ["Answering", "Thought f", False]
        again = ["Thinking", "Thinking…", False]  # it stays folded
        assert odd.page.evaluate("seen") == [thinks, answers, *[again, answers] * 3]
        took = float(odd.text("summary").removeprefix("Thought for ").removesuffix(" s"))
        assert 1.6 < took < 4  # four times half a second


class TestMuch:
    """However much there is, a paint lays out what is new."""

    # how long a task takes is the machine's business; how much one of them does is ours
    GREW = """
    window.grew = [];
    new MutationObserver((changes) => grew.push(changes.reduce((sum, {target, oldValue, addedNodes}) => sum
        + (oldValue === null ? [...addedNodes].reduce((size, node) => size + node.textContent.length, 0)
                             : target.data.length - oldValue.length), 0)))
        .observe(log, {subtree: true, childList: true, characterData: true, characterDataOldValue: true});
    """

    @pytest.mark.parametrize("name", ["tools", "line"])
    def test_no_paint_does_much_and_all_of_it_comes(self, odd: Visit, name: str) -> None:
        odd.page.reload()
        odd.page.wait_for_selector("html[data-ready]")
        odd.page.evaluate(self.GREW)
        odd.ask(name)
        odd.wait("finished")
        grew = odd.page.evaluate("grew")
        assert max(grew) < 16_384 + 1000, "names and words of the page besides"
        lines = odd.page.eval_on_selector_all(".line", "lines => lines.map((line) => line.textContent.length)")
        assert max(lines) <= 16_384
        turn = turn_of(ODD[name])
        assert odd.text(".reply") == turn.answer
        arguments = [row.text_content() for row in odd.page.query_selector_all(".turn:last-child .arguments")]
        assert arguments == [call.arguments for call in turn.tool_calls]

    def test_a_line_goes_on_in_its_own_direction(self, odd: Visit) -> None:
        lines = odd.page.evaluate(
            r"""async () => {
                const { TextFlow } = await import("/page/paint.js");
                const element = document.body.appendChild(document.createElement("div"));
                const flow = new TextFlow(element);
                flow.append("\u05e9\u05dc\u05d5\u05dd " + "abc ".repeat(3000) + "\nplain 💧" + "💧".repeat(20000));
                while (flow.behind) flow.paint(1001);
                const seen = [...element.children].map((line) => [getComputedStyle(line).direction, line.textContent]);
                const same = element.textContent === flow.text;
                element.remove();
                return [same, seen];
            }"""
        )
        same, seen = lines
        assert same
        assert [direction for direction, _ in seen[:2]] == ["rtl", "rtl"]
        assert seen[0][1].endswith(" ")
        assert seen[2][0] == "ltr"
        assert all(len(text) <= 16384 for _, text in seen)
        assert not any("\ud83d" in text or "\udca7" in text for _, text in seen), "no half of a character"


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
