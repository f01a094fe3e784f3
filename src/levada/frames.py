"""The framings that are not event streams: JSON lines (NDJSON) and a streamed JSON array.

`JsonArray` is the chosen twin's; `JsonLines` exists once, because bytes.split is compiled already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada._backend import hotpath
from levada._hotpath_py import DEFAULT_LIMIT, _as_bytes, _checked_limit
from levada.errors import EventTooLarge, UsageError

if TYPE_CHECKING:
    from levada._hotpath_py import JsonArray
else:
    JsonArray = hotpath.JsonArray

__all__ = ["JsonArray", "JsonLines"]


class JsonLines:
    """JSON lines, cut anywhere, to the bytes of each line. Lines end at LF only; blank lines are dropped.

    A line is handed out without its LF and otherwise as it came. `max_item_bytes` bounds one line.
    """

    __slots__ = ("_closed", "_held", "_limit", "_offset", "_spent")

    def __init__(self, *, max_item_bytes: int = DEFAULT_LIMIT) -> None:
        self._limit = _checked_limit(max_item_bytes, "max_item_bytes")
        self._held = bytearray()  # the open line
        self._offset = 0  # where it began, in bytes of the stream
        self._spent: EventTooLarge | None = None
        self._closed = False

    def feed(self, chunk: bytes | bytearray | memoryview, /) -> list[bytes]:
        """Take the next bytes; return the lines they complete, oldest first, or [].

        Raises EventTooLarge above `max_item_bytes`, with this chunk's lines in `.completed`; it is spent then.
        Raises UsageError after `close()`.
        """
        chunk = _as_bytes(chunk, "feed")
        if self._spent is not None:
            raise EventTooLarge(*self._spent.args)
        if self._closed:
            raise UsageError("the stream was closed; make a new JsonLines for the next one")
        out: list[bytes] = []
        lines = chunk.split(b"\n")
        rest = lines.pop()
        for line in lines:
            self._check(line, out)
            if self._held:
                self._held += line
                line = bytes(self._held)
                self._held = bytearray()
            if line.strip():
                out.append(line)
            self._offset += len(line) + 1
        self._check(rest, out)
        self._held += rest
        return out

    def close(self) -> list[bytes]:
        """End the stream; return the last line where it had no LF, else []. A second call returns []."""
        if self._spent is not None:
            raise EventTooLarge(*self._spent.args)
        self._closed = True
        item = bytes(self._held)
        self._held = bytearray()
        return [item] if item.strip() else []

    def _check(self, piece: bytes, out: list[bytes]) -> None:
        """Raise if the open line together with its next piece is too large."""
        if len(self._held) + len(piece) > self._limit:
            self._spent = EventTooLarge(self._limit, self._limit + 1, self._offset, "max_item_bytes")
            self._held = bytearray()
            error = EventTooLarge(*self._spent.args)
            error.completed = tuple(out)
            raise error
