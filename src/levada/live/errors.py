"""What can go wrong with a live turn; every one is a LiveLogError.

LiveLogError
├── UnknownTurn            no such turn, or another owner's: nobody can tell which
├── TurnExists             start() of an id that is taken
├── EntryGone              reading from before the kept window, instead of a silent gap
├── UnknownEntry           reading from an id that is malformed, of another turn, or from the future
├── Fenced                 the writer is no longer its turn's producer
├── TurnClosed             the writer has closed its turn
├── LiveLimit              an entry, a batch or the number of turns is over a limit
└── LiveLogUnavailable     the store is away; mostly worth another attempt
"""

from __future__ import annotations

from levada.errors import LevadaError

__all__ = [
    "EntryGone",
    "Fenced",
    "LiveLimit",
    "LiveLogError",
    "LiveLogUnavailable",
    "TurnClosed",
    "TurnExists",
    "UnknownEntry",
    "UnknownTurn",
]


class LiveLogError(LevadaError):
    """Something is wrong with a live turn. `retryable`: whether the same call may go better later."""

    retryable = False


class UnknownTurn(LiveLogError):
    """No such turn, expired, or another owner's: the same error, so that nobody learns which ids exist."""

    _fields = ("turn_id",)

    def __init__(self, turn_id: str) -> None:
        super().__init__(turn_id)
        self.turn_id = turn_id

    def __str__(self) -> str:
        return f"there is no live turn {self.turn_id!r:.140} for this owner; it may have expired"


class TurnExists(LiveLogError):
    """A turn of this id was started before and is still kept."""

    _fields = ("turn_id",)

    def __init__(self, turn_id: str) -> None:
        super().__init__(turn_id)
        self.turn_id = turn_id

    def __str__(self) -> str:
        return f"there is a live turn {self.turn_id!r} already; give each turn an id of its own"


class EntryGone(LiveLogError):
    """The entries after `after` are no longer all kept.

    `oldest`: reading after this id gives all that is kept.
    """

    _fields = ("turn_id", "after", "oldest")

    def __init__(self, turn_id: str, after: str, oldest: str) -> None:
        super().__init__(turn_id, after, oldest)
        self.turn_id = turn_id
        self.after = after
        self.oldest = oldest

    def __str__(self) -> str:
        after = f"after {self.after!r:.60}" if self.after else "from the start"
        return (
            f"live turn {self.turn_id!r} cannot be read {after}: entries were dropped since; what is kept begins after "
            f"{self.oldest!r}; raise max_entries or max_bytes to keep more"
        )


class UnknownEntry(LiveLogError):
    """The turn has no entry of this id. `reason`: malformed, of another turn, or from the future."""

    _fields = ("turn_id", "after", "reason")

    def __init__(self, turn_id: str, after: str, reason: str) -> None:
        super().__init__(turn_id, after, reason)
        self.turn_id = turn_id
        self.after = after
        self.reason = reason

    def __str__(self) -> str:
        return f"live turn {self.turn_id!r} has no entry {self.after!r:.60}: it is {self.reason}; read from the start"


class Fenced(LiveLogError):
    """This writer is no longer the producer of its turn, and nothing of its call was written.

    `token`: the writer's. `reason`: in words.
    """

    _fields = ("turn_id", "token", "reason")

    def __init__(self, turn_id: str, token: int, reason: str) -> None:
        super().__init__(turn_id, token, reason)
        self.turn_id = turn_id
        self.token = token
        self.reason = reason

    def __str__(self) -> str:
        return f"the writer of live turn {self.turn_id!r} may not write any more: {self.reason}"


class TurnClosed(LiveLogError):
    """The writer closed its turn before, as `state`."""

    _fields = ("turn_id", "state")

    def __init__(self, turn_id: str, state: str) -> None:
        super().__init__(turn_id, state)
        self.turn_id = turn_id
        self.state = state

    def __str__(self) -> str:
        return f"live turn {self.turn_id!r} was closed as {self.state}; nothing comes after that"


class LiveLimit(LiveLogError):
    """`what` would be `size`, over the `limit` that the `option` sets. Nothing was written."""

    _fields = ("what", "size", "limit", "option")

    def __init__(self, what: str, size: int, limit: int, option: str) -> None:
        super().__init__(what, size, limit, option)
        self.what = what
        self.size = size
        self.limit = limit
        self.option = option

    def __str__(self) -> str:
        return f"{self.what}: {self.size}, and at most {self.limit} are allowed; {self.option} sets the limit"


class LiveLogUnavailable(LiveLogError):
    """The store did not answer for `seconds`, in as many attempts as fit. `reason`: what was seen last, in words.

    0 seconds: trying again is no use, and not `retryable`, before somebody mends what the reason names.
    """

    _fields = ("store", "seconds", "reason")

    def __init__(self, store: str, seconds: float, reason: str) -> None:
        super().__init__(store, seconds, reason)
        self.retryable = seconds > 0
        self.store = store
        self.seconds = seconds
        self.reason = reason

    def __str__(self) -> str:
        if not self.retryable:
            return f"the live log on {self.store} is not available ({self.reason}); this does not pass by itself"
        return (
            f"the live log on {self.store} is not available ({self.reason}), tried for {self.seconds:g} s; try again "
            "later; patience_s sets for how long"
        )
