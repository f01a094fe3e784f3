"""levada: bytes in, one verified answer out. Public names, by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada._backend import BACKEND, BACKEND_REASON
from levada.errors import (
    EventTooLarge,
    LevadaError,
    MalformedPayload,
    StreamError,
    TransportRewound,
    UsageError,
)
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
from levada.transport import CumulativeText

if TYPE_CHECKING:
    __version__: str

__all__ = [
    "BACKEND",
    "BACKEND_REASON",
    "Comment",
    "CumulativeText",
    "Event",
    "EventParser",
    "EventTooLarge",
    "JsonArray",
    "JsonLines",
    "LevadaError",
    "MalformedPayload",
    "Remainder",
    "Stray",
    "StreamError",
    "TransportRewound",
    "UsageError",
    "Utf8Decoder",
    "__version__",
    "aiter_events",
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
