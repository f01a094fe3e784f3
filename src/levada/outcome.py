"""What a run of a turn comes to: an answer, what is left of one that failed, and records for operations.

Rules this file keeps:
- `Outcome` needs a FinishedTurn, so none can be made of a turn that its provider did not finish.
- `Incomplete` and `RunRecord` are no answers and have none of its names; a record has no text at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from levada.deltas import Usage
from levada.errors import Cancelled, TurnError, UsageError
from levada.finished import FinishedTurn
from levada.lifecycle import State
from levada.turn import Turn

__all__ = ["Incomplete", "Outcome", "RunRecord"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer that its provider finished and that every review released.

    `turn`: the whole finished turn, unreviewed channels included. `released`: the text of the answer as a person may
    see it; this is what to store. `attempts`: how many it took. `committed`: what `commit` returned, None before.
    """

    turn: FinishedTurn
    released: str = field(repr=False)  # text does not go into logs
    attempts: int = 1
    committed: Any = None

    def __post_init__(self) -> None:
        if type(self.turn) is not FinishedTurn:
            raise UsageError(f"an Outcome needs a FinishedTurn, not {type(self.turn).__name__}")
        if type(self.attempts) is not int or self.attempts < 1:
            raise UsageError("the attempts of an Outcome are an int from 1")


@dataclass(frozen=True, slots=True)
class Incomplete:
    """What was released of a turn that came to no answer, for whoever asked to keep it (on_error="keep_marked").

    `released`: never to be shown or stored without a mark. `error`: why there is no answer. `turn`: as it was left; its
    text beyond `released` was never reviewed.
    """

    released: str = field(repr=False)
    error: TurnError | Cancelled
    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What operations may want to know of one attempt. It holds no text of the model and no words of the provider.

    `attempt`: its number, from 1. `state`: of its turn. `error_kind`: why no answer came of it, None where one did or
    it was cancelled; blocked may come after FINISHED. `error_type`: the provider's own word. `retry_in_s`: the wait
    before the next attempt, None where it is the last. `released_chars`: characters that were released. `committed`:
    whether commit returned and did not refuse; None where it was cut off, and nobody knows. `cancelled`: what was asked
    and what could be confirmed, None where nobody cancelled. `exception`: the type of an exception of our caller's own
    code. `upstream_closed`: whether the response is known to be closed. Times are readings of the run's clock, in
    seconds; `first_delta_s` is None where no delta came.
    """

    attempt: int
    dialect: str
    profile: str
    model: str | None
    state: State
    error_kind: str | None
    error_type: str | None
    retry_in_s: float | None
    released_chars: int
    usage: Usage | None
    committed: bool | None
    cancelled: Cancelled | None
    exception: str | None
    upstream_closed: bool | None
    started_s: float
    first_delta_s: float | None
    ended_s: float
