"""Which rows are asked for, in which order, and how many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Select, Table, and_, or_, select

from levada.errors import UsageError
from levada.ledger.rows import MOST_WORD_CHARS
from levada.ledger.schema import turns
from levada.ledger.values import check_key, in_utc

__all__ = ["check_limit", "filtered", "newest_first", "newest_rows", "portions"]

MOST_PAGE: Final = 1000  # rows at once
PORTION_BYTES: Final = 4 * 1024 * 1024  # what an export holds at once, if no single turn is larger


def check_limit(limit: int) -> None:
    """Raise UsageError unless `limit` is the size of a page."""
    if type(limit) is not int or not 1 <= limit <= MOST_PAGE:
        raise UsageError(f"limit must be an int from 1 to {MOST_PAGE}, not {limit!r:.100}")


def check_after(after: int) -> int:
    """Return the number of a row. Raises UsageError for what is none."""
    if type(after) is not int or not 0 <= after < 2**63:
        raise UsageError("after= takes the `n` of the last row of the page before")
    return after


def check_words(**words: str | None) -> None:
    """Raise UsageError for what is neither text nor None."""
    for name, value in words.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} must be a str, not {type(value).__name__}")


def filtered(
    query: Select[Any], model: str | None, finish_reason: str | None, since: datetime | None, until: datetime | None
) -> Select[Any]:
    """Return the query for these turns alone."""
    check_words(model=model, finish_reason=finish_reason)
    if model is not None:
        query = query.where(turns.c.model == model[:MOST_WORD_CHARS])
    if finish_reason is not None:
        query = query.where(turns.c.finish_reason == finish_reason)
    if since is not None:
        query = query.where(turns.c.stored_at >= in_utc(since, "since"))
    if until is not None:
        query = query.where(turns.c.stored_at < in_utc(until, "until"))
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
        return in_utc(datetime.fromisoformat(moment), "after"), check_after(int(number))
    except (ValueError, AttributeError, UsageError):
        raise UsageError("after= takes the cursor of a StoredTurn") from None


def newest_rows(table: Table, limit: int, after: int | None, **equal: str | None) -> Select[Any]:
    """Return the query for a page of a table's rows, the newest first. `after`: the `n` of the last one before."""
    check_limit(limit)
    query = select(table).order_by(table.c.n.desc()).limit(limit)
    if after is not None:
        query = query.where(table.c.n < check_after(after))
    check_words(**equal)
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
