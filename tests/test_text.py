"""Bytes to text by the Encoding Standard's UTF-8 decoder, cut anywhere."""

from __future__ import annotations

from types import ModuleType

import pytest

from levada import UsageError
from tests.wire import bytewise, cuts

CRAB = "🦀".encode()


class TestDecode:
    def test_a_character_comes_with_its_last_byte(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder()
        assert [decoder.decode(byte) for byte in bytewise("aé水🦀".encode())] == [
            "a", "", "é", "", "", "水", "", "", "", "🦀",
        ]  # fmt: skip

    def test_any_cut_gives_the_same_text(self, hotpath: ModuleType) -> None:
        for name, chunks in cuts("aé水🦀\ufeff\r\n\0".encode()):
            decoder = hotpath.Utf8Decoder()
            assert "".join(map(decoder.decode, chunks)) == "aé水🦀\ufeff\r\n\0", name
            assert decoder.pending == b"", name

    @pytest.mark.parametrize(
        ("stream", "text"),
        [
            (b"\xff", "\ufffd"),
            (b"\xc3(", "\ufffd("),
            (b"\xe6\xb0\xe6\xb0\xb4", "\ufffd水"),
            (b"\xf0\x9f\xa6", "\ufffd"),
            (b"\xc0\xaf", "\ufffd\ufffd"),
            (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
            (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        ],
    )
    def test_each_maximal_malformed_part_becomes_one_replacement(
        self, hotpath: ModuleType, stream: bytes, text: str
    ) -> None:
        for name, chunks in cuts(stream):
            decoder = hotpath.Utf8Decoder()
            assert "".join(map(decoder.decode, chunks)) + decoder.decode(b"", final=True) == text, name

    def test_a_byte_order_mark_is_kept(self, hotpath: ModuleType) -> None:
        assert hotpath.Utf8Decoder().decode(b"\xef\xbb\xbfa") == "\ufeffa"

    def test_an_empty_chunk_changes_nothing(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder()
        assert [decoder.decode(chunk) for chunk in (CRAB[:2], b"", CRAB[2:])] == ["", "", "🦀"]

    def test_final_gives_what_is_left_as_malformed(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder()
        assert decoder.decode(CRAB[:3], final=True) == "\ufffd"
        assert decoder.pending == b""
        assert decoder.decode(CRAB) == "🦀"

    def test_bytearray_and_memoryview_are_read_too(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder()
        assert decoder.decode(bytearray(CRAB)) + decoder.decode(memoryview(CRAB)) == "🦀🦀"

    @pytest.mark.parametrize("chunk", ["a", None, 1, [97]])
    def test_anything_else_is_a_type_error(self, hotpath: ModuleType, chunk: object) -> None:
        name = type(chunk).__name__
        with pytest.raises(TypeError, match=rf"^decode\(\) takes bytes, bytearray or memoryview, not {name}$"):
            hotpath.Utf8Decoder().decode(chunk)


class TestPending:
    def test_it_is_the_beginning_of_the_open_character(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder()
        seen = []
        for byte in bytewise(CRAB):
            decoder.decode(byte)
            seen.append(decoder.pending)
        assert seen == [CRAB[:1], CRAB[:2], CRAB[:3], b""]

    def test_what_cannot_become_a_character_is_not_pending(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder()
        assert decoder.decode(b"\xf4\x90") == "\ufffd\ufffd"
        assert decoder.pending == b""

    def test_half_an_encoded_surrogate_is_as_in_the_stdlib(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder()
        assert (decoder.decode(b"\xed\xa0"), decoder.pending) == ("", b"\xed\xa0")  # it could be known malformed here
        assert (decoder.decode(b"\x80"), decoder.pending) == ("\ufffd\ufffd\ufffd", b"")


class TestStrict:
    def test_malformed_bytes_raise_and_the_decoder_is_spent(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder("strict")
        assert decoder.decode(b"a" + CRAB[:2]) == "a"
        with pytest.raises(UnicodeDecodeError) as first:
            decoder.decode(b"(")
        assert first.value.args == ("utf-8", CRAB[:2] + b"(", 0, 2, "invalid continuation byte")
        assert decoder.pending == b""
        with pytest.raises(UnicodeDecodeError) as later:
            decoder.decode(b"a")
        assert later.value.args == first.value.args
        assert later.value is not first.value

    def test_half_a_character_at_the_end_raises(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder(errors="strict")
        decoder.decode(CRAB[:3])
        with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
            decoder.decode(b"", True)


class TestReset:
    def test_it_forgets_pending_bytes(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder()
        decoder.decode(CRAB[:2])
        decoder.reset()
        assert decoder.pending == b""
        assert decoder.decode(b"a") == "a"

    def test_it_forgets_an_error(self, hotpath: ModuleType) -> None:
        decoder = hotpath.Utf8Decoder("strict")
        with pytest.raises(UnicodeDecodeError):
            decoder.decode(b"\xff")
        decoder.reset()
        assert decoder.decode(CRAB) == "🦀"


class TestErrors:
    @pytest.mark.parametrize("errors", ["ignore", "", None, 1, b"replace"])
    def test_only_replace_and_strict_make_sense(self, hotpath: ModuleType, errors: object) -> None:
        with pytest.raises(UsageError, match="errors must be 'replace' or 'strict', not "):
            hotpath.Utf8Decoder(errors)

    def test_a_str_of_another_class_is_a_str(self, hotpath: ModuleType) -> None:
        class Word(str):
            __slots__ = ()

        assert hotpath.Utf8Decoder(Word("replace")).decode(b"\xff") == "\ufffd"
        with pytest.raises(UnicodeDecodeError):
            hotpath.Utf8Decoder(Word("strict")).decode(b"\xff")
