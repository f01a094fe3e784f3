"""`levada ledger`: look into a ledger, and export it. Nothing here changes one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar, get_args

import click

from levada.cli.exits import Unusable
from levada.cli.replacing import replacing
from levada.cli.shown import escaped, is_unicode, one_line
from levada.cli.table import print_table
from levada.cli.words import call_words, usage_words
from levada.deltas import FinishReason
from levada.errors import LedgerError, UsageError

if TYPE_CHECKING:
    from levada.ledger import Ledger, StoredTurn

__all__ = ["command"]

_PAGE: Final = 500  # rows that are asked for at once
_LONGEST_CALL: Final = 4000  # characters of a call's arguments
_SOURCES: Final = 20  # citations and references that are shown, of each
_LATER_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _moment(value: str) -> datetime:
    """Read a date or time of ISO 8601, in UTC unless it says otherwise; or how long ago: 90s, 30m, 12h, 7d."""
    try:
        if value[-1:] in _LATER_S and value[:-1].isascii() and value[:-1].isdecimal():
            return datetime.now(UTC) - timedelta(seconds=int(value[:-1]) * _LATER_S[value[-1]])
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value[:100]!r} is neither a date or time, as 2026-11-30 or 2026-11-30T18:00, nor an age, as 12h."
        ) from None


_URL: Final = click.option(
    "--url",
    envvar="LEVADA_LEDGER_URL",
    default="sqlite:///turns.db",
    show_default=True,
    metavar="URL",
    help="The ledger: sqlite:///FILE or postgresql+psycopg://…  [env: LEVADA_LEDGER_URL]",
)


def _filters(command: _Command) -> _Command:
    """Give a command the options that say which turns."""
    for option in (
        click.option("--until", type=_moment, metavar="WHEN", help="Stored before then."),
        click.option(
            "--since",
            type=_moment,
            metavar="WHEN",
            help="Stored then or later: a date, a time (UTC unless it says otherwise), or an age as 12h.",
        ),
        click.option(
            "--finish-reason",
            type=click.Choice(get_args(FinishReason)),
            metavar="R",
            help=f"With this finish reason: {', '.join(get_args(FinishReason))}.",
        ),
        click.option("--model", metavar="M", help="Of this model."),
    ):
        command = option(command)
    return command


@click.group("ledger", short_help="Look into a ledger of finished turns, and export it.")
def command() -> None:
    """Look into a ledger of finished turns, and export it. Nothing here changes one, or makes one.

    Exit code: 0 done, 2 wrong usage, a ledger or key that is not there, or output that cannot be written.
    """


# -- list --------------------------------------------------------------------------------------------------------------


@command.command("list", short_help="List the newest turns.")
@_URL
@_filters
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="At most so many.")
@click.option("--partials", "view", flag_value="partials", help="What was kept of turns that came to no answer.")
@click.option("--refused", "view", flag_value="refused", help="Turns that validators refused, and why.")
@click.option("--dead", "view", flag_value="dead", help="Actions that are not tried any more, and why.")
def list_command(url: str, limit: int, view: str | None, **filters: Any) -> None:
    """List the newest turns, or what is kept beside them. Times are in UTC."""
    if view is not None and (given := [name for name, value in filters.items() if value is not None]):
        raise click.UsageError(f"--{given[0].replace('_', '-')} chooses among turns; it does not go with --{view}")
    with _opened(url) as ledger:
        match view:
            case "partials":
                print_table(
                    ("kept at", "key", "state", "error", "model", "text, incomplete"),
                    (
                        (_time(one.kept_at), one.key, one.state, _error(one), one.model, one.partial_text)
                        for one in islice(_pages(ledger.partials, limit), limit)
                    ),
                )
            case "refused":
                print_table(
                    ("refused at", "key", "model", "finish", "reasons"),
                    (
                        (_time(one.refused_at), one.key, one.model, one.finish_reason, "; ".join(one.reasons))
                        for one in islice(_pages(ledger.refused, limit), limit)
                    ),
                )
            case "dead":
                print_table(
                    ("died at", "action", "tries", "last error"),
                    (
                        (_time(one.died_at), one.idempotency_key, str(one.attempts), _last_error(one))
                        for one in islice(_pages(ledger.dead_letters, limit), limit)
                    ),
                )
            case _:
                print_table(
                    ("stored at", "key", "model", "finish", "chars", "answer"),
                    (
                        (_time(one.stored_at), one.key, one.model, one.finish_reason, str(len(one.answer)), one.answer)
                        for one in islice(ledger.each_turn(**filters), limit)
                    ),
                )


def _pages(ask: Callable[..., list[Any]], limit: int) -> Iterator[Any]:
    """Give rows page by page."""
    after: int | None = None
    while page := ask(limit=min(limit, _PAGE), after=after):
        yield from page
        after = page[-1].n


def _error(partial: Any) -> str:
    return ": ".join(word for word in (partial.error_kind, partial.error_type) if word)


def _last_error(dead: Any) -> str:
    return ": ".join(word for word in (dead.error_type, dead.error_words) if word)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


# -- show --------------------------------------------------------------------------------------------------------------


@command.command("show", short_help="Show one turn whole.")
@_URL
@click.option("--json", "as_json", is_flag=True, help="Print it as a line of the export.")
@click.argument("key")
def show_command(url: str, as_json: bool, key: str) -> None:
    """Show the turn that is stored under KEY, whole."""
    with _opened(url) as ledger:
        turn = ledger.get(key)
        if turn is None:
            raise Unusable(_absent(ledger, key))
    if as_json:
        from levada.ledger.exporting import json_line  # noqa: PLC0415  # needs the extra

        sys.stdout.write(_for_stdout(json_line(turn)) + "\n")
        return
    for name, words in _facts(turn):
        print(f"{name:<11}{words}")
    for name in ("reasoning", "refusal", "answer", "raw_answer"):
        text = getattr(turn, name)
        if text:
            print(f"\n{name.replace('_', ' ')}, {len(text):,} characters:\n{escaped(text)}")


def _facts(turn: StoredTurn) -> Iterator[tuple[str, str]]:
    yield "key", one_line(turn.key)
    yield "stored at", f"{turn.stored_at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
    yield "dialect", turn.dialect + (f", profile {one_line(turn.profile)}" if turn.profile != turn.dialect else "")
    if turn.model:
        yield "model", one_line(turn.model)
    if turn.id:
        yield "id", one_line(turn.id)
    native = turn.native_finish_reason
    yield "finish", one_line(f"{turn.finish_reason} ({native})" if native else turn.finish_reason)
    if turn.usage is not None:
        yield "usage", usage_words(turn.usage)
    if turn.attempts > 1:
        yield "attempts", str(turn.attempts)
    if turn.altered:
        yield "altered", "a review changed the provider's answer"
    if turn.anomalies.total:
        yield "anomalies", one_line(", ".join(f"{name} {count}" for name, count in turn.anomalies.counts.items()))
    if len(turn.choices) > 1:
        yield "choices", f"{len(turn.choices)}; the answer is that of choice 0"
    for call in turn.tool_calls:
        yield "tool call", call_words(call, _LONGEST_CALL) + ("" if call.complete else " (incomplete)")
    for citation in turn.citations[:_SOURCES]:
        named = ": ".join(word for word in (citation.title, citation.url) if word)
        yield "citation", one_line(named or ", ".join(citation.references) or "without a source")
    for reference in turn.references[:_SOURCES]:
        yield "reference", one_line(": ".join(word for word in (reference.id, reference.title, reference.url) if word))
    if (more := sum(max(len(sources) - _SOURCES, 0) for sources in (turn.citations, turn.references))) > 0:
        yield "sources", f"{more} more; --json has all"


def _absent(ledger: Ledger, key: str) -> str:
    words = "no turn is stored under this key"
    refused = ledger.refused(key=key, limit=1)
    if refused:
        return one_line(f"{words}; one was refused at {_time(refused[0].refused_at)}: {'; '.join(refused[0].reasons)}")
    if ledger.partials(key=key, limit=1):
        return f"{words}; a partial one was kept, see --partials of `levada ledger list`"
    return words


# -- export ------------------------------------------------------------------------------------------------------------


@command.command("export", short_help="Write turns to a file: JSON Lines or Parquet.")
@_URL
@_filters
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    default="jsonl",
    show_default=True,
    help="Parquet needs the extra `parquet`.",
)
@click.argument("file", type=click.Path(allow_dash=True))
def export_command(url: str, form: str, file: str, **filters: Any) -> None:
    """Write turns to FILE (- for standard output), the newest first.

    It is written beside its place and takes it once it is whole: FILE is never half an export. Only its owner may read
    it. Turns that are stored meanwhile are not in it.
    """
    if file == "-" and form == "parquet" and sys.stdout.isatty():
        raise click.UsageError("Parquet is nothing for a terminal: name a FILE, or send the output to one")
    with _opened(url) as ledger:
        turns = ledger.each_turn(**filters)
        if file == "-":
            if sys.stdout.isatty():
                count = _to_terminal(turns)
            else:
                count = _written(turns, form, sys.stdout.buffer)
                sys.stdout.buffer.flush()
        else:
            if _is_ledger(Path(file), url):
                raise click.UsageError("FILE is the ledger itself: an export there would take its place")
            with replacing(Path(file)) as target:
                count = _written(turns, form, target)
    click.echo(f"{count:,} turn{'' if count == 1 else 's'} exported", err=True)


def _is_ledger(path: Path, url: str) -> bool:
    from sqlalchemy import make_url  # noqa: PLC0415  # needs the extra

    kept = make_url(url)
    return kept.get_backend_name() == "sqlite" and path.exists() and path.samefile(kept.database or "")


def _written(turns: Iterable[StoredTurn], form: str, file: BinaryIO) -> int:
    from levada.ledger.exporting import write_json_lines, write_parquet  # noqa: PLC0415  # needs the extra

    if form == "jsonl":
        return write_json_lines(turns, file)
    count, replaced = write_parquet(turns, file)
    if replaced:
        click.echo(f"lone surrogates of {replaced:,} turns became U+FFFD; --format jsonl keeps them", err=True)
    return count


def _to_terminal(turns: Iterable[StoredTurn]) -> int:
    from levada.ledger.exporting import json_line  # noqa: PLC0415  # needs the extra

    count = 0
    for turn in turns:
        print(_for_stdout(json_line(turn)))
        count += 1
    return count


def _for_stdout(line: bytes) -> str:
    """Return a line of JSON that says the same and has no character which a terminal obeys."""
    text = line.decode().rstrip("\n")
    return one_line(text) if is_unicode() else json.dumps(json.loads(text))


# -- opening -----------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(url: str) -> Iterator[Ledger]:
    """Open the ledger, to be read alone; what goes wrong with it ends the command with one line."""
    missing = [name for name in ("sqlalchemy",) if find_spec(name) is None]
    if missing:
        raise Unusable(f"levada ledger needs {missing[0]}: pip install 'levada[ledger]'")
    from levada.ledger import Ledger  # noqa: PLC0415  # only now it is known to be there

    try:
        with Ledger.open(url, read_only=True) as ledger:
            yield ledger
    except (LedgerError, UsageError) as error:
        raise Unusable(one_line(str(error))) from error
