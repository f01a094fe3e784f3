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

    __slots__ = ("_closed", "_limit", "_offset", "_pieces", "_size", "_spent")

    def __init__(self, *, max_item_bytes: int = DEFAULT_LIMIT) -> None:
        self._limit = _checked_limit(max_item_bytes, "max_item_bytes")
        self._offset = 0  # where the open line began, in bytes of the stream
        self._pieces: list[bytes] = []
        self._size = 0
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
        for line in lines[:-1]:
            self._hold(line, out)
            item = b"".join(self._pieces) if len(self._pieces) > 1 else line
            if item.strip():
                out.append(item)
            self._offset += len(item) + 1
            self._pieces, self._size = [], 0
        if lines[-1]:
            self._hold(lines[-1], out)
        return out

    def close(self) -> list[bytes]:
        """End the stream; return the last line where it had no LF, else []. A second call returns []."""
        if self._spent is not None:
            raise EventTooLarge(*self._spent.args)
        self._closed = True
        item = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return [item] if item.strip() else []

    def _hold(self, piece: bytes, out: list[bytes]) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            self._spent = EventTooLarge(self._limit, self._limit + 1, self._offset, "max_item_bytes")
            self._pieces = []
            error = EventTooLarge(*self._spent.args)
            error.completed = tuple(out)
            raise error
        self._pieces.append(piece)
