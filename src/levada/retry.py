"""When another attempt is made, and after how long. Decides; it waits for nothing itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, TypeAlias

from levada.errors import TurnError, UsageError

__all__ = ["Retry", "When"]

When: TypeAlias = Literal["before_release", "empty_draft", "never"]

_WHEN: Final = ("before_release", "empty_draft", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A policy for attempts after an error that says of itself that another may go better (`error.retryable`).

    `attempts`: in all, the first included. `when`: before_release, only if no text of the answer was released;
    empty_draft, always, and what was seen is taken from the screen first; never. The wait doubles from `backoff_s` up
    to `max_backoff_s`, in seconds; up to the part `jitter` of it is left out by chance, so that not all clients come
    back at once. A provider's retry-after is waited for in full; where it is above `max_retry_after_s`, there is no
    other attempt. The numbers are those of the OpenAI and Anthropic clients. Raises UsageError for what makes no sense.
    """

    attempts: int = 3
    backoff_s: float = 0.5
    max_backoff_s: float = 8.0
    jitter: float = 0.25
    when: When = "before_release"
    max_retry_after_s: float = 60.0

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise UsageError(f"attempts must be an int from 1, not {self.attempts!r:.100}")
        if self.when not in _WHEN:
            raise UsageError(f"when must be one of {', '.join(_WHEN)}, not {self.when!r:.100}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("attempts", "when") and not (isinstance(value, (int, float)) and value >= 0):
                raise UsageError(f"{field.name} must be a number from 0, not {value!r:.100}")
        if self.jitter > 1:
            raise UsageError(f"jitter is a part, from 0 to 1, not {self.jitter!r:.100}")

    def wait_s(self, error: TurnError, attempt: int, *, released: bool, chance: float = 0.0) -> float | None:
        """Return how long to wait before the attempt after this one, or None for no other.

        `attempt`: the number of the one that failed, from 1. `released`: whether any text of it was released.
        `chance`: from 0 to 1; it decides about the jitter.
        """
        if self.when == "never" or attempt >= self.attempts or not error.retryable:
            return None
        if released and self.when == "before_release":
            return None
        asked_s = error.retry_after_s or 0.0
        if asked_s > self.max_retry_after_s:
            return None
        doubled_s = self.backoff_s * 2.0 ** min(attempt - 1, 64)
        return max(min(doubled_s, self.max_backoff_s) * (1 - self.jitter * chance), asked_s)
