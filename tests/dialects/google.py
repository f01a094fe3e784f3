"""Small Google streams in both framings, and what all tests of these two dialects ask of a turn."""

from __future__ import annotations

import json
from typing import Any

from levada import Turn
from tests.turn.test_recordings import coalesced, summary

FRAMINGS = ("sse", "json-array")


def dumped(document: Any) -> bytes:
    return document if isinstance(document, bytes) else json.dumps(document, ensure_ascii=False).encode()


def sse(*documents: Any) -> bytes:
    return b"".join(b"data: " + dumped(document) + b"\r\n\r\n" for document in documents)


def array(*documents: Any, closed: bool = True) -> bytes:
    """Framed as Google does: pretty-printed, the commas on lines of their own."""
    items = [
        document if isinstance(document, bytes) else json.dumps(document, ensure_ascii=False, indent=2).encode()
        for document in documents
    ]
    return b"[" + b"\n,\r\n".join(items) + (b"\n]\n" if closed else b"")


def framed(framing: str, *documents: Any) -> bytes:
    return sse(*documents) if framing == "sse" else array(*documents)


def play(dialect: str, *chunks: bytes, clean: bool | None = True, **options: Any) -> tuple[Turn, list[Any]]:
    """Return a turn that took these bytes, and then the end (unless `clean` is None), and its deltas."""
    turn = Turn(dialect, **options)
    deltas = [delta for chunk in chunks for delta in turn.feed(chunk)]
    if clean is not None:
        deltas += turn.eof(clean=clean)
    return turn, deltas


def fed(dialect: str, *documents: Any, framing: str = "sse", clean: bool | None = True, **options: Any) -> Turn:
    turn, _ = play(dialect, framed(framing, *documents), clean=clean, framing=framing, **options)
    return turn


def deltas_of(dialect: str, *documents: Any, framing: str = "sse", **options: Any) -> list[Any]:
    return play(dialect, framed(framing, *documents), framing=framing, **options)[1]


def opaque(turn: Turn, name: str) -> list[Any]:
    return [part.data for part in turn.parts if part.type == "opaque" and part.name == name]


def assert_cuts_change_nothing(dialect: str, stream: bytes, framing: str | None = None) -> None:
    """Cut in two at every byte, and byte by byte."""
    whole, deltas = play(dialect, stream, framing=framing)
    for chunks in (
        *([stream[:place], stream[place:]] for place in range(1, len(stream))),
        [stream[place : place + 1] for place in range(len(stream))],
    ):
        turn, again = play(dialect, *chunks, framing=framing)
        assert summary(turn) == summary(whole)
        assert coalesced(again) == coalesced(deltas)


def assert_never_whole_when_cut_off(dialect: str, stream: bytes, framing: str, terminal: bytes) -> None:
    """Cut off before the end of `terminal`'s document: never finished, and the text is a beginning of the whole one."""
    whole, _ = play(dialect, stream, framing=framing)
    needed = stream.rindex(terminal) + len(terminal)
    for place in range(needed):
        turn, _ = play(dialect, stream[:place], framing=framing)
        assert turn.state == "error", place
        assert whole.answer.startswith(turn.answer)
        assert whole.reasoning.startswith(turn.reasoning)
    for place in range(len(stream)):
        assert play(dialect, stream[:place], clean=False, framing=framing)[0].state == "error", place
