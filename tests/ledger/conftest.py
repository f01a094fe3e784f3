"""A ledger on each database. PostgreSQL is skipped, visibly, where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from levada.ledger import Ledger


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/turns.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """An open ledger without a turn."""
    with Ledger.open(ledger_url) as opened:
        yield opened
