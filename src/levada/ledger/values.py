"""What goes into the ledger and what comes out. All are frozen; none can be committed as a turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from levada.deltas import Anomalies, Choice, Citation, Part, Reference, ToolCall, Usage
from levada.errors import LedgerError, UsageError
from levada.ledger.hostile import json_from, json_to

__all__ = [
    "Action",
    "Committed",
    "DeadLetter",
    "Dispatched",
    "DueAction",
    "PartialTurn",
    "RefusedTurn",
    "StoredRecord",
    "StoredTurn",
    "check_key",
    "in_utc",
]

Status: TypeAlias = Literal["stored", "already_stored", "refused"]

MOST_KEY_CHARS: Final = 200  # a third of what an index of PostgreSQL takes, in the widest UTF-8
_ODD: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_ACTION_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def check_key(key: object) -> str:
    """Return `key`. Raises UsageError unless it is 1 to 200 characters without control characters and surrogates."""
    if type(key) is not str or not 1 <= len(key) <= MOST_KEY_CHARS or _ODD.search(key):
        what = f"{len(key)} characters" if isinstance(key, str) else type(key).__name__
        raise UsageError(
            f"key must be a str of 1 to {MOST_KEY_CHARS} characters without control characters, not {what}"
        )
    return key


def in_utc(moment: object, what: str) -> datetime:
    """Return a moment in UTC. Raises UsageError unless it is an aware datetime that databases take too."""
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        try:
            return moment.astimezone(UTC)
        except OverflowError:  # in the hours beside the first or the last year
            pass
    raise UsageError(f"{what} must be an aware datetime, as datetime.now(UTC)")


@dataclass(frozen=True, slots=True)
class Action:
    """Something to do once the turn is stored. `name`: of its handler. `payload`: plain JSON, for the handler.

    Raises UsageError for a name that is not 1 to 100 of A-Z a-z 0-9 _ . : -, or a payload that JSON would change.
    """

    name: str
    payload: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if type(self.name) is not str or not _ACTION_NAME.fullmatch(self.name):
            raise UsageError("the name of an action is 1 to 100 characters of A-Z a-z 0-9 _ . : -")
        self.payload_json()

    def payload_json(self) -> str:
        """Return the payload as the ledger stores it. Raises UsageError where that is no plain JSON."""
        try:
            text = json_to(self.payload, finite=True)
            plain = json_from(text) == self.payload
        except (TypeError, ValueError, RecursionError, LedgerError):
            plain = False
        if not plain:
            raise UsageError(
                f"the payload of action {self.name} is no plain JSON: dict with keys of str, list, str, int, finite "
                "float, bool or None"
            )
        return text


@dataclass(frozen=True, slots=True)
class Committed:
    """What came of a commit.

    `status`: stored; already_stored, by an equal commit before this one; refused, and then `reasons` says why and
    nothing is to be done. `actions`: how many were queued by this call.
    """

    status: Status
    reasons: tuple[str, ...] = ()
    key: str = ""
    actions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A finished turn as it was stored. No FinishedTurn: it cannot be committed again.

    `answer`: what was released. `altered`: whether that differs from what the provider sent; then `reasoning`,
    `refusal`, the text of parts and choices and the citations' places are kept only with the raw answer
    (`keep_raw=True`), for they could hold what a review took out. `raw_answer`: the provider's, if it was asked for.
    `anomalies`: what was tolerated. `attempts`: how many it took. `n`: its number; `cursor` goes into `after=`.
    """

    n: int
    key: str
    stored_at: datetime
    dialect: str
    profile: str
    model: str | None
    id: str | None
    answer: str = field(repr=False)
    altered: bool
    raw_answer: str | None = field(repr=False)
    reasoning: str = field(repr=False)
    refusal: str = field(repr=False)
    choices: tuple[Choice, ...] = field(repr=False)
    parts: tuple[Part, ...] = field(repr=False)
    tool_calls: tuple[ToolCall, ...] = field(repr=False)
    citations: tuple[Citation, ...] = field(repr=False)
    references: tuple[Reference, ...] = field(repr=False)
    usage: Usage | None
    finish_reason: str
    native_finish_reason: str | None
    anomalies: Anomalies
    attempts: int

    @property
    def cursor(self) -> str:
        """Its place in the order of `Ledger.turns`."""
        return f"{self.stored_at.isoformat()}/{self.n}"

    def message(self) -> dict[str, Any]:
        """Return the provider's own assistant message for the next request, as FinishedTurn.message() does.

        Raises UsageError where a review altered the answer: signatures would not fit it.
        """
        from levada.dialects import dialect_named  # noqa: PLC0415  # loads the wires, which reading a ledger needs not

        if self.altered:
            raise UsageError("a review altered this answer; build the next request from `answer`, as plain text")
        room: Any = dialect_named(self.dialect)  # it reads the fields that both kinds of turn have
        return dict(room.message(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedTurn:
    """A commit that was refused: why, and of what. It is no answer; `raw_answer` only if it was asked for."""

    n: int
    key: str
    refused_at: datetime
    reasons: tuple[str, ...]
    dialect: str
    profile: str
    model: str | None
    id: str | None
    finish_reason: str
    native_finish_reason: str | None
    answer_chars: int
    raw_answer: str | None = field(repr=False)
    usage: Usage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTurn:
    """What was kept of a turn that came to no answer. Never to be shown or used without its mark, `incomplete`.

    `state`: connecting, streaming, error or cancelled. `released`: whether a gate had released this text; otherwise it
    is as the provider sent it. `error_kind`, `error_type`: why there is no answer.
    """

    n: int
    key: str
    kept_at: datetime
    state: str
    error_kind: str | None
    error_type: str | None
    dialect: str
    profile: str
    model: str | None
    id: str | None
    partial_text: str = field(repr=False)
    released: bool
    usage: Usage | None

    @property
    def incomplete(self) -> Literal[True]:
        """True, always."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A RunRecord as it was stored, with times that mean something afterwards.

    `first_delta_after_s`, `lasted_s`: seconds since the attempt began. `cancelled_by`: in the caller's words.
    """

    n: int
    key: str | None
    recorded_at: datetime
    attempt: int
    dialect: str
    profile: str
    model: str | None
    state: str
    error_kind: str | None
    error_type: str | None
    retry_in_s: float | None
    released_chars: int
    usage: Usage | None
    committed: bool | None
    cancelled: bool
    cancelled_by: str | None
    exception: str | None
    upstream_closed: bool | None
    first_delta_after_s: float | None
    lasted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DueAction:
    """An action that a handler is to run now.

    `idempotency_key`: the same at every attempt, and of no other action; hand it on, or remember it, for an action may
    run more than once. `attempt`: from 1. `turn_key`: of the turn that it was committed with; `ledger.get` has it.
    """

    idempotency_key: str
    turn_key: str
    position: int
    name: str
    payload: Any = field(repr=False)
    attempt: int
    created_at: datetime
    _lost: Callable[[], bool] = field(default=bool, repr=False, compare=False)

    @property
    def lease_lost(self) -> bool:
        """Whether another dispatcher may run it by now. A long handler looks before what cannot be done twice.

        True from the moment at which the lease is over if it was not renewed, also in a process that was stopped, on a
        machine that was suspended (on Linux; elsewhere such time may not count), or with a database out of reach.
        """
        return self._lost()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """What one call of dispatch did: how many actions were done, failed (they will be tried again), died, or were lost.

    `lost`: ran, but the lease had run out, so another dispatcher runs them or ran them. `queued`: left with a handler
    here, due or not. `unknown`: queued under names without a handler here.
    """

    done: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    queued: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An action that is not tried any more. `error_type`, `error_words`: of its last failure, up to 500 characters."""

    n: int
    idempotency_key: str
    turn_key: str
    name: str
    payload: Any = field(repr=False)
    attempts: int
    error_type: str | None
    error_words: str | None = field(repr=False)
    created_at: datetime
    died_at: datetime
