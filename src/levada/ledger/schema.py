"""The ledger's tables, and the steps that lead there.

The steps are history: a released one never changes, and a need that comes later is a step at the end. The tables below
are what the code reads and writes after the last step; a test compares the two.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, MetaData, Table, Text
from sqlalchemy.types import TypeDecorator, UserDefinedType

from levada.ledger.hostile import json_from, json_to, text_from, text_to

__all__ = ["STEPS", "VERSION", "metadata", "outbox", "partials", "records", "refused", "turns", "version"]


class Words(TypeDecorator[str]):
    """Any text, lone surrogates and NUL included."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else text_to(value)

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else text_from(value)


class Json(UserDefinedType[Any]):
    """A JSON document: text in SQLite, json in PostgreSQL.

    Not jsonb, which changes what it is given: it orders keys anew, writes 1e23 as an integer, and refuses some numbers.
    A cast to jsonb works in queries.
    """

    cache_ok = True

    def get_col_spec(self, **kw: Any) -> str:
        return "JSON"

    def bind_processor(self, dialect: Any) -> Any:
        return lambda value: None if value is None else json_to(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return lambda stored: None if stored is None else json_from(stored)  # opening.py has psycopg hand out its text


class Moment(TypeDecorator[datetime]):
    """A moment: timestamptz in PostgreSQL; in SQLite text of one width in UTC, so that its order is that of time."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        if dialect.name == "postgresql":
            from sqlalchemy.dialects.postgresql import TIMESTAMP  # noqa: PLC0415  # not needed for SQLite

            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: datetime | None, dialect: Any) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:
        if value is None:
            return None
        return (value if isinstance(value, datetime) else datetime.fromisoformat(value)).astimezone(UTC)


metadata: Final = MetaData()

version: Final = Table(
    "levada_ledger_version",
    metadata,
    Column("version", Integer, primary_key=True),  # one row a step that was done
    Column("done_at", Moment, nullable=False),
)

# Answers: finished, validated, released. `n` orders what came at one moment; no order of commits.
turns: Final = Table(
    "levada_turns",
    metadata,
    Column("n", BigInteger, primary_key=True),
    Column("key", Text, nullable=False),
    Column("digest", Text, nullable=False),  # of the content, to know it again under its key
    Column("stored_at", Moment, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("profile", Words, nullable=False),
    Column("model", Words),  # its first 200 characters; the whole is in `more` where it is longer
    Column("provider_id", Words),
    Column("finish_reason", Text, nullable=False),
    Column("native_finish_reason", Words),
    Column("answer", Words, nullable=False),  # what was released
    Column("altered", Boolean, nullable=False),  # whether a review changed the provider's answer
    Column("raw_answer", Words),  # the provider's, where that was asked for
    Column("reasoning", Words, nullable=False),
    Column("refusal", Words, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("anomalies", BigInteger, nullable=False),  # how many
    Column("bytes", BigInteger, nullable=False),  # about how large the row is
    Column("usage", Json),
    Column("parts", Json, nullable=False),
    Column("tool_calls", Json, nullable=False),
    Column("citations", Json, nullable=False),
    Column("refs", Json, nullable=False),  # REFERENCES is a word of SQL
    Column("more", Json, nullable=False),  # choices where there are several, the anomalies' places, a long model name
)

# Actions that were committed with their turn. A row may be taken while it is queued and due; to take one is to move
# `due_at` to the end of the lease and to raise `fence`, and only who holds the newest fence may say what came of it.
outbox: Final = Table(
    "levada_outbox",
    metadata,
    Column("n", BigInteger, primary_key=True),
    Column("turn_key", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("payload", Json),
    Column("state", Text, nullable=False),  # queued, done, dead
    Column("attempts", Integer, nullable=False),
    Column("due_at", Moment, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("holder", Words),  # who runs it, None where nobody does
    Column("error_type", Words),
    Column("error_words", Words),
    Column("created_at", Moment, nullable=False),
    Column("ended_at", Moment),
)

# Turns that were finished and did not pass. No answers.
refused: Final = Table(
    "levada_refused",
    metadata,
    Column("n", BigInteger, primary_key=True),
    Column("key", Text, nullable=False),
    Column("refused_at", Moment, nullable=False),
    Column("reasons", Json, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("profile", Words, nullable=False),
    Column("model", Words),
    Column("provider_id", Words),
    Column("finish_reason", Text, nullable=False),
    Column("native_finish_reason", Words),
    Column("answer_chars", BigInteger, nullable=False),
    Column("raw_answer", Words),  # only where it was asked for
    Column("usage", Json),
)

# What was kept of turns that came to no answer, for whoever asked for it. Never an answer, hence the column's name.
partials: Final = Table(
    "levada_partials",
    metadata,
    Column("n", BigInteger, primary_key=True),
    Column("key", Text, nullable=False),
    Column("kept_at", Moment, nullable=False),
    Column("state", Text, nullable=False),
    Column("error_kind", Text),
    Column("error_type", Words),
    Column("dialect", Text, nullable=False),
    Column("profile", Words, nullable=False),
    Column("model", Words),
    Column("provider_id", Words),
    Column("partial_text", Words, nullable=False),
    Column("released", Boolean, nullable=False),  # whether a gate had released it
    Column("usage", Json),
)

# What operations want to know of attempts; no text.
records: Final = Table(
    "levada_records",
    metadata,
    Column("n", BigInteger, primary_key=True),
    Column("key", Text),
    Column("recorded_at", Moment, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("profile", Words, nullable=False),
    Column("model", Words),
    Column("state", Text, nullable=False),
    Column("error_kind", Text),
    Column("error_type", Words),
    Column("retry_in_s", Double),
    Column("released_chars", BigInteger, nullable=False),
    Column("usage", Json),
    Column("committed", Boolean),  # None: it was cut off, and nobody knows
    Column("cancelled", Boolean, nullable=False),
    Column("cancelled_by", Words),
    Column("exception", Words),
    Column("upstream_closed", Boolean),
    Column("first_delta_after_s", Double),
    Column("lasted_s", Double, nullable=False),
)

# {id}: a number that counts itself. {json}, {moment}: see above.
STEPS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE levada_turns (n {id}, key TEXT NOT NULL UNIQUE, digest TEXT NOT NULL,
        stored_at {moment} NOT NULL, dialect TEXT NOT NULL, profile TEXT NOT NULL, model TEXT, provider_id TEXT,
        finish_reason TEXT NOT NULL, native_finish_reason TEXT, answer TEXT NOT NULL, altered BOOLEAN NOT NULL,
        raw_answer TEXT,
        reasoning TEXT NOT NULL, refusal TEXT NOT NULL, attempts INTEGER NOT NULL, anomalies BIGINT NOT NULL,
        bytes BIGINT NOT NULL, usage {json}, parts {json} NOT NULL, tool_calls {json} NOT NULL,
        citations {json} NOT NULL, refs {json} NOT NULL, more {json} NOT NULL)""",
        "CREATE INDEX levada_turns_time ON levada_turns (stored_at, n)",
        "CREATE INDEX levada_turns_model ON levada_turns (model, stored_at, n)",
        "CREATE INDEX levada_turns_finish ON levada_turns (finish_reason, stored_at, n)",
        """CREATE TABLE levada_outbox (n {id}, turn_key TEXT NOT NULL REFERENCES levada_turns (key),
        position INTEGER NOT NULL, name TEXT NOT NULL, payload {json}, state TEXT NOT NULL
        CHECK (state IN ('queued', 'done', 'dead')), attempts INTEGER NOT NULL, due_at {moment} NOT NULL,
        fence BIGINT NOT NULL, holder TEXT, error_type TEXT, error_words TEXT, created_at {moment} NOT NULL,
        ended_at {moment}, UNIQUE (turn_key, position))""",
        "CREATE INDEX levada_outbox_due ON levada_outbox (name, due_at, n) WHERE state = 'queued'",
        "CREATE INDEX levada_outbox_dead ON levada_outbox (n) WHERE state = 'dead'",
        """CREATE TABLE levada_refused (n {id}, key TEXT NOT NULL, refused_at {moment} NOT NULL,
        reasons {json} NOT NULL, dialect TEXT NOT NULL, profile TEXT NOT NULL, model TEXT, provider_id TEXT,
        finish_reason TEXT NOT NULL, native_finish_reason TEXT, answer_chars BIGINT NOT NULL, raw_answer TEXT,
        usage {json})""",
        "CREATE INDEX levada_refused_key ON levada_refused (key, n)",
    ),
    (
        """CREATE TABLE levada_partials (n {id}, key TEXT NOT NULL, kept_at {moment} NOT NULL, state TEXT NOT NULL
        CHECK (state <> 'finished'), error_kind TEXT, error_type TEXT, dialect TEXT NOT NULL, profile TEXT NOT NULL,
        model TEXT, provider_id TEXT, partial_text TEXT NOT NULL, released BOOLEAN NOT NULL, usage {json})""",
        "CREATE INDEX levada_partials_key ON levada_partials (key, n)",
        """CREATE TABLE levada_records (n {id}, key TEXT, recorded_at {moment} NOT NULL, attempt INTEGER NOT NULL,
        dialect TEXT NOT NULL, profile TEXT NOT NULL, model TEXT, state TEXT NOT NULL, error_kind TEXT, error_type TEXT,
        retry_in_s DOUBLE PRECISION, released_chars BIGINT NOT NULL, usage {json}, committed BOOLEAN,
        cancelled BOOLEAN NOT NULL, cancelled_by TEXT, exception TEXT, upstream_closed BOOLEAN,
        first_delta_after_s DOUBLE PRECISION, lasted_s DOUBLE PRECISION NOT NULL)""",
        "CREATE INDEX levada_records_key ON levada_records (key, n)",
        "CREATE INDEX levada_records_kind ON levada_records (error_kind, n)",
    ),
)
VERSION: Final = len(STEPS)
