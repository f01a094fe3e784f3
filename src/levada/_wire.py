"""The small values beside events that both twins hand out: Comment, Stray, Remainder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment line of an event stream, often a keep-alive. `text`: what follows the colon, less one leading space."""

    text: str


@dataclass(frozen=True, slots=True)
class Stray:
    """A line of an event stream that is no field of the standard, whole: some servers put a bare error there."""

    line: str


@dataclass(frozen=True, slots=True)
class Remainder:
    """What the end of the stream left over: an unfinished event or item, which is never handed out as a whole one.

    `raw`: the held lines of the unfinished block joined by LF, without comments and ignored fields; for a JSON array,
    the bytes of the unfinished element. `data`: what a blank line right now would have dispatched, else None.
    Truthy when anything was pending, an unterminated comment too.
    """

    raw: bytes = b""
    data: str | None = None
    pending: bool = False

    def __bool__(self) -> bool:
        return self.pending
