"""Looks for JSON documents among the lines of an event stream that are no fields: some servers put a bare error there.

Time is linear in the lines: a document is followed by JsonArray, bracket by bracket, and read once, when it ends.
"""

from __future__ import annotations

from levada.errors import EventTooLarge, MalformedPayload
from levada.frames import JsonArray

__all__ = ["Strays"]


class Strays:
    """The stray lines of one stream. `limit` bounds what is held of them, in bytes.

    `lines`: all of them, while `keep` is set, for a body that turns out to have no event at all. `open`: a document has
    begun and not ended; it may be an error that was cut off. `markup`: a line looked like a page of HTML.
    """

    __slots__ = ("_document", "_held", "_limit", "lines", "markup")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._document: JsonArray | None = None
        self.lines: list[str] = []
        self.markup = False

    @property
    def open(self) -> bool:
        """Whether a document has begun and not ended."""
        return self._document is not None

    def feed(self, line: str, *, keep: bool) -> list[bytes]:
        """Take a line without its end; return the JSON objects that it completes."""
        if keep and self._held + len(line) <= self._limit:
            self._held += len(line)
            self.lines.append(line)
        elif not keep:
            self.lines.clear()
        data = line.encode("utf-8", "surrogatepass") + b"\n"
        if self._document is not None:
            objects, broken = self._go_on(data)
            if not broken:
                return objects
        begin = data.lstrip(b" \t")[:1]
        if begin == b"<":
            self.markup = True
        if begin not in (b"{", b"["):
            return []
        self._document = JsonArray(max_item_bytes=self._limit)
        return self._go_on(data)[0]

    def _go_on(self, data: bytes) -> tuple[list[bytes], bool]:
        assert self._document is not None  # the caller looked
        try:
            objects = self._document.feed(data)
        except (MalformedPayload, EventTooLarge) as error:
            self._document = None
            return list(error.completed), True
        if self._document.closed:
            self._document = None
        return objects, False
