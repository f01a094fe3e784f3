"""The laws of the wire, on streams that hypothesis draws: any cut gives the same events, and the right ones."""

from __future__ import annotations

import codecs
import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada import EventTooLarge, JsonLines, encode_event, encode_json
from levada.errors import StreamError
from tests.oracle import Item, Reading, read
from tests.wire import bytewise, cut, cut_at, events, json_streams, plain, small_limits, sse_streams

# Text that can stand in a field: no line ends, no NUL, no surrogates.
line_text = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=12)
data_text = st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=30)
retries = st.none() | st.integers(0, 10**20)
json_objects = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text('{}[]"\\,é\n', max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('{}"\\', max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
spaces = st.text(" \t\r\n", max_size=3)


class TestEventParser:
    @given(cut(sse_streams), st.sampled_from(["", "7", "é"]))
    def test_any_cut_gives_the_events_of_the_whole(
        self, hotpath: ModuleType, chunks: list[bytes], last_event_id: str
    ) -> None:
        reading = read(b"".join(chunks), last_event_id=last_event_id)
        parser = hotpath.EventParser(last_event_id=last_event_id)
        assert [plain(event) for chunk in chunks for event in parser.feed(chunk)] == reading.events
        agree(parser, reading)
        assert parser.close() == reading.remainder

    @given(cut(sse_streams))
    def test_any_cut_gives_the_comments_and_strays_of_the_whole(self, hotpath: ModuleType, chunks: list[bytes]) -> None:
        reading = read(b"".join(chunks))
        parser = hotpath.EventParser()
        assert [plain(item) for chunk in chunks for item in parser.feed_all(chunk)] == reading.items
        agree(parser, reading)
        assert parser.close() == reading.remainder

    @given(cut(sse_streams))
    def test_after_each_chunk_all_that_is_complete_was_given(self, hotpath: ModuleType, chunks: list[bytes]) -> None:
        parser = hotpath.EventParser()
        so_far = b""
        got: list[Item] = []
        for chunk in chunks:
            so_far += chunk
            got += map(plain, parser.feed_all(chunk))
            prefix = read(so_far)
            assert got == prefix.items
            agree(parser, prefix)

    @given(cut(sse_streams), small_limits, st.booleans())
    def test_any_cut_gives_the_same_excess(
        self, hotpath: ModuleType, chunks: list[bytes], limit: int, everything: bool
    ) -> None:
        parser = hotpath.EventParser(max_event_bytes=limit)
        feed = parser.feed_all if everything else parser.feed
        got: list[Item] = []
        so_far = b""
        for chunk in chunks:
            so_far += chunk
            prefix = read(so_far, max_event_bytes=limit, everything=everything)
            expected = prefix.items if everything else prefix.events
            if prefix.too_large is not None:
                with pytest.raises(EventTooLarge) as caught:
                    feed(chunk)
                assert caught.value == EventTooLarge(limit, limit + 1, prefix.too_large)
                assert got + [plain(item) for item in caught.value.completed] == expected
                agree(parser, prefix)
                return
            got += map(plain, feed(chunk))
            assert got == expected

    @given(cut(st.text(max_size=20).map(lambda text: text.encode()) | sse_streams))
    def test_text_is_read_as_its_bytes(self, hotpath: ModuleType, chunks: list[bytes]) -> None:
        texts = [chunk.decode("utf-8", "replace") for chunk in chunks]
        parser = hotpath.EventParser()
        got = [plain(event) for text in texts for event in parser.feed_text(text)]
        assert got == read("".join(texts).encode()).events


def agree(parser: Any, reading: Reading) -> None:
    assert parser.last_event_id == reading.last_event_id
    assert parser.retry == reading.retry
    assert parser.ignored_lines == reading.ignored_lines


class TestUtf8Decoder:
    @given(cut(sse_streams | st.binary(max_size=30)))
    def test_it_gives_what_the_stdlib_gives_chunk_by_chunk(self, hotpath: ModuleType, chunks: list[bytes]) -> None:
        ours, theirs = hotpath.Utf8Decoder(), codecs.getincrementaldecoder("utf-8")("replace")
        for chunk in chunks:
            assert ours.decode(chunk) == theirs.decode(chunk)
            assert ours.pending == theirs.getstate()[0]
        assert ours.decode(b"", final=True) == theirs.decode(b"", final=True)
        assert ours.pending == b""

    @given(cut(sse_streams | st.binary(max_size=30)))
    def test_any_cut_gives_the_text_of_the_whole(self, hotpath: ModuleType, chunks: list[bytes]) -> None:
        decoder = hotpath.Utf8Decoder()
        text = "".join(map(decoder.decode, chunks)) + decoder.decode(b"", final=True)
        assert text == b"".join(chunks).decode("utf-8", "replace")

    @given(st.text(max_size=10), st.integers(0, 12))
    def test_a_character_comes_with_its_last_byte(self, hotpath: ModuleType, text: str, place: int) -> None:
        stream = text.encode()
        decoder = hotpath.Utf8Decoder("strict")
        head = stream[:place]
        assert decoder.decode(head) == head.decode("utf-8", "ignore")
        assert decoder.decode(stream[place:]) == text[len(head.decode("utf-8", "ignore")) :]

    @given(cut(st.text(max_size=12).map(lambda text: text.encode()) | st.binary(max_size=12)))
    def test_strict_raises_what_the_stdlib_raises(self, hotpath: ModuleType, chunks: list[bytes]) -> None:
        ours, theirs = hotpath.Utf8Decoder("strict"), codecs.getincrementaldecoder("utf-8")("strict")
        for chunk, final in [*((chunk, False) for chunk in chunks), (b"", True)]:
            expected = text_or_error(theirs, chunk, final)
            assert text_or_error(ours, chunk, final) == expected
            if not isinstance(expected, str):
                return


def text_or_error(decoder: Any, chunk: bytes, final: bool) -> str | tuple[Any, ...]:
    try:
        return str(decoder.decode(chunk, final))
    except UnicodeDecodeError as error:
        return error.args


class TestEncoders:
    @given(data_text, st.none() | line_text.filter(bool), st.none() | line_text, retries, st.integers(0, 100))
    def test_parse_after_encode_is_the_identity(
        self, hotpath: ModuleType, data: str, event: str | None, id: str | None, retry: int | None, place: int
    ) -> None:
        wire = encode_event(data, event=event, id=id, retry=retry)
        expected = [(event or "message", data, id or "", retry)]
        assert events(hotpath, *cut_at(wire, min(place, len(wire)))) == expected
        assert events(hotpath, b"\xef\xbb\xbf" + wire) == expected

    @given(cut(sse_streams))
    def test_every_event_that_was_parsed_can_be_written(self, hotpath: ModuleType, chunks: list[bytes]) -> None:
        for event in events(hotpath, *chunks):
            wire = encode_event(event.data, event=event.event, id=event.id or None, retry=event.retry)
            assert events(hotpath, wire) == [event]

    @given(json_objects, st.booleans())
    def test_json_comes_back_equal(self, hotpath: ModuleType, obj: dict[str, Any], escape: bool) -> None:
        [event] = hotpath.EventParser().feed(encode_json(obj, escape_line_separators=escape))
        assert event.json() == obj


class TestFrames:
    @given(st.data(), st.lists(json_objects, max_size=4), spaces)
    def test_an_array_gives_each_object_with_its_closing_brace(
        self, hotpath: ModuleType, data: st.DataObject, objects: list[dict[str, Any]], space: str
    ) -> None:
        texts = [
            json.dumps(
                obj, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1]))
            ).encode()
            for obj in objects
        ]
        glue = space.encode()
        stream = glue + b"[" + glue + (glue + b"," + glue).join(texts) + glue + b"]" + glue
        reader = hotpath.JsonArray()
        got: list[bytes] = []
        seen = 0
        for chunk in data.draw(cut(st.just(stream))):
            got += reader.feed(chunk)
            seen += len(chunk)
            ends = [stream.index(b"[") + 1 + len(glue)]
            for text in texts:
                ends.append(ends[-1] + len(text) + (2 * len(glue) + 1 if len(ends) > 1 else 0))
            assert len(got) == sum(end <= seen for end in ends[1:])
        assert got == texts
        assert reader.closed
        assert not reader.close()

    @given(cut(json_streams), st.none() | small_limits)
    def test_any_cut_of_any_bytes_ends_the_same(
        self, hotpath: ModuleType, chunks: list[bytes], limit: int | None
    ) -> None:
        options = {} if limit is None else {"max_item_bytes": limit}
        byte_by_byte = outcome(hotpath.JsonArray(**options), bytewise(b"".join(chunks)))
        assert outcome(hotpath.JsonArray(**options), chunks) == byte_by_byte

    @given(cut(json_streams | st.lists(st.binary(max_size=4), max_size=9).map(b"\n".join)))
    def test_lines_are_those_of_a_split_at_lf(self, chunks: list[bytes]) -> None:
        lines = b"".join(chunks).split(b"\n")
        reader = JsonLines()
        got = [line for chunk in chunks for line in reader.feed(chunk)]
        assert got == [line for line in lines[:-1] if line.strip()]
        assert reader.close() == [line for line in lines[-1:] if line.strip()]

    @given(cut(st.lists(st.binary(max_size=6), max_size=9).map(b"\n".join)), st.integers(1, 5))
    def test_any_cut_of_lines_gives_the_same_excess(self, chunks: list[bytes], limit: int) -> None:
        byte_by_byte = outcome(JsonLines(max_item_bytes=limit), bytewise(b"".join(chunks)))
        assert outcome(JsonLines(max_item_bytes=limit), chunks) == byte_by_byte


def outcome(reader: Any, chunks: list[bytes]) -> tuple[list[bytes], object]:
    """Feed and close; return all items, and how it ended."""
    got: list[bytes] = []
    try:
        for chunk in chunks:
            got += reader.feed(chunk)
        return got, reader.close()
    except StreamError as error:
        return got + list(error.completed), error
