"""How long a turn may keep us waiting: the limits, and which of them is next. Time comes in, in seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from levada.errors import TurnTimeout, UsageError

__all__ = ["Limit", "Timeouts", "Watch"]

_WORDS = {
    "first_byte_s": "no byte of the body came",
    "first_event_s": "nothing but keep-alives came",
    "idle_s": "no byte came",
    "stall_s": "no delta came, only bytes",
    "total_s": "the turn did not end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits in seconds; None, the default, is no limit. What came later than its limit ends the turn as kind timeout.

    `first_byte_s`: from the start of reading to the first byte of the body. `first_event_s`: to the first event that is
    no keep-alive. `idle_s`: for one wait for bytes, after the first byte. `stall_s`: waiting without a delta, whatever
    else comes, after the first event. `total_s`: from the start to the end, the reader's own pauses included; none of
    the others counts those. Raises UsageError for what is no positive number.
    """

    first_byte_s: float | None = None
    first_event_s: float | None = None
    idle_s: float | None = None
    stall_s: float | None = None
    total_s: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
                raise UsageError(
                    f"{field.name} must be a positive number of seconds or None for no limit, not {value!r:.100}"
                )


class Limit(NamedTuple):
    """The limit that ends a wait: when, which, and how long it was."""

    at_s: float
    name: str
    seconds: float

    def error(self) -> TurnTimeout:
        """Return the error of a turn that it ended."""
        return TurnTimeout(f"{_WORDS[self.name]} within {self.seconds:g} s ({self.name})", retryable=True)


class Watch:
    """Tells for each wait which limit comes first. `now_s`: any clock that only goes forward, always the same one."""

    __slots__ = ("_bytes_came", "_quiet_s", "_started_s", "_timeouts", "_waiting_since_s")

    def __init__(self, timeouts: Timeouts, now_s: float) -> None:
        self._timeouts = timeouts
        self._started_s = now_s
        self._waiting_since_s = now_s
        self._quiet_s = 0.0  # waited since the last delta
        self._bytes_came = False

    def limit(self, now_s: float, *, opened: bool) -> Limit | None:
        """Return the limit of the wait that begins now, or None. `opened`: an event that is no keep-alive has come."""
        self._waiting_since_s = now_s
        started_s, timeouts = self._started_s, self._timeouts
        candidates = [
            (started_s, "total_s", timeouts.total_s),
            (now_s, "idle_s", timeouts.idle_s)
            if self._bytes_came
            else (started_s, "first_byte_s", timeouts.first_byte_s),
            (now_s - self._quiet_s, "stall_s", timeouts.stall_s)
            if opened
            else (started_s, "first_event_s", timeouts.first_event_s),
        ]
        return min(
            (Limit(since_s + seconds, name, seconds) for since_s, name, seconds in candidates if seconds is not None),
            default=None,
        )

    def came(self, now_s: float, *, chunk: bool, deltas: bool) -> None:
        """Note when the wait ended and what it brought: bytes, deltas made of them."""
        self._bytes_came = self._bytes_came or chunk
        self._quiet_s = 0.0 if deltas else self._quiet_s + now_s - self._waiting_since_s
