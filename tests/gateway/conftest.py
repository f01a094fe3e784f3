"""What every test of the gateway leaves behind as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.test_gateway import OPENED


@pytest.fixture(autouse=True)
def _closed_afterwards() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()
