"""Finds stencils: most events of a stream differ from the one before in their text alone.

A stencil is proven, not guessed. It is made from an event whose whole effect on the turn was one text delta, read by
the dialect's own decoder; then the document is read again with other values in the holes, and must come out the same
but for the text. As long as no event with another effect comes between, the dialect would do with a matching event what
it did with the first: append the text. The turn drops its stencils at any other effect, so what the fast way gives is
what the slow way would give. `tests/test_stencils.py` compares the two on every recording and under random damage.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from levada._backend import hotpath
from levada._hotpath_py import MOST_HOLES
from levada.deltas import TextDelta

if TYPE_CHECKING:
    from levada._hotpath_py import Stencil
else:
    Stencil = hotpath.Stencil

_SENTINEL: Final = "levada \u2603 stencil"
_MOST_DOCUMENT_BYTES: Final = 16 * 1024  # what is larger repeats more than its text, and would be held for each stencil
_BLANKS: Final = (b" ", b"\n", b"\r", b"\t")


def find_stencil(
    event: str,
    data: bytes,
    delta: TextDelta,
    decoder: msgspec.json.Decoder[Any],
    text_keys: tuple[bytes, ...],
    noise_keys: tuple[bytes, ...],
) -> Stencil | None:
    """Return a proven stencil for events like this one, or None.

    `data` had `delta` as its whole effect. `decoder` reads all that the dialect looks at. `text_keys` and `noise_keys`
    are JSON keys with quotes and colon: where the text may stand, and strings and numbers that mean nothing. Blanks may
    follow the colon: Google's JSON is pretty-printed.
    """
    if len(data) > _MOST_DOCUMENT_BYTES:
        return None
    for key in text_keys:
        begin = data.find(key)
        while begin >= 0:
            begin = _after_blanks(data, begin + len(key))
            if data[begin : begin + 1] == b'"':
                begin += 1
                end = _end_of_string(data, begin)
                if end >= 0 and _value(data[begin:end]) == delta.text:
                    holes = sorted([(begin, end, "t"), *_noise(data, noise_keys), *_padding(data)][:MOST_HOLES])
                    stencil = _prove(event, data, delta, decoder, holes)
                    if stencil is not None:
                        return stencil
            begin = data.find(key, begin)
    return None


def _noise(data: bytes, keys: tuple[bytes, ...]) -> list[tuple[int, int, str]]:
    holes: list[tuple[int, int, str]] = []
    for key in keys:
        begin = data.find(key)
        if begin < 0 or len(holes) == MOST_HOLES - 1:
            continue
        begin = _after_blanks(data, begin + len(key))
        if data[begin : begin + 1] == b'"':
            end = _end_of_string(data, begin + 1)
            if end >= 0 and b"\\" not in data[begin + 1 : end]:
                holes.append((begin + 1, end, "s"))
        else:
            end = begin
            while data[end : end + 1].isdigit():
                end += 1
            if end > begin:
                holes.append((begin, end, "n"))
    return holes


def _padding(data: bytes) -> list[tuple[int, int, str]]:
    """Return the hole of the blanks before the last brace: Anthropic pads each event by another number of them."""
    begin = len(data[:-1].rstrip(b" "))
    return [(begin, len(data) - 1, "w")] if data.endswith(b" }") else []


def _prove(
    event: str,
    data: bytes,
    delta: TextDelta,
    decoder: msgspec.json.Decoder[Any],
    holes: list[tuple[int, int, str]],
) -> Stencil | None:
    literals = []
    other = b""
    place = 0
    for begin, end, hole in holes:
        if begin < place:
            return None  # a key inside another hole
        literals.append(data[place:begin])
        other += data[place:begin] + {"t": _SENTINEL.encode(), "s": b"~", "n": b"9", "w": b"  "}[hole]
        place = end
    literals.append(data[place:])
    other += data[place:]
    try:
        this, that = msgspec.to_builtins(decoder.decode(data)), msgspec.to_builtins(decoder.decode(other))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    counted = [0]
    if _with_text(that, delta.text, counted) != this or counted != [1]:
        return None
    return Stencil(
        event,
        tuple(literals),
        "".join(hole for _, _, hole in holes),
        TextDelta,
        delta.channel,
        delta.choice,
        delta.block,
        delta.kind,
        delta._log,
    )


def _with_text(value: Any, text: str, counted: list[int]) -> Any:
    if isinstance(value, dict):
        return {key: _with_text(item, text, counted) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_text(item, text, counted) for item in value]
    if value == _SENTINEL:
        counted[0] += 1
        return text
    return value


def _after_blanks(data: bytes, begin: int) -> int:
    """Return where JSON's blanks that begin at `begin` end."""
    while data[begin : begin + 1] in _BLANKS:
        begin += 1
    return begin


def _end_of_string(data: bytes, begin: int) -> int:
    """Return where the JSON string whose inside begins at `begin` ends, or -1."""
    while True:
        quote = data.find(b'"', begin)
        if quote < 0:
            return -1
        backslash = data.find(b"\\", begin, quote)
        if backslash < 0:
            return quote
        begin = backslash + 2


def _value(inside: bytes) -> str | None:
    try:
        value = json.loads(b'"' + inside + b'"')
    except ValueError:
        return None
    return value if isinstance(value, str) else None
