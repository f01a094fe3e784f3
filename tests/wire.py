"""Streams for the tests: what to build them of, how to cut them, and how to feed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from levada import Comment, Stray
from tests.oracle import BOM, Dispatched, Item

Chunk = bytes | bytearray | memoryview

# Arbitrary bytes hardly ever make a field, a CRLF or half a character; sequences of these do.
SSE_ATOMS = (
    b"data", b"data:", b"data: ", b"data: a\n", b"event", b"event:", b"event: ", b"id", b"id:", b"id: ", b"id: 7\n",
    b"retry", b"retry:", b"retry: ", b"retry: 10\n", b": ", b":", b"da", b"datas: ", b"error: ", b" ",
    b"data: a\n\n", b"event: b\ndata: a\n\n",
    b"\n", b"\n\n", b"\r", b"\r\r", b"\r\n", b"\r\n\r\n", b"\n\r", b"\0", b"0", b"42", b"x", b"message",
    BOM, BOM[:1], BOM[:2], BOM[1:], "é".encode(), "水".encode(), "🐙".encode(), "🐙".encode()[:3], b"\x9f", b"\xff",
    b"\xed\xa0\x80", b"\xc2\x85", "\u2028".encode(), "\ufffd".encode(),
)  # fmt: skip
JSON_ATOMS = (
    b"[", b"]", b"{", b"}", b",", b'"', b"\\", b'\\"', b"\\\\", b" ", b"\r\n", b"\t", b'{"a":1}', b'{"}":"{"}', b"{}",
    b'{"a":{"b":[{}]}}', b'"\\"}"', b"1", b"null", b"\xff", b"\0", "é".encode(), BOM, BOM[:1], BOM[:2],
)  # fmt: skip

sse_streams = st.lists(st.sampled_from(SSE_ATOMS) | st.binary(max_size=4), max_size=40).map(b"".join)
json_streams = st.lists(st.sampled_from(JSON_ATOMS), max_size=25).map(b"".join)
small_limits = st.integers(1, 40)


@st.composite
def cut(draw: st.DrawFn, streams: st.SearchStrategy[bytes]) -> list[bytes]:
    """Draw a stream and cut it anywhere; some chunks are empty."""
    stream = draw(streams)
    return cut_at(stream, *sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12))))


def cut_at(stream: bytes, *places: int) -> list[bytes]:
    return [stream[begin:end] for begin, end in pairwise([0, *places, len(stream)])]


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def cuts(stream: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the cuts that every stream has to bear, each with its name: whole, byte by byte, in two at every place.

    A stream of n bytes costs n² that way, so a long one is cut at every 13th place: no vector repeats with that period.
    """
    yield "whole", [stream]
    yield "byte by byte", bytewise(stream)
    for place in range(1, len(stream), 13 if len(stream) > 4_000 else 1):
        yield f"in two at byte {place}", cut_at(stream, place)


def plain(item: Any) -> Item:
    """Return an item as a value that does not depend on the backend."""
    if isinstance(item, (Comment, Stray)):
        return item
    return Dispatched(item.event, item.data, item.id, item.retry)


def events(hotpath: ModuleType, *chunks: Chunk, **options: Any) -> list[Dispatched]:
    """Feed the chunks to a fresh parser; return its events as values."""
    parser = hotpath.EventParser(**options)
    return [Dispatched(e.event, e.data, e.id, e.retry) for chunk in chunks for e in parser.feed(chunk)]


def data(hotpath: ModuleType, *chunks: Chunk) -> list[str]:
    """Feed the chunks to a fresh parser; return its events' data."""
    return [event.data for event in events(hotpath, *chunks)]


def items(parser: Any, chunks: Iterable[bytes]) -> list[Item]:
    """Feed the chunks to a parser's `feed_all`; return its items as values."""
    return [plain(item) for chunk in chunks for item in parser.feed_all(chunk)]
