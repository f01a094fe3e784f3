"""The reference twin of the hot path, in plain Python: read this file to learn the rules.

The rules of event streams are in `_take_by_rules` and what it calls; `_take_usual` is a quick way to the same answer.

`ext/_hotpath_c.pyx` is its compiled twin. Both give equal results, raise equal errors and keep equal state;
`tests/test_parity.py` holds them to it. A rule changed here is changed there in the same commit.

Sources: WHATWG HTML 9.2.5 and 9.2.6 (event streams) and the WHATWG Encoding Standard (UTF-8), read 2026-11-30.
"""

from __future__ import annotations

import codecs
import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in typeshed; the decoder's own, there since 2.6
from typing import Any, Final, NoReturn, final

from levada._wire import Comment, Remainder, Stray
from levada.errors import EventTooLarge, MalformedPayload, UsageError

# 64 MiB: larger than any event seen in the field (inline images of some MiB), small enough to survive a hostile server.
# The same order as aiohttp's and nginx's whole-body limits that operators raise by hand.
DEFAULT_LIMIT: Final = 64 * 1024 * 1024
LARGEST_LIMIT: Final = 2**63 - 1  # the compiled twin counts in a signed machine word

# `retry` is exact up to this many digits; a longer one is ignored and counted. int() alone stops at 4,300 or fewer.
MAX_RETRY_DIGITS: Final = 10_000
_INT_DIGITS: Final = 600  # int() never refuses so few, whatever the process-wide limit

_MANY_PIECES: Final = 64  # of an open line, kept apart; an event of a model stream has a few

_BOM: Final = codecs.BOM_UTF8
# As ints: `b"\r" in chunk` first tries to read b"\r" as a number and makes an error of that, eight times as slow.
_LF: Final = 10
_CR: Final = 13
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")

# What an open line will be, known as early as its first bytes allow.
_UNDECIDED, _FIELD, _ID, _RETRY, _COMMENT, _STRAY = range(6)
_KINDS: Final = {b"data": _FIELD, b"event": _FIELD, b"id": _ID, b"retry": _RETRY}
_BEGINNINGS: Final = frozenset(name[:end] for name in _KINDS for end in range(1, len(name) + 1))

# What stands before the data in a block as most providers write every one: `data: `, or an event type and `data: `.
# Short and ASCII, so that it is cheap to keep and equal as bytes and as text.
_SHAPE: Final = re.compile(rb"(?:event: ([\x20-\x7e]{0,64})\n)?data: ")

# What is handed out: events; all (with comments and strays); or frames (see _feed_frames), with strays.
_EVENTS, _ALL, _FRAMES = range(3)

_USE_FEED_TEXT: Final = "; use feed_text for text"


def _as_bytes(chunk: object, method: str, hint: str = "") -> bytes:
    """Return `chunk` as exact bytes. Anything but exact bytes is copied, so that nobody can change it under us."""
    if type(chunk) is bytes:
        return chunk
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return memoryview(chunk).tobytes()
    raise TypeError(f"{method}() takes bytes, bytearray or memoryview, not {type(chunk).__name__}{hint}")


def _checked_limit(value: object, option: str) -> int:
    if type(value) is not int or not 1 <= value <= LARGEST_LIMIT:
        shown = _int_text(value) if type(value) is int else repr(value)
        raise UsageError(f"{option} must be an int from 1 to {LARGEST_LIMIT}, not {shown:.100}")
    return value


def _to_int(digits: bytes) -> int:
    """Return the exact value of up to MAX_RETRY_DIGITS ASCII digits, in pieces that int() accepts."""
    value = 0
    for start in range(0, len(digits), _INT_DIGITS):
        piece = digits[start : start + _INT_DIGITS]
        value = value * 10 ** len(piece) + int(piece)
    return value


def _int_text(number: int) -> str:
    """Return text that reads back as this number: hexadecimal for one of more digits than str() may be allowed."""
    return str(number) if number.bit_length() <= 2_000 else hex(number)


class Utf8Decoder:
    """Bytes to text, cut anywhere: a character comes out with the chunk that brings its last byte.

    `errors`: "replace" makes each maximal malformed part one U+FFFD; "strict" raises UnicodeDecodeError, and the
    decoder is spent until `reset()`. A byte order mark is kept. Source: Encoding Standard, UTF-8 decoder.
    """

    __slots__ = ("_errors", "_pending", "_spent")

    def __init__(self, errors: str = "replace") -> None:
        if errors not in ("replace", "strict"):
            raise UsageError(f"errors must be 'replace' or 'strict', not {errors!r:.100}")
        self._errors = errors
        self._pending = b""
        self._spent: tuple[Any, ...] | None = None

    @property
    def pending(self) -> bytes:
        """The 0 to 3 bytes of a character whose rest has not come."""
        return self._pending

    def decode(self, chunk: bytes | bytearray | memoryview, final: bool = False) -> str:
        """Return the text that `chunk` completes; with `final`, also what is left, as malformed.

        Raises UnicodeDecodeError under errors="strict", TypeError for anything but bytes, bytearray, memoryview.
        """
        data = _as_bytes(chunk, "decode")
        if self._spent is not None:
            raise UnicodeDecodeError(*self._spent)
        data = self._pending + data
        try:
            text, used = codecs.utf_8_decode(data, self._errors, bool(final))
        except UnicodeDecodeError as error:
            self._spent, self._pending = error.args, b""
            raise
        self._pending = data[used:]
        return text

    def reset(self) -> None:
        """Forget everything, an error too: the next chunk begins a new stream."""
        self._pending, self._spent = b"", None


@final
class Event:
    """One dispatched event: type, data, the last event ID in force, and this block's own `retry` in ms (else None).

    Equal by value on both backends, hashable, picklable, and not to be changed.
    """

    __slots__ = ("data", "event", "id", "retry")

    event: str
    data: str
    id: str
    retry: int | None

    def __init__(self, event: str = "message", data: str = "", id: str = "", retry: int | None = None) -> None:
        for name, value in (("event", event), ("data", data), ("id", id)):
            if type(value) is not str:
                raise TypeError(f"{name} must be str, not {type(value).__name__}")
        if retry is not None and type(retry) is not int:
            raise TypeError(f"retry must be int or None, not {type(retry).__name__}")
        object.__setattr__(self, "event", event)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "retry", retry)

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("type 'levada.sse.Event' is not an acceptable base type")

    def json(self) -> Any:
        """Return `data` read as JSON. Raises json.JSONDecodeError where it is not."""
        return json.loads(self.data)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"attribute {name!r} of 'levada.sse.Event' objects is not writable")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"attribute {name!r} of 'levada.sse.Event' objects is not writable")

    def __eq__(self, other: object) -> bool:
        if type(other) is not Event:
            return NotImplemented
        return (
            self.data == other.data and self.event == other.event and self.id == other.id and self.retry == other.retry
        )

    def __hash__(self) -> int:
        return hash((self.event, self.data, self.id, self.retry))

    def __repr__(self) -> str:
        retry = None if self.retry is None else _int_text(self.retry)
        return f"Event(event={self.event!r}, data={self.data!r}, id={self.id!r}, retry={retry})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _event_from_pickle, (self.event, self.data, self.id, self.retry)


class _Draft:
    """An event that is being made: it has Event's slots but not its refusal, and becomes an Event when all are set.

    Less than half of what __init__ costs, or the slots' own setters: the interpreter writes a plain slot by itself.
    """

    __slots__ = Event.__slots__

    event: str
    data: str
    id: str
    retry: int | None


def _new_event(event: str, data: str, id: str, retry: int | None) -> Event:
    draft = _Draft()
    draft.event = event
    draft.data = data
    draft.id = id
    draft.retry = retry
    draft.__class__ = Event  # type: ignore[assignment]
    return draft  # type: ignore[return-value]


def _event_from_pickle(event: str, data: str, id: str, retry: int | None) -> Any:
    """Rebuild an event with the backend that is in use where it is unpickled."""
    from levada import sse  # noqa: PLC0415  # at import time it does not exist yet

    return sse.Event(event, data, id, retry)


def _kind_of_beginning(line: bytes) -> int:
    """Say what a line will be of which only this non-empty beginning has come."""
    name, colon, _ = line[:6].partition(b":")
    if not name:
        return _COMMENT
    if colon:
        return _KINDS.get(name, _STRAY)
    return _UNDECIDED if name in _BEGINNINGS else _STRAY


def _value_of(line: bytes) -> bytes:
    """Return what follows the first colon, less one leading space; b"" for a line without a colon."""
    start = line.find(b":") + 1
    if not start:
        return b""
    return line[start + 1 :] if line[start : start + 1] == b" " else line[start:]


def _fault(line: bytes, checked: int = 0) -> int:
    """Return the index at which an `id` or `retry` line turns into one that is ignored, or -1 where it does not.

    An `id` must not contain NUL; a `retry` must be ASCII digits, MAX_RETRY_DIGITS at most. The first `checked` bytes
    are known to be good.
    """
    if line.startswith(b"id"):
        return line.find(b"\0", checked)
    if line.startswith(b"retry:"):
        start = 7 if line[6:7] == b" " else 6
        checked = max(start, checked)
        digits = line[checked : start + MAX_RETRY_DIGITS]
        if digits and not digits.isdigit():
            return checked + next(index for index, byte in enumerate(digits) if not 48 <= byte <= 57)
        if len(line) > start + MAX_RETRY_DIGITS:
            return start + MAX_RETRY_DIGITS
    return -1


def _is_held(line: bytes) -> bool:
    """Say whether a complete line belongs to the open block: a known field with a value that counts."""
    name, _, value = line.partition(b":")
    if name not in _KINDS or (name == b"retry" and value in (b"", b" ")):
        return False
    return _fault(line) < 0


def _size_while_open(line: bytes, mode: int) -> int:
    """Return how many bytes of a complete, non-empty line were held while it was open, at the most."""
    name = line.partition(b":")[0]
    if name not in _KINDS:
        return len(line) if mode == _ALL or (name and mode == _FRAMES) else 0
    fault = _fault(line)
    return len(line) if fault < 0 else fault


class TextLog:
    """A growing text that is cheap to append to and cheap to hold: pieces are joined in blocks, these in longer ones.

    A block takes in those before it that are no longer than itself, up to _LONG characters: so few are held, and each
    character is moved a bounded number of times.
    """

    __slots__ = ("_blocks", "_length", "_pieces")

    _PIECES = 16  # joined at this many: each weighs 50 to 90 bytes beside its text
    _LONG = 64 * 1024

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._pieces: list[str] = []
        self._length = 0

    @property
    def length(self) -> int:
        """The length of the text, in characters."""
        return self._length

    def append(self, text: str, /) -> int:
        """Append; return the new length."""
        self._pieces.append(text)
        if len(self._pieces) >= self._PIECES:
            self._join()
        self._length += len(text)
        return self._length

    def _join(self) -> None:
        blocks = self._blocks
        block = "".join(self._pieces)
        first = len(blocks)
        size = len(block)
        while first and len(blocks[first - 1]) <= size and size < self._LONG:
            first -= 1
            size += len(blocks[first])
        blocks[first:] = ["".join([*blocks[first:], block])]
        self._pieces = []

    def text(self) -> str:
        """Return the whole text; joined at the first call after an append, and kept."""
        if self._pieces or len(self._blocks) > 1:
            self._blocks = ["".join(self._blocks) + "".join(self._pieces)]
            self._pieces = []
        return self._blocks[0] if self._blocks else ""


_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_NUMBER: Final = re.compile(rb"0|[1-9][0-9]{0,17}")
MOST_HOLES: Final = 4


class Stencil:
    """An event of type `event` whose data is a JSON document that differs from the next only in its text: literal bytes
    with holes, `literals` one more than `holes`. Holes: "t" (once) the inside of the JSON string that is the text,
    "s" of a string and "n" a number that do not matter, "w" blanks or none. A match makes the delta
    `make(text, channel, choice, block, kind, log, log.append(text))`.
    Whoever makes a stencil vouches that a match means this delta and nothing else: see levada/stencils.py.
    """

    __slots__ = ("_first", "_last", "_made", "_steps", "event", "log")

    def __init__(
        self,
        event: str,
        literals: tuple[bytes, ...],
        holes: str,
        make: Any,
        channel: str,
        choice: int,
        block: int,
        kind: str | None,
        log: TextLog,
    ) -> None:
        if (
            len(literals) != len(holes) + 1
            or len(holes) > MOST_HOLES
            or holes.count("t") != 1
            or not set(holes) <= {"t", "s", "n", "w"}
        ):
            raise UsageError(f"{len(literals)} literals do not fit holes {holes!r}")
        self._first = literals[0]
        self._steps = tuple(zip(holes, literals[1:], strict=True))
        self._last = literals[-1]
        self._made = (make, channel, choice, block, kind)
        self.event = event
        self.log = log

    def match(self, data: bytes, /) -> str | None:
        """Return the text where `data` fits, else None; also None where only a full JSON decoder can tell."""
        # the end is compared first: where the tail differs, as in a finish, nothing else need be read
        if not data.endswith(self._last) or not data.startswith(self._first):
            return None
        at = len(self._first)
        text = b""
        for hole, literal in self._steps:
            if hole == "n":
                number = _NUMBER.match(data, at)
                end = number.end() if number is not None else -1
            elif hole == "w":
                end = at
                while data.startswith(b" ", end):
                    end += 1
            else:
                end = _end_of_string(data, at)
            if end < 0 or not data.startswith(literal, end):
                return None
            if hole == "t":
                text = data[at:end]
            elif hole == "s" and b"\\" in data[at:end]:
                return None
            at = end + len(literal)
        if at != len(data):
            return None
        decoded = text.decode("utf-8", "replace")
        if "\ufffd" in decoded:
            return None  # malformed UTF-8, perhaps: that is counted where JSON is read
        if b"\\" in text:
            try:
                decoded, _ = scanstring(decoded + '"', 0, True)
            except ValueError:
                return None
            if _SURROGATE.search(decoded):
                return None
        return decoded

    def delta(self, data: bytes, /) -> Any:
        """Return the delta where `data` fits, appended to the log, else None."""
        text = self.match(data)
        if text is None:
            return None
        make, channel, choice, block, kind = self._made
        return make(text, channel, choice, block, kind, self.log, self.log.append(text))


def _gather(pieces: list[bytes | bytearray]) -> None:
    """Put many pieces into the first: as small objects they take many times their size. Amortised linear."""
    first = pieces[0]
    gathered = first if isinstance(first, bytearray) else bytearray(first)
    gathered += b"".join(pieces[1:])
    pieces[:] = [gathered]


class EventParser:
    """An event stream, cut anywhere, to events. One parser belongs to one stream.

    `max_event_bytes` bounds what is held for one event: the values of the open block, one byte for the end of each of
    its lines, and the open line. `last_event_id`: the ID in force before the first byte, for a stream that is resumed.
    Source: WHATWG HTML, 9.2.5 and 9.2.6, read 2026-11-30.
    """

    __slots__ = (
        "_begun",
        "_block",
        "_block_size",
        "_bom",
        "_closed",
        "_dropping",
        "_event",
        "_held",
        "_id",
        "_ignored_lines",
        "_in_data",
        "_kind",
        "_last_event_id",
        "_limit",
        "_line",
        "_line_begun",
        "_line_size",
        "_offset",
        "_retry",
        "_retry_of_block",
        "_shape",
        "_shape_between",
        "_shape_size",
        "_shape_type",
        "_skip_lf",
        "_spent",
        "_stencils",
        "_unsettled",
        "_usual",
        "_values",
    )

    def __init__(self, *, max_event_bytes: int = DEFAULT_LIMIT, last_event_id: str = "") -> None:
        self._limit = _checked_limit(max_event_bytes, "max_event_bytes")
        if type(last_event_id) is not str:
            raise TypeError(f"last_event_id must be str, not {type(last_event_id).__name__}")
        self._last_event_id = last_event_id
        self._retry: int | None = None
        self._ignored_lines = 0
        # where we are
        self._offset = 0  # bytes of the stream before what comes next here, or before `_block`
        self._unsettled = True  # one of the four that follow asks for attention before the next chunk
        self._bom: bytes | None = b""  # the beginning of a possible byte order mark; None once that is decided
        self._skip_lf = False  # the last chunk ended in CR: an LF that comes first belongs to it
        self._spent: tuple[Any, ...] | None = None
        self._closed: Remainder | None = None
        self._stencils: list[Stencil] = []
        # the quick way for blocks of the usual shape (see _take_usual)
        self._usual = True  # no line and no block is open by the rules: the quick way may be tried
        self._block: list[bytes | bytearray] = []  # the open block, as it came, in pieces: of the shape so far
        self._block_size = 0
        self._in_data = False  # its data line has begun and has not ended
        self._shape = b"data: "  # what stood before the data in the last block
        self._shape_size = 6
        self._shape_type = "message"
        self._shape_between = "\n\ndata: "  # what stands between the data of two such blocks
        # the open line, in pieces, so that a long one is joined once
        self._line: list[bytes | bytearray] = []
        self._line_size = 0
        self._line_begun = 0  # in bytes of the stream
        self._kind = _UNDECIDED
        self._dropping = False  # its end is awaited, its bytes are not held
        # the open block
        self._held = bytearray()  # its field lines from former chunks, joined by LF
        self._values = 0  # the bytes of their values, and one for each line's end
        self._begun = -1  # where its first field line began, in bytes of the stream; -1: not begun
        self._event = b""
        self._id: bytes | None = None
        self._retry_of_block: int | None = None

    @property
    def last_event_id(self) -> str:
        """The last event ID: changed at a blank line only, also at the end of a block without data."""
        return self._last_event_id

    @property
    def retry(self) -> int | None:
        """The reconnection time last set, in ms, in force as soon as its line is complete; None before."""
        return self._retry

    @property
    def ignored_lines(self) -> int:
        """How many complete lines were neither blank, nor comments, nor fields that count."""
        return self._ignored_lines

    def feed(self, chunk: bytes | bytearray | memoryview, /) -> list[Event]:
        """Take the next bytes of the stream; return the events they complete, oldest first, or [].

        `chunk` is bytes, bytearray or memoryview, cut anywhere, also inside a character or between CR and LF.
        Malformed UTF-8 becomes U+FFFD. Raises EventTooLarge above `max_event_bytes`, with the events of this chunk
        in `.completed`; the parser is spent then. Raises UsageError after `close()`.
        Source: WHATWG HTML, 9.2.5 and 9.2.6, read 2026-11-30.
        """
        if type(chunk) is not bytes:
            chunk = _as_bytes(chunk, "feed", _USE_FEED_TEXT)
        return self._take(chunk, _EVENTS)

    def feed_all(self, chunk: bytes | bytearray | memoryview, /) -> list[Event | Comment | Stray]:
        """Do as `feed` does, and return comments and lines that are no known field as well, in wire order.

        Such a line counts towards `max_event_bytes` while it is open. One whose beginning `feed` took is not given.
        """
        return self._take(_as_bytes(chunk, "feed_all", _USE_FEED_TEXT), _ALL)

    def feed_text(self, text: str, /) -> list[Event]:
        """Do as `feed` does with text, for transports that decode by themselves; a lone surrogate becomes U+FFFD."""
        if not isinstance(text, str):
            raise TypeError(f"feed_text() takes str, not {type(text).__name__}; use feed for bytes")
        return self._take(str.encode(text, "utf-8", "surrogatepass"), _EVENTS)

    def _feed_frames(self, chunk: bytes, stencils: list[Stencil], /) -> list[Any]:
        """Do as `feed` does for a turn, and return frames in wire order.

        A frame is the delta of the first stencil that fits, a pair of event type and data as bytes, or a Stray. Once
        a frame is no delta, stencils rest until the next chunk: the turn must see that frame first.
        """
        self._stencils = stencils
        return self._take(_as_bytes(chunk, "feed", _USE_FEED_TEXT), _FRAMES)

    def _close_frames(self) -> tuple[Remainder, Stray | None]:
        """Do as `close` does, and return the unterminated line too where it is no known field."""
        self._leave_usual()
        line = b"".join(self._line)
        name = line.partition(b":")[0]
        stray = Stray(line.decode("utf-8", "replace")) if name and name not in _KINDS else None
        return self.close(), stray

    def close(self) -> Remainder:
        """End the stream; return what no blank line closed: discarded, as the standard says, but reported.

        A second call returns an equal Remainder. Raises EventTooLarge where the parser is spent.
        """
        if self._spent is not None:
            raise EventTooLarge(*self._spent)
        if self._closed is None:
            self._leave_usual()
            self._closed = self._remainder()
            self._unsettled = True
            self._line, self._held = [], bytearray()
        return self._closed

    # What follows is private, in the order in which a chunk meets it.

    def _take(self, chunk: bytes, mode: int) -> list[Any]:
        if self._in_data and chunk and _LF not in chunk and _CR not in chunk:
            # a fragment inside the data line of a block of the usual shape: see _take_usual
            size = self._block_size + len(chunk)
            if size <= self._limit:
                pieces = self._block
                pieces.append(chunk)
                if len(pieces) > _MANY_PIECES:
                    _gather(pieces)
                self._block_size = size
                return []
        if self._unsettled:
            chunk = self._settle(chunk)
        out: list[Any] = []
        if not self._usual:
            # the rules go on to the end of the open block, where there is one; what follows may be of the usual shape
            end = chunk.find(b"\n\n") + 2
            if end >= 2:
                self._take_by_rules(chunk[:end], mode, out)
                chunk = chunk[end:]
        if chunk and self._usual:
            chunk = self._take_usual(chunk, mode, out)
        if chunk:
            self._take_by_rules(chunk, mode, out)
        return out

    def _settle(self, chunk: bytes) -> bytes:
        """Deal with what is rare: a parser that has ended, the start of the stream, an LF that ends a CRLF."""
        if self._spent is not None:
            raise EventTooLarge(*self._spent)
        if self._closed is not None:
            raise UsageError("the stream was closed; make a new EventParser for the next one")
        if self._bom is not None:
            # drop one byte order mark, in whatever pieces it comes
            chunk = self._bom + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._bom = chunk  # it may yet become one; no line can end inside it, so nothing comes late
                return b""
            self._bom = None
            if chunk.startswith(_BOM):
                self._offset, chunk = len(_BOM), chunk[len(_BOM) :]
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk.startswith(b"\n"):
                self._offset, chunk = self._offset + 1, chunk[1:]
        self._unsettled = self._skip_lf
        return chunk

    def _take_usual(self, chunk: bytes, mode: int, out: list[Any]) -> bytes:
        """Take what has the shape of the last block, whole blocks at a time; return what is left to the rules.

        It saves the work per line: one search parts the blocks, one call decodes them all, and a fragment inside a
        data line is only kept. Equal to the rules, because
        - no CR is here, so that a line ends at LF and a block at the first LF LF;
        - blocks count only where all between the shapes is free of LF: that is one data line, as the rules read it;
        - no byte of a character is LF, also where it is malformed: parting and decoding may change places;
        - an open block is kept as it came, where it is but known fields that change nothing before their blank line;
          what does not go on in this way is left to the rules from its first byte, and no cut changes their answer;
        - all that is kept is within the limit with this chunk, so that nothing here is too large.
        """
        if self._block:
            chunk = self._pop_block() + chunk
        if _CR in chunk or len(chunk) > self._limit:
            return chunk
        shape, shape_size = self._shape, self._shape_size
        if chunk[:shape_size] != shape[: len(chunk)]:
            found = _SHAPE.match(chunk)
            if found is None:
                return chunk
            shape, shape_size = self._shape, self._shape_size = found[0], found.end()
            self._shape_type = (found[1] or b"message").decode()
            self._shape_between = "\n\n" + shape.decode()
        end = chunk.rfind(b"\n\n")
        if end >= 0:
            before = len(out)
            event_type = self._shape_type
            if mode == _FRAMES:
                for data in chunk[shape_size:end].split(b"\n\n" + shape):
                    if _LF in data:
                        return self._after_blocks(len(out) - before, chunk)
                    out.append(self._frame(event_type, data))
            else:
                last_event_id = self._last_event_id
                for text in chunk[shape_size:end].decode("utf-8", "replace").split(self._shape_between):
                    if "\n" in text:
                        return self._after_blocks(len(out) - before, chunk)
                    out.append(_new_event(event_type, text, last_event_id, None))
            self._offset += end + 2
            chunk = chunk[end + 2 :]
            if not chunk:
                return b""
            if chunk[:shape_size] != shape[: len(chunk)]:
                return chunk
        line_end = chunk.find(b"\n", shape_size)
        if 0 <= line_end < len(chunk) - 1:
            return chunk
        self._block.append(chunk)
        self._block_size = len(chunk)
        self._in_data = line_end < 0 and len(chunk) >= shape_size
        return b""

    def _after_blocks(self, count: int, chunk: bytes) -> bytes:
        """Return what follows the first `count` blocks of the usual shape."""
        left = self._shape + chunk[self._shape_size :].split(b"\n\n" + self._shape, count)[-1]
        self._offset += len(chunk) - len(left)
        return left

    def _pop_block(self) -> bytes:
        block = b"".join(self._block)
        self._block, self._block_size, self._in_data = [], 0, False
        return block

    def _leave_usual(self) -> None:
        """Hold by the rules what the quick way kept."""
        if self._block:
            self._take_by_rules(self._pop_block(), _EVENTS, [])

    def _take_by_rules(self, chunk: bytes, mode: int, out: list[Any]) -> None:
        """Take a chunk line by line."""
        begun = self._offset
        self._offset = begun + len(chunk)
        if _CR in chunk:
            self._unsettled = self._skip_lf = chunk.endswith(b"\r")
            lines = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        else:
            lines = chunk.split(b"\n")
        rest = lines.pop()
        if not self._line_size:
            self._line_begun = begun
        try:
            if lines:
                self._take_lines(lines, begun, chunk, len(rest), mode, out)
                self._line_begun = begun + len(chunk) - len(rest)
            if rest:
                self._take_rest(rest, mode)
        except EventTooLarge as error:
            self._spent = error.args
            self._unsettled = True
            self._line, self._held = [], bytearray()
            error.completed = tuple(out)
            raise
        self._usual = not self._line_size and self._begun < 0

    def _take_lines(
        self, lines: list[bytes], begun: int, chunk: bytes, rest_size: int, mode: int, out: list[Any]
    ) -> None:
        """Take the lines that end in this chunk. The first one ends the open line, where there is one."""
        size_bound = self._values + self._line_size + len(chunk)
        if self._line_size:
            if self._dropping:
                self._ignored_lines += self._kind != _COMMENT
                self._line_begun = self._begin_of_line(1, lines, begun, chunk, rest_size)
                del lines[0]
            elif self._line:
                self._line.append(lines[0])
                lines[0] = b"".join(self._line)
            self._line, self._line_size, self._kind, self._dropping = [], 0, _UNDECIDED, False
        too_large = None
        if size_bound > self._limit:
            too_large = self._first_too_large(lines, mode)
        first = 0  # the first line here that belongs to the open block
        data: list[bytes] = []
        event_type, id_value, last_event_id = self._event, self._id, self._last_event_id
        retry_of_block, held = self._retry_of_block, self._held
        for number, line in enumerate(lines):
            if number == too_large:
                break
            if line.startswith(b"data: "):
                data.append(line[6:])
            elif not line:
                # a blank line: dispatch the event, if the block has data, and begin a new block
                first = number + 1
                if held:
                    data = [_value_of(line) for line in bytes(held).split(b"\n") if line.startswith(b"data")] + data
                    held = self._held = bytearray()
                if id_value is not None:
                    last_event_id = id_value.decode("utf-8", "replace")
                    id_value = None
                if data and mode == _FRAMES:
                    joined = data[0] if len(data) == 1 else b"\n".join(data)
                    out.append(self._frame(event_type.decode("utf-8", "replace") or "message", joined))
                    data = []
                elif data:
                    text = (data[0] if len(data) == 1 else b"\n".join(data)).decode("utf-8", "replace")
                    type_text = event_type.decode("utf-8", "replace") or "message"
                    out.append(_new_event(type_text, text, last_event_id, retry_of_block))
                    data = []
                event_type, retry_of_block = b"", None
                self._values, self._begun = 0, -1
            else:
                name, _, value = line.partition(b":")
                if value.startswith(b" "):
                    value = value[1:]
                if name == b"event":
                    event_type = value
                elif name == b"data":
                    data.append(value)
                elif not name:
                    if mode == _ALL:
                        out.append(Comment(value.decode("utf-8", "replace")))
                elif name not in _KINDS:
                    self._ignored_lines += 1
                    if mode != _EVENTS:
                        self._stencils = []
                        out.append(Stray(line.decode("utf-8", "replace")))
                elif not _is_held(line):
                    self._ignored_lines += 1
                elif name == b"id":
                    id_value = value
                else:
                    self._retry = retry_of_block = _to_int(value)
        self._event, self._id, self._last_event_id = event_type, id_value, last_event_id
        self._retry_of_block = retry_of_block

        # What is left belongs to a block whose blank line has not come: hold its fields, as they were written.
        for number in range(first, len(lines)):
            line = lines[number]
            if number == too_large:
                if self._begun < 0:
                    self._begun = self._begin_of_line(number, lines, begun, chunk, rest_size)
                raise EventTooLarge(self._limit, self._limit + 1, self._begun)
            if _is_held(line):
                if self._begun < 0:
                    self._begun = self._begin_of_line(number, lines, begun, chunk, rest_size)
                if held:
                    held += b"\n"
                held += line
                self._values += len(_value_of(line)) + 1

    def _frame(self, event: str, data: bytes) -> Any:
        for stencil in self._stencils:
            if stencil.event == event:
                delta = stencil.delta(data)
                if delta is not None:
                    return delta
        self._stencils = []
        return event, data

    def _begin_of_line(self, number: int, lines: list[bytes], begun: int, chunk: bytes, rest_size: int) -> int:
        """Say where in the stream line `number` of this chunk's complete lines begins."""
        if number == 0:
            return self._line_begun
        if number == len(lines):
            return begun + len(chunk) - rest_size
        if b"\r" not in chunk:
            return begun + len(chunk) - rest_size - sum(len(line) + 1 for line in lines[number:])
        ends = [end.end() for end in _LINE_END.finditer(chunk)]
        return begun + ends[number - len(lines) - 1]

    def _first_too_large(self, lines: list[bytes], mode: int) -> int | None:
        """Return the index of the first line with which more than the limit was held, or None.

        The answer is that of one byte at a time, so that no cut changes it.
        """
        values = self._values
        for number, line in enumerate(lines):
            if not line:
                values = 0
            elif values + _size_while_open(line, mode) > self._limit:
                return number
            elif _is_held(line):
                values += len(_value_of(line)) + 1
        return None

    def _take_rest(self, rest: bytes, mode: int) -> None:
        """Hold the beginning of a line, or only remember that it is there where nothing of it will be needed."""
        known = self._line_size
        self._line_size = known + len(rest)
        if self._dropping:
            return
        line = self._line
        line.append(rest)
        if len(line) > _MANY_PIECES:
            _gather(line)
        kind = self._kind
        if kind == _UNDECIDED:
            kind = self._kind = _kind_of_beginning(b"".join(line))
            if kind == _UNDECIDED:
                return
        size, ignored = self._line_size, -1
        if kind != _FIELD:
            if kind == _ID:
                nul = rest.find(b"\0")
                ignored = known + nul if nul >= 0 else -1
            elif kind == _RETRY:
                ignored = _fault(b"".join(line), known)
            elif mode == _EVENTS or (kind == _COMMENT and mode == _FRAMES):
                ignored = 0
            if ignored >= 0:
                size = ignored
        if self._values + size > self._limit:
            raise EventTooLarge(self._limit, self._limit + 1, self._begun if self._begun >= 0 else self._line_begun)
        if ignored >= 0:
            self._line, self._dropping = [], True

    def _remainder(self) -> Remainder:
        lines = bytes(self._held).split(b"\n") if self._held else []
        open_line = b"".join(self._line)
        if open_line and _is_held(open_line):
            lines.append(open_line)
        data = [_value_of(line) for line in lines if line.startswith(b"data")]
        return Remainder(
            raw=b"\n".join(lines),
            data=b"\n".join(data).decode("utf-8", "replace") if data else None,
            pending=bool(lines or self._line_size or self._bom),
        )


def _end_of_string(data: bytes, begin: int) -> int:
    """Return where the inside of the JSON string that begins at `begin` ends; -1: nowhere, or malformed."""
    at = begin
    while True:
        end = data.find(b'"', at)
        if end < 0:
            return -1
        backslash = data.find(b"\\", at, end)
        if backslash < 0:
            return -1 if _CONTROL.search(data, begin, end) else end
        at = backslash + 2


# Where in the array the next byte is: before it, after "[", inside an object, after an object, after ",", at its end,
# or inside a byte order mark.
_START, _FIRST, _INSIDE, _AFTER, _NEXT, _END, _MARK = range(7)
_EXPECTED: Final = {
    _START: "expected '[' or '{' where the JSON begins",
    _FIRST: "expected '{' or ']' in the JSON array",
    _AFTER: "expected ',' or ']' after an object of the JSON array",
    _NEXT: "expected '{' after ',' in the JSON array",
    _END: "expected nothing but white space after the end of the JSON",
    _MARK: "expected the rest of a byte order mark",
}
_NOT_SPACE: Final = re.compile(rb"[^ \t\n\r]")
_BRACE_OR_QUOTE: Final = re.compile(rb'["{}]')
_QUOTE_OR_BACKSLASH: Final = re.compile(rb'["\\]')


class JsonArray:
    """A streamed JSON array of objects, cut anywhere, to the bytes of each object, as soon as its closing brace comes.

    One bare object is accepted in place of the array. Only the framing is read: the brackets of the array, its commas,
    and braces outside strings; what is inside an object is the caller's to decode. A byte order mark is dropped.
    `max_item_bytes` bounds one object. Sources: RFC 8259; Vertex AI Search streamAnswer as in docs/dialects.md.
    """

    __slots__ = (
        "_bare",
        "_begun",
        "_bom",
        "_depth",
        "_ended",
        "_escaped",
        "_held",
        "_in_string",
        "_limit",
        "_offset",
        "_place",
        "_spent",
    )

    def __init__(self, *, max_item_bytes: int = DEFAULT_LIMIT) -> None:
        self._limit = _checked_limit(max_item_bytes, "max_item_bytes")
        self._offset = 0  # bytes of the stream before this chunk
        self._bom = 0  # how many bytes of a byte order mark have come
        self._place = _START
        self._bare = False
        self._ended: Remainder | None = None
        self._spent: EventTooLarge | MalformedPayload | None = None
        # the open object
        self._held = bytearray()
        self._begun = 0  # in bytes of the stream
        self._depth = 0
        self._in_string = False
        self._escaped = False

    @property
    def closed(self) -> bool:
        """Whether the end of the array, or of the bare object, has come."""
        return self._place == _END

    def feed(self, chunk: bytes | bytearray | memoryview, /) -> list[bytes]:
        """Take the next bytes; return the objects they complete, oldest first, or [].

        Raises MalformedPayload where the bytes are no array of objects, and EventTooLarge above `max_item_bytes`, each
        with this chunk's objects in `.completed`; it is spent then. Raises UsageError after `close()`.
        """
        chunk = _as_bytes(chunk, "feed")
        if self._spent is not None:
            raise type(self._spent)(*self._spent.args)
        if self._ended is not None:
            raise UsageError("the stream was closed; make a new JsonArray for the next one")
        out: list[bytes] = []
        try:
            self._take(chunk, out)
        except (EventTooLarge, MalformedPayload) as error:
            self._spent = type(error)(*error.args)
            self._held = bytearray()
            error.completed = tuple(out)
            raise
        self._offset += len(chunk)
        return out

    def close(self) -> Remainder:
        """End the stream; return the unfinished object, which is never handed out as a whole one.

        A second call returns an equal Remainder. Raises its error where it is spent.
        """
        if self._spent is not None:
            raise type(self._spent)(*self._spent.args)
        if self._ended is None:
            self._ended = Remainder(raw=bytes(self._held), pending=bool(self._held))
            self._held = bytearray()
        return self._ended

    def _take(self, chunk: bytes, out: list[bytes]) -> None:
        position = 0
        while position < len(chunk):
            if self._place == _INSIDE:
                position = self._inside(chunk, position, out)
                continue
            found = _NOT_SPACE.search(chunk, position)
            if found is None:
                return
            position = found.start()
            byte = chunk[position : position + 1]
            if byte == b"{" and self._place in (_START, _FIRST, _NEXT):
                self._bare = self._place == _START
                self._place = _INSIDE
                self._begun = self._offset + position
            elif byte == b"[" and self._place == _START:
                self._place = _FIRST
                position += 1
            elif byte == b"]" and self._place in (_FIRST, _AFTER):
                self._place = _END
                position += 1
            elif byte == b"," and self._place == _AFTER:
                self._place = _NEXT
                position += 1
            elif self._place == _START and self._offset + position == 0 and byte == _BOM[:1]:
                self._place = _MARK
                self._bom = 1
                position += 1
            elif self._place == _MARK and self._offset + position == self._bom and byte[0] == _BOM[self._bom]:
                self._bom += 1
                position += 1
                if self._bom == len(_BOM):
                    self._place = _START
            else:
                raise MalformedPayload(f"{_EXPECTED[self._place]}, found byte 0x{byte[0]:02x}", self._offset + position)

    def _inside(self, chunk: bytes, position: int, out: list[bytes]) -> int:
        """Follow the open object from `position` to its closing brace or the end of the chunk; return where that is."""
        start = position
        size_before = self._offset + start - self._begun
        while position < len(chunk):
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            found = (_QUOTE_OR_BACKSLASH if self._in_string else _BRACE_OR_QUOTE).search(chunk, position)
            if found is None:
                position = len(chunk)
                break
            position = found.end()
            byte = chunk[position - 1]
            if byte == 34:  # "
                self._in_string = not self._in_string
            elif byte == 92:  # backslash
                self._escaped = True
            elif byte == 123:  # {
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    break
        if size_before + position - start > self._limit:
            raise EventTooLarge(self._limit, self._limit + 1, self._begun, "max_item_bytes")
        item = chunk[start:position]
        if self._held or self._depth:
            self._held += item
        if not self._depth:
            if self._held:
                item = bytes(self._held)
                self._held = bytearray()
            out.append(item)
            self._place = _END if self._bare else _AFTER
        return position
