"""What is asked of a turn before it is stored, and before anything is done about it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias, get_args

from levada.deltas import FinishReason
from levada.errors import UsageError
from levada.finished import FinishedTurn

__all__ = ["Validator", "allowed", "bounded", "not_to_act_on", "reasons_of"]

Validator: TypeAlias = Callable[..., str | Iterable[str] | None]

MOST_REASONS: Final = 100  # of one refusal
MOST_REASON_CHARS: Final = 500

_ACTING: Final = frozenset({"stop", "tool_use"})
_EXCEPTIONS: Final = frozenset(get_args(FinishReason)) | {"incomplete_tool_calls"}


def reasons_of(validators: Iterable[Validator], turn: FinishedTurn, released: str) -> list[str]:
    """Return why the validators refuse, [] where they do not. What one raises comes through."""
    if callable(validators):
        raise UsageError("validators is a list of functions, not one function")
    reasons: list[str] = []
    for validator in validators:
        if not callable(validator):
            raise UsageError(f"a validator is a function, not {type(validator).__name__}")
        both = _needs_two(validator)
        found = validator(turn, released) if both else validator(turn)
        if found is None:
            continue
        listed = [found] if isinstance(found, str) else found
        if inspect.iscoroutine(listed):
            listed.close()  # it will never be awaited, and this is said below
        if not isinstance(listed, Iterable) or isinstance(listed, (bytes, dict)):
            raise UsageError(f"a validator returns None, a reason or reasons, not {type(found).__name__}")
        for reason in listed:
            if not isinstance(reason, str):
                raise UsageError(f"a reason of a validator is a str, not {type(reason).__name__}")
            reasons.append(reason or "refused without a word")
    return reasons


def _needs_two(validator: Validator) -> bool:
    """Say whether a validator cannot be called with the turn alone."""
    try:
        signature = inspect.signature(validator)
        signature.bind(None)
    except ValueError:  # some built-in callables have no signature
        return False
    except TypeError:
        return True
    return False


def not_to_act_on(turn: FinishedTurn, allowed: Collection[str]) -> list[str]:
    """Say why nothing may be done about this turn."""
    reasons = []
    bad = {choice.finish_reason or "other" for choice in turn.choices} | {turn.finish_reason}
    for reason in sorted(bad - _ACTING - set(allowed)):
        reasons.append(f"actions need the finish reason stop or tool_use, not {reason}; allow= names exceptions")
    open_calls = sum(not call.complete for call in turn.tool_calls)
    if open_calls and "incomplete_tool_calls" not in allowed:
        reasons.append(f"actions need complete tool calls, and {open_calls} of {len(turn.tool_calls)} are not")
    return reasons


def allowed(allow: Iterable[str]) -> Collection[str]:
    """Return what `allow=` names. Raises UsageError for what it does not know."""
    names = frozenset([allow] if isinstance(allow, str) else allow)
    if unknown := names - _EXCEPTIONS:
        raise UsageError(f"allow= knows {', '.join(sorted(_EXCEPTIONS))}; not {sorted(map(str, unknown))[0]!r:.100}")
    return names


def bounded(reasons: list[str]) -> tuple[str, ...]:
    """Return the reasons, as many and as long as are kept."""
    kept = [reason if len(reason) <= MOST_REASON_CHARS else f"{reason[:MOST_REASON_CHARS]}…" for reason in reasons]
    if len(kept) > MOST_REASONS:
        kept[MOST_REASONS - 1 :] = [f"and {len(kept) - MOST_REASONS + 1} more reasons"]
    return tuple(kept)
