"""Finished turns, made as all are: of a stream."""

from __future__ import annotations

import json
from typing import Any

from levada import Turn
from levada.finished import FinishedTurn
from tests.turn.chat import DONE, chunk, event, fed, stop, text

__all__ = ["DONE", "call", "chunk", "event", "fed", "finished", "spoken", "stop", "text"]


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
