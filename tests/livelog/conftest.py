"""Places where live turns are kept, one after the other, and async tests.

LEVADA_LIVELOG: "quick" (default), or "long" (`make livelog`): more rounds of what is random.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from levada.live import LiveLog

LONG = os.environ.get("LEVADA_LIVELOG", "quick") == "long"
ROUNDS = 50 if LONG else 3
LONGEST_S = 900 if LONG else 60  # of one test
PLACES = ["memory", "sqlite", "redis"]


class Place:
    """A store that several logs share, as replicas do."""

    def __init__(self, name: str, url: str, **options: Any) -> None:
        self.name, self.url, self.options = name, url, options

    def open(self, **options: Any) -> LiveLog:
        return LiveLog.open(self.url, **{**self.options, **options})


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name = request.param
    if name == "memory":
        return Place(name, f"memory://{secrets.token_hex(8)}")
    if name == "sqlite":
        return Place(name, f"sqlite:///{tmp_path}/live.db")
    return Place(name, request.getfixturevalue("redis_url"), prefix=f"levada-test:{secrets.token_hex(8)}:")


@pytest.fixture
def rounds() -> int:
    """How often to do what is random."""
    return ROUNDS


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test in an event loop of its own, which it leaves without a task."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def whole() -> None:
        async with asyncio.timeout(LONGEST_S):
            await pyfuncitem.obj(**arguments)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    asyncio.run(whole())
    return True
