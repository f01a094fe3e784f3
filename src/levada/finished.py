"""The finished turn: what may be stored as an answer and acted upon. Only `Turn.result()` makes one."""

from __future__ import annotations

from typing import Any, Final, NoReturn, final

from levada.deltas import Anomalies, Choice, Citation, Part, Reference, ToolCall, Usage
from levada.errors import UsageError

_FIELDS: Final = (
    "dialect",
    "profile",
    "model",
    "id",
    "answer",
    "reasoning",
    "refusal",
    "choices",
    "parts",
    "tool_calls",
    "citations",
    "references",
    "usage",
    "finish_reason",
    "native_finish_reason",
    "anomalies",
)
_MAKER: Final = object()


@final
class FinishedTurn:
    """A turn that its provider finished. Frozen to the bottom, equal by value.

    `answer`, `reasoning`, `refusal`, `finish_reason`: of choice 0; `choices` has all. `parts`: the pieces in the
    provider's order, with what the next request needs. `native_finish_reason` is None where the server named none.
    It cannot be made by hand and does not pickle, so that whoever holds one holds a confirmed answer of this process.
    """

    __slots__ = _FIELDS

    dialect: str
    profile: str
    model: str | None
    id: str | None
    answer: str
    reasoning: str
    refusal: str
    choices: tuple[Choice, ...]
    parts: tuple[Part, ...]
    tool_calls: tuple[ToolCall, ...]
    citations: tuple[Citation, ...]
    references: tuple[Reference, ...]
    usage: Usage | None
    finish_reason: str
    native_finish_reason: str | None
    anomalies: Anomalies

    def __init__(self, maker: object = None, /, **values: Any) -> None:
        if maker is not _MAKER:
            raise UsageError("a FinishedTurn comes from Turn.result() alone: it says that a provider finished the turn")
        for name in _FIELDS:
            object.__setattr__(self, name, values[name])

    def message(self) -> dict[str, Any]:
        """Return the provider's own assistant message, ready for the next request: signatures and tool calls intact."""
        from levada.dialects import dialect_named  # noqa: PLC0415  # dialects know this class, not the other way round

        return dialect_named(self.dialect).message(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a FinishedTurn cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a FinishedTurn cannot be changed")

    def __eq__(self, other: object) -> bool:
        if type(other) is not FinishedTurn:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    def __hash__(self) -> int:
        return hash((self.dialect, self.id, self.answer, self.finish_reason))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a FinishedTurn does not pickle; store it through the ledger, or send its fields")

    def __repr__(self) -> str:
        return (
            f"<FinishedTurn {self.dialect} {self.finish_reason}: {len(self.answer)} characters of answer, "
            f"{len(self.tool_calls)} tool calls>"
        )
