"""levada: bytes in, one verified answer out. Public names, by layer.

Text and framing need the standard library alone and are imported here. The turn and what stands on it add msgspec;
their names are imported at first use, so that a program pays for what it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from levada._backend import BACKEND, BACKEND_REASON
from levada.errors import (
    Blocked,
    Cancelled,
    EventTooLarge,
    KeyConflict,
    LedgerError,
    LedgerTooLarge,
    LevadaError,
    MalformedPayload,
    NotFinished,
    ProtocolError,
    ProviderError,
    SchemaMismatch,
    StoreError,
    StreamError,
    TooLarge,
    TransportError,
    TransportRewound,
    Truncated,
    TurnError,
    TurnTimeout,
    UsageError,
)
from levada.frames import JsonArray, JsonLines
from levada.lifecycle import State
from levada.sse import (
    Comment,
    Event,
    EventParser,
    Remainder,
    Stray,
    Utf8Decoder,
    aiter_events,
    encode_comment,
    encode_event,
    encode_json,
    iter_events,
)
from levada.transport import CumulativeText

if TYPE_CHECKING:
    from levada.deltas import (
        Anomalies,
        Anomaly,
        Choice,
        Citation,
        Delta,
        Finish,
        Opaque,
        Part,
        Reference,
        TextDelta,
        TextReplaced,
        ToolCall,
        ToolCallDelta,
        Usage,
        UsageUpdate,
    )
    from levada.detection import Detected, detect
    from levada.dialects import DIALECTS, PROFILES, Profile
    from levada.finished import FinishedTurn
    from levada.gate import Gate, HoldGate, OpenGate, Sentence, SentenceGate
    from levada.ledger import AsyncLedger as AsyncLedger
    from levada.ledger import Ledger as Ledger
    from levada.live import LiveLog
    from levada.outcome import Incomplete, Outcome, RunRecord
    from levada.paint import PaintClock, Painter, ThreadPainter
    from levada.retry import Retry
    from levada.review import AsyncReview, Review
    from levada.run import StopButton, run_turn, run_turn_sync
    from levada.timeouts import Timeouts
    from levada.turn import Turn

    __version__: str

__all__ = [
    "BACKEND",
    "BACKEND_REASON",
    "DIALECTS",
    "PROFILES",
    "Anomalies",
    "Anomaly",
    "AsyncReview",
    "Blocked",
    "Cancelled",
    "Choice",
    "Citation",
    "Comment",
    "CumulativeText",
    "Delta",
    "Detected",
    "Event",
    "EventParser",
    "EventTooLarge",
    "Finish",
    "FinishedTurn",
    "Gate",
    "HoldGate",
    "Incomplete",
    "JsonArray",
    "JsonLines",
    "KeyConflict",
    "LedgerError",
    "LedgerTooLarge",
    "LevadaError",
    "LiveLog",
    "MalformedPayload",
    "NotFinished",
    "Opaque",
    "OpenGate",
    "Outcome",
    "PaintClock",
    "Painter",
    "Part",
    "Profile",
    "ProtocolError",
    "ProviderError",
    "Reference",
    "Remainder",
    "Retry",
    "Review",
    "RunRecord",
    "SchemaMismatch",
    "Sentence",
    "SentenceGate",
    "State",
    "StopButton",
    "StoreError",
    "Stray",
    "StreamError",
    "TextDelta",
    "TextReplaced",
    "ThreadPainter",
    "Timeouts",
    "TooLarge",
    "ToolCall",
    "ToolCallDelta",
    "TransportError",
    "TransportRewound",
    "Truncated",
    "Turn",
    "TurnError",
    "TurnTimeout",
    "Usage",
    "UsageError",
    "UsageUpdate",
    "Utf8Decoder",
    "__version__",
    "aiter_events",
    "detect",
    "encode_comment",
    "encode_event",
    "encode_json",
    "iter_events",
    "run_turn",
    "run_turn_sync",
]

# What stands on msgspec, and on an extra: name -> module. What needs an extra is not in __all__, so that
# `from levada import *` works without it.
_AT_FIRST_USE = {
    **dict.fromkeys(("DIALECTS", "PROFILES", "Profile"), "levada.dialects"),
    **dict.fromkeys(
        (
            "Anomalies",
            "Anomaly",
            "Choice",
            "Citation",
            "Delta",
            "Finish",
            "Opaque",
            "Part",
            "Reference",
            "TextDelta",
            "TextReplaced",
            "ToolCall",
            "ToolCallDelta",
            "Usage",
            "UsageUpdate",
        ),
        "levada.deltas",
    ),
    # not in a module called detect: that would stand where the function does, once something imported it
    **dict.fromkeys(("Detected", "detect"), "levada.detection"),
    "FinishedTurn": "levada.finished",
    **dict.fromkeys(("Gate", "HoldGate", "OpenGate", "Sentence", "SentenceGate"), "levada.gate"),
    **dict.fromkeys(("AsyncLedger", "Ledger"), "levada.ledger"),
    "LiveLog": "levada.live",
    **dict.fromkeys(("Incomplete", "Outcome", "RunRecord"), "levada.outcome"),
    **dict.fromkeys(("PaintClock", "Painter", "ThreadPainter"), "levada.paint"),
    "Retry": "levada.retry",
    **dict.fromkeys(("AsyncReview", "Review"), "levada.review"),
    **dict.fromkeys(("StopButton", "run_turn", "run_turn_sync"), "levada.run"),
    "Timeouts": "levada.timeouts",
    "Turn": "levada.turn",
}


def __getattr__(name: str) -> Any:
    """Import a name at first use. The version stands in pyproject.toml alone, and reading it takes time."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("levada")
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_AT_FIRST_USE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_AT_FIRST_USE})
