"""A ledger on each database. PostgreSQL is skipped, visibly, where there is none."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from levada.ledger import Ledger
from tests.servers import database


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Iterator[str]:
    """A database that tests share, each in a schema of its own: making one is a hundred times as fast."""
    with database(postgres_server) as url:
        yield url


@pytest.fixture
def postgres_schema(postgres_database: str) -> str:
    """The URL of an empty schema."""
    name = f"s{secrets.token_hex(8)}"
    with psycopg.connect(postgres_database.replace("+psycopg", "")) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{postgres_database}?options=-csearch_path%3D{name}"


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, or as good as one."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/turns.db"
    url: str = request.getfixturevalue("postgres_schema")
    return url


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """An open ledger without a turn."""
    with Ledger.open(ledger_url) as opened:
        yield opened
