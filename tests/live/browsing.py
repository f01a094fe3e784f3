"""A person's browser for the tests: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from levada.gateway.demo.scenarios import Scenario
from levada.turn import Turn
from tests.servers import REQUIRED

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
MISSING = " and ".join(
    what for what, there in (("chromium", CHROMIUM), ("playwright", find_spec("playwright"))) if not there
)


def need_browser() -> None:
    """Skip the module that says so, visibly, where there is no browser; under LEVADA_REQUIRE its tests fail instead."""
    if MISSING and "chromium" not in REQUIRED:
        pytest.skip(f"needs {MISSING}", allow_module_level=True)


ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
QUESTION = "What is a levada, and where does its water go?"

# Seen from outside the page: each batch of changes below an answer is one paint.
WATCH = """
window.watched = {paints: [], texts: []};
new MutationObserver((changes) => {
    const inside = changes.filter(({target}) => (target.nodeType === 1 ? target : target.parentElement)
        ?.closest(".reply, .thoughts > div"));
    if (!inside.length) return;
    watched.paints.push(performance.now());
    const reply = document.querySelector(".turn:last-child .reply");
    if (watched.texts.length < 5000) watched.texts.push(reply ? reply.textContent : "");
}).observe(document, {subtree: true, childList: true, characterData: true});
"""


class Visit:
    """A person's visit of the page, and all that went wrong in it."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        options = {"viewport": {"width": 1000, "height": 640}, **options}
        self.context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
        self.context.set_default_timeout(25_000)
        self.url = url
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self._before = 0.0
        self.page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._request)
        self.page.add_init_script(WATCH)
        self.open()

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self.url + "/"):
            self.wrong.append(f"outside request: {request.url}")

    def open(self, fragment: str = "") -> None:
        self.page.goto(f"{self.url}/{fragment}")
        self.page.wait_for_selector("html[data-ready]")

    def ask(self, name: str, question: str = QUESTION) -> None:
        self.page.select_option("#upstream", name)
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")

    def wait(self, state: str, phase: str | None = None) -> None:
        self.page.wait_for_selector(
            f'.turn:last-child[data-state="{state}"]' + (f'[data-phase="{phase}"]' if phase else "")
        )

    def text(self, selector: str) -> str:
        found = self.page.query_selector(f".turn:last-child {selector}")
        return found.text_content() if found is not None else ""

    def shown(self, selector: str) -> bool:
        found = self.page.query_selector(f".turn:last-child {selector}")
        return found is not None and found.is_visible()

    def buttons(self) -> list[str]:
        return [button.text_content() for button in self.page.query_selector_all(".turn:last-child button")]

    def count_cpu(self) -> None:
        """Begin to count what the page's main thread does. Its own time, not the clock's: others use the cores too."""
        self._counter = self.context.new_cdp_session(self.page)
        self._counter.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._before = self.cpu_ms()

    def cpu_ms(self) -> float:
        metrics = self._counter.send("Performance.getMetrics")["metrics"]
        return float(sum(one["value"] for one in metrics if one["name"] == "TaskDuration") * 1000 - self._before)

    def style(self, selector: str, name: str) -> str:
        code = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
        return str(self.page.evaluate(code, [f".turn:last-child {selector}", name]))


def turn_of(scenario: Scenario) -> Turn:
    """Return what the turn itself makes of a scenario's stream."""
    turn = Turn(scenario.dialect, profile=scenario.profile)
    turn.head(scenario.status, scenario.content_type)
    for piece in scenario.pieces()[: scenario.breaks_at]:
        turn.feed(piece)
    turn.eof(clean=scenario.breaks_at is None)
    return turn


def within(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait for it. How soon is tests/gateway's business: here a browser shares the cores."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()
