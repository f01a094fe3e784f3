"""From a finished turn to its row, and from a row to what is handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec
from sqlalchemy import RowMapping

from levada.deltas import Anomalies, Choice, Citation, Part, Reference, ToolCall, Usage
from levada.errors import Cancelled, TurnError, UsageError
from levada.finished import FinishedTurn
from levada.ledger.hostile import json_to
from levada.ledger.values import Action, PartialTurn, RefusedTurn, StoredRecord, StoredTurn
from levada.lifecycle import State
from levada.outcome import Incomplete, RunRecord
from levada.turn import Turn

__all__ = [
    "Content",
    "partial_from",
    "partial_row",
    "plain",
    "record_from",
    "record_row",
    "refused_from",
    "stored_from",
]

MOST_WORD_CHARS: Final = 200  # of a model, in the indexed column (PostgreSQL's indexes take 2,704 bytes), or a type

_OF_A_CHOICE: Final = ("answer", "reasoning", "refusal", "finish_reason", "native_finish_reason", "tool_calls")


@dataclass(frozen=True, slots=True)
class Content:
    """What one commit stores. `is_outcome`: whether a release stood between the provider's text and `released`."""

    turn: FinishedTurn
    released: str
    attempts: int
    is_outcome: bool
    actions: tuple[Action, ...] = ()

    def canonical(self) -> bytes:
        """Return what makes this content this one: a digest of it tells a repeated commit from another one.

        Without the anomalies, which may grow after the end, and the attempts, which are no content.
        """
        turn = self.turn
        left_out = {"anomalies", "answer"}
        if turn.choices == (_only_choice({name: getattr(turn, name) for name in _OF_A_CHOICE}),):
            left_out.add("choices")
        document = {name: plain(getattr(turn, name)) for name in FinishedTurn.__slots__ if name not in left_out}
        document["answers"] = [turn.answer] if self.released == turn.answer else [turn.answer, self.released]
        document["actions"] = [[action.name, action.payload] for action in self.actions]
        return json_to(document).encode()

    def size(self, canonical: bytes, *, keep_raw: bool) -> int:
        """Return about how many bytes the row takes, with its actions. Each text stands in it as often as in these."""
        return len(canonical) + (len(self.turn.answer.encode("utf-8", "surrogatepass")) if keep_raw else 0)

    def row(self, canonical: bytes, *, keep_raw: bool) -> dict[str, Any]:
        """Return the columns of the turn, without `n`, `key` and `stored_at`."""
        turn = self.turn
        altered = self.released != turn.answer
        hide = altered and not keep_raw
        parts, choices = turn.parts, turn.choices
        if hide:
            parts, choices = tuple(map(_without_text, parts)), tuple(map(_choice_without_text, choices))
        elif self.is_outcome and not keep_raw:  # nobody released the other candidates
            parts = tuple(_without_text(part) if part.choice else part for part in parts)
            choices = tuple(_choice_without_text(choice) if choice.index else choice for choice in choices)
        values = {
            "answer": self.released,
            "reasoning": "" if hide else turn.reasoning,
            "refusal": "" if hide else turn.refusal,
            "finish_reason": turn.finish_reason,
            "native_finish_reason": turn.native_finish_reason,
            "tool_calls": turn.tool_calls,
        }
        more: dict[str, Any] = {"anomalies": plain(turn.anomalies)}
        if choices != (_only_choice(values),):
            more["choices"] = plain(choices)
        if turn.model is not None and len(turn.model) > MOST_WORD_CHARS:
            more["model"] = turn.model
        return {
            **values,
            **_who(turn),
            "digest": sha256(canonical).hexdigest(),
            "altered": altered,
            "raw_answer": turn.answer if keep_raw else None,
            "attempts": min(self.attempts, 2**31 - 1),
            "anomalies": turn.anomalies.total,
            "bytes": self.size(canonical, keep_raw=keep_raw),
            "usage": plain(turn.usage),
            "parts": plain(parts),
            "tool_calls": plain(turn.tool_calls),
            "citations": plain([_without_place(one) for one in turn.citations] if hide else turn.citations),
            "refs": plain(turn.references),
            "more": more,
        }

    def refused_row(self, *, keep_raw: bool) -> dict[str, Any]:
        """Return the columns of a refusal, without `n`, `key`, `refused_at` and `reasons`."""
        turn = self.turn
        return {
            **_who(turn),
            "finish_reason": turn.finish_reason,
            "native_finish_reason": turn.native_finish_reason,
            "answer_chars": len(turn.answer),
            "raw_answer": turn.answer if keep_raw else None,
            "usage": plain(turn.usage),
        }


def stored_from(row: RowMapping) -> StoredTurn:
    """Return the turn of a row of `turns`."""
    more = row["more"]
    values = {name: row[name] for name in ("answer", "reasoning", "refusal", "finish_reason", "native_finish_reason")}
    values["tool_calls"] = _read(row["tool_calls"], tuple[ToolCall, ...])
    choices = _read(more["choices"], tuple[Choice, ...]) if "choices" in more else (_only_choice(values),)
    return StoredTurn(
        **values,
        **{name: row[name] for name in ("n", "key", "stored_at", "dialect", "profile", "raw_answer", "attempts")},
        altered=bool(row["altered"]),
        model=more.get("model", row["model"]),
        id=row["provider_id"],
        choices=choices,
        parts=_read(row["parts"], tuple[Part, ...]),
        citations=_read(row["citations"], tuple[Citation, ...]),
        references=_read(row["refs"], tuple[Reference, ...]),
        usage=_read(row["usage"], Usage | None),
        anomalies=_read(more["anomalies"], Anomalies),
    )


def refused_from(row: RowMapping) -> RefusedTurn:
    """Return the refusal of a row of `refused`."""
    values = dict(row)
    values["reasons"] = tuple(values["reasons"])
    values["id"] = values.pop("provider_id")
    values["usage"] = _read(values["usage"], Usage | None)
    return RefusedTurn(**values)


def partial_row(kept: Turn | Incomplete) -> dict[str, Any]:
    """Return the columns of what is kept of a turn, without `n`, `key` and `kept_at`.

    Raises UsageError for a turn that is finished and not blocked, and for what is neither of the two.
    """
    error: TurnError | Cancelled | None
    if type(kept) is Incomplete:
        turn, error, text, released = kept.turn, kept.error, kept.released, True
        # a block after the end left the turn finished, but there is no answer
        state = "cancelled" if isinstance(error, Cancelled) else "error"
    elif isinstance(kept, Turn):
        turn, error, text, released = kept, kept.error, kept.answer, False
        state = turn.state.value
        if turn.state is State.FINISHED:
            raise UsageError("this turn is finished: commit its result; keep_partial is for what came to no answer")
    else:
        raise UsageError(f"keep_partial takes a Turn or an Incomplete, not {type(kept).__name__}")
    failed = error if isinstance(error, TurnError) else None
    return {
        "state": state,
        "error_kind": failed and failed.kind,
        "error_type": failed and _cut(failed.type),
        "dialect": turn.dialect,
        "profile": turn.profile,
        "model": _cut(turn.model),
        "provider_id": turn.id,
        "partial_text": text,
        "released": released,
        "usage": plain(turn.usage),
    }


def record_row(record: RunRecord) -> dict[str, Any]:
    """Return the columns of a record, without `n`, `key` and `recorded_at`."""
    names = ("attempt", "dialect", "profile", "error_kind", "retry_in_s", "released_chars", "committed")
    first_s = record.first_delta_s
    return {
        **{name: getattr(record, name) for name in names},
        "model": _cut(record.model),
        "state": record.state.value,
        "error_type": _cut(record.error_type),
        "usage": plain(record.usage),
        "cancelled": record.cancelled is not None,
        "cancelled_by": None if record.cancelled is None else _cut(record.cancelled.by),
        "exception": _cut(record.exception),
        "upstream_closed": record.upstream_closed,
        "first_delta_after_s": None if first_s is None else first_s - record.started_s,
        "lasted_s": record.ended_s - record.started_s,
    }


def partial_from(row: RowMapping) -> PartialTurn:
    """Return the partial turn of a row of `partials`."""
    values = dict(row)
    values["id"] = values.pop("provider_id")
    values["usage"] = _read(values["usage"], Usage | None)
    return PartialTurn(**values)


def record_from(row: RowMapping) -> StoredRecord:
    """Return the record of a row of `records`."""
    values = dict(row)
    values["usage"] = _read(values["usage"], Usage | None)
    return StoredRecord(**values)


def plain(value: Any) -> Any:
    """Return plain JSON of our values: structs as dicts without the fields that have their default."""
    if isinstance(value, msgspec.Struct):
        fields, defaults = value.__struct_fields__, value.__struct_defaults__
        padded = (msgspec.NODEFAULT,) * (len(fields) - len(defaults)) + defaults
        found = ((name, getattr(value, name), default) for name, default in zip(fields, padded, strict=True))
        return {name: plain(one) for name, one, default in found if one is not default and one != default}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


def _read(stored: Any, kind: Any) -> Any:
    return msgspec.convert(stored, kind)


def _cut(words: str | None) -> str | None:
    return None if words is None else words[:MOST_WORD_CHARS]


def _who(turn: FinishedTurn) -> dict[str, Any]:
    return {
        "dialect": turn.dialect,
        "profile": turn.profile,
        "model": _cut(turn.model),
        "provider_id": turn.id,
    }


def _only_choice(values: Mapping[str, Any]) -> Choice:
    """Return the choice of a turn that has one, which is not stored twice."""
    calls: Sequence[ToolCall] = values["tool_calls"]
    return Choice(0, **{**values, "tool_calls": tuple(call for call in calls if call.choice == 0)})


def _without_text(part: Part) -> Part:
    return msgspec.structs.replace(part, text="", data=None)  # data too: some servers keep reasoning's text in it


def _choice_without_text(choice: Choice) -> Choice:
    return msgspec.structs.replace(choice, answer="", reasoning="", refusal="")


def _without_place(citation: Citation) -> Citation:
    """Leave out where in the provider's answer it stood, and what could quote it."""
    return msgspec.structs.replace(citation, start=None, end=None, unit=None, cited_text=None, raw=None)
