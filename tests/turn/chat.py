"""Small Chat Completions streams, for tests of the turn."""

from __future__ import annotations

import json
from typing import Any

from levada import Turn

DONE = b"data: [DONE]\n\n"


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chunk(choice: int = 0, finish: str | None = None, **delta: Any) -> bytes:
    return event(
        {
            "id": "c1",
            "object": "chat.completion.chunk",
            "model": "m",
            "choices": [{"index": choice, "delta": delta, "finish_reason": finish}],
        }
    )


def text(content: str, choice: int = 0) -> bytes:
    return chunk(choice, content=content)


def stop(choice: int = 0, finish: str = "stop") -> bytes:
    return chunk(choice, finish)


def fed(*pieces: bytes, clean: bool | None = True, **options: Any) -> Turn:
    """A turn that took these bytes, and then the end (unless `clean` is None)."""
    turn = Turn("openai_chat", **options)
    for piece in pieces:
        turn.feed(piece)
    if clean is not None:
        turn.eof(clean=clean)
    return turn
