"""A browser for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.browsing import ARGUMENTS, CHROMIUM, MISSING


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert not MISSING, f"LEVADA_REQUIRE names chromium, and {MISSING} is missing"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()
