"""An event stream read as a whole: the standard's algorithm written for clarity, with no idea of chunks.

It was written from the standard and the contract, not from the twins, and is what they are compared with.
Sources: WHATWG HTML, 9.2.5 (parsing) and 9.2.6 (interpreting); design.md 3.1 for what the standard leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from levada import Comment, Remainder, Stray

BOM = b"\xef\xbb\xbf"
LINE_END = re.compile(rb"\r\n|\r|\n")
FIELDS = (b"data", b"event", b"id", b"retry")
MAX_RETRY_DIGITS = 10_000


class Dispatched(NamedTuple):
    """What the twins' `Event` holds, as a value of its own."""

    event: str
    data: str
    id: str
    retry: int | None


Item = Dispatched | Comment | Stray


@dataclass
class Reading:
    """What there is to know about a stream that has ended, or that went beyond the limit."""

    items: list[Item] = field(default_factory=list)  # in wire order
    due: list[int] = field(default_factory=list)  # for each item, how many bytes of the stream must have come
    last_event_id: str = ""
    retry: int | None = None
    ignored_lines: int = 0
    remainder: Remainder = field(default_factory=Remainder)
    too_large: int | None = None  # where the event began that is larger than the limit

    @property
    def events(self) -> list[Dispatched]:
        return [item for item in self.items if isinstance(item, Dispatched)]


class Line(NamedTuple):
    begin: int
    text: bytes
    is_complete: bool


def read(
    stream: bytes, *, last_event_id: str = "", max_event_bytes: int | None = None, everything: bool = False
) -> Reading:
    """Read a whole stream. `everything`: comments and strays count towards the limit, as they do in `feed_all`."""
    reading = Reading(last_event_id=last_event_id)
    block: list[Line] = []  # the field lines that count, since the last blank line
    for line in lines_of(stream):
        if line.is_complete and not line.text:
            dispatch(block, reading, due=line.begin + 1)
            block = []
            continue
        if max_event_bytes is not None and held(block, line, everything) > max_event_bytes:
            reading.too_large = block[0].begin if block else line.begin
            return reading
        if counts(line.text):
            block.append(line)
        if line.is_complete:
            take(line, reading)
    return finish(block, line, reading)


def lines_of(stream: bytes) -> Iterator[Line]:
    """Yield every line, at the end the open one, which may be empty. One byte order mark at the start is dropped."""
    begin = len(BOM) if stream.startswith(BOM) else 0
    while end := LINE_END.search(stream, begin):
        yield Line(begin, stream[begin : end.start()], True)
        begin = end.end()
    yield Line(begin, stream[begin:], False)


def name_and_value(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")


def counts(line: bytes) -> bool:
    """Is this a field of the standard with a value that the standard does not ignore?"""
    name, value = name_and_value(line)
    match name:
        case b"data" | b"event":
            return True
        case b"id":
            return b"\0" not in value
        case b"retry":
            return value.isdigit() and len(value) <= MAX_RETRY_DIGITS  # bytes.isdigit: ASCII digits only
    return False


def take(line: Line, reading: Reading) -> None:
    """Do what a complete line does at once, before its block is dispatched."""
    name, value = name_and_value(line.text)
    due = line.begin + len(line.text) + 1
    if name == b"":
        reading.items.append(Comment(as_text(value)))
        reading.due.append(due)
    elif name not in FIELDS:
        reading.ignored_lines += 1
        reading.items.append(Stray(as_text(line.text)))
        reading.due.append(due)
    elif not counts(line.text):
        reading.ignored_lines += 1
    elif name == b"retry":
        reading.retry = as_int(value)


def dispatch(block: list[Line], reading: Reading, *, due: int) -> None:
    """Do what a blank line does."""
    event, retry, data = "", None, []
    for line in block:
        name, value = name_and_value(line.text)
        match name:
            case b"event":
                event = as_text(value)
            case b"id":
                reading.last_event_id = as_text(value)
            case b"retry":
                retry = as_int(value)
            case b"data":
                data.append(value)
    if data:
        text = as_text(b"\n".join(data))
        reading.items.append(Dispatched(event or "message", text, reading.last_event_id, retry))
        reading.due.append(due)


def finish(block: list[Line], open_line: Line, reading: Reading) -> Reading:
    """Do what the end of the stream does: nothing is dispatched, but what is left is told."""
    values = [name_and_value(line.text) for line in block]
    data = [value for name, value in values if name == b"data"]
    reading.remainder = Remainder(
        raw=b"\n".join(line.text for line in block),
        data=as_text(b"\n".join(data)) if data else None,
        pending=bool(block or open_line.text),
    )
    return reading


def held(block: list[Line], line: Line, everything: bool) -> int:
    """How many bytes are held, at the most, while `line` is open: the values of its block (and a byte for each line's
    end), and what of it must be kept until it is known to be ignored.

    An open line of which not even the kind is known yet is at most five bytes, and does not count; nor do the first
    bytes of a stream while they may become a byte order mark.
    """
    name, colon, _ = line.text.partition(b":")
    if not line.is_complete:
        if not colon and any(known.startswith(name) for known in FIELDS):
            return 0
        if line.begin == 0 and BOM.startswith(line.text):
            return 0
    size = len(line.text)
    if name not in FIELDS:
        size = size if everything else 0
    elif name == b"id" and b"\0" in line.text:
        size = line.text.index(b"\0")
    elif name == b"retry":
        value = name_and_value(line.text)[1]
        good = len(value) - len(value.lstrip(b"0123456789"))
        size += min(good, MAX_RETRY_DIGITS) - len(value)
    return sum(len(name_and_value(known.text)[1]) + 1 for known in block) + size


def as_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def as_int(digits: bytes) -> int:
    return int(Decimal(digits.decode()))  # exact, and without int()'s limit of 4,300 digits
