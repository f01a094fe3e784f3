"""Which rows are asked for, in which order, and how many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Select, Table, and_, or_, select

from levada.errors import UsageError
from levada.ledger.rows import MOST_WORD_CHARS
from levada.ledger.schema import turns
from levada.ledger.values import check_key

__all__ = ["check_limit", "filtered", "newest_first", "newest_rows", "portions"]

MOST_PAGE: Final = 1000  # rows at once
PORTION_BYTES: Final = 4 * 1024 * 1024  # what an export holds at once, if no single turn is larger


def check_limit(limit: int) -> None:
    """Raise UsageError unless `limit` is the size of a page."""
    if type(limit) is not int or not 1 <= limit <= MOST_PAGE:
        raise UsageError(f"limit must be an int from 1 to {MOST_PAGE}, not {limit!r:.100}")


def filtered(
    query: Select[Any], model: str | None, finish_reason: str | None, since: datetime | None, until: datetime | None
) -> Select[Any]:
    """Return the query for these turns alone."""
    if model is not None:
        query = query.where(turns.c.model == model[:MOST_WORD_CHARS])
    if finish_reason is not None:
        query = query.where(turns.c.finish_reason == finish_reason)
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
            raise UsageError(f"{name} must be an aware datetime, as datetime.now(UTC)")
    if since is not None:
        query = query.where(turns.c.stored_at >= since)
    if until is not None:
        query = query.where(turns.c.stored_at < until)
    return query


def newest_first(
    query: Select[Any],
    model: str | None,
    finish_reason: str | None,
    since: datetime | None,
    until: datetime | None,
    after: str | None,
) -> Select[Any]:
    """Return the query for these turns after a cursor, the newest first."""
    query = filtered(query, model, finish_reason, since, until)
    if after is not None:
        moment, number = place_of(after)
        # the first half alone would do; databases find their place in an index by it
        query = query.where(
            turns.c.stored_at <= moment,
            or_(turns.c.stored_at < moment, and_(turns.c.stored_at == moment, turns.c.n < number)),
        )
    return query.order_by(turns.c.stored_at.desc(), turns.c.n.desc())


def place_of(cursor: str) -> tuple[datetime, int]:
    """Return the moment and the number that a cursor stands for."""
    try:
        moment, _, number = cursor.rpartition("/")
        return datetime.fromisoformat(moment).astimezone(UTC), int(number)
    except (ValueError, AttributeError):
        raise UsageError("after= takes the cursor of a StoredTurn") from None


def newest_rows(table: Table, limit: int, after: int | None, **equal: str | None) -> Select[Any]:
    """Return the query for a page of a table's rows, the newest first. `after`: the `n` of the last one before."""
    check_limit(limit)
    query = select(table).order_by(table.c.n.desc()).limit(limit)
    if after is not None:
        query = query.where(table.c.n < after)
    for name, value in equal.items():
        if value is not None:
            query = query.where(table.c[name] == (check_key(value) if name == "key" else value))
    return query


def portions(page: Iterable[Any]) -> Iterator[list[int]]:
    """Give the numbers of `page` in portions that are not too large to be held at once."""
    portion: list[int] = []
    size = 0
    for row in page:
        if portion and size + row.bytes > PORTION_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(row.n)
        size += row.bytes
    if portion:
        yield portion
