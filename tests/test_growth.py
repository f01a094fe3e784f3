"""Linear time and bounded memory, for every shape of stream that once cost somebody more.

Time: eight times the stream may take at most 24 times as long, because caches and malloc make even a plain join grow
unevenly; what is quadratic takes 64 times. CPU time, the best of several, so that a busy machine is no failure.
Memory: what tracemalloc sees, which includes the buffers of the compiled twin (`test_the_measure_itself`).
"""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from time import process_time
from types import ModuleType
from typing import Any

import pytest

from levada import EventTooLarge, JsonLines

KIB, MIB = 2**10, 2**20
TEXT = "Água, 水, 🐙. ".encode() * KIB


def pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def filler(size: int) -> bytes:
    return (TEXT * (size // len(TEXT) + 1))[:size]


# Each makes the chunks of a stream of about n bytes, lines or events.
EVENT_STREAMS: dict[str, tuple[int, Callable[[int], list[bytes]]]] = {
    "one event in 1 KiB chunks": (256 * KIB, lambda n: pieces(b"data: " + filler(n) + b"\n\n", KIB)),
    "one event in one-byte chunks": (8_000, lambda n: pieces(b"data: " + filler(n) + b"\n\n", 1)),
    "one event of many lines": (30_000, lambda n: pieces(b"data: a\n" * n + b"\n", KIB)),
    "one event of many lines, one a chunk": (5_000, lambda n: [b"data: a\n"] * n + [b"\n"]),
    "one event of empty lines": (12_000, lambda n: [b"data\n" * n + b"\n"]),
    "empty lines LF": (30_000, lambda n: pieces(b"\n" * n, 16 * KIB)),
    "empty lines CR": (30_000, lambda n: pieces(b"\r" * n, 16 * KIB)),
    "empty lines CRLF": (30_000, lambda n: pieces(b"\r\n" * n, 16 * KIB + 1)),
    "empty lines, a chunk each": (30_000, lambda n: [b"\n"] * n),
    "CR once in a long line": (128 * KIB, lambda n: pieces(b"data: a\r" + b"data: " + filler(n) + b"\n\n", 16 * KIB)),
    "comments": (12_000, lambda n: pieces(b": keep-alive\n" * n, 16 * KIB)),
    "comments, half a one a chunk": (5_000, lambda n: pieces(b": keep-alive\n\n" * n, 7)),
    "one comment in small chunks": (60_000, lambda n: pieces(b":" + filler(n), 16)),
    "strays": (30_000, lambda n: pieces(b"nope: nope\n" * n, 16 * KIB)),
    "one id in one-byte chunks": (30_000, lambda n: pieces(b"id: " + b"7" * n + b"\ndata\n\n", 1)),
    "many ids in a block": (5_000, lambda n: pieces(b"id: 7\nevent: a\nretry: 1\n" * n + b"\n", KIB)),
    "one retry in one-byte chunks": (1_000, lambda n: pieces(b"retry: " + b"7" * n + b"\n", 1)),
    "events in one chunk": (5_000, lambda n: [b"data: a\n\n" * n]),
    "events, one a chunk": (5_000, lambda n: [b"data: a\n\n"] * n),
    "malformed UTF-8": (128 * KIB, lambda n: pieces(b"data: " + b"\xff\xf0\x9f" * (n // 3) + b"\n\n", KIB)),
    "empty chunks": (12_000, lambda n: [b"data: a", *[b""] * n, b"\n\n"]),
}
JSON_STREAMS: dict[str, tuple[int, Callable[[int], list[bytes]]]] = {
    "one item in 1 KiB chunks": (256 * KIB, lambda n: pieces(b'{"a":"' + filler(n) + b'"}\n', KIB)),
    "one item in one-byte chunks": (30_000, lambda n: pieces(b'{"a":"' + filler(n) + b'"}\n', 1)),
    "one item of backslashes": (30_000, lambda n: pieces(b'{"a":"' + b"\\\\" * n + b'"}\n', KIB)),
    "one item of nested objects": (12_000, lambda n: pieces(b'{"a":' * n + b"1" + b"}" * n + b"\n", KIB)),
    "white space": (60_000, lambda n: pieces(b" \n" * n, KIB)),
}
JSON_ITEMS = {
    "items in one chunk": (5_000, lambda n: [b",".join([b'{"a":1}'] * n)]),
    "items, one a chunk": (5_000, lambda n: [b'{"a":1},'] * n + [b"{}"]),
}


def linear(run: Callable[[list[bytes]], object], small: list[bytes], large: list[bytes]) -> None:
    """Assert that `large`, eight times `small`, takes at most 24 times as long."""
    ratio = 0.0
    for _ in range(4):  # a machine may stumble once; what is quadratic is so each time
        ratio = seconds(run, large) / min(seconds(run, small) for _ in range(3))
        if ratio < 24:
            return
    pytest.fail(f"eight times the stream took {ratio:.1f} times as long")


def seconds(run: Callable[[list[bytes]], object], chunks: list[bytes]) -> float:
    gc.collect()
    gc.disable()  # many events are many objects, and the collector's own growth is not ours
    try:
        begin = process_time()
        run(chunks)
        return max(process_time() - begin, 1e-4)
    finally:
        gc.enable()


class TestTime:
    @pytest.mark.parametrize("shape", EVENT_STREAMS)
    @pytest.mark.parametrize("method", ["feed", "feed_all"])
    def test_event_streams(self, hotpath: ModuleType, shape: str, method: str) -> None:
        def run(chunks: list[bytes]) -> None:
            parser = hotpath.EventParser()
            feed = getattr(parser, method)
            for chunk in chunks:
                feed(chunk)
            parser.close()

        size, make = EVENT_STREAMS[shape]
        linear(run, make(size), make(8 * size))

    @pytest.mark.parametrize("shape", JSON_STREAMS | JSON_ITEMS)
    def test_json_arrays(self, hotpath: ModuleType, shape: str) -> None:
        size, make = (JSON_STREAMS | JSON_ITEMS)[shape]
        linear(lambda chunks: run_json(hotpath.JsonArray(), chunks, b"["), make(size), make(8 * size))

    @pytest.mark.parametrize("shape", JSON_STREAMS)
    def test_json_lines(self, shape: str) -> None:
        size, make = JSON_STREAMS[shape]
        linear(lambda chunks: run_json(JsonLines(), chunks, b""), make(size), make(8 * size))

    def test_utf8(self, hotpath: ModuleType) -> None:
        def run(chunks: list[bytes]) -> None:
            decoder = hotpath.Utf8Decoder()
            for chunk in chunks:
                decoder.decode(chunk)

        linear(run, pieces(filler(30_000), 5), pieces(filler(240_000), 5))


def run_json(reader: Any, chunks: list[bytes], begin: bytes) -> None:
    reader.feed(begin)
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()


def peak_of(feed: Callable[[bytes], object], chunks: Iterable[bytes]) -> int:
    """Return the most memory that was held at once, in bytes, beyond what was held before."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for chunk in chunks:
            feed(chunk)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def endless(begin: bytes, size: int, chunk: int = 16 * KIB) -> Iterator[bytes]:
    """Yield `begin`, then chunks, each a new object, until `size` bytes have come; nothing here holds them."""
    yield begin
    for _ in range(size // chunk):
        yield b"7" * chunk


class TestMemory:
    def test_the_measure_itself(self, hotpath: ModuleType) -> None:
        """What is held is seen by tracemalloc on both twins; otherwise the tests below would prove nothing."""
        assert peak_of(hotpath.EventParser().feed, endless(b"data: ", MIB, KIB)) > MIB
        assert peak_of(hotpath.JsonArray().feed, endless(b'{"', MIB, KIB)) > MIB
        assert peak_of(JsonLines().feed, endless(b"", MIB, KIB)) > MIB

    @pytest.mark.parametrize(
        "begin",
        [b":", b": ", b"nope", b"nope: ", b"dat", b"datas: ", b"id: \0", b"retry: x", b"retry: ", b"\xff"],
    )
    def test_what_is_ignored_is_never_held(self, hotpath: ModuleType, begin: bytes) -> None:
        parser = hotpath.EventParser()
        parser.feed(b"data: a\n")
        assert peak_of(parser.feed, endless(begin, 100 * MIB)) < 128 * KIB  # a few chunks of 16 KiB
        assert [event.data for event in parser.feed(b"\n\n")] == ["a"]

    @pytest.mark.parametrize(
        "line", [b": keep-alive\n", b"\n", b"nope\n", b"retry: x\n", b"id: 7\n\n", b"event: a\n\n"]
    )
    def test_many_lines_leave_nothing_behind(self, hotpath: ModuleType, line: bytes) -> None:
        # tracemalloc is slow; two bytes kept of each of these lines would be seen
        chunk = line * 100
        assert peak_of(hotpath.EventParser().feed, repeat(chunk, 200)) < 32 * KIB

    def test_one_event_costs_a_few_times_its_size(self, hotpath: ModuleType) -> None:
        # on the way from bytes to text: the open line, the line in one piece, its value, the text
        assert peak_of(hotpath.EventParser().feed, chain(endless(b"data: ", 8 * MIB, KIB), [b"\n\n"])) < 6 * 8 * MIB

    @pytest.mark.parametrize("size", [2, 5, 37])
    def test_the_limit_covers_small_chunks_too(self, hotpath: ModuleType, size: int) -> None:
        limit = 64 * KIB
        parser = hotpath.EventParser(max_event_bytes=limit)
        assert peak_of(parser.feed, endless(b"data: ", limit - 100, size)) < 3 * limit
        assert peak_of(hotpath.JsonArray(max_item_bytes=limit).feed, endless(b'{"', limit - 100, size)) < 3 * limit
        assert peak_of(JsonLines(max_item_bytes=limit).feed, endless(b"", limit - 100, size)) < 3 * limit

    def test_many_short_lines_of_a_block_are_held_compactly(self, hotpath: ModuleType) -> None:
        lines = 128 * KIB // 9
        assert peak_of(hotpath.EventParser().feed, repeat(b"data: 77\n", lines)) < 3 * 128 * KIB

    def test_a_large_event_is_forgotten(self, hotpath: ModuleType) -> None:
        parser, reader = hotpath.EventParser(), hotpath.JsonArray()
        assert kept_by(parser.feed, chain(endless(b"data: ", MIB), [b"\n\n"])) < 4 * KIB
        assert kept_by(reader.feed, chain(endless(b'[{"', MIB), [b'"}'])) < 4 * KIB
        assert kept_by(parser.feed, [b"data: a\n", b"\n"]) < 4 * KIB  # an idle parser between events

    def test_a_spent_parser_holds_nothing(self, hotpath: ModuleType) -> None:
        parser, reader = hotpath.EventParser(max_event_bytes=MIB), hotpath.JsonArray(max_item_bytes=MIB)

        def feed(chunk: bytes) -> None:
            for each in (parser, reader):
                with contextlib.suppress(EventTooLarge):
                    each.feed(chunk)

        assert kept_by(feed, chain([b'{"\ndata:'], endless(b"", 2 * MIB))) < 8 * KIB


def kept_by(feed: Callable[[bytes], object], chunks: Iterable[bytes]) -> int:
    """Return how much memory is held in the end, in bytes, beyond what was held before."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for chunk in chunks:
            feed(chunk)
        del chunk
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
