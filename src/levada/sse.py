"""Event streams (server-sent events): parse them, iterate over them, write them.

`Event` and `EventParser` are the chosen twin's; everything else here exists once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from levada._backend import hotpath
from levada._wire import Comment, Remainder, Stray
from levada.errors import EventTooLarge

if TYPE_CHECKING:
    from levada._hotpath_py import MAX_RETRY_DIGITS, Event, EventParser, Utf8Decoder
else:
    Event, EventParser, Utf8Decoder = hotpath.Event, hotpath.EventParser, hotpath.Utf8Decoder
    from levada._hotpath_py import MAX_RETRY_DIGITS

__all__ = [
    "Comment",
    "Event",
    "EventParser",
    "Remainder",
    "Stray",
    "Utf8Decoder",
    "aiter_events",
    "encode_comment",
    "encode_event",
    "encode_json",
    "iter_events",
]

Chunk = bytes | bytearray | memoryview

# str() alone stops at 4,300 digits, or fewer where the process says so; never at so few.
_STR_DIGITS: Final = 600

# Legal in JSON and in an event stream, but line ends to clients that split with str.splitlines() or old JavaScript.
_LINE_SEPARATORS: Final = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def iter_events(chunks: Iterable[Chunk], *, max_event_bytes: int | None = None) -> Iterator[Event]:
    """Yield the events of an event stream given as chunks of bytes, cut anywhere.

    An unfinished last block is discarded, as the standard says; use EventParser and `close()` to see it.
    Raises EventTooLarge after the events that came before the one that is too large.
    """
    parser = EventParser() if max_event_bytes is None else EventParser(max_event_bytes=max_event_bytes)
    try:
        for chunk in chunks:
            yield from parser.feed(chunk)
    except EventTooLarge as error:
        yield from error.completed
        raise


async def aiter_events(chunks: AsyncIterable[Chunk], *, max_event_bytes: int | None = None) -> AsyncIterator[Event]:
    """Do as `iter_events` does with chunks that arrive asynchronously."""
    parser = EventParser() if max_event_bytes is None else EventParser(max_event_bytes=max_event_bytes)
    try:
        async for chunk in chunks:
            for event in parser.feed(chunk):
                yield event
    except EventTooLarge as error:
        for event in error.completed:
            yield event
        raise


def encode_event(
    data: str | Event, *, event: str | None = None, id: str | None = None, retry: int | None = None
) -> bytes:
    """Return the bytes of one event, which a fresh parser reads back as an equal event.

    `data`: text, written as one `data` line for each of its lines, or an Event, which brings its own fields.
    `event`: the type; "message" is the default of the standard and is left out. `id`: "" writes an empty `id:`, which
    resets the last event ID; an Event's empty id is left out. `retry`: the reconnection time in ms.
    Raises ValueError for what the frame cannot carry: CR in data, CR or LF in event or id, NUL in id, an empty event
    type, lone surrogates, a negative `retry` or one of more than 10,000 digits.
    """
    if isinstance(data, Event):
        if event is not None or id is not None or retry is not None:
            raise TypeError("an Event brings its own event, id and retry; give them with text only")
        event, id, retry, data = data.event, data.id or None, data.retry, data.data
    elif not isinstance(data, str):
        raise TypeError(f"data must be str or Event, not {type(data).__name__}")
    lines = []
    if event is not None and event != "message":
        lines.append(f"event: {_line(event, 'event')}")
    if id is not None:
        if "\0" in _line(id, "id"):
            raise ValueError("id contains NUL, and a parser ignores such an id")
        lines.append(f"id: {id}" if id else "id:")
    if retry is not None:
        lines.append(f"retry: {_digits(retry)}")
    if "\r" in data:
        raise ValueError("data contains CR, which would come back as LF")
    lines.extend(f"data: {line}" for line in data.split("\n"))
    lines.append("\n")
    try:
        return "\n".join(lines).encode()
    except UnicodeEncodeError:
        raise ValueError("the event contains a lone surrogate, which UTF-8 cannot carry") from None


def encode_json(
    obj: Any, *, event: str | None = None, id: str | None = None, escape_line_separators: bool = False
) -> bytes:
    """Return the bytes of one event whose data is `obj` as compact JSON on one line.

    `escape_line_separators` writes U+2028, U+2029 and U+0085 as escapes, for clients that take them for line ends.
    Raises TypeError for what JSON has no form for, ValueError for NaN and infinities.
    """
    text = json_text(obj)
    if escape_line_separators:
        text = text.translate(_LINE_SEPARATORS)
    return encode_event(text, event=event, id=id)


def json_text(obj: Any) -> str:
    """Return `obj` as compact JSON on one line, which UTF-8 can carry."""
    text = json.dumps(obj, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate: JSON can carry it as an escape, UTF-8 cannot
        text = json.dumps(obj, allow_nan=False, separators=(",", ":"))
    return text


def encode_comment(text: str) -> bytes:
    """Return the bytes of one comment and a blank line: a keep-alive, to be sent between events.

    Raises ValueError for CR or LF (send a comment for each line) and for lone surrogates.
    """
    try:
        return f": {_line(text, 'comment')}\n\n".encode()
    except UnicodeEncodeError:
        raise ValueError("the comment contains a lone surrogate, which UTF-8 cannot carry") from None


def _line(value: str, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, not {type(value).__name__}")
    if "\n" in value or "\r" in value:
        raise ValueError(f"{name} contains a line end, which would end its line")
    if name == "event" and not value:
        raise ValueError("an empty event type comes back as 'message'")
    return value


def _digits(retry: int) -> str:
    if type(retry) is not int:
        raise TypeError(f"retry must be int, not {type(retry).__name__}")
    if retry < 0:
        raise ValueError(f"retry must not be negative: {retry}")
    if retry.bit_length() > 3.33 * MAX_RETRY_DIGITS:  # log2(10) is 3.32: cheap to say no, exact below
        raise ValueError(f"retry has more than {MAX_RETRY_DIGITS} digits, and a parser ignores such a retry")
    pieces = []
    while retry >= 10**_STR_DIGITS:
        retry, rest = divmod(retry, 10**_STR_DIGITS)
        pieces.append(str(rest).zfill(_STR_DIGITS))
    pieces.append(str(retry))
    digits = "".join(reversed(pieces))
    if len(digits) > MAX_RETRY_DIGITS:
        raise ValueError(f"retry has more than {MAX_RETRY_DIGITS} digits, and a parser ignores such a retry")
    return digits
