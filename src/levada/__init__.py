"""levada: bytes in, one verified answer out. Public names, by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada._backend import BACKEND, BACKEND_REASON
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
from levada.detect import Detected, detect
from levada.dialects import DIALECTS, PROFILES, Profile
from levada.errors import (
    Blocked,
    Cancelled,
    EventTooLarge,
    LevadaError,
    MalformedPayload,
    NotFinished,
    ProtocolError,
    ProviderError,
    StreamError,
    TooLarge,
    TransportError,
    TransportRewound,
    Truncated,
    TurnError,
    TurnTimeout,
    UsageError,
)
from levada.finished import FinishedTurn
from levada.frames import JsonArray, JsonLines
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
from levada.lifecycle import State
from levada.transport import CumulativeText
from levada.turn import Turn

if TYPE_CHECKING:
    __version__: str

__all__ = [
    "BACKEND",
    "BACKEND_REASON",
    "DIALECTS",
    "PROFILES",
    "Anomalies",
    "Anomaly",
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
    "JsonArray",
    "JsonLines",
    "LevadaError",
    "MalformedPayload",
    "NotFinished",
    "Opaque",
    "Part",
    "Profile",
    "ProtocolError",
    "ProviderError",
    "Reference",
    "Remainder",
    "State",
    "Stray",
    "StreamError",
    "TextDelta",
    "TextReplaced",
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
]


def __getattr__(name: str) -> str:
    """Give the version, which stands in pyproject.toml alone; most programs need not spend the time of reading it."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415

    return version("levada")
