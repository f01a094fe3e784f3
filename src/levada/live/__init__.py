"""Live turns: what a producer writes, readers follow, from any process, from the exact entry they had.

`LiveLog.open` has three stores: memory, SQLite, Redis or Valkey (the extra `redis`). See docs/live-turns.md.
"""

from __future__ import annotations

from levada.live.errors import (
    EntryGone,
    Fenced,
    LiveLimit,
    LiveLogError,
    LiveLogUnavailable,
    TurnClosed,
    TurnExists,
    UnknownEntry,
    UnknownTurn,
)
from levada.live.log import LiveLog
from levada.live.values import Entry, Known, Signals
from levada.live.writer import Writer

__all__ = [
    "Entry",
    "EntryGone",
    "Fenced",
    "Known",
    "LiveLimit",
    "LiveLog",
    "LiveLogError",
    "LiveLogUnavailable",
    "Signals",
    "TurnClosed",
    "TurnExists",
    "UnknownEntry",
    "UnknownTurn",
    "Writer",
]
