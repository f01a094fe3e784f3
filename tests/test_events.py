"""Event streams by the HTML Standard's rules, and what levada promises beyond them."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

import pytest

import levada
from levada import (
    Comment,
    Event,
    EventTooLarge,
    Remainder,
    Stray,
    UsageError,
    aiter_events,
    iter_events,
)
from tests.oracle import Dispatched, read
from tests.wire import bytewise, cuts, data, events, items

BOM = b"\xef\xbb\xbf"


class TestLines:
    """WHATWG HTML, 9.2.5: a stream is lines that end in CRLF, LF or CR."""

    @pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"], ids=["LF", "CR", "CRLF"])
    def test_each_line_end_ends_a_line_under_every_cut(self, hotpath: ModuleType, end: bytes) -> None:
        stream = b"data: a" + end + b"data: b" + end + end + b"data: c" + end + end
        for name, chunks in cuts(stream):
            assert data(hotpath, *chunks) == ["a\nb", "c"], name

    def test_line_ends_may_be_mixed(self, hotpath: ModuleType) -> None:
        assert data(hotpath, b"data: a\rdata: b\r\ndata: c\n\r\ndata: d\r\r") == ["a\nb\nc", "d"]

    def test_a_cr_dispatches_at_once_and_the_lf_after_it_is_no_second_blank_line(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        assert parser.feed(b"data: a\r\n") == []
        assert len(parser.feed(b"\r")) == 1
        assert parser.feed(b"\n") == []
        assert parser.feed(b"data: b\n") == []
        assert len(parser.feed(b"\n")) == 1

    def test_an_empty_chunk_between_cr_and_lf_changes_nothing(self, hotpath: ModuleType) -> None:
        assert data(hotpath, b"data: a\r", b"", b"\ndata: b\r\n", b"", b"\r\n") == ["a\nb"]

    def test_lf_then_cr_are_two_line_ends(self, hotpath: ModuleType) -> None:
        assert data(hotpath, b"data: a\n\rdata: b\n\r") == ["a", "b"]

    def test_other_line_separators_are_ordinary_characters(self, hotpath: ModuleType) -> None:
        text = "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g"
        assert data(hotpath, f"data: {text}\n\n".encode()) == [text]


class TestByteOrderMark:
    """WHATWG HTML, 9.2.6: one leading U+FEFF is dropped."""

    def test_one_at_the_start_is_dropped_in_any_cut(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(BOM + b"data: a\n\n"):
            assert data(hotpath, *chunks) == ["a"], name

    def test_a_second_one_makes_an_unknown_field(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(BOM + BOM + b"data: a\n\ndata: b\n\n"):
            assert data(hotpath, *chunks) == ["b"], name

    def test_one_later_belongs_to_the_data(self, hotpath: ModuleType) -> None:
        assert data(hotpath, b"data: " + BOM + b"a\n\n") == ["\ufeffa"]

    def test_what_only_begins_like_one_begins_a_line(self, hotpath: ModuleType) -> None:
        for stream in (BOM[:1] + b"data: a\n\n", BOM[:2] + b"data: a\n\n", BOM[:2] + b"\ndata: a\n\n"):
            for name, chunks in cuts(stream):
                parser = hotpath.EventParser()
                got = items(parser, chunks)
                assert isinstance(got[0], Stray), name
                assert parser.ignored_lines == 1, name

    def test_half_of_one_at_the_end_was_pending(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        parser.feed(BOM[:2])
        assert parser.close() == Remainder(b"", None, True)


class TestFields:
    """WHATWG HTML, 9.2.6: a field is what stands before the first colon, its value what follows it."""

    @pytest.mark.parametrize(
        ("line", "value"),
        [
            (b"data: a", "a"),
            (b"data:a", "a"),
            (b"data:  a ", " a "),
            (b"data:\ta", "\ta"),
            (b"data:", ""),
            (b"data: ", ""),
            (b"data", ""),
            (b"data: a: b", "a: b"),
            (b"data::a", ":a"),
        ],
    )
    def test_one_leading_space_goes_and_nothing_else(self, hotpath: ModuleType, line: bytes, value: str) -> None:
        for name, chunks in cuts(line + b"\n\n"):
            assert data(hotpath, *chunks) == [value], name

    @pytest.mark.parametrize("line", [b"Data: a", b" data: a", b"data : a", b"dat: a", b"datas: a", b"x", b"\xff: a"])
    def test_a_name_that_is_not_exactly_known_is_ignored_and_counted(self, hotpath: ModuleType, line: bytes) -> None:
        for name, chunks in cuts(line + b"\n\n"):
            parser = hotpath.EventParser()
            assert [event for chunk in chunks for event in parser.feed(chunk)] == [], name
            assert parser.ignored_lines == 1, name

    def test_data_lines_are_joined_by_lf(self, hotpath: ModuleType) -> None:
        assert data(hotpath, b"data: a\ndata\ndata: b\n\n") == ["a\n\nb"]

    def test_the_last_event_line_of_a_block_counts(self, hotpath: ModuleType) -> None:
        assert events(hotpath, b"event: a\nevent: b\ndata\n\n")[0].event == "b"

    def test_an_empty_event_type_is_message(self, hotpath: ModuleType) -> None:
        assert events(hotpath, b"event: a\nevent\ndata\n\n")[0].event == "message"

    def test_malformed_utf8_becomes_replacement_characters(self, hotpath: ModuleType) -> None:
        stream = b"event: \xff\nid: \xf0\x9f\ndata: a \xe6\xb0\n\n"
        for name, chunks in cuts(stream):
            assert events(hotpath, *chunks) == [("\ufffd", "a \ufffd", "\ufffd", None)], name

    def test_a_character_is_never_split(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts("event: é\nid: 水\ndata: 🐙\n\n".encode()):
            assert events(hotpath, *chunks) == [("é", "🐙", "水", None)], name


class TestDispatch:
    """WHATWG HTML, 9.2.6: dispatching the event."""

    def test_a_block_without_data_dispatches_nothing(self, hotpath: ModuleType) -> None:
        assert events(hotpath, b"event: ping\nid: 7\n\n") == []

    def test_empty_data_is_data(self, hotpath: ModuleType) -> None:
        assert data(hotpath, b"data\n\n", b"data:\ndata:\n\n") == ["", "\n"]

    def test_the_event_type_does_not_outlive_its_block(self, hotpath: ModuleType) -> None:
        stream = b"event: a\n\ndata: 1\n\nevent: b\ndata: 2\n\ndata: 3\n\n"
        assert [event.event for event in events(hotpath, stream)] == ["message", "b", "message"]

    def test_blank_lines_alone_dispatch_nothing(self, hotpath: ModuleType) -> None:
        assert events(hotpath, b"\n\n\r\r\r\n\r\n") == []

    def test_an_unfinished_last_block_is_discarded(self, hotpath: ModuleType) -> None:
        assert data(hotpath, b"data: a\n\ndata: b\n") == ["a"]

    def test_an_event_comes_with_the_chunk_that_brings_its_last_byte(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        assert [len(parser.feed(byte)) for byte in bytewise(b"data: a\n\n")] == [0] * 8 + [1]

    def test_many_events_of_one_chunk_come_in_order(self, hotpath: ModuleType) -> None:
        assert data(hotpath, b"".join(b"data: %d\n\n" % n for n in range(100))) == [str(n) for n in range(100)]

    def test_a_block_of_many_lines_in_many_chunks(self, hotpath: ModuleType) -> None:
        lines = [b"event: a\n", b"retry: 5\n", *(b"data: %d\n" % n for n in range(20)), b"id: 9\n", b"\n"]
        expected = [Dispatched("a", "\n".join(map(str, range(20))), "9", 5)]
        assert events(hotpath, *lines) == events(hotpath, b"".join(lines)) == expected


class TestBlocksOfOneShape:
    """Both twins take `data: …`, alone or after `event: …`, whole blocks at a time: nobody may see where that ends."""

    @pytest.mark.parametrize("shape", [b"data: ", b"event: b\ndata: ", b"event: " + b"b" * 64 + b"\ndata: "])
    @pytest.mark.parametrize(
        "between",
        [
            b"", b": c\n", b": c\n\n", b"\n", b"id: 7\n", b"data: x\n", b"event: c\n", b"nope\n\n", b"data:x\n\n",
            b"event: c\ndata: x\n\n", b"event: \xff\ndata: x\n\n", b"event: b\n\n", b"data: \n\n", b"data: x\r\n\r\n",
        ],
    )  # fmt: skip
    def test_other_lines_among_them_are_read_by_the_rules(
        self, hotpath: ModuleType, shape: bytes, between: bytes
    ) -> None:
        stream = (
            shape + b"a\n\n" + between + shape + b"\xe6\xb0\n\n" + shape + b"\n\n" + between + b"data: d\ndata: e\n\n"
        )
        wanted = read(stream)
        for name, chunks in cuts(stream):
            assert items(hotpath.EventParser(), chunks) == wanted.items, name
            assert events(hotpath, *chunks) == wanted.events, name

    def test_the_end_of_an_open_block_and_whole_blocks_in_one_chunk(self, hotpath: ModuleType) -> None:
        # the differential fuzz, while the quick way was made: an event was lost
        assert data(hotpath, b"data:q\n", b"\ndata: a\ndat\n\ndata: b\n\n") == ["q", "a", "b"]
        assert data(hotpath, b"data:q\ndata: r", b"\n\ndata: a\ndat\n\ndata: b\n\n") == ["q\nr", "a", "b"]


class TestLastEventId:
    """WHATWG HTML, 9.2.6: the last event ID buffer."""

    def test_it_outlives_its_block(self, hotpath: ModuleType) -> None:
        assert events(hotpath, b"id: 7\ndata: a\n\ndata: b\n\n")[-1].id == "7"

    def test_it_is_set_by_a_block_without_data(self, hotpath: ModuleType) -> None:
        assert events(hotpath, b"id: 7\n\ndata: a\n\n")[0].id == "7"

    def test_it_changes_at_the_blank_line_only(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        parser.feed(b"id: 7\ndata: a\n")
        assert parser.last_event_id == ""
        parser.feed(b"\n")
        assert parser.last_event_id == "7"

    def test_the_one_of_an_unfinished_block_does_not_count(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        parser.feed(b"id: 7\ndata: a\n\nid: 8\ndata: b\n")
        parser.close()
        assert parser.last_event_id == "7"

    @pytest.mark.parametrize("line", [b"id", b"id:", b"id: "])
    def test_an_empty_one_resets_it(self, hotpath: ModuleType, line: bytes) -> None:
        assert events(hotpath, b"id: 7\n\n" + line + b"\ndata: a\n\n")[0].id == ""

    def test_one_with_nul_is_ignored_and_counted(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(b"id: 7\nid: b\0d\nid:\0\ndata: a\n\n"):
            parser = hotpath.EventParser()
            assert [event.id for chunk in chunks for event in parser.feed(chunk)] == ["7"], name
            assert parser.ignored_lines == 2, name

    def test_a_resumed_stream_begins_with_it(self, hotpath: ModuleType) -> None:
        assert events(hotpath, b"data: a\n\n", last_event_id="41")[0].id == "41"
        assert hotpath.EventParser(last_event_id="41").last_event_id == "41"


class TestRetry:
    """WHATWG HTML, 9.2.6: `retry` of ASCII digits only sets the reconnection time."""

    def test_it_is_in_force_as_soon_as_its_line_is_complete(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        parser.feed(b"retry: 1500")
        assert parser.retry is None
        parser.feed(b"\n")
        assert parser.retry == 1500

    def test_an_event_has_its_own_blocks_retry_only(self, hotpath: ModuleType) -> None:
        got = events(hotpath, b"retry: 1\n\ndata: a\n\nretry: 2\nretry: 3\ndata: b\n\n")
        assert [event.retry for event in got] == [None, 3]

    @pytest.mark.parametrize(
        "value", [b"", b" ", b"  5", b"-1", b"+1", b"1.5", b"1e3", b"5 ", b"0x10", b"1_000", "٣".encode(), b"5\0"]
    )
    def test_anything_but_digits_is_ignored_and_counted(self, hotpath: ModuleType, value: bytes) -> None:
        for name, chunks in cuts(b"retry: 7\nretry:" + value + b"\ndata: a\n\n"):
            parser = hotpath.EventParser()
            assert [event.retry for chunk in chunks for event in parser.feed(chunk)] == [7], name
            assert (parser.retry, parser.ignored_lines) == (7, 1), name

    def test_leading_zeros_are_digits(self, hotpath: ModuleType) -> None:
        assert events(hotpath, b"retry: 007\ndata\n\n")[0].retry == 7

    @pytest.mark.parametrize("digits", [1, 639, 640, 641, 3_999, 4_000, 4_001, 4_300, 4_301, 9_999, 10_000])
    def test_it_is_exact_up_to_ten_thousand_digits(self, hotpath: ModuleType, digits: int) -> None:
        stream = b"retry: " + b"9" * digits + b"\ndata\n\n"
        assert events(hotpath, stream)[0].retry == 10**digits - 1
        assert events(hotpath, stream[:-9], stream[-9:])[0].retry == 10**digits - 1

    def test_longer_ones_are_ignored_counted_and_not_held(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser(max_event_bytes=10_010)
        stream = b"retry: 1\n\nretry: " + b"0" * 10_001 + b"\ndata\n\n"
        for chunk in (stream[:5_000], stream[5_000:]):
            parser.feed(chunk)
        assert (parser.retry, parser.ignored_lines) == (1, 1)


class TestCommentsAndStrays:
    """Comments are ignored (9.2.6); a relay may want them. Some servers put a bare error where a field should be."""

    STREAM = b': hello\n:\ndata: a\n:  two\nevent: b\n\n{"error": 1}\nnope: x\n\n:last\n'
    ITEMS = (
        Comment("hello"), Comment(""), Comment(" two"), Dispatched("b", "a", "", None),
        Stray('{"error": 1}'), Stray("nope: x"), Comment("last"),
    )  # fmt: skip

    def test_feed_all_gives_everything_in_wire_order(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(self.STREAM):
            assert items(hotpath.EventParser(), chunks) == list(self.ITEMS), name

    def test_feed_gives_the_events_alone(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(self.STREAM):
            assert events(hotpath, *chunks) == [("b", "a", "", None)], name

    def test_ignored_lines_counts_strays_not_comments(self, hotpath: ModuleType) -> None:
        for feed in ("feed", "feed_all"):
            parser = hotpath.EventParser()
            getattr(parser, feed)(self.STREAM)
            assert parser.ignored_lines == 2

    def test_a_comment_inside_a_block_does_not_end_it(self, hotpath: ModuleType) -> None:
        assert data(hotpath, b"data: a\n: still here\ndata: b\n\n") == ["a\nb"]

    def test_a_line_whose_beginning_feed_took_is_not_given(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        assert parser.feed(b": he") == []
        assert parser.feed_all(b"llo\n: you\n") == [Comment("you")]

    def test_ignored_fields_of_the_standard_are_no_strays(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        assert parser.feed_all(b"id: \0\nretry: soon\n\n") == []
        assert parser.ignored_lines == 2


class TestRemainder:
    """What `close()` says of the block that no blank line closed."""

    @pytest.mark.parametrize(
        ("stream", "remainder"),
        [
            (b"", Remainder()),
            (b"data: a\n\n", Remainder()),
            (b"data: a\n\n: full comment\nnope\n", Remainder()),
            (b"data: a\n", Remainder(b"data: a", "a", True)),
            (b"data: a", Remainder(b"data: a", "a", True)),
            (b"data: a\r", Remainder(b"data: a", "a", True)),
            (b"data: a\r\nevent: b\r\ndata:c", Remainder(b"data: a\nevent: b\ndata:c", "a\nc", True)),
            (b"data", Remainder(b"data", "", True)),
            (b"data: \xe6\xb0", Remainder(b"data: \xe6\xb0", "\ufffd", True)),
            (b"event: a\nid: 7\nretry: 9\n", Remainder(b"event: a\nid: 7\nretry: 9", None, True)),
            (b"data: a\n: note\nnope\nid: \0\nretry: x\ndata: b\n", Remainder(b"data: a\ndata: b", "a\nb", True)),
            (b"data: a\nid: \0", Remainder(b"data: a", "a", True)),
            (b"data: a\nretry: 5x", Remainder(b"data: a", "a", True)),
            (b": unterminated", Remainder(b"", None, True)),
            (b"nope", Remainder(b"", None, True)),
            (b"dat", Remainder(b"", None, True)),
        ],
    )
    def test_it_tells_the_held_lines_and_what_they_would_have_said(
        self, hotpath: ModuleType, stream: bytes, remainder: Remainder
    ) -> None:
        for name, chunks in cuts(stream):
            for feed in ("feed", "feed_all"):
                parser = hotpath.EventParser()
                for chunk in chunks:
                    getattr(parser, feed)(chunk)
                assert parser.close() == remainder, f"{feed} {name}"

    def test_it_is_truthy_when_anything_was_pending(self) -> None:
        assert not Remainder()
        assert Remainder(pending=True)


class TestClose:
    def test_a_second_call_returns_an_equal_remainder(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        parser.feed(b"data: a\n")
        assert parser.close() == parser.close() == Remainder(b"data: a", "a", True)

    @pytest.mark.parametrize(("method", "argument"), [("feed", b""), ("feed_all", b"data"), ("feed_text", "")])
    def test_feeding_after_it_is_a_usage_error(self, hotpath: ModuleType, method: str, argument: object) -> None:
        parser = hotpath.EventParser()
        parser.close()
        with pytest.raises(UsageError, match="the stream was closed; make a new EventParser"):
            getattr(parser, method)(argument)

    def test_the_attributes_stay_readable(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        parser.feed(b"id: 7\nretry: 5\nnope\n\n")
        parser.close()
        assert (parser.last_event_id, parser.retry, parser.ignored_lines) == ("7", 5, 1)


class TestLimit:
    """`max_event_bytes` is inclusive: values of the open block, one byte for each line's end, and the open line."""

    def test_it_is_inclusive_whatever_the_cut(self, hotpath: ModuleType) -> None:
        stream = b"data: 0123456789\n\n"  # while it is open the line is held with its name: 16 bytes
        for name, chunks in cuts(stream):
            assert len(events(hotpath, *chunks, max_event_bytes=16)) == 1, name
            with pytest.raises(EventTooLarge) as caught:
                events(hotpath, *chunks, max_event_bytes=15)
            assert caught.value == EventTooLarge(15, 16, 0), name

    def test_values_of_former_lines_count(self, hotpath: ModuleType) -> None:
        stream = b"data: 12345\n" * 3 + b"\n"  # 6 + 6 held, and the open line of 11
        for name, chunks in cuts(stream):
            assert len(events(hotpath, *chunks, max_event_bytes=23)) == 1, name
            with pytest.raises(EventTooLarge):
                events(hotpath, *chunks, max_event_bytes=22)

    def test_each_event_begins_anew(self, hotpath: ModuleType) -> None:
        assert len(events(hotpath, b"data: 12345\n\n" * 100, max_event_bytes=11)) == 100

    def test_the_error_names_limit_size_and_offset(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(BOM + b": x\r\ndata: a\r\n\r\nnope\r\nid: 7\r\ndata: too large for this"):
            with pytest.raises(EventTooLarge) as caught:
                events(hotpath, *chunks, max_event_bytes=20)
            error = caught.value
            assert (error.limit, error.size, error.offset) == (20, 21, 25), name
            assert str(error) == (
                "event larger than 20 bytes (stopped at 21), begun at byte 25 of the stream; "
                "raise max_event_bytes if you trust this provider"
            )

    def test_completed_holds_what_the_same_call_had_completed(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser(max_event_bytes=10)
        with pytest.raises(EventTooLarge) as caught:
            parser.feed(b"data: a\n\ndata: b\n\ndata: far too large\n\ndata: c\n\n")
        assert [event.data for event in caught.value.completed] == ["a", "b"]

    def test_completed_of_feed_all_holds_comments_too(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser(max_event_bytes=10)
        with pytest.raises(EventTooLarge) as caught:
            parser.feed_all(b": x\nnope\ndata: far too large\n\n")
        assert caught.value.completed == (Comment("x"), Stray("nope"))

    def test_every_later_call_raises_an_equal_new_error(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser(max_event_bytes=4)
        with pytest.raises(EventTooLarge) as first:
            parser.feed(b"retry: 5\ndata: a\n\n")
        calls: list[Callable[[], object]] = [
            lambda: parser.feed(b""),
            lambda: parser.feed(b"data: b\n\n"),
            lambda: parser.feed_all(b""),
            lambda: parser.feed_text(""),
            parser.close,
        ]
        for call in calls:
            with pytest.raises(EventTooLarge) as later:
                call()
            assert later.value == first.value
            assert later.value is not first.value
            assert later.value.completed == ()

    def test_the_parser_keeps_what_came_before(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser(max_event_bytes=10)
        with pytest.raises(EventTooLarge):
            parser.feed(b"id: 7\nnope\nretry: 5\n\ndata: far too large\nnope\n")
        assert (parser.last_event_id, parser.retry, parser.ignored_lines) == ("7", 5, 1)

    def test_comments_and_unknown_fields_never_count_in_feed(self, hotpath: ModuleType) -> None:
        long = b"x" * 1000
        stream = b":" + long + b"\n" + long + b"\n" + long + b": a\nid: a\0" + long + b"\nretry: 1x" + long
        for chunks in ([stream], bytewise(stream)):
            assert data(hotpath, *chunks, b"\ndata: a\n\n") == ["a"]
            assert len(events(hotpath, *chunks, b"\ndata: a\n\n", max_event_bytes=8)) == 1

    @pytest.mark.parametrize("line", [b": 23456789", b"nope: 7890"])
    def test_in_feed_all_they_count_while_they_are_open(self, hotpath: ModuleType, line: bytes) -> None:
        for name, chunks in cuts(line + b"\n" + line + b"\n"):
            assert len(items(hotpath.EventParser(max_event_bytes=10), chunks)) == 2, name
            with pytest.raises(EventTooLarge) as caught:
                items(hotpath.EventParser(max_event_bytes=9), chunks)
            assert caught.value == EventTooLarge(9, 10, 0), name

    def test_an_id_counts_up_to_its_nul(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts(b"id: 4567\0aaaa\ndata\n\n"):
            assert len(events(hotpath, *chunks, max_event_bytes=8)) == 1, name
            with pytest.raises(EventTooLarge):
                events(hotpath, *chunks, max_event_bytes=7)

    @pytest.mark.parametrize(
        "value",
        [0, -1, 2**63, 10**5_000, True, 1.5, "64", None],
        ids=lambda value: f"{value!s:.5}" if not isinstance(value, int) or value < 2**64 else "huge",
    )
    def test_it_must_be_a_positive_int(self, hotpath: ModuleType, value: object) -> None:
        with pytest.raises(UsageError, match="max_event_bytes must be an int from 1 to 9223372036854775807, not "):
            hotpath.EventParser(max_event_bytes=value)

    def test_the_largest_one_is_accepted(self, hotpath: ModuleType) -> None:
        assert len(events(hotpath, b"data\n\n", max_event_bytes=2**63 - 1)) == 1

    def test_the_default_is_64_mib(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        mib = b"x" * 2**20
        parser.feed(b"data: " + mib[6:])
        for _ in range(63):
            parser.feed(mib)
        with pytest.raises(EventTooLarge) as caught:
            parser.feed(b"x")
        assert caught.value.limit == 64 * 2**20


class TestInput:
    def test_bytes_and_their_kin_are_all_read(self, hotpath: ModuleType) -> None:
        stream = b"data: a\n\n"
        for chunk in (stream, bytearray(stream), memoryview(stream), memoryview(bytearray(stream))):
            assert data(hotpath, chunk) == ["a"]

    def test_what_was_fed_may_be_reused_at_once(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        buffer = bytearray(b"data: a\n")
        parser.feed(buffer)
        buffer[:] = b"data: b\n"
        assert parser.feed(b"\n")[0].data == "a"

    @pytest.mark.parametrize("method", ["feed", "feed_all"])
    def test_str_is_a_type_error_that_names_feed_text(self, hotpath: ModuleType, method: str) -> None:
        parser = hotpath.EventParser()
        with pytest.raises(
            TypeError, match=rf"^{method}\(\) takes bytes, bytearray or memoryview, not str; use feed_text for text$"
        ):
            getattr(parser, method)("data: a\n\n")

    def test_a_type_error_spends_nothing(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        parser.feed(b"data: a\n")
        with pytest.raises(TypeError):
            parser.feed(None)
        assert parser.feed(b"\n")[0].data == "a"

    def test_feed_text_takes_text_and_names_feed(self, hotpath: ModuleType) -> None:
        parser = hotpath.EventParser()
        assert parser.feed_text("data: é\ud83d\n\n")[0].data == "é\ufffd\ufffd\ufffd"
        with pytest.raises(TypeError, match=r"^feed_text\(\) takes str, not bytes; use feed for bytes$"):
            parser.feed_text(b"data")

    def test_the_last_event_id_must_be_text(self, hotpath: ModuleType) -> None:
        with pytest.raises(TypeError, match="last_event_id must be str, not int"):
            hotpath.EventParser(last_event_id=7)


class TestEvent:
    """An event is a value: equal by its fields, hashable, picklable, and never changed."""

    def test_the_defaults_are_those_of_the_standard(self, hotpath: ModuleType) -> None:
        event = hotpath.Event()
        assert (event.event, event.data, event.id, event.retry) == ("message", "", "", None)

    def test_it_is_equal_by_value(self, hotpath: ModuleType) -> None:
        [event] = hotpath.EventParser().feed(b"id: 7\ndata: a\n\n")
        assert event == hotpath.Event("message", "a", "7", None)
        assert hash(event) == hash(hotpath.Event(data="a", id="7"))
        for other in (hotpath.Event("b", "a", "7"), hotpath.Event(data="a"), hotpath.Event(data="a", id="7", retry=1)):
            assert event != other
        assert event != ("message", "a", "7", None)

    def test_its_repr_can_be_read_back(self, hotpath: ModuleType) -> None:
        event = hotpath.Event("b", 'a"\n', "7", 5)
        assert repr(event) == "Event(event='b', data='a\"\\n', id='7', retry=5)"
        assert eval(repr(event), {"Event": hotpath.Event}) == event  # our own text

    def test_it_has_a_repr_whatever_the_wire_brought(self, hotpath: ModuleType) -> None:
        [event] = hotpath.EventParser().feed(b"retry: " + b"9" * 10_000 + b"\ndata\n\n")
        assert eval(repr(event), {"Event": hotpath.Event}) == event  # str(int) stops at 4,300 digits

    @pytest.mark.parametrize("name", ["event", "data", "id", "retry", "new"])
    def test_it_cannot_be_changed(self, hotpath: ModuleType, name: str) -> None:
        event = hotpath.Event(data="a")
        with pytest.raises(AttributeError, match=name):
            setattr(event, name, "b")
        with pytest.raises(AttributeError, match=name):
            delattr(event, name)
        assert event == hotpath.Event(data="a")

    def test_it_cannot_be_subclassed(self, hotpath: ModuleType) -> None:
        with pytest.raises(TypeError, match="not an acceptable base type"):
            type("Mine", (hotpath.Event,), {})

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_it_is_unpickled_as_the_chosen_backends_event(self, hotpath: ModuleType, protocol: int) -> None:
        event = hotpath.Event("b", "a", "7", 5)
        again = pickle.loads(pickle.dumps(event, protocol))
        assert type(again) is levada.Event
        assert again == levada.Event("b", "a", "7", 5)

    def test_a_copy_has_the_same_fields(self, hotpath: ModuleType) -> None:
        event = hotpath.Event("b", "a", "7", 5)
        for again in (copy.copy(event), copy.deepcopy(event)):
            assert repr(again) == repr(event)

    def test_json_reads_the_data(self, hotpath: ModuleType) -> None:
        assert hotpath.Event(data='{"a": [1]}').json() == {"a": [1]}
        with pytest.raises(json.JSONDecodeError):
            hotpath.Event(data="[DONE]").json()

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"event": b""}, "event must be str, not bytes"),
            ({"data": None}, "data must be str, not NoneType"),
            ({"id": 7}, "id must be str, not int"),
            ({"retry": "5"}, "retry must be int or None, not str"),
            ({"retry": True}, "retry must be int or None, not bool"),
        ],
    )
    def test_fields_have_their_types(self, hotpath: ModuleType, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(TypeError, match=f"^{message}$"):
            hotpath.Event(**fields)

    def test_it_can_be_matched_by_its_attributes(self, hotpath: ModuleType) -> None:
        match hotpath.Event(data="a"):
            case hotpath.Event(event="message", data=text):
                assert text == "a"
            case _:
                pytest.fail("no match")


class TestIteration:
    """`iter_events` and `aiter_events`: a loop over chunks, with the events before an error."""

    CHUNKS = (b"data: a\n\nda", b"ta: b\n\n", b"data: c\n")

    def test_it_yields_the_events_of_all_chunks(self) -> None:
        assert list(iter_events(self.CHUNKS)) == [Event(data="a"), Event(data="b")]

    def test_it_yields_each_event_before_it_asks_for_the_next_chunk(self) -> None:
        chunks = iter(self.CHUNKS)
        assert next(iter_events(chunks)) == Event(data="a")
        assert next(chunks) == self.CHUNKS[1]

    def test_it_yields_what_came_before_an_error(self) -> None:
        got: list[Event] = []
        with pytest.raises(EventTooLarge) as caught:
            got.extend(iter_events([b"data: a\n\n", b"data: b\n\ndata: far too large"], max_event_bytes=10))
        assert got == [Event(data="a"), Event(data="b")]
        assert caught.value == EventTooLarge(10, 11, 18)

    def test_the_asynchronous_one_does_the_same(self) -> None:
        async def chunks(*given: bytes) -> AsyncIterator[bytes]:
            for chunk in given:
                yield chunk

        async def collect(got: list[str], *given: bytes, **options: int) -> None:
            async for event in aiter_events(chunks(*given), **options):
                got.append(event.data)

        got: list[str] = []
        asyncio.run(collect(got, *self.CHUNKS))
        assert got == ["a", "b"]
        with pytest.raises(EventTooLarge):
            asyncio.run(collect(got, b"data: c\n\n", b"data: d\n\ndata: far too large", max_event_bytes=10))
        assert got == ["a", "b", "c", "d"]

    def test_a_limit_that_makes_no_sense_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError):
            list(iter_events([], max_event_bytes=0))
