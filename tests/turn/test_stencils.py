"""The fast way gives what the slow way gives: stencils against the full decoder, and the twins against each other."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada import TextDelta, Turn
from levada.turn import _STENCIL_TRIES
from tests.turn.chat import DONE, chunk, event, stop, text
from tests.turn.test_recordings import body, coalesced, each_recording, framing_of, random_cuts, summary


def play(dialect: str, chunks: list[bytes], tries: int, framing: str | None = None) -> tuple[Turn, list[Any]]:
    turn = Turn(dialect, framing=framing)
    turn._stencil_tries = tries
    deltas = [delta for chunk in chunks for delta in turn.feed(chunk)]
    deltas += turn.eof(clean=True)
    return turn, deltas


def assert_same(dialect: str, chunks: list[bytes], framing: str | None = None) -> None:
    fast, fast_deltas = play(dialect, chunks, _STENCIL_TRIES, framing)
    slow, slow_deltas = play(dialect, chunks, 0, framing)
    assert summary(fast) == summary(slow)
    assert coalesced(fast_deltas) == coalesced(slow_deltas)


@pytest.mark.parametrize("damaged", [b"\xc3<", b"\xff", "\ufffd".encode(), b"\\ufffd"])
def test_malformed_utf8_is_counted_with_and_without_stencils(damaged: bytes) -> None:
    stream = [text("a"), text("b"), text("c").replace(b'"c"', b'"c' + damaged + b'"'), text("d"), stop(), DONE]
    assert_same("openai_chat", stream)
    assert_same("openai_chat", [b"".join(stream)])


@each_recording
def test_recordings_whole_cut_and_damaged(row: dict[str, Any]) -> None:
    data, framing = body(row["file"]), framing_of(row)
    assert_same(row["dialect"], [data], framing)
    rnd = random.Random(row["sha256"])
    for seed in range(3):
        assert_same(row["dialect"], random_cuts(data, seed), framing)
        damaged = bytearray(data)
        for _ in range(rnd.randint(1, 20)):
            if damaged:
                damaged[rnd.randrange(len(damaged))] = rnd.choice(b'"\\{}[],:\n\r\x00\xff\xc3 a1')
        assert_same(row["dialect"], random_cuts(bytes(damaged), seed), framing)


PIECES = ["a", "água", "水", "😀", '"', "\\", "\n", "\u2028", "\x00", '","x":"', "é" * 30, " ", "levada \u2603 stencil"]


@given(st.data())
def test_chat_streams_of_every_kind_of_event(data: st.DataObject) -> None:
    kinds = st.sampled_from(
        [
            text,
            lambda piece: text(piece, 1),
            lambda piece: chunk(reasoning_content=piece),
            lambda piece: chunk(content=piece, reasoning=piece),
            lambda piece: chunk(content=None, refusal=piece),
            lambda piece: event({"id": "c1", "model": piece, "choices": [{"index": 0, "delta": {"content": piece}}]}),
            lambda piece: event({"choices": [{"index": 0, "delta": {"content": piece}}], "obfuscation": piece[:2]}),
            lambda piece: (
                b'data: {"choices":[{"index":0,"delta":{"content":' + json.dumps(piece).encode() + b"}}]}\n\n"
            ),
            lambda piece: b"event: error\n" + text(piece),
            lambda piece: b": comment\n\n",
            lambda piece: b"stray line\n",
            lambda piece: b"data: \xff" + piece.encode() + b"\n\n",
            lambda piece: b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n',
            lambda piece: event({"usage": {"prompt_tokens": len(piece)}}),
        ]
    )
    many = data.draw(st.lists(st.tuples(kinds, st.sampled_from(PIECES), st.integers(1, 4)), max_size=12))
    stream = b"".join(make(piece) for make, piece, times in many for _ in range(times)) + stop() + stop(1) + DONE
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    chunks = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    assert_same("openai_chat", chunks)
    whole, deltas = play("openai_chat", [stream], _STENCIL_TRIES)
    cut, again = play("openai_chat", chunks, _STENCIL_TRIES)
    assert summary(cut) == summary(whole)
    assert coalesced(again) == coalesced(deltas)


def test_a_plain_stream_is_read_by_its_stencil() -> None:
    turn = Turn("openai_chat")
    turn.feed(chunk(role="assistant", content=""))
    turn.feed(text("a") + text("b"))
    assert len(turn._stencils) == 1
    tries = turn._stencil_tries
    turn.feed(b"".join(map(text, "cdef")))
    assert turn.answer == "abcdef"
    assert turn._stencil_tries >= tries


def test_a_stencil_that_fits_earns_its_tries_back() -> None:
    turn = Turn("openai_chat")
    for _ in range(3 * _STENCIL_TRIES):
        turn.feed(text("a") + text("b") + event({"usage": {"prompt_tokens": len(turn.answer)}}))
        turn.feed(text("c") + text("d"))
    turn.feed(text("e"))
    assert turn._stencils
    assert turn._stencil_tries == _STENCIL_TRIES


def test_any_other_effect_drops_the_stencils() -> None:
    for other in (
        stop(),
        event({"usage": {"prompt_tokens": 1}}),
        event({"model": "other"}),
        chunk(tool_calls=[{"index": 0, "id": "t"}]),
    ):
        turn = Turn("openai_chat")
        turn.feed(chunk(role="assistant") + text("a") + text("b"))
        assert turn._stencils
        turn.feed(other)
        assert not turn._stencils


def test_a_key_inside_the_text_is_no_hole() -> None:
    inside = '{"content":"x","obfuscation":"y"}'
    turn = Turn("openai_chat")
    turn.feed(b"".join(text(inside) for _ in range(5)))
    assert turn.answer == inside * 5


class TestTwins:
    """`Stencil` and `TextLog` of both backends."""

    def stencil(self, hotpath: ModuleType, literals: tuple[bytes, ...], holes: str) -> Any:
        return hotpath.Stencil("message", literals, holes, TextDelta, "answer", 0, 0, None, hotpath.TextLog())

    @pytest.mark.parametrize(
        ("data", "found"),
        [
            (b'{"n":1,"t":"a"}', "a"),
            (b'{"n":907,"t":""}', ""),
            (b'{"n":1,"t":"a\\n\\u00e9\\ud83d\\ude00"}', "a\né😀"),
            (b'{"n":1,"t":"a\\""}', 'a"'),
            (b'{"n":1,"t":"a\\"}', None),
            (b'{"n":1,"t":"a"b"}', None),
            (b'{"n":01,"t":"a"}', None),
            (b'{"n":,"t":"a"}', None),
            (b'{"n":1,"t":"\\ud83d"}', None),
            (b'{"n":1,"t":"\\x"}', None),
            (b'{"n":1,"t":"\x01"}', None),
            (b'{"n":1,"t":"\xff"}', None),
            (b'{"n":1,"t":"a"} ', None),
            (b'{"n":1,"t":"a"', None),
            (b"", None),
        ],
    )
    def test_a_match(self, hotpath: ModuleType, data: bytes, found: str | None) -> None:
        stencil = self.stencil(hotpath, (b'{"n":', b',"t":"', b'"}'), "nt")
        assert stencil.match(data) == found
        delta = stencil.delta(data)
        assert (delta and delta.text) == found
        assert stencil.log.text() == (found or "")

    def test_blanks_that_do_not_matter(self, hotpath: ModuleType) -> None:
        stencil = self.stencil(hotpath, (b'{"t":"', b'"}', b"}"), "tw")
        for data in (b'{"t":"a"}}', b'{"t":"a"} }', b'{"t":"a"}         }'):
            assert stencil.match(data) == "a"
        for data in (b'{"t":"a"}\t}', b'{"t":"a"}', b'{"t":"a"}  ', b'{"t":"a"} x}'):
            assert stencil.match(data) is None

    @given(
        st.lists(st.sampled_from([b"a", b'"', b"\\", b"\\n", b" ", b"1", b"0", b"\x01", b"\xff", b'"}', "é".encode()]))
    )
    def test_they_agree(self, pieces: list[bytes]) -> None:
        from levada import _hotpath_c, _hotpath_py

        for holes, literals in (
            ("t", (b'"', b'"}')),
            ("tw", (b'"', b'"', b"}")),
            ("st", (b'"', b'""', b'"}')),
            ("nt", (b"", b'"', b'"}')),
        ):
            data = literals[0] + b"".join(pieces) + literals[-1]
            answers = [self.stencil(twin, literals, holes).match(data) for twin in (_hotpath_c, _hotpath_py)]
            assert answers[0] == answers[1]

    def test_a_log_joins_its_pieces(self, hotpath: ModuleType) -> None:
        log = hotpath.TextLog()
        pieces = ["água", "", "水", "😀"] * 300
        ends = [log.append(piece) for piece in pieces]
        assert ends[-1] == log.length == len(log.text())
        assert log.text() == "".join(pieces)
        assert log.append("x") == ends[-1] + 1
        assert log.text() == "".join(pieces) + "x"
