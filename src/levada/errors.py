"""Every error that levada raises: one tree, and the first branch says who was wrong.

    LevadaError
    ├── StreamError            the bytes: EventTooLarge, MalformedPayload, TransportRewound
    ├── TurnError              the turn ended badly; .kind: Truncated, ProviderError, TransportError, ProtocolError,
    │                          TooLarge, TurnTimeout, Blocked
    ├── Cancelled, NotFinished there is no result, and why
    ├── LedgerError            the store of finished turns: KeyConflict, LedgerTooLarge, SchemaMismatch, StoreError
    └── UsageError             our caller: a setting that makes no sense, a call after the end

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


class TurnError(LevadaError):
    """A turn that ended badly. Never stored as an answer; `.kind` says in which way.

    `type`: the provider's own word for it, or None. `message`: the provider's words, or ours. `retryable`: whether
    another attempt may go better. `retry_after_s`: when, where the provider said so, in seconds. `raw`: the provider's
    error object, as decoded JSON, or None.
    """

    kind: ClassVar[str] = "error"
    _fields = ("type", "message", "retryable", "retry_after_s", "raw")

    def __init__(
        self,
        message: str = "",
        type: str | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
        raw: Any = None,
    ) -> None:
        super().__init__(message, type, retryable, retry_after_s, raw)
        self.message = message
        self.type = type
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.raw = raw

    def __str__(self) -> str:
        words = self.message or "no message"
        return f"{self.kind}: {self.type}: {words}" if self.type else f"{self.kind}: {words}"

    def copy(self) -> TurnError:
        """Return an equal error without a traceback, to be raised anew."""
        return type(self)(self.message, self.type, self.retryable, self.retry_after_s, self.raw)

    def __hash__(self) -> int:  # `raw` may be a dict
        return hash((type(self), self.type, self.message))


class Truncated(TurnError):
    """The stream ended before the provider said that the turn was finished."""

    kind = "truncated"


class ProviderError(TurnError):
    """The provider reported an error, before the stream or in it."""

    kind = "provider"


class TransportError(TurnError):
    """The connection failed."""

    kind = "transport"


class ProtocolError(TurnError):
    """The bytes broke their own rules in a way that may have lost text, tool arguments or a finish."""

    kind = "protocol"


class TooLarge(TurnError):
    """The turn went over one of its limits."""

    kind = "too_large"


class TurnTimeout(TurnError):
    """Nothing came in time."""

    kind = "timeout"


class Blocked(TurnError):
    """A reviewer stopped the turn."""

    kind = "blocked"


class NotFinished(LevadaError):
    """There is no result yet: the turn has not ended. `state`: where it is."""

    _fields = ("state",)

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state

    def __str__(self) -> str:
        return f"the turn is {self.state}; a result exists only once its provider has finished it"


class Cancelled(LevadaError):
    """There is no result: we stopped the turn.

    `asked`: that the upstream was asked to stop. `upstream_closed`: whether it is known to be closed (None: nobody
    looked). `by`: who cancelled, in the caller's words.
    """

    _fields = ("asked", "upstream_closed", "by")

    def __init__(self, asked: bool = True, upstream_closed: bool | None = None, by: str | None = None) -> None:
        super().__init__(asked, upstream_closed, by)
        self.asked = asked
        self.upstream_closed = upstream_closed
        self.by = by

    def __str__(self) -> str:
        closed = {True: "closed", False: "still open", None: "not known to be closed"}[self.upstream_closed]
        return f"the turn was cancelled{f' by {self.by}' if self.by else ''}; its upstream is {closed}"


class LedgerError(LevadaError):
    """The ledger did not do what it was asked, and nothing was stored half."""


class KeyConflict(LedgerError):
    """Another content is stored under this key already; nothing was changed.

    No UsageError: that a key was used twice shows only when two answers meet in the store, often of two attempts at
    one question. `key`: which; it is not in the message, for it may name a person.
    """

    _fields = ("key",)

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return (
            "another turn, or the same one with other actions, is stored under this key; give each answer a key of "
            "its own, and use one again only to repeat the same commit"
        )


class LedgerTooLarge(LedgerError):
    """What was to be stored is larger than a limit. `what`, `size` and `limit` in bytes; `option`: what raises it."""

    _fields = ("what", "size", "limit", "option")

    def __init__(self, what: str, size: int, limit: int, option: str) -> None:
        super().__init__(what, size, limit, option)
        self.what = what
        self.size = size
        self.limit = limit
        self.option = option

    def __str__(self) -> str:
        return f"{self.what} takes {self.size} bytes, and {self.limit} is the most; raise {self.option} of the ledger"


class SchemaMismatch(LedgerError):
    """The database holds another version of the ledger's tables than this levada can use.

    `found`: its version, None where there is none. `known`: ours.
    """

    _fields = ("found", "known")

    def __init__(self, found: int | None, known: int) -> None:
        super().__init__(found, known)
        self.found = found
        self.known = known

    def __str__(self) -> str:
        if self.found is None:
            return "the database holds no ledger; open it once without read_only to make one"
        if self.found < self.known:
            return (
                f"the ledger has schema version {self.found}, and this levada needs {self.known}; open it once without "
                "read_only to bring it forward"
            )
        return f"the ledger has schema version {self.found}, and this levada knows {self.known}; use a newer levada"


class StoreError(LedgerError):
    """The database failed; the transaction was taken back, or its end is not known.

    `reason`: busy, full, read_only, missing, replaced, not_a_database, corrupt, unreachable, denied, conflict,
    too_large or other. `message`: in words, without values. `retryable`: whether the same call may go better; a
    commit may always be made again with its key, for it stores once.
    """

    _fields = ("reason", "message", "retryable")

    def __init__(self, reason: str, message: str, retryable: bool = False) -> None:
        super().__init__(reason, message, retryable)
        self.reason = reason
        self.message = message
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"
