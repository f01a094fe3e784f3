"""The pytest plugin: the fixture `replay_server`.

It stands outside the package, as Hypothesis's does, so that the start of pytest imports nothing of levada: that would
cost time in every run, choose the backend before a conftest.py can say LEVADA_BACKEND, and hide the package's imports
from pytest-cov.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from levada.testing import ReplayServer, Reply


@pytest.fixture
def replay_server() -> Iterator[Callable[..., ReplayServer]]:
    """Give a function that starts a ReplayServer: `replay_server(Reply(...), ...)`. All are closed after the test."""
    from levada.testing import ReplayServer  # noqa: PLC0415  # see above

    with ExitStack() as stack:

        def start(*replies: Reply | bytes | str | Path, max_s: float = 60.0) -> ReplayServer:
            return stack.enter_context(ReplayServer(*replies, max_s=max_s))

        yield start
