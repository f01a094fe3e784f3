"""`levada check`: say what recorded streams amount to."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from levada.cli.exits import Unusable
from levada.cli.recording import Recording, exit_code, opened, options
from levada.cli.shown import is_terminal, is_unicode, one_line
from levada.cli.words import call_words, error_words, retry_words, usage_words
from levada.deltas import ToolCall

if TYPE_CHECKING:
    from levada.turn import Turn

__all__ = ["command"]

_UNUSABLE: Final = 2
_PREVIEW: Final = 200  # characters of a text in the table; --json has all of it


@click.command("check", short_help="Say what recorded streams amount to.")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE…", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@options
@click.option(
    "--terminal",
    type=click.Choice(["strict", "done", "finish_reason"]),
    help="What finishes a turn; by default what a named --profile says, else strict.",
)
@click.option("--http-status", type=click.IntRange(100, 599), metavar="N", help="The response's status.")
@click.option("--content-type", metavar="T", help="The response's content type.")
@click.option("--unclean", is_flag=True, help="The connection broke off at the end: the HTTP framing was not complete.")
@click.option(
    "--think-tags", metavar="A,B", help="Split the text in these tags out of the answer, as reasoning: think,thought."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line for each file.")
def command(
    files: tuple[str, ...],
    dialect: str | None,
    profile: str | None,
    framing: str,
    terminal: str | None,
    http_status: int | None,
    content_type: str | None,
    unclean: bool,
    think_tags: str | None,
    as_json: bool,
) -> None:
    """Say what each recorded stream FILE (- for standard input) amounts to.

    Whether its provider finished the turn, and what the answer, the reasoning, the tool calls, the usage and the finish
    are.

    Exit code: 0 all are finished, 3 some were cut off, 4 some failed otherwise, 2 wrong usage or unreadable input.
    """
    tags = tuple(tag.strip() for tag in think_tags.split(",") if tag.strip()) if think_tags else None
    report = _Report(as_json)
    worst = 0
    for file in files:
        try:
            with opened(file) as (name, stream):
                recording = Recording(
                    name,
                    stream,
                    dialect=dialect,
                    profile=profile,
                    framing=framing,
                    content_type=content_type,
                    status=http_status,
                )
                turn = recording.turn(terminal=terminal, think_tags=tags)
                for chunk in recording.chunks:
                    turn.feed(chunk)
                recording.end(turn, clean=not unclean)
        except Unusable as error:
            error.show()
            report.unreadable += 1
            continue
        worst = max(worst, exit_code(turn))
        report.add(recording, turn, may_loosen=terminal is None and not unclean)
    report.end()
    sys.exit(_UNUSABLE if report.unreadable else worst)


class _Report:
    """Prints what was found, file by file."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._counts: dict[str, int] = {}
        self.unreadable = 0

    def add(self, recording: Recording, turn: Turn, *, may_loosen: bool) -> None:
        """Print what one stream amounts to; with `may_loosen`, what setting would have let it finish."""
        if self._as_json:
            print(_json_line(_row(recording, turn)), flush=True)
            return
        verdict = turn.state.value if turn.error is None else turn.error.kind
        self._counts[verdict] = self._counts.get(verdict, 0) + 1
        if sum(self._counts.values()) > 1:
            print()
        fields = _fields(recording, turn, recording.looser if may_loosen else None)
        if is_terminal():
            colour = "green" if turn.error is None else "yellow" if turn.error.kind == "truncated" else "red"
            _print_rich(recording.name, fields, colour)
        else:
            _print_plain(recording.name, fields)

    def end(self) -> None:
        """Print the sum, where there was more than one file."""
        total = sum(self._counts.values())
        if total + self.unreadable > 1 and not self._as_json:
            counts = [f"{count} {verdict}" for verdict, count in self._counts.items()]
            if self.unreadable:
                counts.append(f"{self.unreadable} unreadable")
            print(f"\n{total + self.unreadable} files: {', '.join(counts)}")


# -- JSON --------------------------------------------------------------------------------------------------------------


def _row(recording: Recording, turn: Turn) -> dict[str, Any]:
    """Return the keys that docs/cli.md lists."""
    error, anomalies = turn.error, turn.anomalies
    return {
        "file": recording.name,
        "dialect": recording.dialect,
        "profile": turn.profile if recording.dialect else None,
        "state": turn.state.value,
        "error": None if error is None else {"kind": error.kind, "type": error.type, "message": error.message},
        "answer": turn.answer,
        "reasoning": turn.reasoning,
        "refusal": turn.refusal,
        "tool_calls": turn.tool_calls,
        "finish_reason": turn.finish_reason,
        "native_finish_reason": turn.native_finish_reason,
        "usage": turn.usage,
        "model": turn.model,
        "citations": turn.citations,
        "references": turn.references,
        "anomalies": {"total": anomalies.total, "counts": dict(anomalies.counts), "first": anomalies.first},
        "events": turn.events,
    }


def _json_line(row: dict[str, Any]) -> str:
    """Return `row` as one line of JSON that has no byte a terminal obeys, and that any terminal can show."""
    try:
        text = msgspec.json.encode(row).decode()
    except (RecursionError, ValueError):  # raw objects of the wire may be as deep as its author liked
        text = msgspec.json.encode({**row, "usage": None, "citations": [], "references": []}).decode()
    if not is_unicode():
        text = json.dumps(json.loads(text))
    return one_line(text)


# -- for people --------------------------------------------------------------------------------------------------------


def _fields(recording: Recording, turn: Turn, hint: str | None) -> list[tuple[str, str]]:
    """Return name and text of what there is to say of a turn, the verdict first. The texts are fit for a terminal."""
    rows = [("state", turn.state.value)]
    error = turn.error
    if error is not None:
        rows[0] = "state", f"error: {error.kind}"
        rows.append(("error", error_words(error)))
        if error.retryable:
            rows.append(("retry", retry_words(error)))
        if error.kind == "truncated" and turn.finish_reason is not None and hint is not None:
            rows.append(("hint", f"a finish reason came; if this server ends without more, say {hint}"))
    rows.append(("stream", f"{recording.wire}, {_counted(turn.events, 'event')}"))
    if turn.model:
        rows.append(("model", one_line(turn.model)))
    reason, native = turn.finish_reason, turn.native_finish_reason
    if reason is not None:
        rows.append(("finish", one_line(reason if native in (None, reason) else f"{reason} ({native})")))
    if turn.usage is not None:
        rows.append(("usage", usage_words(turn.usage)))
    anomalies = turn.anomalies
    if anomalies.total:
        counts = ", ".join(f"{name} {count}" for name, count in anomalies.counts.items())
        place = f"; first at event {anomalies.first[0].event}" if anomalies.first else ""
        rows.append(("anomalies", one_line(counts) + place))
    for name in ("reasoning", "refusal", "answer"):
        text: str = getattr(turn, name)
        if text:
            rows.append((name, f"{_counted(len(text), 'character')}: {_preview(text)}"))
    if len(turn.choices) > 1:
        others = ", ".join(f"{choice.index}: {len(choice.answer)}" for choice in turn.choices if choice.index)
        rows.append(("choices", f"{len(turn.choices)}; above is choice 0; characters of the others: {others}"))
    rows += [("tool call", _call(call)) for call in turn.tool_calls]
    if turn.citations:
        rows.append(("citations", str(len(turn.citations))))
    if turn.references:
        rows.append(("references", str(len(turn.references))))
    return rows


def _print_plain(name: str, fields: list[tuple[str, str]]) -> None:
    print(one_line(name))
    for field, text in fields:
        print(f"  {field:<11}{text}")


def _print_rich(name: str, fields: list[tuple[str, str]], colour: str) -> None:
    from rich.console import Console  # noqa: PLC0415  # plain output does not need it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for field, text in fields:
        style = colour if field in ("state", "error") else ""
        table.add_row(Text(f"  {field}"), Text(text, style=style))
    console = Console(markup=False, highlight=False, emoji=False)
    console.print(Text(one_line(name), style=f"bold {colour}", overflow="fold"))
    console.print(table)


def _call(call: ToolCall) -> str:
    return call_words(call, _PREVIEW) + ("" if call.complete else " (incomplete)")


def _preview(text: str) -> str:
    text = text.strip()
    return one_line(text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 1]}…")


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
