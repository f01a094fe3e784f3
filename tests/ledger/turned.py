"""Finished turns, made as all are, of a stream; and a clock that is turned."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from levada import Turn
from levada.finished import FinishedTurn
from tests.turn.chat import DONE, chunk, event, fed, stop, text

__all__ = ["DONE", "Clock", "call", "chunk", "event", "fed", "finished", "spoken", "stop", "text"]


class Clock:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def finished(answer: str = "water", finish: str = "stop", **options: Any) -> FinishedTurn:
    """A turn that its provider finished. JSON escapes: any text can come through a wire."""
    return fed(spoken(answer, finish, **options), DONE).result()


def spoken(answer: str, finish: str | None = None, **document: Any) -> bytes:
    """An event with text of any kind, lone surrogates included."""
    choices = [{"index": 0, "delta": {"content": answer}, "finish_reason": finish}]
    return b"data: " + json.dumps({"id": "c1", "model": "m", "choices": choices, **document}).encode() + b"\n\n"


def call(arguments: str = "{}", finish: str = "tool_calls") -> Turn:
    """A turn with one tool call."""
    function = {"name": "weather", "arguments": arguments}
    calls = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
    return fed(chunk(tool_calls=calls), stop(finish=finish), DONE)
