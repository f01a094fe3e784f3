"""Every error that levada raises: one tree, and the first branch says who was wrong.

    LevadaError
    ├── StreamError       the bytes: EventTooLarge, MalformedPayload, TransportRewound
    └── UsageError        our caller: a setting that makes no sense, a call after the end

Fields come first; the text is built from them. An error survives pickling, and two errors of one type with the
same fields are equal, so that "every later call raises an equal error" is something a test can say.
"""

from __future__ import annotations

from typing import Any, ClassVar


class LevadaError(Exception):
    """The root. `except LevadaError` catches everything that levada itself raises."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields) and self.args == other.args

    def __hash__(self) -> int:
        return hash((type(self), self.args))


class UsageError(LevadaError, ValueError):
    """Our caller was wrong: a setting that makes no sense, or a call on an object that has ended."""


class StreamError(LevadaError):
    """The bytes were wrong. The object that raised it is spent: every later call raises an equal error.

    `completed`: what the same call had completed before the fault, oldest first, so that nothing is lost.
    Empty on the errors of later calls.
    """

    completed: tuple[Any, ...] = ()


class EventTooLarge(StreamError):
    """More bytes would have been held for one event or item than the limit allows.

    `limit`: the limit in bytes, inclusive. `size`: the bytes when reading stopped, which is one more than the
    limit, wherever the stream was cut. `offset`: where the event began, in bytes from the start of the stream.
    `option`: the keyword that raises the limit.
    """

    _fields = ("limit", "size", "offset", "option")

    def __init__(self, limit: int, size: int, offset: int, option: str = "max_event_bytes") -> None:
        super().__init__(limit, size, offset, option)
        self.limit = limit
        self.size = size
        self.offset = offset
        self.option = option

    def __str__(self) -> str:
        what = "event" if self.option == "max_event_bytes" else "item"
        return (
            f"{what} larger than {self.limit} bytes (stopped at {self.size}), begun at byte {self.offset} of the "
            f"stream; raise {self.option} if you trust this provider"
        )


class MalformedPayload(StreamError):
    """The bytes are not what their framing promises. `reason`: in words. `offset`: in bytes of the stream."""

    _fields = ("reason", "offset")

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.reason} at byte {self.offset} of the stream"


class TransportRewound(StreamError):
    """A transport that hands out the text so far changed or shortened what it had already handed out.

    `offset`: the first differing position, in characters. `seen`: how many characters had been taken.
    """

    _fields = ("offset", "seen")

    def __init__(self, offset: int, seen: int) -> None:
        super().__init__(offset, seen)
        self.offset = offset
        self.seen = seen

    def __str__(self) -> str:
        return (
            f"the text so far changed at character {self.offset}, though {self.seen} characters had been taken; "
            "start again with a new CumulativeText and a new parser"
        )
