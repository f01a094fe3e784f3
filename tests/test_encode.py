"""Writing event streams: `encode_event` is the inverse of a fresh parser, or a ValueError that says why not."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from levada import Event, encode_comment, encode_event, encode_json
from tests.wire import events, items


class TestEncodeEvent:
    @pytest.mark.parametrize(
        ("data", "fields", "wire"),
        [
            ("a", {}, b"data: a\n\n"),
            ("", {}, b"data: \n\n"),
            ("a\nb\n", {}, b"data: a\ndata: b\ndata: \n\n"),
            (" a", {}, b"data:  a\n\n"),
            ("a", {"event": "ping"}, b"event: ping\ndata: a\n\n"),
            ("a", {"event": "message"}, b"data: a\n\n"),
            ("a", {"id": "7"}, b"id: 7\ndata: a\n\n"),
            ("a", {"id": ""}, b"id:\ndata: a\n\n"),
            ("a", {"retry": 0}, b"retry: 0\ndata: a\n\n"),
            ("é", {"event": "b", "id": "水", "retry": 5}, "event: b\nid: 水\nretry: 5\ndata: é\n\n".encode()),
            ("a\x0b\x85\u2028\0", {}, "data: a\x0b\x85\u2028\0\n\n".encode()),
        ],
    )
    def test_a_fresh_parser_reads_it_back(
        self, hotpath: ModuleType, data: str, fields: dict[str, Any], wire: bytes
    ) -> None:
        assert encode_event(data, **fields) == wire
        assert events(hotpath, wire) == [
            (fields.get("event", "message"), data, fields.get("id", ""), fields.get("retry"))
        ]

    def test_an_event_brings_its_own_fields(self) -> None:
        event = Event("b", "a", "7", 5)
        assert encode_event(event) == encode_event("a", event="b", id="7", retry=5)
        assert encode_event(Event(data="a")) == b"data: a\n\n"
        changes: list[dict[str, Any]] = [{"event": "c"}, {"id": ""}, {"retry": 1}]
        for fields in changes:
            with pytest.raises(TypeError, match="an Event brings its own event, id and retry"):
                encode_event(event, **fields)

    @pytest.mark.parametrize(
        ("data", "fields", "message"),
        [
            ("a\rb", {}, "data contains CR, which would come back as LF"),
            ("a\r\nb", {}, "data contains CR"),
            ("a", {"event": "b\nc"}, "event contains a line end"),
            ("a", {"event": "b\rc"}, "event contains a line end"),
            ("a", {"event": ""}, "an empty event type comes back as 'message'"),
            ("a", {"id": "7\n"}, "id contains a line end"),
            ("a", {"id": "7\r"}, "id contains a line end"),
            ("a", {"id": "7\0"}, "id contains NUL, and a parser ignores such an id"),
            ("\ud800", {}, "the event contains a lone surrogate, which UTF-8 cannot carry"),
            ("a", {"event": "\udfff"}, "lone surrogate"),
            ("a", {"id": "\udfff"}, "lone surrogate"),
            ("a", {"retry": -1}, "retry must not be negative: -1"),
            ("a", {"retry": 10**10_000}, "retry has more than 10000 digits"),
            ("a", {"retry": 10**100_000}, "retry has more than 10000 digits"),
        ],
        ids=lambda value: None if isinstance(value, str) else "fields",
    )
    def test_what_the_frame_cannot_carry_is_a_value_error(
        self, data: str, fields: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            encode_event(data, **fields)

    @pytest.mark.parametrize(
        ("data", "fields", "message"),
        [
            (b"a", {}, "data must be str or Event, not bytes"),
            (None, {}, "data must be str or Event, not NoneType"),
            ("a", {"event": b"b"}, "event must be str, not bytes"),
            ("a", {"id": 7}, "id must be str, not int"),
            ("a", {"id": b""}, "id must be str, not bytes"),
            ("a", {"retry": 1.5}, "retry must be int, not float"),
            ("a", {"retry": True}, "retry must be int, not bool"),
        ],
    )
    def test_wrong_types_are_type_errors(self, data: Any, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(TypeError, match=f"^{message}$"):
            encode_event(data, **fields)

    @pytest.mark.parametrize("digits", [1, 640, 641, 4_000, 4_001, 8_001, 10_000])
    def test_retry_is_exact_up_to_ten_thousand_digits(self, hotpath: ModuleType, digits: int) -> None:
        for retry in (10 ** (digits - 1), 10**digits - 1):
            assert events(hotpath, encode_event("", retry=retry))[0].retry == retry


class TestEncodeJson:
    def test_it_is_compact_and_on_one_line(self) -> None:
        assert encode_json({"a": [1, None], "b": "é\n"}) == 'data: {"a":[1,null],"b":"é\\n"}\n\n'.encode()

    def test_event_and_id_are_those_of_encode_event(self) -> None:
        assert encode_json(1, event="b", id="7") == b"event: b\nid: 7\ndata: 1\n\n"

    def test_line_separators_are_escaped_for_old_clients_if_asked(self, hotpath: ModuleType) -> None:
        obj = {"a\u2028": "\u2029\x85"}
        assert encode_json(obj) == 'data: {"a\u2028":"\u2029\x85"}\n\n'.encode()
        wire = encode_json(obj, escape_line_separators=True)
        assert wire == rb'data: {"a\u2028":"\u2029\u0085"}' + b"\n\n"
        assert hotpath.EventParser().feed(wire)[0].json() == obj

    def test_a_lone_surrogate_is_carried_as_an_escape(self, hotpath: ModuleType) -> None:
        for escape in (False, True):
            wire = encode_json("é\ud83d\u2028", escape_line_separators=escape)
            assert hotpath.EventParser().feed(wire)[0].json() == "é\ud83d\u2028"

    def test_what_json_has_no_form_for_is_refused(self) -> None:
        with pytest.raises(TypeError):
            encode_json({1, 2})
        for number in (float("nan"), float("inf")):
            with pytest.raises(ValueError, match="JSON compliant"):
                encode_json(number)


class TestEncodeComment:
    @pytest.mark.parametrize("text", ["", "keep-alive", " a", ": a", "é\x85\0"])
    def test_feed_all_reads_it_back(self, hotpath: ModuleType, text: str) -> None:
        wire = encode_comment(text)
        assert wire == f": {text}\n\n".encode()
        [comment] = items(hotpath.EventParser(), [wire])
        assert comment.text == text  # type: ignore[union-attr]  # it is a Comment

    @pytest.mark.parametrize(
        ("text", "message"),
        [("a\nb", "line end"), ("a\rb", "line end"), ("\ud800", "the comment contains a lone surrogate")],
    )
    def test_what_a_comment_cannot_carry_is_a_value_error(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            encode_comment(text)

    def test_bytes_are_a_type_error(self) -> None:
        with pytest.raises(TypeError, match=r"^comment must be str, not bytes$"):
            encode_comment(b"a")  # type: ignore[arg-type]  # that is the test
