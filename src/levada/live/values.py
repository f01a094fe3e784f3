"""The values of live turns: entries, what is known of a turn, and the options of a log."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import msgspec

from levada.errors import UsageError
from levada.lifecycle import ENDS, State
from levada.live.errors import EntryGone, LiveLimit, UnknownEntry

__all__ = ["Entry", "Known", "Options", "Signals"]

TURN_ID: Final = re.compile(r"[A-Za-z0-9_.~:-]{1,128}")  # what URLs carry as it is, without a brace (hash tags)
ENTRY_ID: Final = re.compile(r"(0|[1-9][0-9]{0,15})-([1-9][0-9]{0,18})")
NO_LINE: Final = re.compile(r"[\0\r\n]")
NO_PREFIX: Final = re.compile(r"[\0\r\n{}\ud800-\udfff]")
LONGEST_NAME: Final = 200  # characters of an event's name, an error's kind and type, who stopped

# What the terminal entry says that nobody but the log wrote.
LOST_KIND: Final = "truncated"
PRODUCER_LOST: Final = "producer_lost"  # its lease ran out
ENTRIES_LOST: Final = "entries_lost"  # the store went back in time: a restart without persistence, a failover
END_EVENT: Final = "end"


class Entry(msgspec.Struct, frozen=True):
    """One entry of a live turn.

    `id`: opaque, in order, fit for the `id` field of an event stream. `state`: None, but on the terminal entry
    finished, error or cancelled; then `kind` and `type` say of an error which one. A lost producer is state error, kind
    truncated, type producer_lost (its lease ran out) or entries_lost (the store lost entries), event "end", data "".
    """

    id: str
    event: str
    data: str
    state: State | None = None
    kind: str | None = None
    type: str | None = None


class Known(msgspec.Struct, frozen=True):
    """What is known of a turn. `state`: streaming, or how it ended. `last_id`: of its newest entry.

    `stop`: who asked it to stop, or None. `kind`, `type`: of an error.
    """

    state: State
    last_id: str
    stop: str | None = None
    kind: str | None = None
    type: str | None = None


class Signals(msgspec.Struct, frozen=True):
    """What a producer is told. `stop`: who asked it to stop, else None.

    `watched_s`: how many seconds ago a reader was last seen, on any replica, to within half a lease; None: never yet.
    """

    stop: str | None
    watched_s: float | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of LiveLog.open, checked. Raises UsageError for one that makes no sense."""

    lease_s: float = 5.0
    patience_s: float | None = None
    keep_s: float = 600.0
    max_entries: int = 20_000
    max_bytes: int = 16 * 1024 * 1024
    max_entry_bytes: int = 4 * 1024 * 1024
    max_turns: int = 10_000
    page_entries: int = 256
    page_bytes: int = 64 * 1024
    connections: int = 4
    prefix: str = "levada:live:"
    cluster: bool = False

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        """Return the options of these names."""
        names = [field.name for field in fields(cls)]
        if unknown := sorted(given.keys() - set(names)):
            raise UsageError(f"LiveLog.open has no option {', '.join(unknown)}; there are {', '.join(names)}")
        return cls(**given)

    def __post_init__(self) -> None:
        if self.patience_s is None:
            object.__setattr__(self, "patience_s", self.lease_s)
        for name, least, most in (("lease_s", 0.1, 3600), ("patience_s", 0.1, 3600), ("keep_s", 0.1, 30 * 86400)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                raise UsageError(f"{name} must be {least:g} to {most:g} seconds, not {value!r:.100}")
        for name in ("max_entries", "max_bytes", "max_entry_bytes", "max_turns", "page_entries", "page_bytes"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value < 2**31:
                raise UsageError(f"{name} must be an int from 1 to {2**31 - 1}, not {value!r:.100}")
        if type(self.connections) is not int or not 1 <= self.connections <= 256:
            raise UsageError(f"connections must be an int from 1 to 256, not {self.connections!r:.100}")
        if self.max_entry_bytes > self.max_bytes:
            raise UsageError("max_entry_bytes must not be more than max_bytes: such an entry could not be kept")
        if not isinstance(self.prefix, str) or NO_PREFIX.search(self.prefix):
            raise UsageError(f"prefix must be a str without braces, line ends and surrogates, not {self.prefix!a:.100}")
        if type(self.cluster) is not bool:
            raise UsageError(f"cluster must be a bool, not {self.cluster!r:.100}")

    @property
    def patience(self) -> float:
        """Return for how many seconds a call is tried again."""
        return self.lease_s if self.patience_s is None else self.patience_s


class Cursor(NamedTuple):
    """A place between entries: after number `seq` of the turn that `token` is of; token 0 is the start of any."""

    seq: int
    token: int


START: Final = Cursor(0, 0)


class End(NamedTuple):
    """How a turn ends."""

    state: State
    kind: str | None = None
    type: str | None = None


class Batch(NamedTuple):
    """Entries to be written at once.

    `number` and `before`: how many batches and entries went before, which makes it safe to write it again. `end`: the
    last entry is the terminal one.
    """

    number: int
    before: int
    entries: tuple[tuple[str, str], ...]
    end: End | None = None

    @property
    def size(self) -> int:
        """Return the bytes of its entries."""
        return sum(size_of(event, data) for event, data in self.entries)


def entry_id(seq: int, token: int) -> str:
    return f"{seq}-{token}"


def cursor_of(turn_id: str, after: str) -> Cursor:
    """Return the cursor of an id; "" is the start. Raises UnknownEntry for what is no id."""
    if not isinstance(after, str):
        raise UsageError(f"after must be a str, not {type(after).__name__}")
    if not after:
        return START
    match = ENTRY_ID.fullmatch(after)
    if match is None:
        raise UnknownEntry(turn_id, after[:100], "malformed")
    return Cursor(int(match[1]), int(match[2]))


def owner_digest(turn_id: str, owner: str) -> bytes:
    """Return what is stored of the owner. Salted with the turn: a dump does not tell whose turns belong together."""
    if not isinstance(owner, str):
        raise UsageError(f"owner must be a str, not {type(owner).__name__}")
    return hashlib.sha256(f"{turn_id}\n{owner}".encode("utf-8", "surrogatepass")).digest()


def size_of(event: str, data: str) -> int:
    """Return the bytes that an entry counts for. Raises UnicodeEncodeError for a lone surrogate."""
    return len(event.encode()) + (len(data) if data.isascii() else len(data.encode()))


def checked_entry(entry: tuple[str, str], limit: int) -> tuple[str, str]:
    """Return the entry; raises UsageError or LiveLimit for one that cannot be kept."""
    if not isinstance(entry, (tuple, list)) or len(entry) != 2:  # "ab" would be one as well
        raise UsageError(f"entries are (event, data) pairs, not {type(entry).__name__}s of another shape")
    event, data = entry
    if not isinstance(event, str) or not isinstance(data, str):
        raise UsageError(f"an entry is (event: str, data: str), not ({type(event).__name__}, {type(data).__name__})")
    if not event or len(event) > LONGEST_NAME or NO_LINE.search(event):
        raise UsageError(f"an entry's event is 1 to {LONGEST_NAME} characters without NUL and line ends")
    try:
        size = size_of(event, data)
    except UnicodeEncodeError:
        raise UsageError("an entry's text holds a lone surrogate, which UTF-8 cannot carry") from None
    if size > limit:
        raise LiveLimit("bytes of one entry", size, limit, "max_entry_bytes")
    return event, data


def checked_word(name: str, value: str | None) -> str | None:
    """Return a short word that goes into the log beside the entries."""
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_NAME or not value.isprintable():
        raise UsageError(f"{name} must be 1 to {LONGEST_NAME} printable characters, or None")
    return value


def checked_end(state: str, kind: str | None, type: str | None) -> End:
    """Return how a turn ends; raises UsageError for what is no end."""
    if state not in ENDS:
        raise UsageError(f"a turn is closed as {', '.join(sorted(ENDS))}, not as {state!r:.100}")
    if state != State.ERROR and (kind or type):
        raise UsageError("kind and type are those of an error")
    return End(State(state), checked_word("kind", kind), checked_word("type", type))


def check_cursor(turn_id: str, after: Cursor, token: int, first: int, last: int) -> None:
    """Raise UnknownEntry or EntryGone where the turn cannot be read from there."""
    given = entry_id(*after) if after.token else ""
    if after.token and after.token != token:
        raise UnknownEntry(turn_id, given, "of another turn")
    if after.seq > last:
        raise UnknownEntry(turn_id, given, "from the future")
    if after.seq < first - 1:
        raise EntryGone(turn_id, given, entry_id(first - 1, token))


def reason_of(end: End) -> str:
    """Return why nothing more may be written, in words."""
    if end.type == PRODUCER_LOST:
        return "its lease ran out, and readers were told that the producer is lost"
    if end.type == ENTRIES_LOST:
        return "entries that it wrote are gone"
    return f"the turn has ended as {end.state}"
