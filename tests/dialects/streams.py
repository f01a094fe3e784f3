"""Small streams of named events, for tests of the dialects that have them; and damage to them."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import strategies as st

from levada import Delta, Turn
from levada.deltas import TextDelta, TextReplaced, ToolCallDelta

PIECES = ["a", "água", "水", "😀", '"', "\\", "\n", "\u2028", "\x00", '","x":"', " ", "{}", "[DONE]", "é" * 30]


def event(document: dict[str, Any], name: str | None = "", spaced: bool = False) -> bytes:
    """An event named like its type; `name=None` leaves the name out."""
    label = document.get("type") if name == "" else name
    separators = None if spaced else (",", ":")
    body = b"data: " + json.dumps(document, ensure_ascii=False, separators=separators).encode() + b"\n\n"
    return body if label is None else f"event: {label}\n".encode() + body


def fed(dialect: str, *pieces: bytes, clean: bool | None = True, **options: Any) -> Turn:
    """A turn that took these bytes, and then the end (unless `clean` is None)."""
    turn = Turn(dialect, **options)
    for piece in pieces:
        turn.feed(piece)
    if clean is not None:
        turn.eof(clean=clean)
    return turn


def deltas(dialect: str, *pieces: bytes) -> list[Delta]:
    turn = Turn(dialect)
    return [delta for piece in pieces for delta in turn.feed(piece)] + turn.eof(clean=True)


def assert_deltas_are_the_turn(turn: Turn, given: list[Delta]) -> None:
    """The joined deltas of each channel and call equal what the turn says at its end."""
    channels: dict[str, str] = {}
    arguments: dict[int, str] = {}
    for delta in given:
        if isinstance(delta, TextDelta):
            channels[delta.channel] = channels.get(delta.channel, "") + delta.text
        elif isinstance(delta, TextReplaced):
            channels[delta.channel] = delta.text
        elif isinstance(delta, ToolCallDelta):
            arguments[delta.index] = arguments.get(delta.index, "") + delta.arguments
    assert channels.get("answer", "") == turn.answer
    assert channels.get("reasoning", "") == turn.reasoning
    assert channels.get("refusal", "") == turn.refusal
    assert [arguments.get(index, "") for index in range(len(turn.tool_calls))] == [
        call.arguments for call in turn.tool_calls
    ]


texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6)
_values: list[Any] = [1, "x", None, [], {"k": "😀"}]
json_objects = st.dictionaries(st.sampled_from(["a", "é", "水"]), st.sampled_from(_values))


@st.composite
def cuts(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    places = sorted(draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


@st.composite
def sprinkled(draw: st.DrawFn, documents: list[dict[str, Any]], extra: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The documents with keep-alives and unknown events between them, and unknown keys and nulls inside."""
    after: list[dict[str, Any]] = []
    for document in documents:
        while draw(st.booleans()):
            after.append(draw(st.sampled_from(extra)))
        odd = dict(document)
        for key in draw(st.sets(st.sampled_from(["error", "x_unknown", "obfuscation", "service_tier"]))):
            odd.setdefault(key, None if key == "error" else draw(st.sampled_from([None, "zz", 7, [], {"a": None}])))
        after.append(odd)
    return after


def damaged(data: bytes, rnd: random.Random, times: int) -> bytes:
    """The bytes with some of them changed, doubled or lost."""
    after = bytearray(data)
    for _ in range(times):
        place = rnd.randrange(len(after))
        match rnd.randrange(4):
            case 0:
                after[place] = rnd.randrange(256)
            case 1:
                after[place] = rnd.choice(b'"\\{}[],:\n\r\x00\xff 01a')
            case 2:
                del after[place : place + rnd.randint(1, 30)]
            case _:
                after[place:place] = after[place : place + rnd.randint(1, 60)]
        if not after:
            break
    return bytes(after)
