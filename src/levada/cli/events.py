"""`levada events`: print the events of a recorded stream."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final

import click

from levada._wire import Comment, Remainder, Stray
from levada.cli.exits import BadStream, Unusable
from levada.cli.shown import is_unicode, one_line
from levada.errors import EventTooLarge, MalformedPayload, StreamError
from levada.frames import JsonArray, JsonLines
from levada.sse import Event, EventParser

__all__ = ["command"]

_READ_BYTES: Final = 64 * 1024  # one read, where --chunk says nothing: the usual size of a pipe
_PEEK_BYTES: Final = 64 * 1024  # how far to look for the end of the first line: no pretty-printed line is longer
_LARGEST_CHUNK: Final = 64 * 1024 * 1024

Item = Event | Comment | Stray | bytes


@click.command("events", short_help="Print the events of a recorded stream.")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--framing",
    type=click.Choice(["auto", "sse", "ndjson", "json-array"]),
    default="auto",
    show_default=True,
    help="How the stream is framed; auto decides from the first bytes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--all", "everything", is_flag=True, help="Print comments and stray lines too, in wire order.")
@click.option(
    "--chunk",
    type=click.IntRange(1, _LARGEST_CHUNK),
    metavar="N",
    help="Cut the input anew, in chunks of N bytes; the events are the same.",
)
@click.option(
    "--max-event-bytes",
    type=click.IntRange(1, 2**63 - 1),
    metavar="N",
    help="Refuse an event or item larger than N bytes (default: 64 MiB).",
)
def command(
    file: io.BufferedReader,
    framing: str,
    as_json: bool,
    everything: bool,
    chunk: int | None,
    max_event_bytes: int | None,
) -> None:
    """Print the events of the recorded stream FILE, or of standard input where FILE is -.

    A line for each event: its number, its type, id and retry where it has them, its data. A last line on stderr
    counts what came: events, comments, strays (lines that are no known field), bytes, and what was left unfinished.

    Exit code: 0 done, 2 usage or unreadable input, 4 a malformed stream or an event that is too large.
    """
    tally = Tally()
    chunks = _counted(_read(file, chunk), tally)
    if framing == "auto":
        framing, chunks = _detect(chunks)
    reader = READERS[framing](max_event_bytes)
    show = _json_line if as_json else _text_line
    try:
        for piece in chunks:
            _print(tally.count(reader.feed(piece)), everything, show)
        _print(tally.count(reader.close()), everything, show)
    except StreamError as error:
        _print(tally.count(error.completed), everything, show)
        click.echo(tally.line(framing, "not reached"), err=True)
        hint = "; here: --max-event-bytes" if isinstance(error, EventTooLarge) else ""
        raise BadStream(f"{_name(file)}: {error}{hint}") from error
    click.echo(tally.line(framing, reader.left()), err=True)


class Tally:
    """What the summary line says."""

    def __init__(self) -> None:
        self.events = self.comments = self.strays = self.bytes = 0

    def count(self, items: Iterable[Item]) -> Iterator[tuple[int, Item]]:
        """Count each item as it passes, and give an event its number."""
        for item in items:
            if isinstance(item, Comment):
                self.comments += 1
            elif isinstance(item, Stray):
                self.strays += 1
            else:
                self.events += 1
            yield self.events, item

    def line(self, framing: str, left: str) -> str:
        return (
            f"{framing}: events {self.events}, comments {self.comments}, strays {self.strays}, "
            f"bytes {self.bytes}, remainder {left}"
        )


# The framings, each read by the core's own parser behind one small face.


class SseReader:
    """An event stream."""

    def __init__(self, limit: int | None) -> None:
        self._parser = EventParser() if limit is None else EventParser(max_event_bytes=limit)

    def feed(self, chunk: bytes) -> Iterable[Item]:
        return self._parser.feed_all(chunk)

    def close(self) -> Iterable[Item]:
        self._remainder = self._parser.close()
        return ()

    def left(self) -> str:
        return _left(self._remainder)


class LinesReader:
    """NDJSON. A last line without LF is an item, so nothing is left over."""

    def __init__(self, limit: int | None) -> None:
        self._parser = JsonLines() if limit is None else JsonLines(max_item_bytes=limit)

    def feed(self, chunk: bytes) -> Iterable[Item]:
        return self._parser.feed(chunk)

    def close(self) -> Iterable[Item]:
        return self._parser.close()

    def left(self) -> str:
        return "none"


class ArrayReader:
    """A streamed JSON array, or one bare object."""

    def __init__(self, limit: int | None) -> None:
        self._parser = JsonArray() if limit is None else JsonArray(max_item_bytes=limit)

    def feed(self, chunk: bytes) -> Iterable[Item]:
        return self._parser.feed(chunk)

    def close(self) -> Iterable[Item]:
        self._remainder = self._parser.close()
        return ()

    def left(self) -> str:
        left = _left(self._remainder)
        return left if self._parser.closed else f"{left}, array not closed"


READERS: Final[dict[str, Callable[[int | None], SseReader | LinesReader | ArrayReader]]] = {
    "sse": SseReader,
    "ndjson": LinesReader,
    "json-array": ArrayReader,
}


def _left(remainder: Remainder) -> str:
    if remainder.raw:
        return f"{len(remainder.raw)} bytes"
    return "an unfinished line" if remainder else "none"


# Reading: streamed, so that a file of any size passes, and prompt, so that a live pipe shows what it has.


def _read(file: io.BufferedReader, chunk: int | None) -> Iterator[bytes]:
    read = partial(file.read, chunk) if chunk else partial(file.read1, _READ_BYTES)
    try:
        yield from iter(read, b"")
    except OSError as error:
        raise Unusable(f"{_name(file)}: cannot read: {error.strerror or error}") from error


def _name(file: io.BufferedReader) -> str:
    return getattr(file, "name", "<stdin>")  # a stand-in for standard input need not have one


def _counted(chunks: Iterable[bytes], tally: Tally) -> Iterator[bytes]:
    for chunk in chunks:
        tally.bytes += len(chunk)
        yield chunk


def _detect(chunks: Iterator[bytes]) -> tuple[str, Iterator[bytes]]:
    """Return the framing that the first bytes show, and all the chunks, those that were looked at too."""
    taken: list[bytes] = []
    head = b""
    for chunk in chunks:
        taken.append(chunk)
        head = b"".join((head, chunk))
        if len(head) >= _PEEK_BYTES or _is_enough(head.removeprefix(b"\xef\xbb\xbf").lstrip()):
            break
    return _framing_of(head.removeprefix(b"\xef\xbb\xbf").lstrip()), chain(taken, chunks)


def _is_enough(head: bytes) -> bool:
    """Only an opening brace needs its whole line: see _framing_of. The mark of UTF-8 may still be incomplete."""
    if head.startswith(b"{"):
        return b"\n" in head
    return bool(head) and head not in (b"\xef", b"\xef\xbb")


def _framing_of(head: bytes) -> str:
    if any(byte < 9 or 13 < byte < 32 for byte in head[:4]):
        raise Unusable("the input is binary; decompress it first, or say its --framing")
    if head.startswith(b"["):
        return "json-array"
    if not head.startswith(b"{"):
        return "sse"
    # One object a line is NDJSON; one object over several lines, or cut short, is a bare object.
    first_line = JsonArray()
    try:
        first_line.feed(head.partition(b"\n")[0])
    except MalformedPayload:
        return "ndjson"
    return "ndjson" if first_line.closed or len(head) >= _PEEK_BYTES else "json-array"


# Writing: the lines of one chunk go out together.


def _print(items: Iterable[tuple[int, Item]], everything: bool, show: Callable[[int, Item], str]) -> None:
    lines = [show(number, item) for number, item in items if everything or not isinstance(item, (Comment, Stray))]
    if lines:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


def _text_line(number: int, item: Item) -> str:
    match item:
        case Event():
            fields = [item.event]
            if item.id:
                fields.append(f"id={item.id}")
            if item.retry is not None:
                fields.append(f"retry={item.retry}")
            text = f"{number:>5}  {'  '.join(fields)}  {item.data}"
        case Comment():
            text = f"    :  {item.text}"
        case Stray():
            text = f"    ?  {item.line}"
        case _:  # a JSON item: line ends in it stand between tokens, never in strings
            lines = item.decode("utf-8", "replace").split("\n")
            text = f"{number:>5}  {' '.join(line.strip() for line in lines)}"
    return one_line(text)


def _json_line(_number: int, item: Item) -> str:
    match item:
        case Event():
            row: dict[str, object] = {"event": item.event, "data": item.data, "id": item.id, "retry": item.retry}
        case Comment():
            row = {"comment": item.text}
        case Stray():
            row = {"stray": item.line}
        case _:
            row = {"data": item.decode("utf-8", "replace")}
    # Raw text only where the terminal can show all of it: the escape of another encoding would not be JSON.
    return one_line(json.dumps(row, ensure_ascii=not is_unicode()))
