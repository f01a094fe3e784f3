"""The framings that are not event streams: a streamed JSON array, and JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from levada import EventTooLarge, JsonLines, MalformedPayload, Remainder, UsageError
from levada.errors import StreamError
from tests.wire import Chunk, bytewise, cuts

BOM = b"\xef\xbb\xbf"


def objects(hotpath: ModuleType, *chunks: Chunk, **options: int) -> list[bytes]:
    """Feed the chunks to a fresh JsonArray; return its objects."""
    reader = hotpath.JsonArray(**options)
    return [item for chunk in chunks for item in reader.feed(chunk)]


class TestJsonArray:
    def test_it_gives_each_object_as_it_came(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(b'[{"a": 1},\r\n {"b":[2, {}]}\t,{}]\n'):
            assert objects(hotpath, *chunks) == [b'{"a": 1}', b'{"b":[2, {}]}', b"{}"], name

    def test_an_object_comes_with_its_closing_brace(self, hotpath: ModuleType) -> None:
        reader = hotpath.JsonArray()
        assert [len(reader.feed(byte)) for byte in bytewise(b'[{"a":{}},{}]')] == [0] * 8 + [1, 0, 0, 1, 0]

    @pytest.mark.parametrize(
        "text",
        [rb'{"a":"}"}', rb'{"a":"{[,"}', rb'{"\"}":"\\"}', rb'{"a":"\\\"}"}', rb'{"a":"\u007d"}', '{"é":"}"}'.encode()],
    )
    def test_what_is_inside_strings_is_no_structure(self, hotpath: ModuleType, text: bytes) -> None:
        for name, chunks in cuts(b"[" + text + b"," + text + b"]"):
            assert objects(hotpath, *chunks) == [text, text], name

    def test_an_empty_array_has_no_objects(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(b" [ ] "):
            reader = hotpath.JsonArray()
            assert [item for chunk in chunks for item in reader.feed(chunk)] == [], name
            assert reader.closed, name

    def test_one_bare_object_stands_for_an_array_of_one(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(b' {"error": {"code": 400}}\n'):
            reader = hotpath.JsonArray()
            assert [item for chunk in chunks for item in reader.feed(chunk)] == [b'{"error": {"code": 400}}'], name
            assert reader.closed, name

    def test_a_byte_order_mark_is_dropped_in_any_cut(self, hotpath: ModuleType) -> None:
        for stream in (BOM + b"[{}]", BOM + b" {}"):
            for name, chunks in cuts(stream):
                assert objects(hotpath, *chunks) == [b"{}"], name

    def test_bytes_and_their_kin_are_all_read(self, hotpath: ModuleType) -> None:
        assert objects(hotpath, bytearray(b"[{}"), memoryview(b",{}]")) == [b"{}", b"{}"]

    @pytest.mark.parametrize("chunk", ["[]", None, 1, [1]])
    def test_anything_else_is_a_type_error(self, hotpath: ModuleType, chunk: object) -> None:
        name = type(chunk).__name__
        with pytest.raises(TypeError, match=rf"^feed\(\) takes bytes, bytearray or memoryview, not {name}$"):
            hotpath.JsonArray().feed(chunk)


class TestJsonArrayMalformed:
    BEGIN = "expected '[' or '{' where the JSON begins"
    FIRST = "expected '{' or ']' in the JSON array"
    AFTER = "expected ',' or ']' after an object of the JSON array"
    NEXT = "expected '{' after ',' in the JSON array"
    MARK = "expected the rest of a byte order mark"
    END = "expected nothing but white space after the end of the JSON"

    @pytest.mark.parametrize(
        ("stream", "completed", "reason", "offset"),
        [
            (b"data: {}", 0, f"{BEGIN}, found byte 0x64", 0),
            (b" <html>", 0, f"{BEGIN}, found byte 0x3c", 1),
            (b'"a"', 0, f"{BEGIN}, found byte 0x22", 0),
            (b"]", 0, f"{BEGIN}, found byte 0x5d", 0),
            (b"\0", 0, f"{BEGIN}, found byte 0x00", 0),
            (BOM + BOM + b"[]", 0, f"{BEGIN}, found byte 0xef", 3),
            (b" " + BOM + b"[]", 0, f"{BEGIN}, found byte 0xef", 1),
            (BOM[:1] + b"[]", 0, f"{MARK}, found byte 0x5b", 1),
            (BOM[:2] + b" {}", 0, f"{MARK}, found byte 0x7b", 3),
            (BOM[:1] + b" " + BOM[2:] + b"{}", 0, f"{MARK}, found byte 0xbf", 2),
            (b"[1]", 0, f"{FIRST}, found byte 0x31", 1),
            (b"[[{}]]", 0, f"{FIRST}, found byte 0x5b", 1),
            (b"[ ,{}]", 0, f"{FIRST}, found byte 0x2c", 2),
            (b"[" + BOM + b"{}]", 0, f"{FIRST}, found byte 0xef", 1),
            (b"[{} {}]", 1, f"{AFTER}, found byte 0x7b", 4),
            (b"[{}x", 1, f"{AFTER}, found byte 0x78", 3),
            (b"[{},]", 1, f"{NEXT}, found byte 0x5d", 4),
            (b"[{},null]", 1, f"{NEXT}, found byte 0x6e", 4),
            (b"[{},,{}]", 1, f"{NEXT}, found byte 0x2c", 4),
            (b"[{}]\n]", 1, f"{END}, found byte 0x5d", 5),
            (b"[]{}", 0, f"{END}, found byte 0x7b", 2),
            (b"{}{}", 1, f"{END}, found byte 0x7b", 2),
            (b"{},{}", 1, f"{END}, found byte 0x2c", 2),
        ],
    )  # fmt: skip
    def test_what_is_no_array_of_objects_is_refused(
        self, hotpath: ModuleType, stream: bytes, completed: int, reason: str, offset: int
    ) -> None:
        for name, chunks in cuts(stream):
            reader = hotpath.JsonArray()
            got: list[bytes] = []
            with pytest.raises(MalformedPayload) as caught:
                got.extend(item for chunk in chunks for item in reader.feed(chunk))
            assert caught.value == MalformedPayload(reason, offset), name
            assert str(caught.value) == f"{reason} at byte {offset} of the stream"
            assert len(got) + len(caught.value.completed) == completed, name

    def test_it_is_spent_then(self, hotpath: ModuleType) -> None:
        reader = hotpath.JsonArray()
        with pytest.raises(MalformedPayload) as first:
            reader.feed(b'[{"a":1},oops')
        assert first.value.completed == (b'{"a":1}',)
        assert later_errors(partial(reader.feed, b""), partial(reader.feed, b"{}"), reader.close) == [first.value] * 3
        assert not reader.closed


class TestJsonArrayLimit:
    def test_it_is_inclusive_whatever_the_cut(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(b'[{}, {"a":"78"}]'):
            assert len(objects(hotpath, *chunks, max_item_bytes=10)) == 2, name
            reader = hotpath.JsonArray(max_item_bytes=9)
            got: list[bytes] = []
            with pytest.raises(EventTooLarge) as caught:
                got.extend(item for chunk in chunks for item in reader.feed(chunk))
            assert caught.value == EventTooLarge(9, 10, 5, "max_item_bytes"), name
            assert [*got, *caught.value.completed] == [b"{}"], name
            assert later_errors(partial(reader.feed, b""), reader.close) == [caught.value] * 2

    def test_the_message_names_the_option(self, hotpath: ModuleType) -> None:
        with pytest.raises(EventTooLarge) as caught:
            objects(hotpath, b'{"a":1}', max_item_bytes=3)
        assert str(caught.value) == (
            "item larger than 3 bytes (stopped at 4), begun at byte 0 of the stream; "
            "raise max_item_bytes if you trust this provider"
        )

    def test_white_space_between_objects_does_not_count(self, hotpath: ModuleType) -> None:
        assert len(objects(hotpath, b" " * 99 + b"[{}" + b" " * 99 + b",{}]", max_item_bytes=2)) == 2

    @pytest.mark.parametrize("value", [0, -1, 2**63, True, 1.5, "64", None])
    def test_it_must_be_a_positive_int(self, hotpath: ModuleType, value: Any) -> None:
        for framing in (hotpath.JsonArray, JsonLines):
            with pytest.raises(UsageError, match="max_item_bytes must be an int from 1 to 9223372036854775807, not "):
                framing(max_item_bytes=value)


class TestJsonArrayClose:
    @pytest.mark.parametrize(
        ("stream", "raw", "closed"),
        [
            (b"", b"", False),
            (b"[", b"", False),
            (b"[{},", b"", False),
            (b'[{},{"a":', b'{"a":', False),
            (b'{"a":"}', b'{"a":"}', False),
            (b"[{}]", b"", True),
            (b"{}", b"", True),
        ],
    )
    def test_it_returns_the_unfinished_object(
        self, hotpath: ModuleType, stream: bytes, raw: bytes, closed: bool
    ) -> None:
        for name, chunks in cuts(stream):
            reader = hotpath.JsonArray()
            for chunk in chunks:
                reader.feed(chunk)
            assert reader.closed is closed, name
            assert reader.close() == reader.close() == Remainder(raw, None, bool(raw)), name

    def test_feeding_after_it_is_a_usage_error(self, hotpath: ModuleType) -> None:
        reader = hotpath.JsonArray()
        reader.close()
        with pytest.raises(UsageError, match="the stream was closed; make a new JsonArray"):
            reader.feed(b"")


def lines(*chunks: Chunk, **options: int) -> list[bytes]:
    """Feed the chunks to a fresh JsonLines and close it; return its lines."""
    reader = JsonLines(**options)
    return [line for chunk in chunks for line in reader.feed(chunk)] + reader.close()


class TestJsonLines:
    def test_it_gives_each_line_as_it_came_without_its_lf(self) -> None:
        for name, chunks in cuts(b'{"a": 1}\n {"b":2} \n'):
            assert lines(*chunks) == [b'{"a": 1}', b' {"b":2} '], name

    def test_lines_end_at_lf_only(self) -> None:
        line = '{"a":"\x0b\x0c\x1c\x85\u2028\u2029"}\r'.encode()
        for name, chunks in cuts(line + b"\n" + line + b"\n"):
            assert lines(*chunks) == [line, line], name

    def test_blank_lines_are_dropped(self) -> None:
        for name, chunks in cuts(b"\n\r\n \t\n{}\n\n"):
            assert lines(*chunks) == [b"{}"], name

    def test_a_line_comes_with_its_lf(self) -> None:
        reader = JsonLines()
        assert [reader.feed(byte) for byte in bytewise(b"{}\n")] == [[], [], [b"{}"]]

    def test_a_last_line_without_lf_comes_at_close(self) -> None:
        reader = JsonLines()
        assert reader.feed(b'{}\n{"a"') == [b"{}"]
        assert reader.feed(b":1}") == []
        assert reader.close() == [b'{"a":1}']
        assert reader.close() == []

    def test_a_blank_last_line_does_not(self) -> None:
        assert lines(b"{}\n  ") == [b"{}"]

    def test_feeding_after_close_is_a_usage_error(self) -> None:
        reader = JsonLines()
        reader.close()
        with pytest.raises(UsageError, match="the stream was closed; make a new JsonLines"):
            reader.feed(b"")

    def test_bytes_and_their_kin_are_all_read(self) -> None:
        assert lines(bytearray(b"{}\n"), memoryview(b"[]\n")) == [b"{}", b"[]"]

    @pytest.mark.parametrize("chunk", ["{}", None, 1, [1]])
    def test_anything_else_is_a_type_error(self, chunk: object) -> None:
        name = type(chunk).__name__
        with pytest.raises(TypeError, match=rf"^feed\(\) takes bytes, bytearray or memoryview, not {name}$"):
            JsonLines().feed(chunk)  # type: ignore[arg-type]  # that is the test

    def test_the_limit_is_inclusive_whatever_the_cut(self) -> None:
        for name, chunks in cuts(b'{}\n{"a":"78"}\n{}\n'):
            assert len(lines(*chunks, max_item_bytes=10)) == 3, name
            reader = JsonLines(max_item_bytes=9)
            got: list[bytes] = []
            with pytest.raises(EventTooLarge) as caught:
                got.extend(item for chunk in chunks for item in reader.feed(chunk))
            assert caught.value == EventTooLarge(9, 10, 3, "max_item_bytes"), name
            assert [*got, *caught.value.completed] == [b"{}"], name
            assert later_errors(partial(reader.feed, b""), reader.close) == [caught.value] * 2


def later_errors(*calls: Callable[[], object]) -> list[StreamError]:
    """Make each call; return the errors, which must be new ones with nothing in `.completed`."""
    errors = []
    for call in calls:
        with pytest.raises(StreamError) as caught:
            call()
        assert caught.value.completed == ()
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == len(errors)
    return errors
